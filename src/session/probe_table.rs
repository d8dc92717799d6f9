//! What each probe is answered with, in the order of their ids.
//!
//! Between two probes of a pass the driver launches kernels, so that little of what the last one used is still in the core's caches. What
//! is kept by weight lies somewhere else for each of them, and each of its cache lines is waited for; these lists are gone
//! through from front to back, where the processor fetches ahead by itself.
#![deny(unsafe_code)]

use crate::aoti::hooks::ProbeLayout;
use crate::device::DevicePtr;
use crate::schedule::{ProbeId, Trace};
use crate::store::WeightLayout;

/// All reads of a pass.
#[derive(Debug, Default)]
pub(super) struct ProbeTable {
    windows: Vec<Window>,
    /// Of each window its sizes, then its strides.
    dims: Vec<i64>,
    /// Where each read finds its weight in every pass. Empty unless all weights stay.
    places: Vec<DevicePtr>,
}

/// What a probe returns.
#[derive(Debug)]
struct Window {
    dtype: i32,
    /// Index in `dims` of the sizes, of the strides, and of their end.
    at: [u32; 3],
}

impl ProbeTable {
    /// The reads of a trace whose weights have these layouts.
    pub fn new(trace: &Trace, layouts: &[WeightLayout]) -> ProbeTable {
        let mut reads = ProbeTable::default();
        for &weight in trace.probes() {
            let WeightLayout {
                dtype,
                sizes,
                strides,
            } = &layouts[weight as usize];
            let mut keep = |list: &[i64]| {
                let at = reads.dims.len() as u32;
                reads.dims.extend(list);
                at
            };
            let at = [keep(sizes), keep(strides), keep(&[])];
            let dtype = *dtype;
            reads.windows.push(Window { dtype, at });
        }
        reads
    }

    /// What probe `id` returns, if there is such a probe.
    pub fn layout(&self, id: i64) -> Option<ProbeLayout<'_>> {
        let window = self.windows.get(usize::try_from(id).ok()?)?;
        let [sizes, strides, end] = window.at.map(|at| at as usize);
        Some(ProbeLayout {
            dtype: window.dtype,
            sizes: &self.dims[sizes..strides],
            strides: &self.dims[strides..end],
        })
    }

    /// From now on every read finds its weight where `places` has it.
    pub fn stay(&mut self, places: impl Iterator<Item = DevicePtr>) {
        self.places.clear();
        self.places.extend(places);
    }

    /// Weights come and go.
    pub fn move_on(&mut self) {
        self.places.clear();
    }

    /// Where probe `id`, one of the trace, finds its weight in every pass, if that is known.
    #[inline]
    pub fn place(&self, id: ProbeId) -> Option<DevicePtr> {
        self.places.get(id as usize).copied()
    }

    /// Whether no weight ever leaves its place.
    #[inline]
    pub fn all_stay(&self) -> bool {
        !self.places.is_empty()
    }
}
