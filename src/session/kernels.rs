//! Waits for kernels, and which weights they may have been using.

use super::hooks::Playing;
use super::Session;
use crate::device::Device;
use crate::error::Result;

impl<D: Device> Session<D> {
    /// From now on every kernel is waited for before the next probe, and before the lease of what it read ends.
    pub fn wait_for_every_kernel(&mut self) {
        self.pass_mut().in_flight.every_kernel = true;
    }

    /// Blocks until the kernels of the last pass have ended: their weights are not in use any more.
    pub fn finish_kernels(&mut self) -> Result<()> {
        self.store.device.finish_compute()?;
        if let Some(graphs) = &mut self.graphs {
            graphs.scratch.block.end_turn();
        }
        self.pass_mut().in_flight.begin();
        Ok(())
    }

    /// Names of the weights that kernels of the last pass may have been using, in the order of their reads: those leased
    /// since the compute stream was last seen idle. None once it has been waited for.
    pub fn weights_in_use(&self) -> Vec<String> {
        let in_flight = &self.pass().in_flight;
        let since = &self.trace().order()[in_flight.idle_at..in_flight.reached];
        let mut names: Vec<String> = Vec::new();
        for &id in in_flight.open.iter().chain(since) {
            let name = &self.store.constants().specs[self.trace().weight(id) as usize].fqn;
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        names
    }
}

impl<D: Device> Playing<'_, D> {
    /// Waits for what runs, if every kernel is to be waited for.
    #[inline]
    pub(super) fn wait_if_asked(&mut self) -> Result<()> {
        match self.pass.in_flight.every_kernel {
            true => self.wait_for_kernels(),
            false => Ok(()),
        }
    }

    #[cold]
    fn wait_for_kernels(&mut self) -> Result<()> {
        let ended = self.store.device.finish_compute();
        ended.map_err(|error| error.during(|| "waiting for each kernel".into()))?;
        let pass = &mut self.pass;
        let open = (0..).zip(&pass.leased).filter(|(_, open)| **open);
        pass.in_flight.open.clear();
        pass.in_flight.open.extend(open.map(|(id, _)| id));
        pass.in_flight.idle_at = pass.follower.position();
        Ok(())
    }
}
