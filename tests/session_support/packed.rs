//! Models with packed weights.

use super::{chain, Model};
use std::sync::Arc;
use weightstream::device::{BlockCode, HostBytes, Source};
use weightstream::figures::NumberForm;
use weightstream::format::packed::encode;
use weightstream::store::{code_of, source_of};
use weightstream::weights::{PackedWeight, SharedBytes};

/// A model whose weights of even index are packed, and what is stored of them.
#[allow(dead_code, reason = "each test binary uses a part of it")]
pub struct Packed {
    pub model: Model,
    pub stored: Vec<Option<(SharedBytes, Arc<PackedWeight>)>>,
}

/// Has these bytes be numbers as weights have them: exponents of a few values, and rarely any.
fn weights(form: NumberForm, bytes: &mut [u8]) {
    let (mantissa, exponent) = (form.mantissa_bits(), form.exponent_bits());
    let largest = (1 << (exponent - 1)) - 2;
    for (at, number) in bytes.chunks_exact_mut(form.bytes()).enumerate() {
        let below = (at as u32).wrapping_mul(0x9E37_79B1).leading_zeros();
        let mut word = [0; 4];
        word[..form.bytes()].copy_from_slice(number);
        let kept = u32::from_le_bytes(word) & !(((1 << exponent) - 1) << mantissa);
        let exponent = match at % 61 {
            0 => (at as u32 / 61) & ((1 << exponent) - 1),
            _ => largest - below.min(12).min(largest),
        };
        let word = kept | exponent << mantissa;
        number.copy_from_slice(&word.to_le_bytes()[..form.bytes()]);
    }
}

/// The stored bytes of these raw ones, and how they become them.
fn packed(form: NumberForm, raw: &[u8]) -> (SharedBytes, Arc<PackedWeight>) {
    let array = encode(form, raw).unwrap();
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
        Packed::of_forms(weights_of, &[NumberForm::Bf16])
    }

    /// The packed ones take turns with these forms.
    pub fn of_forms(weights_of: &[u64], forms: &[NumberForm]) -> Packed {
        let mut model = chain(weights_of);
        let stored = model.bytes.iter_mut().enumerate().map(|(index, bytes)| {
            let form = forms[index / 2 % forms.len()];
            weights(form, bytes);
            let packed = (index % 2 == 0).then(|| packed(form, bytes))?;
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

    /// What a device knows of all packed weights.
    pub fn codes(&self) -> impl Iterator<Item = BlockCode<'_>> {
        let packed = self.stored.iter().flatten();
        packed.map(|(_, weight)| code_of(weight))
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
