//! Weights with fewer bytes in their file than on the device: packed ones.

use crate::session_support::packed::Packed;
use crate::session_support::{play, Kernels, Pass};
use std::ops::Range;
use weightstream::config::PolicyKind;
use weightstream::device::sim::{Order, SimFault};
use weightstream::device::{Device, HostBytes, HostDevice, Sim};
use weightstream::figures::PackedResidents;
use weightstream::session::Session;
use weightstream::store::{source_of, StoreOptions};
use weightstream::Error;

fn load<D: Device>(
    packed: &Packed,
    device: D,
    residents: PackedResidents,
    budget: u64,
) -> Session<D> {
    let options = StoreOptions {
        packed: residents,
        budget: Some(budget),
        policy: PolicyKind::Planned,
        elastic: true,
        ..StoreOptions::default()
    };
    Session::new(device, packed.model.program(), packed.sources(), options).unwrap()
}

fn verify<D: Device>(packed: &Packed, session: &mut Session<D>) {
    let sums = packed
        .model
        .bytes
        .iter()
        .map(|bytes| crc32fast::hash(bytes));
    session.verify_every_read(sums.collect()).unwrap();
}

/// Load, plan, passes and budgets; every read compared with the weight's bytes, and each copy counted as what it brings.
fn runs_at_every_budget<D: Kernels>(device: D, residents: PackedResidents, unit: u64) {
    let packed = Packed::new(&[unit; 20]);
    let all: u64 = packed
        .model
        .bytes
        .iter()
        .map(|bytes| bytes.len() as u64)
        .sum();
    let mut session = load(&packed, device, residents, all + 8 * unit);
    assert_eq!(session.stats().bytes_copied, packed.stored_bytes());
    assert!(session.stats().bytes_copied < all * 9 / 10);
    verify(&packed, &mut session);
    let mut kept = 0;
    for percent in [100, 40, 75, 30, 90] {
        session.set_budget(all * percent / 100).unwrap();
        play(&packed.model, &mut session, Pass::Complete).unwrap();
        let before = session.stats().bytes_copied;
        play(&packed.model, &mut session, Pass::Complete).unwrap();
        let copied = session.stats().bytes_copied - before;
        let plan = session.store().residency().plan().unwrap();
        kept += plan.kept_bytes();
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
    assert_eq!(kept > 0, residents == PackedResidents::On);
}

#[test]
fn stored_bytes_become_others_on_the_simulator() {
    for order in [Order::CopiesFirst, Order::KernelsFirst, Order::Random(7)] {
        for residents in [PackedResidents::Off, PackedResidents::On] {
            runs_at_every_budget(Sim::new(order), residents, 16 << 10);
        }
    }
}

#[test]
fn stored_bytes_become_others_on_the_host() {
    runs_at_every_budget(HostDevice::new().unwrap(), PackedResidents::Off, 64 << 10);
}

/// One call of the device fails in a change of the budget, whichever: later passes find their weights or say why not, and another
/// change brings everything back.
#[test]
fn a_failed_change_of_the_budget_is_survived() {
    let packed = Packed::new(&[64 << 10, 32 << 10, 32 << 10, 64 << 10].repeat(3));
    let all: u64 = packed.model.bytes.iter().map(|one| one.len() as u64).sum();
    let (mut failed, mut kept) = (0, 0);
    for after in (0..).step_by(7) {
        let device = Sim::new(Order::CopiesFirst);
        let mut session = load(&packed, device, PackedResidents::On, all / 3);
        verify(&packed, &mut session);
        play(&packed.model, &mut session, Pass::Complete).unwrap();
        let fault = SimFault {
            call: None,
            after,
            lost: false,
        };
        session.device_mut().fail(fault);
        let changed = session.set_budget(all * 9 / 10);
        let fired = session.device().failed_call().is_some();
        session.device_mut().fail(None);
        if !fired {
            changed.unwrap();
            break;
        }
        failed += u64::from(changed.is_err());
        // Whatever is read is compared.
        let _ = play(&packed.model, &mut session, Pass::Complete);
        if session.set_budget(all * 4 / 5).is_ok() {
            kept += session.store().residency().plan().unwrap().kept_bytes();
            play(&packed.model, &mut session, Pass::Complete).unwrap();
            play(&packed.model, &mut session, Pass::Complete).unwrap();
        }
        session.device_mut().check();
    }
    assert!(failed > 10 && kept > 0, "{failed} failures, {kept} kept");
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
