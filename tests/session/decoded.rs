//! Weights with fewer bytes in their file than on the device. Their source is a test's own: two bytes come of each stored one.

use crate::session_support::{chain, play, Kernels, Model, Pass};
use std::ops::Range;
use std::sync::Arc;
use weightstream::config::PolicyKind;
use weightstream::device::sim::Order;
use weightstream::device::{Decode, Device, HostBytes, HostDevice, Sim, Source};
use weightstream::session::Session;
use weightstream::store::StoreOptions;
use weightstream::Error;

/// Two bytes of each stored one.
struct Doubled;

fn doubled(stored: &[u8], at: u64) -> u8 {
    stored[at as usize / 2] ^ ((at as u8 & 1) * 0xA5)
}

impl Decode for Doubled {
    fn decode(&self, stored: &[u8], start: u64, bytes: &mut [u8]) {
        for (at, byte) in (start..).zip(bytes) {
            *byte = doubled(stored, at);
        }
    }
}

/// A model whose weights of even index are stored in half of their bytes, and what is stored of them.
struct Halved {
    model: Model,
    stored: Vec<Option<Vec<u8>>>,
}

impl Halved {
    fn new(weights: &[u64]) -> Halved {
        let mut model = chain(weights);
        let stored = model.bytes.iter_mut().enumerate().map(|(index, bytes)| {
            let stored = bytes[..bytes.len() / 2].to_vec();
            let halved = index % 2 == 0;
            if halved {
                (0..)
                    .zip(&mut *bytes)
                    .for_each(|(at, byte)| *byte = doubled(&stored, at));
                model.constants.specs[index].stored = stored.len() as u64;
            }
            halved.then_some(stored)
        });
        let stored = stored.collect();
        Halved { model, stored }
    }

    fn sources(&self) -> Vec<Source> {
        let all = self.model.host_bytes().into_iter().zip(&self.stored);
        let one = |(bytes, stored): (HostBytes, &Option<Vec<u8>>)| match stored {
            None => bytes.into(),
            Some(stored) => {
                // SAFETY: the tests drop their sessions before their models, and change nothing.
                let half = unsafe { HostBytes::new(stored.as_ptr(), stored.len() as u64) };
                Source::decoded(half, bytes.len(), Arc::new(Doubled))
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
    let halved = Halved::new(&[unit; 12]);
    let all: u64 = halved
        .model
        .bytes
        .iter()
        .map(|bytes| bytes.len() as u64)
        .sum();
    let mut session = halved.load(device, all + 8 * unit);
    assert_eq!(session.stats().bytes_copied, halved.stored_bytes());
    assert_eq!(session.stats().bytes_copied, all / 4 * 3);
    halved.verify(&mut session);
    for percent in [100, 40, 75, 30, 90] {
        session.set_budget(all * percent / 100).unwrap();
        play(&halved.model, &mut session, Pass::Complete).unwrap();
        let before = session.stats().bytes_copied;
        play(&halved.model, &mut session, Pass::Complete).unwrap();
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
        runs_at_every_budget(Sim::new(order), 2048);
    }
}

#[test]
fn stored_bytes_become_others_on_the_host() {
    runs_at_every_budget(HostDevice::new().unwrap(), 64 << 10);
}

/// What is stored has to be what the record says, and a part of a source is that part of the weight.
#[test]
fn sources_are_checked_and_cut() {
    let halved = Halved::new(&[640; 2]);
    let mut program = halved.model.program();
    program.0.specs[0].stored = 640;
    let options = StoreOptions::default();
    let refused = Session::new(
        Sim::new(Order::CopiesFirst),
        program,
        halved.sources(),
        options,
    );
    assert!(matches!(
        refused.err(),
        Some(Error::Mismatch {
            fact: "number of stored bytes",
            ..
        })
    ));
    let whole = &halved.sources()[0];
    let parts: [Range<u64>; 3] = [0..101, 101..400, 400..640];
    let stored: u64 = parts
        .iter()
        .map(|part| whole.part(part.clone()).stored_bytes())
        .sum();
    assert_eq!((whole.len(), whole.stored_bytes(), stored), (640, 320, 320));
}
