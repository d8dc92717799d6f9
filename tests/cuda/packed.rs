//! Packed weights on a GPU: decoded there, at every budget, by every policy, in graphs and beside raw ones.

use crate::device_support::{gpu, Bench, Source};
use crate::session::play;
use crate::session_support::packed::Packed;
use crate::session_support::Pass;
use std::time::Duration;
use weightstream::aoti::hooks::PassHooks;
use weightstream::config::PolicyKind;
use weightstream::device::{staging_bytes, CudaDevice, Device, HostBytes};
use weightstream::figures::{NumberForm, PackedResidents};
use weightstream::session::Session;
use weightstream::store::{Methods, StoreOptions};

const MB: u64 = 1 << 20;

/// Weights of few blocks up to three pieces, of all forms; every other one is raw. Packed ones end in a short block, coded or raw, the last
/// inside of an element.
fn weights() -> Packed {
    let sizes = [
        (16 << 10) + 5000,
        30 * MB + 8190,
        40 * MB + 6000,
        MB,
        17 * MB + 10_404,
        5 * MB,
        11_692,
        3 * MB,
        24 * MB + 3333,
        2 * MB,
        5 * MB + 8191,
        MB,
    ];
    let mut packed = Packed::of_forms(&sizes, &NumberForm::ALL);
    packed.model.constants.staging = staging_bytes("cuda", packed.codes());
    packed
}

fn load(
    packed: &Packed,
    bytes: Vec<HostBytes>,
    device: CudaDevice,
    policy: PolicyKind,
    residents: PackedResidents,
    budget: u64,
) -> Session<CudaDevice> {
    let options = StoreOptions {
        packed: residents,
        budget: Some(budget),
        policy,
        elastic: policy == PolicyKind::Planned,
        ..StoreOptions::default()
    };
    let program = packed.model.program();
    Session::new(device, program, packed.sources_of(bytes), options).unwrap()
}

/// The parts of a mapped file, registered with the device.
fn registered(packed: &Packed, device: &mut CudaDevice) -> (Source, Vec<HostBytes>) {
    let (source, offsets) = Source::new(packed.parts());
    device.register_host(source.all(), &offsets).unwrap();
    let lengths = packed.parts().map(|part| part.len() as u64);
    let parts = offsets.iter().zip(lengths);
    let parts = parts.map(|(&at, length)| source.host(at..at + length));
    let parts = parts.collect();
    (source, parts)
}

/// Floor, and bytes of everything.
fn budgets(packed: &Packed) -> (u64, u64) {
    let methods = Methods::from(packed.model.program());
    (methods.floor(512).unwrap().bytes(), methods.everything(512))
}

#[test]
fn every_read_is_right_at_every_budget() {
    let Some(_gpu) = gpu("every_read_is_right_at_every_budget") else {
        return;
    };
    let packed = weights();
    let (least, most) = budgets(&packed);
    for policy in [PolicyKind::Lru, PolicyKind::Planned] {
        for share in [0, 40, 70, 120] {
            let mut device = CudaDevice::new(0).unwrap();
            let (_source, parts) = registered(&packed, &mut device);
            let budget = least + (most - least) * share / 100 + u64::from(share > 0) * 8 * MB;
            let mut session = load(
                &packed,
                parts,
                device,
                policy,
                PackedResidents::Auto,
                budget,
            );
            let hold = Duration::from_millis(100);
            for pass in [
                Pass::Complete,
                Pass::AbortAt(7),
                Pass::Complete,
                Pass::AbortAt(14),
                Pass::Complete,
            ] {
                let outcome = play(&packed.model, &mut session, pass, Some(hold));
                assert!(outcome.is_ok(), "{policy:?}, {share} %: {outcome:?}");
            }
            let sums = packed
                .model
                .bytes
                .iter()
                .map(|bytes| crc32fast::hash(bytes));
            session.verify_every_read(sums.collect()).unwrap();
            play(&packed.model, &mut session, Pass::Complete, None).unwrap();
        }
    }
}

