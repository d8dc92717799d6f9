//! Which pool the weights get, found out at load: passes are played without copies, so that memory that falls
//! into pieces is an error of the load and not of some pass.

use super::{build, DeviceWeight, Session};
use crate::aoti::hooks::PassHooks;
use crate::device::{Device, DevicePtr};
use crate::error::{bytes_text, Error, Result};
use crate::residency::{Arena, Memory, Policy, StreamOrdered};
use crate::schedule::Event;

/// Passes that are played at most. After two or three the places of the weights mostly come back; where they do
/// not within these, the memory is emptied after each so many passes, so that none is played that was not tried.
const PASSES: usize = 16;

fn all_direct(doing: &'static str) -> impl FnOnce(Error) -> Error {
    move |error| error.during(|| format!("{doing} the memory of all direct constants"))
}

impl<D: Device> Session<D> {
    /// Takes the memory of the budget in the best way in which this program runs: one block that is divided
    /// here, else single allocations. `policy` makes a policy that has seen nothing.
    pub(super) fn choose_pool(&mut self, policy: &dyn Fn() -> Box<dyn Policy>) -> Result<()> {
        let streams =
            self.layout.memory == Memory::PerWeight && !self.program.trace.probes().is_empty();
        if !streams {
            return self.reserve_direct();
        }
        if self.device.prefers_one_block() {
            let budget = self.stats.budget_bytes;
            let whole = budget - budget % self.device.granule();
            let block = Arena::open(&mut self.device, whole);
            self.pool = Box::new(block.map_err(|error| {
                error.during(|| format!("one block for all weights, the budget of {whole} bytes"))
            })?);
            self.reserve_direct()?;
            match self.rehearse(policy) {
                Err(Error::OutOfMemory { what, bytes }) => {
                    log::info!(
                        "one block for all weights would fall into pieces ({what}, where {bytes} bytes are needed): \
                         each weight gets memory of its own"
                    );
                    self.give_direct_back()?;
                    let closed = self.pool.close(&mut self.device);
                    closed.map_err(|error| error.during(|| "the block of all weights".into()))?;
                    self.pool = Box::new(StreamOrdered::new(self.stats.budget_bytes));
                }
                outcome => return outcome,
            }
        }
        self.reserve_direct()?;
        self.rehearse(policy).map_err(|error| match error {
            Error::OutOfMemory { what, bytes } => Error::OutOfMemory {
                what: format!(
                    "{what}; a budget of {} is enough in sum, but its memory would fall into pieces in which this \
                     program cannot run: give it more",
                    bytes_text(self.stats.budget_bytes)
                ),
                bytes,
            },
            other => other,
        })
    }

    fn reserve_direct(&mut self) -> Result<()> {
        let (pool, bytes) = (&mut self.pool, self.floor.direct);
        // Beside pages nothing is ever freed: the memory of the direct constants needs no pool of the device's.
        let taken = match self.layout.view() {
            Some(_) => pool.take_lasting(&mut self.device, bytes),
            None => pool.take(&mut self.device, bytes),
        };
        self.direct = taken.map_err(all_direct("taking"))?;
        Ok(())
    }

    fn give_direct_back(&mut self) -> Result<()> {
        let given = self
            .pool
            .give(&mut self.device, self.direct, self.floor.direct);
        given.map_err(all_direct("giving back"))?;
        self.direct = DevicePtr::EMPTY;
        Ok(())
    }

    /// Plays passes without copies until the weights lie where they lay after an earlier one, and then gives
    /// everything up again. [`Error::OutOfMemory`] if a read could not be served.
    fn rehearse(&mut self, policy: &dyn Fn() -> Box<dyn Policy>) -> Result<()> {
        let kept = self.stats;
        self.rehearsing = true;
        self.empty_after = None;
        let outcome = self.play_until_periodic();
        let ended = self.give_up_all();
        self.rehearsing = false;
        self.policy = policy();
        self.follower.restart();
        self.passes_since_empty = 0;
        self.stats = kept;
        self.fragmentation_misses = 0;
        self.pool.forget_peak();
        outcome.and(ended)
    }

    fn play_until_periodic(&mut self) -> Result<()> {
        let mut seen: Vec<(Vec<Option<DevicePtr>>, Vec<u32>)> = Vec::new();
        while seen.len() < PASSES {
            self.play_once()?;
            let place = |tenant: &DeviceWeight<D::Event>| tenant.pooled.then_some(tenant.at);
            let places = self.tenants.iter().map(place).collect();
            let state = (places, self.policy.fingerprint());
            if seen.contains(&state) {
                return Ok(());
            }
            seen.push(state);
        }
        log::debug!("the places of the weights do not come back within {PASSES} passes");
        self.empty_after = Some(PASSES);
        Ok(())
    }

    fn play_once(&mut self) -> Result<()> {
        let events = self.program.trace.events().to_vec();
        self.begin_pass()?;
        let played = events.iter().try_for_each(|event| match *event {
            Event::Probe(id) => self.probe(i64::from(id)).map(|_| ()),
            Event::Release(id) => {
                self.release(i64::from(id));
                Ok(())
            }
            Event::Kernel(_) => Ok(()),
        });
        // What is still open ends when the compiled function returns, last one first.
        let order = self.program.trace.order().to_vec();
        for id in order.into_iter().rev() {
            if self.leased[id as usize] {
                self.release(i64::from(id));
            }
        }
        let ended = self.end_pass(played.is_ok());
        played.and(ended)
    }

    /// Behind a complete pass.
    pub(super) fn empty_when_due(&mut self) {
        self.passes_since_empty += 1;
        if self.empty_after == Some(self.passes_since_empty) && !self.rehearsing {
            self.start_afresh();
        }
    }

    /// Behind a pass that was not completed, and when it is due: what was rehearsed begins with empty memory. In
    /// another state a later pass might find it in pieces that were never tried.
    pub(super) fn start_afresh(&mut self) {
        self.policy.abort();
        if self.open_leases == 0 && self.poisoned.is_none() && !self.rehearsing {
            self.passes_since_empty = 0;
            if let Err(error) = self.give_up_all() {
                log::warn!("memory could not be given up between passes: {error}");
            }
        }
    }

    /// Nothing is leased any more: all weights can go.
    pub(super) fn give_up_all(&mut self) -> Result<()> {
        self.policy.abort();
        while self.policy.make_room(&mut self.actions) {
            self.carry_out()?;
        }
        let left = self.tenants.iter().position(|tenant| tenant.pooled);
        left.map_or(Ok(()), |weight| {
            Err(Error::Internal(format!(
                "{} kept its memory when all was given up",
                build::weight_name(&self.program, weight as u32)
            )))
        })
    }
}
