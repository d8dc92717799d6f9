//! What a plan is made for: sizes, the room for them, and what a copy costs.

use crate::figures::DeviceModel;
use crate::schedule::{MethodTrace, WeightIndex, WeightSpec};
use std::ops::Range;

/// Bytes of weights of which no sum here can overflow. Sizes come from files.
const LARGEST: u64 = 1 << 60;

/// One program on one device with one budget.
pub(super) struct Problem<'a> {
    pub weights: &'a [WeightSpec],
    /// Occupied bytes, by index; 0 for what is not read through probes.
    pub sizes: Vec<u64>,
    /// Of all weights.
    pub total: u64,
    /// Bytes that a plan may take.
    pub room: u64,
    pub page: u64,
    /// What a copy costs beyond its bytes, in bytes.
    pub per_copy: u64,
    /// Packed weights that stream do so as a whole, without heads.
    pub packed_whole: bool,
}

impl<'a> Problem<'a> {
    /// `None` where memory cannot be mapped, or sizes are absurd.
    pub(super) fn new(
        methods: &[MethodTrace<'_>],
        weights: &'a [WeightSpec],
        model: &DeviceModel,
        capacity: u64,
    ) -> Option<Self> {
        let page = model.page?;
        let granule = model.granule;
        let mut sizes = vec![0; weights.len()];
        for &weight in methods.iter().flat_map(|one| one.trace.probes()) {
            sizes[weight as usize] = model.occupied(weights[weight as usize].occupied(granule));
        }
        let total = sizes
            .iter()
            .fold(0u64, |sum, size| sum.saturating_add(*size));
        (total <= LARGEST).then_some(Problem {
            weights,
            sizes,
            total,
            room: room(model, page, capacity),
            page,
            per_copy: model.bytes_per_copy,
            packed_whole: false,
        })
    }

    pub(super) fn bytes(&self, weight: WeightIndex) -> u64 {
        self.weights[weight as usize].bytes
    }

    /// Bytes that a copy of these of its bytes brings over the link.
    pub(super) fn stored_of(&self, weight: WeightIndex, range: &Range<u64>) -> u64 {
        self.weights[weight as usize].stored_of(range)
    }

    pub(super) fn size(&self, weight: WeightIndex) -> u64 {
        self.sizes[weight as usize]
    }

    /// Whether it has no head, if it streams.
    pub(super) fn is_whole(&self, weight: WeightIndex) -> bool {
        let packed = self.packed_whole && self.weights[weight as usize].is_packed();
        packed || self.is_streamed(weight)
    }

    /// Whether each pass copies all of it.
    pub(super) fn is_streamed(&self, weight: WeightIndex) -> bool {
        self.weights[weight as usize].is_streamed()
    }

    /// Occupied bytes of these weights.
    pub(super) fn size_of(&self, weights: &[WeightIndex]) -> u64 {
        weights.iter().map(|&weight| self.size(weight)).sum()
    }
}

/// Bytes for weights that, with the direct constants in pages of their own, take no more pages than the budget has. The
/// last page of either may be used in part.
pub(super) fn room(model: &DeviceModel, page: u64, capacity: u64) -> u64 {
    let budget = capacity.saturating_add(model.apart).div_ceil(page);
    let pages = budget.saturating_sub(model.apart.div_ceil(page));
    let whole = capacity - capacity % model.granule;
    whole.min(pages.saturating_mul(page))
}
