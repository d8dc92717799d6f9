//! Models with packed weights.

use super::{chain, Model};
use std::sync::Arc;
use weightstream::device::{HostBytes, Source};
use weightstream::format::packed::encode;
use weightstream::store::source_of;
use weightstream::weights::{PackedWeight, SharedBytes};

/// A model whose weights of even index are packed, and what is stored of them.
#[allow(dead_code, reason = "each test binary uses a part of it")]
pub struct Packed {
    pub model: Model,
    pub stored: Vec<Option<(SharedBytes, Arc<PackedWeight>)>>,
}

/// Bytes of bf16 values as weights have them: exponents of a few values.
fn weights(bytes: &mut [u8]) {
    for (at, pair) in bytes.chunks_exact_mut(2).enumerate() {
        let exponent = 120
            - (at as u32)
                .wrapping_mul(0x9E37_79B1)
                .leading_zeros()
                .min(12) as u16;
        let value = exponent << 7 | u16::from_le_bytes([pair[0], pair[1]]) & 0x807f;
        pair.copy_from_slice(&value.to_le_bytes());
    }
}

/// The stored bytes of these raw ones, and how they become them.
fn packed(raw: &[u8]) -> (SharedBytes, Arc<PackedWeight>) {
    let array = encode(raw).unwrap();
    let mut stored = array.payload;
    stored.extend(array.directory.iter().flat_map(|word| word.to_le_bytes()));
    let crc32 = crc32fast::hash(&stored);
    let stored = SharedBytes::from_vec(stored);
    let name = "model.ptd, packed entry 'w'".to_owned();
    let weight = PackedWeight::new(name, array.header, crc32, &stored).unwrap();
    (stored, Arc::new(weight))
}

impl Packed {
    pub fn new(weights_of: &[u64]) -> Packed {
        let mut model = chain(weights_of);
        let stored = model.bytes.iter_mut().enumerate().map(|(index, bytes)| {
            weights(bytes);
            let packed = (index % 2 == 0).then(|| packed(bytes))?;
            model.constants.specs[index].stored = packed.0.len();
            Some(packed)
        });
        let stored = stored.collect();
        Packed { model, stored }
    }

    /// What a file has of each constant.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let all = self.model.bytes.iter().zip(&self.stored);
        all.map(|(raw, stored)| match stored {
            None => raw,
            Some((stored, _)) => stored.as_slice(),
        })
    }

    /// What is copied, where these are the parts of a file.
    pub fn sources_of(&self, parts: impl IntoIterator<Item = HostBytes>) -> Vec<Source> {
        let all = parts.into_iter().zip(&self.stored);
        let packed = |stored: &Option<(SharedBytes, Arc<PackedWeight>)>| {
            let (_, weight) = stored.as_ref()?;
            Some(Arc::clone(weight))
        };
        all.map(|(bytes, stored)| source_of(bytes, packed(stored).as_ref()))
            .collect()
    }

    pub fn sources(&self) -> Vec<Source> {
        // SAFETY: the tests drop their sessions before their models, and change nothing.
        let host = |bytes: &[u8]| unsafe { HostBytes::new(bytes.as_ptr(), bytes.len() as u64) };
        self.sources_of(self.parts().map(host))
    }

    /// The directories of all packed weights.
    pub fn directories(&self) -> impl Iterator<Item = &[u32]> {
        let packed = self.stored.iter().flatten();
        packed.map(|(_, weight)| weight.directory())
    }

    /// Bytes that copies of all weights bring.
    pub fn stored_bytes(&self) -> u64 {
        self.model
            .constants
            .specs
            .iter()
            .map(|spec| spec.stored)
            .sum()
    }
}
