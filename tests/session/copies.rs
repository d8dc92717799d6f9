//! Copies of small weights that lie next to each other on both sides are joined.

use crate::session_support::{chain, play, Model, Pass};
use weightstream::config::PolicyKind;
use weightstream::device::{HostBytes, HostDevice};
use weightstream::session::Session;
use weightstream::store::StoreOptions;

/// The model's constants one behind the other, each at a multiple of `alignment`.
fn file(model: &Model, alignment: usize) -> (Vec<u8>, Vec<usize>) {
    let mut file = Vec::new();
    let mut offsets = Vec::new();
    for bytes in &model.bytes {
        file.resize(file.len().next_multiple_of(alignment), 0xAA);
        offsets.push(file.len());
        file.extend_from_slice(bytes);
    }
    (file, offsets)
}

fn session(
    model: &Model,
    (file, offsets): &(Vec<u8>, Vec<usize>),
    budget: u64,
) -> Session<HostDevice> {
    let bytes = offsets.iter().zip(&model.bytes).map(|(&at, bytes)| {
        // SAFETY: the tests drop their sessions before the file.
        unsafe { HostBytes::new(file[at..].as_ptr(), bytes.len() as u64) }
    });
    let options = StoreOptions {
        budget: Some(budget),
        policy: PolicyKind::Lru,
        ..StoreOptions::default()
    };
    let device = HostDevice::new().unwrap();
    Session::new(device, model.program(), bytes.collect(), options).unwrap()
}

/// Copies of each of three passes; every byte is compared on the way.
fn copies_per_pass(model: &Model, file: &(Vec<u8>, Vec<usize>), budget: u64) -> (u64, Vec<u64>) {
    let mut session = session(model, file, budget);
    let loaded = session.device().copies_issued();
    let mut before = loaded;
    let passes = (0..3).map(|_| {
        play(model, &mut session, Pass::Complete).unwrap();
        let issued = session.device().copies_issued() - before;
        before += issued;
        issued
    });
    (loaded, passes.collect())
}

const KB: u64 = 1 << 10;

#[test]
fn what_is_loaded_up_front_is_one_copy() {
    let model = chain(&[4 * KB; 30]);
    let file = file(&model, 4096);
    assert_eq!(copies_per_pass(&model, &file, 1 << 30), (1, vec![0, 0, 0]));
}

#[test]
fn a_gap_on_one_side_keeps_copies_apart() {
    let model = chain(&[4 * KB - 100; 30]);
    let (apart, packed) = (file(&model, 8192), file(&model, 64));
    // On the host sizes are rounded up to 64: 4032 bytes here, so packed at 64 there are gaps on both sides.
    assert_eq!(copies_per_pass(&model, &apart, 1 << 30).0, 30);
    assert_eq!(copies_per_pass(&model, &packed, 1 << 30).0, 30);
}

#[test]
fn small_neighbours_stream_together_and_large_ones_alone() {
    // Small weights between large ones, as norms are between projections.
    let sizes: Vec<u64> = (0..32)
        .map(|i| if i % 8 < 6 { 4 * KB } else { 900 * KB })
        .collect();
    let model = chain(&sizes);
    let file = file(&model, 4096);
    let (_, passes) = copies_per_pass(&model, &file, 5 << 20);
    let all = sizes.len() as u64;
    assert!(passes[2] > 0 && passes[2] < all, "{passes:?} of {all}");
    // 1.8 MB and more of large ones cannot be one copy of at most 1 MiB.
    assert!(passes[2] >= 8, "{passes:?}");
}

#[test]
fn a_long_run_is_cut() {
    let model = chain(&[64 * KB; 64]);
    let file = file(&model, 4096);
    // 4 MiB in copies of at most 1 MiB.
    assert_eq!(copies_per_pass(&model, &file, 1 << 30).0, 4);
}
