//! Packed weights as what a device brings.

use crate::device::{BlockCode, Decode, HostBytes, Source};
use crate::error::Result;
use crate::weights::PackedWeight;
use std::sync::Arc;

impl Decode for PackedWeight {
    fn decode(&self, stored: &[u8], start: u64, bytes: &mut [u8]) -> Result<()> {
        PackedWeight::decode(self, stored, start, bytes)
    }

    fn blocks(&self) -> Option<BlockCode<'_>> {
        Some(code_of(self))
    }
}

/// What a device has to know that decodes by itself.
pub fn code_of(weight: &PackedWeight) -> BlockCode<'_> {
    BlockCode {
        form: weight.header().form,
        exponents: weight.header().exponents,
        bytes: weight.bytes(),
        directory: weight.directory(),
    }
}

/// What a constant is copied from, whose stored bytes these are.
pub fn source_of(stored: HostBytes, packed: Option<&Arc<PackedWeight>>) -> Source {
    match packed {
        Some(packed) => Source::decoded(
            stored,
            packed.bytes(),
            Arc::clone(packed) as Arc<dyn Decode>,
        ),
        None => stored.into(),
    }
}
