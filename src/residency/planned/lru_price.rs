//! What a pass under the LRU copies.

use super::super::{Action, Lru, Policy};
use super::cost::Price;
use crate::figures::FreeList;
use crate::schedule::{Event, MethodTrace, ProbeId, Trace, WeightSpec};

/// Passes that are played at most before the LRU's state has to have come back: as many as are played at load, where the
/// memory is emptied after each so many if it does not come back.
const PASSES: usize = 16;

/// Passes under the LRU from the first one on. After them come `passes[again..]`, over and over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LruPasses {
    /// What each copies.
    pub passes: Vec<Price>,
    /// From which one on they come again.
    pub again: usize,
}

impl LruPasses {
    /// What a pass copies in the long run.
    fn price(&self) -> Price {
        let cycle = &self.passes[self.again..];
        let mean = |of: fn(&Price) -> u64| {
            let sum: u128 = cycle.iter().map(|price| u128::from(of(price))).sum();
            (sum / cycle.len().max(1) as u128) as u64
        };
        Price {
            bytes: mean(|price| price.bytes),
            copies: mean(|price| price.copies),
        }
    }
}

/// Passes under the LRU with `capacity` bytes for weights, played as they run: in one block, where a hole too small for a
/// weight makes it give up more; where a read cannot be served so, with memory of its own for each weight. `None` if it
/// cannot serve a read.
pub fn lru_passes(
    trace: &Trace,
    weights: &[WeightSpec],
    granule: u64,
    capacity: u64,
) -> Option<LruPasses> {
    let game = |block| Game::new(trace, weights, granule, capacity, block);
    let played = game(true).passes(trace);
    played.or_else(|| game(false).passes(trace))
}

/// The price of a pass under the LRU. Its passes may differ: the mean, since one that copies little follows one that copied
/// much.
pub fn lru_price(
    trace: &Trace,
    weights: &[WeightSpec],
    granule: u64,
    capacity: u64,
) -> Option<Price> {
    lru_passes(trace, weights, granule, capacity).map(|played| played.price())
}

/// The mean over passes of all methods, by their shares, each played in passes of its own: where methods take turns, the LRU
/// copies more.
pub fn lru_mean(
    methods: &[MethodTrace<'_>],
    weights: &[WeightSpec],
    granule: u64,
    capacity: u64,
) -> Option<Price> {
    let price = |one: &MethodTrace<'_>| lru_price(one.trace, weights, granule, capacity);
    let prices: Vec<Price> = methods.iter().map(price).collect::<Option<_>>()?;
    let shares = methods.iter().map(|one| u128::from(one.share));
    let mean = |of: fn(&Price) -> u64| {
        let parts = shares.clone().zip(&prices);
        let sum: u128 = parts
            .map(|(share, price)| share * u128::from(of(price)))
            .sum();
        u64::try_from(sum / shares.clone().sum::<u128>().max(1)).ok()
    };
    Some(Price {
        bytes: mean(|price| price.bytes)?,
        copies: mean(|price| price.copies)?,
    })
}

/// Passes without a device.
struct Game<'a> {
    weights: &'a [WeightSpec],
    lru: Lru,
    /// Occupied bytes of each weight, and where they lie.
    places: Vec<(u64, u64)>,
    /// Of one block, if there is one.
    free: Option<FreeList>,
    actions: Vec<Action>,
    price: Price,
}

impl<'a> Game<'a> {
    fn new(
        trace: &Trace,
        weights: &'a [WeightSpec],
        granule: u64,
        capacity: u64,
        block: bool,
    ) -> Game<'a> {
        let sizes = weights.iter().map(|weight| weight.occupied(granule));
        Game {
            weights,
            lru: Lru::new(trace, weights, granule, capacity),
            places: sizes.map(|size| (size, u64::MAX)).collect(),
            free: block.then(|| FreeList::of(capacity - capacity % granule)),
            actions: Vec::new(),
            price: Price::default(),
        }
    }

    fn passes(mut self, trace: &Trace) -> Option<LruPasses> {
        let mut seen = Vec::new();
        let mut passes = Vec::new();
        while passes.len() < PASSES {
            self.price = Price::default();
            self.play(trace)?;
            passes.push(self.price);
            let state = (self.places.clone(), self.lru.fingerprint());
            if let Some(before) = seen.iter().position(|one| *one == state) {
                let again = before + 1;
                return Some(LruPasses { passes, again });
            }
            seen.push(state);
        }
        Some(LruPasses { passes, again: 0 })
    }

    fn play(&mut self, trace: &Trace) -> Option<()> {
        let mut open: Vec<ProbeId> = Vec::new();
        for event in &trace.events()[..trace.tail()] {
            match *event {
                Event::Kernel(_) => continue,
                Event::Probe(id) => {
                    self.serve(id)?;
                    self.lru.lease(id);
                    open.push(id);
                }
                Event::Release(id) => {
                    open.retain(|&other| other != id);
                    self.lru.release(id);
                }
            }
            self.look_ahead();
        }
        // What lasts to the end of the pass ends in access order.
        for id in open {
            self.lru.release(id);
        }
        self.look_ahead();
        Some(())
    }

    fn serve(&mut self, id: ProbeId) -> Option<()> {
        self.lru.demand(id, &mut self.actions).ok()?;
        while !self.carry_out() {
            if !self.lru.make_room(&mut self.actions) {
                return None;
            }
            self.lru.demand(id, &mut self.actions).ok()?;
        }
        Some(())
    }

    fn look_ahead(&mut self) {
        self.lru.ahead(&mut self.actions);
        while !self.carry_out() && self.lru.make_room(&mut self.actions) {
            self.lru.ahead(&mut self.actions);
        }
    }

    /// Whether there was a piece for each load. If not, what was planned from there on is taken back.
    fn carry_out(&mut self) -> bool {
        let done = (0..self.actions.len()).find(|&at| !self.perform(at));
        let from = done.unwrap_or(self.actions.len());
        for undone in self.actions.drain(from..).rev() {
            match undone {
                Action::Evict { weight } => self.lru.evict_failed(weight),
                Action::Load { weight, .. } => self.lru.load_failed(weight),
            }
        }
        self.actions.clear();
        done.is_none()
    }

    fn perform(&mut self, at: usize) -> bool {
        let weight = match self.actions[at] {
            Action::Evict { weight, .. } | Action::Load { weight, .. } => weight,
        };
        let (size, place) = &mut self.places[weight as usize];
        match &self.actions[at] {
            Action::Evict { .. } => {
                let at = std::mem::replace(place, u64::MAX);
                if let Some(free) = &mut self.free {
                    free.give(at, *size);
                }
            }
            Action::Load { range, .. } => {
                if let Some(free) = &mut self.free {
                    let Some(at) = free.take(*size) else {
                        return false;
                    };
                    *place = at;
                }
                self.price.bytes += self.weights[weight as usize].stored_of(range);
                self.price.copies += 1;
            }
        }
        true
    }
}

#[cfg(test)]
#[path = "lru_price_tests.rs"]
mod tests;