#[test]
fn budgets_change_under_packed_weights() {
    let Some(_gpu) = gpu("budgets_change_under_packed_weights") else {
        return;
    };
    let packed = weights();
    for residents in [PackedResidents::Off, PackedResidents::On] {
        let mut device = CudaDevice::new(0).unwrap();
        let (_source, parts) = registered(&packed, &mut device);
        let (_, most) = budgets(&packed);
        let budget = most + 64 * MB;
        let mut session = load(
            &packed,
            parts,
            device,
            PolicyKind::Planned,
            residents,
            budget,
        );
        let (least, mut kept) = (session.least_budget().unwrap(), 0);
        for share in [0, 90, 20, 100, 55] {
            let budget = least + (most - least) * share / 100;
            session.set_budget(budget).unwrap();
            let plan = session.store().residency().plan().unwrap();
            kept += plan.kept_bytes();
            println!(
                "{residents:?}, {share} %: {} bytes stay packed",
                plan.kept_bytes()
            );
            for pass in [Pass::Complete, Pass::AbortAt(8), Pass::Complete] {
                let hold = Duration::from_millis(50);
                play(&packed.model, &mut session, pass, Some(hold)).unwrap();
            }
        }
        assert_eq!(kept > 0, residents == PackedResidents::On);
    }
}

/// Raw bytes that follow packed ones to the same memory come after the kernels that decode these, though nobody has waited for them.
#[test]
fn raw_bytes_follow_kernels_to_the_same_memory() {
    let Some(_gpu) = gpu("raw_bytes_follow_kernels_to_the_same_memory") else {
        return;
    };
    // More pieces than slots: the last ones are decoded long after all of it was issued.
    let packed = Packed::new(&[100 * MB, MB]);
    let mut device = CudaDevice::open(256 * MB);
    let (_source, parts) = registered(&packed, &mut device);
    let sources = packed.sources_of(parts);
    let staging = staging_bytes("cuda", packed.codes());
    let ring = device.alloc(staging).unwrap();
    device.decode_in(ring, staging, &sources).unwrap();
    let at = device.alloc(100 * MB).unwrap();
    let last = at.offset(99 * MB);
    for round in 0..5 {
        device.bring(at, sources[0].clone()).unwrap();
        device.bring(last, sources[1].clone()).unwrap();
        let copied = device.record_copy().unwrap();
        device.compute_wait(&copied).unwrap();
        let mut found = vec![0; MB as usize];
        device.download(last, &mut found).unwrap();
        assert!(found == packed.model.bytes[1], "round {round}");
    }
    device.free(at, 100 * MB).unwrap();
}

/// Whatever the stored bytes say, nothing is read or written outside: other weights are as they were. Under compute-sanitizer this says more.
#[test]
fn damaged_blocks_stay_inside() {
    let Some(_gpu) = gpu("damaged_blocks_stay_inside") else {
        return;
    };
    let mut packed = weights();
    let raw = packed.model.bytes.clone();
    let mut state = 1u64;
    let mut random = move || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) as usize
    };
    let parts: Vec<Vec<u8>> = { packed.parts().zip(&packed.stored) }
        .map(|(part, stored)| {
            let mut bytes = part.to_vec();
            // The directory is checked at load, and the device has it.
            let payload = stored
                .as_ref()
                .map_or(0, |(_, weight)| bytes.len() - 4 * weight.directory().len());
            for _ in 0..payload / 100 {
                bytes[random() % payload] = if random() % 3 == 0 {
                    0xff
                } else {
                    random() as u8
                };
            }
            bytes
        })
        .collect();
    let (least, most) = budgets(&packed);
    for budget in [least, most] {
        let device = CudaDevice::new(0).unwrap();
        // SAFETY: the parts outlive the session, and nobody changes them.
        let host = |bytes: &Vec<u8>| unsafe { HostBytes::new(bytes.as_ptr(), bytes.len() as u64) };
        let bytes = parts.iter().map(host).collect();
        let mut session = load(
            &packed,
            bytes,
            device,
            PolicyKind::Lru,
            PackedResidents::Off,
            budget,
        );
        session.begin_pass().unwrap();
        for (id, expected) in raw.iter().enumerate() {
            let at = session.probe(id as i64).unwrap();
            let mut found = vec![0; expected.len()];
            session.device_mut().download(at, &mut found).unwrap();
            let is_packed = packed.stored[id].is_some();
            assert_eq!(found == *expected, !is_packed, "weight {id}");
            session.release(id as i64);
        }
        session.end_pass(true).unwrap();
    }
    packed.model.bytes.clear();
}
