//! Weights with fewer bytes in their file than on the device: packed ones.

use crate::session_support::{chain, play, Kernels, Model, Pass};
use std::ops::Range;
use std::sync::Arc;
use weightstream::config::PolicyKind;
use weightstream::device::sim::Order;
use weightstream::device::{Device, HostBytes, HostDevice, Sim, Source};
use weightstream::format::packed::{encode, PackedEntry};
use weightstream::format::{EntryLayout, ScalarType};
use weightstream::session::Session;
use weightstream::store::{source_of, StoreOptions};
use weightstream::weights::{PackedWeight, SharedBytes};
use weightstream::Error;

/// A model whose weights of even index are packed, and what is stored of them.
struct Packed {
    model: Model,
    stored: Vec<Option<(SharedBytes, Arc<PackedWeight>)>>,
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
    let entry = PackedEntry {
        layout: EntryLayout {
            dtype: ScalarType::BF16,
            sizes: vec![raw.len() as i64 / 2],
            dim_order: vec![0],
        },
        header: array.header,
        crc32: crc32fast::hash(&stored),
    };
    let stored = SharedBytes::from_vec(stored);
    let weight = PackedWeight::new("model.ptd", "w", entry, &stored).unwrap();
    (stored, Arc::new(weight))
}

impl Packed {
    fn new(weights_of: &[u64]) -> Packed {
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

    fn sources(&self) -> Vec<Source> {
        let all = self.model.host_bytes().into_iter().zip(&self.stored);
        let one = |(bytes, stored): (HostBytes, &Option<(SharedBytes, Arc<PackedWeight>)>)| {
            match stored {
                None => bytes.into(),
                Some((stored, packed)) => {
                    // SAFETY: the tests drop their sessions before their models, and change nothing.
                    let stored = unsafe { HostBytes::new(stored.addr(), stored.len()) };
                    source_of(stored, Some(packed))
                }
            }
        };
        all.map(one).collect()
    }

    fn load<D: Device>(&self, device: D, budget: u64) -> Session<D> {
        let options = StoreOptions {
            budget: Some(budget),
            policy: PolicyKind::Planned,
            elastic: true,
            ..StoreOptions::default()
        };
        Session::new(device, self.model.program(), self.sources(), options).unwrap()
    }

    fn verify<D: Device>(&self, session: &mut Session<D>) {
        let sums = self.model.bytes.iter().map(|bytes| crc32fast::hash(bytes));
        session.verify_every_read(sums.collect()).unwrap();
    }

    /// Bytes that copies of all weights bring.
    fn stored_bytes(&self) -> u64 {
        self.model
            .constants
            .specs
            .iter()
            .map(|spec| spec.stored)
            .sum()
    }
}

/// Load, plan, passes and budgets; every read compared with the weight's bytes, and each copy counted as what it brings.
fn runs_at_every_budget<D: Kernels>(device: D, unit: u64) {
    let packed = Packed::new(&[unit; 12]);
    let all: u64 = packed
        .model
        .bytes
        .iter()
        .map(|bytes| bytes.len() as u64)
        .sum();
    let mut session = packed.load(device, all + 8 * unit);
    assert_eq!(session.stats().bytes_copied, packed.stored_bytes());
    assert!(session.stats().bytes_copied < all * 9 / 10);
    packed.verify(&mut session);
    for percent in [100, 40, 75, 30, 90] {
        session.set_budget(all * percent / 100).unwrap();
        play(&packed.model, &mut session, Pass::Complete).unwrap();
        let before = session.stats().bytes_copied;
        play(&packed.model, &mut session, Pass::Complete).unwrap();
        let copied = session.stats().bytes_copied - before;
        let plan = session.store().residency().plan().unwrap();
        assert_eq!(copied, plan.copied(0), "{percent} %");
        let tails: u64 = plan
            .streamed
            .iter()
            .map(|one| one.range.end - one.range.start)
            .sum();
        assert!(
            copied <= tails && (percent == 100 || copied < tails),
            "{percent} %"
        );
        session.device_mut().check();
    }
}

#[test]
fn stored_bytes_become_others_on_the_simulator() {
    for order in [Order::CopiesFirst, Order::KernelsFirst, Order::Random(7)] {
        runs_at_every_budget(Sim::new(order), 16 << 10);
    }
}

#[test]
fn stored_bytes_become_others_on_the_host() {
    runs_at_every_budget(HostDevice::new().unwrap(), 64 << 10);
}

/// What is stored has to be what the record says, and a part of a source is that part of the weight.
#[test]
fn sources_are_checked_and_cut() {
    let packed = Packed::new(&[20_000; 2]);
    let mut program = packed.model.program();
    program.0.specs[0].stored = 20_000;
    let options = StoreOptions::default();
    let refused = Session::new(
        Sim::new(Order::CopiesFirst),
        program,
        packed.sources(),
        options,
    );
    assert!(matches!(
        refused.err(),
        Some(Error::Mismatch {
            fact: "number of stored bytes",
            ..
        })
    ));
    let whole = &packed.sources()[0];
    let parts: [Range<u64>; 3] = [0..101, 101..9000, 9000..20_000];
    let stored = parts.map(|part| whole.part(part).stored_bytes());
    assert_eq!(whole.len(), 20_000);
    assert_eq!(whole.stored_bytes(), stored.iter().sum::<u64>());
}

/// Any part of a weight is decoded by itself, from the middle of a block too.
#[test]
fn any_part_is_decoded_alone() {
    let packed = Packed::new(&[50_000]);
    let (stored, weight) = packed.stored[0].as_ref().unwrap();
    let raw = &packed.model.bytes[0];
    for start in [0, 1, 8191, 8192, 16_384, 49_999] {
        for end in [start, start + 1, 8192, 8193, 24_576, 40_000, 50_000] {
            if (start..=50_000).contains(&end) {
                let mut found = vec![0; end - start];
                let decoded = weight.decode(stored.as_slice(), start as u64, &mut found);
                decoded.unwrap();
                assert_eq!(found, raw[start..end], "{start}..{end}");
            }
        }
    }
    let mut outside = [0; 2];
    assert!(weight
        .decode(stored.as_slice(), 49_999, &mut outside)
        .is_err());
}

/// Stored bytes that nothing can be made of end the load, or the pass that reads them, with file, entry and place.
#[test]
fn damaged_bytes_end_a_pass_on_the_host() {
    let packed = Packed::new(&[64 << 10; 4]);
    let mut sources = packed.sources();
    let (stored, weight) = packed.stored[2].as_ref().unwrap();
    let mut damaged = stored.as_slice().to_vec();
    damaged[5120..5124].fill(0xff);
    // SAFETY: the session is dropped before the bytes.
    let bytes = unsafe { HostBytes::new(damaged.as_ptr(), damaged.len() as u64) };
    sources[2] = source_of(bytes, Some(weight));
    let program = packed.model.program();
    let options = StoreOptions::default();
    let device = HostDevice::new().unwrap();
    let loaded = Session::new(device, program, sources, options);
    let failed = match loaded {
        Err(error) => error,
        Ok(mut session) => play(&packed.model, &mut session, Pass::Complete).unwrap_err(),
    };
    let text = failed.to_string();
    assert!(
        text.contains("packed entry 'w'") && text.contains("block 0"),
        "{text}"
    );
}
