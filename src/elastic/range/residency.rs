//! What a range holds, unit by unit, and what happened to it. As values, and as JSON.

use super::answer::{Cause, Refusal};
use super::ring::SlotRing;
use super::state::RangesState;
use super::table::{Counts, Watermark};
use crate::config::quoted;
use crate::device::UserStreams;
use crate::error::Result;

/// One unit of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitState {
    /// Where it begins in the range.
    pub offset: u64,
    /// Its size.
    pub bytes: u64,
    /// It has memory.
    pub resident: bool,
    /// A fault or lease of it is open.
    pub pinned: bool,
    /// Kernels still use it.
    pub pending: bool,
}

/// What a range holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeReport {
    /// The range.
    pub name: String,
    /// The device.
    pub device: String,
    /// Bytes of addresses.
    pub bytes: u64,
    /// Bytes of memory.
    pub resident: u64,
    /// Bytes of its ring.
    pub ring: u64,
    /// Bytes of its ring that are leased.
    pub ring_leased: u64,
    /// As [`super::Range::set_limit`] said.
    pub limit: Option<u64>,
    /// Up to where faults take memory.
    pub watermark: Watermark,
    /// 0 for the range of the highest priority.
    pub place: usize,
    /// What happened.
    pub counts: Counts,
    /// From low addresses up.
    pub units: Vec<UnitState>,
}

impl<D: UserStreams> RangesState<D> {
    pub fn residency(&mut self, id: u64) -> Result<RangeReport> {
        let place = self.order.iter().position(|&other| other == id);
        let device = self.device.pages.name().to_owned();
        let mut units = Vec::new();
        for unit in 0..self.range(id)?.backed.len() {
            let (range, device) = self.split(id)?;
            let mut pending = false;
            for alloc in range.allocs_of(unit) {
                pending |= !alloc.is_idle(device)?;
            }
            units.push(UnitState {
                offset: range.offset_of(unit),
                bytes: range.size_of(unit),
                resident: range.backed[unit],
                pinned: range.is_pinned(unit),
                pending,
            });
        }
        let range = self.range(id)?;
        Ok(RangeReport {
            name: range.name.clone(),
            device,
            bytes: range.bytes,
            resident: range.resident,
            ring: range.ring.as_ref().map_or(0, |ring| ring.memory.bytes()),
            ring_leased: range.ring.as_ref().map_or(0, SlotRing::leased_bytes),
            limit: (range.limit < u64::MAX).then_some(range.limit),
            watermark: Watermark {
                bytes: range.offset_of(range.watermark),
                why: range.why.clone(),
            },
            place: place.unwrap_or(0),
            counts: range.counts,
            units,
        })
    }
}

impl RangeReport {
    /// As JSON, in one line.
    pub fn to_json(&self) -> String {
        let number =
            |value: Option<u64>| value.map_or("null".to_owned(), |value| value.to_string());
        let named = |(name, value): (&str, &u64)| format!("{}: {value}", quoted(name));
        let refused = Refusal::ALL.map(Refusal::name);
        let refused = refused.into_iter().zip(&self.counts.refused).map(named);
        let evicted = Cause::ALL.map(Cause::name);
        let evicted = evicted
            .into_iter()
            .zip(&self.counts.evicted_bytes)
            .map(named);
        format!(
            "{{\"name\": {}, \"device\": {}, \"bytes\": {}, \"resident_bytes\": {}, \"ring_bytes\": {}, \"ring_leased_bytes\": {}, \"limit_bytes\": {}, \"watermark_bytes\": {}, \
             \"watermark_why\": {}, \"place\": {}, \"hits\": {}, \"fills\": {}, \"slots\": {}, \"refused\": {{{}}}, \"evicted_bytes\": {{{}}}, \
             \"units\": [{}]}}",
            quoted(&self.name),
            quoted(&self.device),
            self.bytes,
            self.resident,
            self.ring,
            self.ring_leased,
            number(self.limit),
            self.watermark.bytes,
            self.watermark.why.as_deref().map_or("null".to_owned(), quoted),
            self.place,
            self.counts.hits,
            self.counts.fills,
            self.counts.slots,
            refused.collect::<Vec<_>>().join(", "),
            evicted.collect::<Vec<_>>().join(", "),
            self.units.iter().map(|unit| unit.to_json()).collect::<Vec<_>>().join(", ")
        )
    }
}

impl UnitState {
    fn to_json(self) -> String {
        format!(
            "{{\"offset\": {}, \"bytes\": {}, \"resident\": {}, \"pinned\": {}, \"pending\": {}}}",
            self.offset, self.bytes, self.resident, self.pinned, self.pending
        )
    }
}
