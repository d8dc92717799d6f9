//! Which units go: those of ranges and stores of the lowest rank first, and of each range the high addresses. Only idle ones do.

use super::answer::{Cause, Freed, Refusal};
use super::state::RangesState;
use super::table::Victim;
use crate::device::UserStreams;
use crate::elastic::rank::Rank;
use crate::error::Result;
use std::ops::Range as Span;

/// Where a unit stands.
enum Standing {
    Idle,
    Pinned,
    /// Kernels still use it.
    Pending,
}

/// What was found on the way down a range.
#[derive(Default)]
struct Found {
    bytes: u64,
    /// What stores below can give beside that.
    of_stores: u64,
    pinned: bool,
    pending: bool,
}

impl<D: UserStreams> RangesState<D> {
    /// Units to take for `need` bytes, `over` of them from the range itself: lower ranges first, and of each the high addresses. And
    /// the bytes that stores are to give, which come before ranges that are above them.
    pub fn victims(
        &mut self,
        id: u64,
        above: usize,
        over: u64,
        need: u64,
    ) -> Result<std::result::Result<(Vec<Victim>, u64), Refusal>> {
        let mut victims = Vec::new();
        let mut found = Found::default();
        let mut top = usize::MAX;
        if over > 0 {
            self.walk(id, above..top, over, &mut found, &mut victims)?;
            if found.bytes < over {
                return Ok(Err(match found.pending || found.pinned {
                    true => Refusal::InUse,
                    false => Refusal::OverLimit,
                }));
            }
            top = victims.last().map_or(top, |last| last.1);
        }
        let lower = self.order.iter().rev().take_while(|&&other| other != id);
        for other in lower.copied().collect::<Vec<_>>() {
            let rank = self.range(other)?.rank;
            found.of_stores = self.pool.can_press(Some(rank));
            let left = need.saturating_sub(found.of_stores);
            self.walk(other, 0..usize::MAX, left, &mut found, &mut victims)?;
            if found.bytes >= left {
                return Ok(Ok((victims, need - found.bytes.min(need))));
            }
            if found.pending {
                // What lies further down is worth more than what will be free soon.
                return Ok(Err(Refusal::InUse));
            }
        }
        let rank = self.range(id)?.rank;
        found.of_stores = self.pool.can_press(Some(rank));
        let left = need.saturating_sub(found.of_stores);
        self.walk(id, above..top, left, &mut found, &mut victims)?;
        Ok(match found.bytes >= left {
            true => Ok((victims, need - found.bytes.min(need))),
            false if found.pinned || found.pending => Err(Refusal::InUse),
            false => Err(Refusal::NothingLower),
        })
    }

    /// Down the units of a range, until `need` bytes are found in all. A pinned unit is passed over. One that kernels still use
    /// ends the walk.
    fn walk(
        &mut self,
        id: u64,
        units: Span<usize>,
        need: u64,
        found: &mut Found,
        victims: &mut Vec<Victim>,
    ) -> Result<()> {
        let count = self.range(id)?.backed.len();
        for unit in (units.start..units.end.min(count)).rev() {
            if found.bytes >= need {
                return Ok(());
            }
            if !self.range(id)?.backed[unit] {
                continue;
            }
            match self.standing(id, unit)? {
                Standing::Idle => {
                    victims.push((id, unit));
                    found.bytes += self.range(id)?.size_of(unit);
                }
                Standing::Pinned => found.pinned = true,
                Standing::Pending => {
                    found.pending = true;
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn standing(&mut self, id: u64, unit: usize) -> Result<Standing> {
        let (range, device) = self.split(id)?;
        if range.is_pinned(unit) {
            return Ok(Standing::Pinned);
        }
        for alloc in range.allocs_of(unit) {
            // rule: unit-goes-when-its-events-are-complete
            if !alloc.is_idle(device)? {
                return Ok(Standing::Pending);
            }
        }
        Ok(Standing::Idle)
    }

    /// Ranges hold at most so many bytes together, if those up to a rank can give that: the lowest ones give first. With `wait` for
    /// kernels that still use them. The pool is not told.
    pub fn shrink(&mut self, bytes: u64, up_to: Option<Rank>, wait: bool) -> Result<()> {
        for id in self.order.clone().into_iter().rev() {
            let more = self.held().saturating_sub(bytes);
            let rank = self.range(id)?.rank;
            // rule: higher-ranges-keep-their-memory
            if more == 0 || up_to.is_some_and(|up_to| rank > up_to) {
                break;
            }
            let freed = self.free(id, more, wait, Cause::Cap)?;
            if freed.bytes < more && freed.pending > 0 {
                break;
            }
        }
        Ok(())
    }

    /// Takes `bytes` bytes of a range, from high addresses down. The pool is not told.
    pub fn free(&mut self, id: u64, bytes: u64, wait: bool, cause: Cause) -> Result<Freed> {
        let mut freed = Freed::default();
        for unit in (0..self.range(id)?.backed.len()).rev() {
            if freed.bytes >= bytes {
                break;
            }
            let range = self.range(id)?;
            if !range.backed[unit] {
                continue;
            }
            let size = range.size_of(unit);
            if wait && !range.is_pinned(unit) {
                let (range, device) = self.split(id)?;
                let mut allocs = range.allocs_of(unit).iter_mut();
                allocs.try_for_each(|alloc| alloc.finish(device))?;
            }
            match self.standing(id, unit)? {
                Standing::Idle => freed.bytes += self.evict((id, unit), false, cause, "")?,
                Standing::Pinned => freed.pinned += size,
                Standing::Pending => {
                    freed.pending += size;
                    break;
                }
            }
        }
        Ok(freed)
    }

    /// Takes a unit that is idle. Its bytes.
    pub fn evict(&mut self, victim: Victim, keep: bool, cause: Cause, by: &str) -> Result<u64> {
        let (range, device) = self.split(victim.0)?;
        device.take(range.address_of(victim.1), keep)?;
        range.lost(victim.1, cause, by);
        Ok(range.size_of(victim.1))
    }
}
