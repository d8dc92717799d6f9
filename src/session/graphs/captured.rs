//! A captured pass, and its replay.
//!
//! A replay issues what the captured pass issued, so it is only right where that pass was: with the same weights on the device
//! in the same places. A pass of a plan leaves them as it found them, once the first one is over; whether it did is compared.
//! Whatever else runs in between (a pass that was not captured, one that failed) leaves the graph unprimed: then the ring is
//! primed, or a complete pass brings that state back.

use super::block::{Held, SharedBlock};
use crate::counters::Stats;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::session::Pass;
use crate::store::{Store, StoreState};

/// A pass that is being captured, or was.
pub(super) struct Begun {
    /// The memory of its inputs and activations.
    pub(super) held: Held,
    /// Which weights were on the device where it began, and what the policy thought.
    pub(super) primed: StoreState,
    /// What it counted; while it is captured, what had been counted before it.
    pub(super) counted: Stats,
}

/// A captured pass. It holds device memory: give it back with [`Session::forget_graph`](crate::session::Session::forget_graph).
pub struct CapturedPass<D: Device> {
    pub(super) graph: D::Graph,
    pub(super) pass: Begun,
}

impl<D: Device> CapturedPass<D> {
    /// Whether the device is as the captured pass found it.
    pub(super) fn is_primed(&self, store: &Store<D>) -> bool {
        // rule: replay-finds-the-captured-state
        self.pass.primed == store.state()
    }

    /// Whether it can never be replayed again.
    pub(super) fn is_outdated(&self, store: &Store<D>, block: &SharedBlock) -> bool {
        block.is_gone(&self.pass.held) || store.has_moved_since(&self.pass.primed)
    }

    /// Issues it, after everything issued so far.
    pub(super) fn replay(
        &self,
        store: &mut Store<D>,
        pass: &mut Pass,
        block: &mut SharedBlock,
    ) -> Result<()> {
        store.check_usable()?;
        if pass.running || !self.is_primed(store) || self.is_outdated(store, block) {
            return Err(Error::Internal(
                "a graph was to be replayed where its pass was not captured".to_owned(),
            ));
        }
        block.take_turn()?;
        let issued = self.issue(store, pass, block);
        issued.inspect_err(|_| block.end_turn())
    }

    fn issue(&self, store: &mut Store<D>, pass: &mut Pass, block: &mut SharedBlock) -> Result<()> {
        if !block.replayed {
            // Its copies wait for no others.
            // rule: replay-waits-for-the-pass-before
            store.device.synchronize()?;
            store.forget_events();
        }
        pass.in_flight.begin();
        pass.in_flight.end(pass.method.trace.order().len());
        block.replayed = true;
        store.device.replay(&self.graph)?;
        store.stats.add(&self.pass.counted);
        store.stats.replays += 1;
        Ok(())
    }

    /// Gives it and the memory of its activations up.
    pub(super) fn end(self, store: &mut Store<D>, block: &mut SharedBlock) -> Result<()> {
        block.finish_replays(&mut store.device)?;
        drop(self.graph);
        block.let_go(&mut store.device, &self.pass.held)
    }
}

/// Brings the device to this state, if other passes ran since: the ring gets the tails that it had then. `false` if that cannot be had.
pub(super) fn prime<D: Device>(
    state: &StoreState,
    store: &mut Store<D>,
    pass: &Pass,
    block: &mut SharedBlock,
) -> Result<bool> {
    // rule: graphs-begin-with-the-ring-full
    if *state == store.state() {
        return Ok(true);
    }
    pass.check_may_begin(store.constants())?;
    block.finish_replays(&mut store.device)?;
    // rule: graph-is-primed
    store.return_to(state)?;
    Ok(*state == store.state())
}
