//! One tenant: what it wants, what it holds, how often it passed.

use super::rank::Rank;
use std::cmp::Ordering;

/// Who wants memory. No number is used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub(super) u64);

/// What a tenant wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wants {
    /// For messages.
    pub name: String,
    /// Bytes that are of use to it. With so many, a pass copies nothing.
    pub total: u64,
    /// The least grant. Where it is above `total`, it is also the largest.
    pub floor: u64,
    /// The bytes that a higher one wants come before those of a lower one.
    pub priority: i64,
}

/// One of the residencies that are kept in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lane(usize);

/// Shadow residencies, one for each rule.
pub(super) const SHADOWS: usize = 3;

/// Shadow residencies, and the real one.
pub(super) const LANES: usize = SHADOWS + 1;

impl Lane {
    /// What tenants may hold.
    pub(super) const GRANTS: Lane = Lane(SHADOWS);

    /// The shadow of the rule with this number: whole bytes, and no leases.
    pub(super) const fn shadow(rule: usize) -> Lane {
        Lane(rule)
    }
}

#[derive(Debug)]
pub(super) struct TenantState {
    pub(super) id: TenantId,
    pub(super) name: String,
    /// The largest grant.
    pub(super) total: u64,
    pub(super) floor: u64,
    pub(super) rank: Rank,
    /// What open leases hold.
    pub(super) least: u64,
    held: [u64; LANES],
    /// What it gives to the tenant that passes, while that is being decided.
    pub(super) gives: u64,
    /// By the rule that is being asked.
    pub(super) value: f64,
    pub(super) history: History,
}

impl TenantState {
    /// Holds its floor.
    pub(super) fn new(id: TenantId, wants: Wants) -> TenantState {
        TenantState {
            id,
            name: wants.name,
            total: wants.total.max(wants.floor),
            floor: wants.floor,
            rank: Rank::of(wants.priority),
            least: 0,
            held: [wants.floor; LANES],
            gives: 0,
            value: 0.0,
            history: History::default(),
        }
    }

    /// Wants other bytes from now on. What it wanted before: the largest grant, and the floor.
    pub(super) fn want(&mut self, total: u64, floor: u64) -> (u64, u64) {
        let before = (self.total, self.floor);
        (self.total, self.floor) = (total.max(floor), floor);
        before
    }

    /// Whether it is below a rank; everybody is, if there is none.
    pub(super) fn is_below(&self, rank: Option<Rank>) -> bool {
        // rule: lower-tenants-give
        rank.is_none_or(|rank| self.rank < rank)
    }

    /// The tenant that loses its bytes first comes first.
    pub(super) fn order(&self, other: &TenantState) -> Ordering {
        let values = self.value.total_cmp(&other.value);
        let ranks = self.rank.cmp(&other.rank);
        ranks.then(values).then(other.id.cmp(&self.id))
    }

    pub(super) fn held(&self, lane: Lane) -> u64 {
        self.held[lane.0]
    }

    pub(super) fn set_held(&mut self, lane: Lane, bytes: u64) {
        self.held[lane.0] = bytes;
    }

    /// What a pass copies.
    pub(super) fn missing(&self, lane: Lane) -> u64 {
        self.total.saturating_sub(self.held(lane))
    }

    /// The least that it may hold.
    pub(super) fn lowest(&self, lane: Lane, unit: u64) -> u64 {
        match lane {
            // rule: grant-covers-floor-and-leases
            Lane::GRANTS => self.up(self.least.max(self.floor), unit),
            _ => self.floor,
        }
    }

    /// What it holds above that.
    pub(super) fn spare(&self, lane: Lane, unit: u64) -> u64 {
        self.held(lane).saturating_sub(self.lowest(lane, unit))
    }

    /// The largest possible grant up to `bytes`.
    pub(super) fn down(&self, bytes: u64, unit: u64) -> u64 {
        match bytes >= self.total {
            true => self.total,
            false => (bytes / unit * unit).max(self.floor),
        }
    }

    /// The least possible grant from `bytes` up.
    pub(super) fn up(&self, bytes: u64, unit: u64) -> u64 {
        match bytes <= self.floor {
            true => self.floor,
            false => bytes.div_ceil(unit).saturating_mul(unit).min(self.total),
        }
    }
}

/// When a tenant passed. Times count the passes of all tenants.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) passes: u64,
    /// Time of the last pass.
    pub(super) last: Option<u64>,
    /// Time from a pass to the next, smoothed.
    gap: Option<f64>,
    /// Passes of this tenant, and of all since it joined. Both fade alike.
    own: f64,
    all: f64,
    /// Share of this tenant in all passes, of late.
    pub(super) rate: f64,
}

impl History {
    /// A pass of another tenant, or of this one, began. `keep` says how slowly the past fades. A share of fewer passes than
    /// `sure` tells little: it is taken for a share of so many.
    pub(super) fn tick(&mut self, own: bool, (keep, sure): (f64, f64)) {
        self.own = self.own * keep + f64::from(u8::from(own));
        self.all = self.all * keep + 1.0;
        self.rate = self.own / self.all.max(sure);
    }

    /// A pass of this tenant began.
    pub(super) fn pass(&mut self, now: u64) {
        if let Some(last) = self.last {
            let gap = (now - last) as f64;
            self.gap = Some(self.gap.map_or(gap, |before| 0.5 * before + 0.5 * gap));
        }
        self.last = Some(now);
        self.passes += 1;
    }

    /// How long until the next pass. A tenant that is late is expected to stay away as long again. Of one pass alone nothing
    /// follows.
    pub(super) fn next(&self, now: u64) -> f64 {
        let (Some(last), Some(gap)) = (self.last, self.gap) else {
            return f64::INFINITY;
        };
        let age = (now - last) as f64;
        match gap > age {
            true => gap - age,
            false => age.max(1.0),
        }
    }
}
