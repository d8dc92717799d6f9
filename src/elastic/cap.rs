//! The cap of a pool: a number, or what is free on the device.
//!
//! Free memory jitters: other programs come and go, and what tenants take beside their weights grows in their first passes. So a cap
//! that follows it sinks at once and rises late: to what was free in each of the last passes, and only if that is much more.

/// Passes that have to agree before the cap rises.
const PASSES: u32 = 16;

/// It rises by at least one of so many parts.
const MUCH: u64 = 20;

#[derive(Debug, Default)]
pub(super) struct Cap {
    /// The number that was given.
    fixed: Option<u64>,
    /// What follows from free memory, once it was looked at.
    seen: Option<u64>,
    /// The least that was seen since the cap moved, and how often.
    least: u64,
    times: u32,
}

impl Cap {
    pub fn fix(&mut self, bytes: u64) {
        *self = Cap {
            fixed: Some(bytes),
            ..Cap::default()
        };
    }

    /// From the next look at free memory on.
    pub fn follow_free(&mut self) {
        *self = Cap::default();
    }

    /// Whether free memory has to be looked at.
    pub fn follows(&self) -> bool {
        self.fixed.is_none()
    }

    /// Whether it is a number, or free memory was looked at.
    pub fn is_known(&self) -> bool {
        self.fixed.or(self.seen).is_some()
    }

    /// So much is there for the tenants now. The new cap, if it is another one.
    pub fn observe(&mut self, available: u64) -> Option<u64> {
        if !self.follows() {
            return None;
        }
        let Some(cap) = self.seen else {
            return self.moves(available);
        };
        if available < cap {
            return self.moves(available);
        }
        self.least = match self.times {
            0 => available,
            _ => self.least.min(available),
        };
        self.times += 1;
        if self.times < PASSES {
            return None;
        }
        let least = self.least;
        self.times = 0;
        match least - cap >= cap / MUCH {
            true => self.moves(least),
            false => None,
        }
    }

    fn moves(&mut self, bytes: u64) -> Option<u64> {
        self.seen = Some(bytes);
        self.times = 0;
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_sinks_at_once_and_rises_late() {
        let mut cap = Cap::default();
        assert_eq!(cap.observe(1000), Some(1000));
        assert_eq!(cap.observe(900), Some(900));
        // Jitter moves nothing.
        for _ in 0..6 * PASSES {
            assert_eq!(cap.observe(920), None);
        }
        for pass in 1..PASSES {
            assert_eq!(cap.observe(2000 - u64::from(pass)), None);
        }
        assert_eq!(cap.observe(3000), Some(2000 - u64::from(PASSES) + 1));
    }

    #[test]
    fn a_number_follows_nothing() {
        let mut cap = Cap::default();
        cap.fix(500);
        assert_eq!(cap.observe(10), None);
        cap.follow_free();
        assert_eq!(cap.observe(10), Some(10));
    }
}
