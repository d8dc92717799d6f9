//! Which pool the weights get, found out at load: passes are played without copies, so that memory that falls into pieces is
//! an error of the load and not of some pass.

use super::{Pass, Rehearsal, Session};
use crate::aoti::hooks::PassHooks;
use crate::device::Device;
use crate::error::{bytes_text, Error, Result};
use crate::schedule::Event;

/// Passes that are played at most. After two or three the places of the weights mostly come back; where they do not within
/// these, the memory is emptied after each so many passes, so that none is played that was not tried.
const PASSES: usize = 16;

impl<D: Device> Session<D> {
    /// Takes the memory of the budget in the best way in which this program runs: one block that is divided here, else
    /// single allocations.
    pub(super) fn choose_pool(&mut self) -> Result<()> {
        let probes = |pass: &Pass| !pass.method().trace.probes().is_empty();
        let streams = self.store.layout().is_per_weight() && self.passes.iter().any(probes);
        if !streams {
            return self.store.reserve_direct();
        }
        if self.device().prefers_one_block() {
            self.store.open_block()?;
            match self.rehearse() {
                Err(Error::OutOfMemory { what, bytes }) => {
                    log::info!(
                        "one block for all weights would fall into pieces ({what}, where {bytes} bytes are needed): \
                         each weight gets memory of its own"
                    );
                    self.store.close_block()?;
                }
                outcome => return outcome,
            }
        }
        self.store.reserve_direct()?;
        let budget = bytes_text(self.store.budget());
        self.rehearse().map_err(|error| match error {
            Error::OutOfMemory { what, bytes } => Error::OutOfMemory {
                what: format!(
                    "{what}; a budget of {budget} is enough in sum, but its memory would fall into pieces in which this \
                     program cannot run: give it more"
                ),
                bytes,
            },
            other => other,
        })
    }

    /// Plays passes without copies until the weights lie where they lay after an earlier one, and then gives everything up
    /// again. [`Error::OutOfMemory`] if a read could not be served.
    fn rehearse(&mut self) -> Result<()> {
        let counted = self.store.stats;
        self.store.rehearsing = true;
        self.rehearsal = Rehearsal::default();
        let outcome = self.play_all_methods();
        self.store.end_rehearsal(counted);
        self.pass_mut().follower.restart();
        // As the policy has it.
        self.method = 0;
        self.rehearsal.passes_since_empty = 0;
        outcome
    }

    /// Each method from empty memory on.
    fn play_all_methods(&mut self) -> Result<()> {
        let mut outcome = Ok(());
        for method in (0..self.passes.len()).rev() {
            // The first one last: its turn it is after the load.
            outcome = outcome.and_then(|()| self.turn_to(method));
            outcome = outcome.and_then(|()| self.play_until_periodic());
            self.pass_mut().follower.restart();
            outcome = outcome.and(self.store.give_up_all());
        }
        outcome
    }

    fn play_until_periodic(&mut self) -> Result<()> {
        let mut seen = Vec::new();
        while seen.len() < PASSES {
            self.play_once()?;
            let state = self.store.pooled_state();
            if seen.contains(&state) {
                return Ok(());
            }
            seen.push(state);
        }
        log::debug!("the places of the weights do not come back within {PASSES} passes");
        self.rehearsal.empty_after = Some(PASSES);
        Ok(())
    }

    fn play_once(&mut self) -> Result<()> {
        let events = self.trace().events().to_vec();
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
        let order = self.trace().order().to_vec();
        for id in order.into_iter().rev() {
            if self.pass().leased[id as usize] {
                self.release(i64::from(id));
            }
        }
        let ended = self.end_pass(played.is_ok());
        played.and(ended)
    }

    /// After a complete pass.
    pub(super) fn empty_when_due(&mut self) {
        let rehearsal = &mut self.rehearsal;
        rehearsal.passes_since_empty += 1;
        let due = rehearsal.empty_after == Some(rehearsal.passes_since_empty);
        if due && !self.store.rehearsing {
            self.start_afresh();
        }
    }

    /// After a pass that was not completed, and when it is due: what was rehearsed begins with empty memory. In another state
    /// a later pass might find it in pieces that were never tried.
    pub(super) fn start_afresh(&mut self) {
        self.store.abort();
        // rule: poisoned-store-keeps-its-memory
        let may_be_emptied =
            !self.store.is_poisoned() && !self.store.rehearsing && !self.store.has_given_way();
        if self.pass().open_leases == 0 && may_be_emptied {
            self.rehearsal.passes_since_empty = 0;
            if let Err(error) = self.store.give_up_all() {
                log::warn!("memory could not be given up between passes: {error}");
            }
        }
    }
}
