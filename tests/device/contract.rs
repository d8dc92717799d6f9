//! The ordering contract of `device/mod.rs`, tested on each device: `host`, `sim` and `plain` always, `cuda` where it was
//! asked for. A device that can hold its streams is also shown to be wrong without the wait under test, so that the test is
//! known to be able to fail; one that sees races must see that one, and no other.

use crate::device_support::{gpu, is_done_soon, Bench, Plain, Source};
use std::time::Duration;
use weightstream::device::{CudaDevice, DevicePtr, HostDevice, HostRoom, PageAccess, Sim};
use weightstream::memory::{Pool, StreamOrdered};
use weightstream::Error;

const MB: u64 = 1 << 20;

contract! {
    memory_is_distinct_and_aligned
    memory_of_others_is_refused
    copies_arrive
    memory_is_reused_in_order
    discarded_bytes_are_copied_to_again
    compute_waits_for_the_copy
    copies_wait_for_the_last_reader
    the_cap_is_kept
    lasting_memory_counts_and_is_written
    activations_come_and_go
    activations_are_reused_in_order
    what_was_uploaded_may_change_at_once
    outputs_are_there_behind_the_wait_as_they_were
    outputs_are_asked_for_while_kernels_run
    a_device_may_go_with_work_in_flight
    events_may_outlive_their_device
}

fn memory_is_distinct_and_aligned<D: Bench>() {
    let mut device = D::open(8 * MB);
    let granule = device.granule();
    assert!(granule.is_power_of_two());
    assert_eq!(device.alloc(0), Ok(DevicePtr::EMPTY));
    let sizes = [granule, 3 * granule, MB, MB + granule, granule];
    let mut blocks: Vec<_> = sizes
        .iter()
        .map(|&s| (device.alloc(s).unwrap().0, s))
        .collect();
    blocks.sort_unstable();
    for pair in blocks.windows(2) {
        assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{blocks:x?} overlap");
    }
    for (at, bytes) in blocks {
        assert_eq!(at % 64, 0);
        device.free(DevicePtr(at), bytes).unwrap();
    }
    device.free(DevicePtr::EMPTY, 0).unwrap();
}

fn memory_of_others_is_refused<D: Bench>() {
    let source = Source::noise(4096);
    let mut device = D::open(8 * MB);
    let granule = device.granule();
    let block = device.alloc(2 * granule).unwrap();
    let refused =
        |outcome: weightstream::Result<()>| assert!(matches!(outcome, Err(Error::Internal(_))));
    refused(device.free(block, granule));
    refused(device.free(block.offset(granule), granule));
    refused(device.bring(block.offset(granule), source.host(0..granule + 1)));
    refused(device.upload(block.offset(2 * granule), &[1]));
    refused(device.download(DevicePtr(block.0 - 1), &mut [0]));
    refused(device.free_scratch(block, 2 * granule));
    device.free(block, 2 * granule).unwrap();
    refused(device.free(block, 2 * granule));
    refused(device.bring(block, source.host(0..64)));
}

fn copies_arrive<D: Bench>() {
    let source = Source::noise(3 * MB as usize);
    let mut device = D::open(32 * MB);
    // From memory that is not registered first: slower, and as right.
    for registered in [false, true] {
        if registered {
            device.register(&source);
        }
        for len in [0, 1, 63, 64, 4096, MB + 7, 2 * MB] {
            let bytes = len.next_multiple_of(device.granule());
            let block = device.alloc(bytes).unwrap();
            // Not from the start of a page, and to the middle of the block too.
            device.bring(block, source.host(5..5 + len)).unwrap();
            let half = len / 2;
            device
                .bring(block.offset(half), source.host(77..77 + len - half))
                .unwrap();
            let event = device.record_copy().unwrap();
            device.compute_wait(&event).unwrap();
            let later = (len > 0).then(|| device.read_later(block, len));
            if let Some(later) = later {
                let found = device.finish(later);
                assert!(
                    found[..half as usize] == *source.bytes(5..5 + half),
                    "{len} bytes"
                );
                assert!(
                    found[half as usize..] == *source.bytes(77..77 + len - half),
                    "{len} bytes"
                );
            }
            device.go_on();
            assert_eq!(device.is_done(&event), Ok(true));
            device.free(block, bytes).unwrap();
        }
    }
}

/// One block's worth of budget, used again and again: each round's bytes are read as they were.
fn memory_is_reused_in_order<D: Bench>() {
    const ROUNDS: u64 = 40;
    let source = Source::noise((MB + ROUNDS * 4096) as usize);
    let mut device = D::open(MB);
    device.register(&source);
    let mut reads = Vec::new();
    for round in 0..ROUNDS {
        let range = round * 4096..round * 4096 + MB;
        let block = device.alloc(MB).unwrap();
        device.bring(block, source.host(range.clone())).unwrap();
        let arrived = device.record_copy().unwrap();
        device.compute_wait(&arrived).unwrap();
        reads.push((device.read_later(block, MB), range));
        let read = device.record_compute().unwrap();
        device.copy_wait(&read).unwrap();
        device.free(block, MB).unwrap();
    }
    for (later, range) in reads {
        let found = device.finish(later);
        assert!(
            found == source.bytes(range.clone()),
            "round {}",
            range.start / 4096
        );
    }
}

/// Half of a block is given up and used again, as a pool does that divides one block; the other half stays.
fn discarded_bytes_are_copied_to_again<D: Bench>() {
    let source = Source::noise(3 * MB as usize);
    let mut device = D::open(2 * MB);
    device.register(&source);
    let block = device.alloc(2 * MB).unwrap();
    device.bring(block, source.host(0..2 * MB)).unwrap();
    device.synchronize().unwrap();
    let first = device.read_later(block, MB);
    let read = device.record_compute().unwrap();
    device.copy_wait(&read).unwrap();
    device.discard(block, MB).unwrap();
    device.bring(block, source.host(2 * MB..3 * MB)).unwrap();
    let arrived = device.record_copy().unwrap();
    device.compute_wait(&arrived).unwrap();
    let both = device.read_later(block, 2 * MB);
    assert!(device.finish(first) == source.bytes(0..MB));
    let both = device.finish(both);
    assert!(both[..MB as usize] == *source.bytes(2 * MB..3 * MB));
    assert!(both[MB as usize..] == *source.bytes(MB..2 * MB));
}

fn compute_waits_for_the_copy<D: Bench>() {
    let source = Source::noise(64 * MB as usize);
    let (old, new) = (0..32 * MB, 32 * MB..64 * MB);
    let mut device = D::open(32 * MB);
    device.register(&source);
    let block = device.alloc(32 * MB).unwrap();
    device.bring(block, source.host(old.clone())).unwrap();
    device.synchronize().unwrap();

    let gate = device.hold_copies();
    device.bring(block, source.host(new.clone())).unwrap();
    let arrived = device.record_copy().unwrap();
    if gate.is_some() {
        assert_eq!(device.is_done(&arrived), Ok(false));
        // Without the wait a kernel reads what was there before.
        let early = device.read_later(block, 32 * MB);
        assert!(device.finish(early) == source.bytes(old));
        assert!(device.races().is_none_or(|races| races == 1));
    }
    device.compute_wait(&arrived).unwrap();
    let later = device.read_later(block, 32 * MB);
    drop(gate);
    assert!(device.finish(later) == source.bytes(new));
    assert_eq!(device.is_done(&arrived), Ok(true));
}

/// A device whose calling thread is the compute stream has nothing to hold: there, reads are done at once.
fn copies_wait_for_the_last_reader<D: Bench>() {
    let source = Source::noise(8 * MB as usize);
    let (old, new) = (0..4 * MB, 4 * MB..8 * MB);
    for waits in [true, false] {
        let mut device = D::open(4 * MB);
        device.register(&source);
        let block = device.alloc(4 * MB).unwrap();
        device.bring(block, source.host(old.clone())).unwrap();
        device.synchronize().unwrap();

        let gate = device.hold_compute();
        let later = device.read_later(block, 4 * MB);
        let read = device.record_compute().unwrap();
        if waits || gate.is_none() {
            device.copy_wait(&read).unwrap();
        }
        device.bring(block, source.host(new.clone())).unwrap();
        let arrived = device.record_copy().unwrap();
        if gate.is_some() {
            assert_eq!(device.is_done(&read), Ok(false));
            assert_eq!(is_done_soon(&mut device, &arrived, !waits), !waits);
            let races = device.races();
            assert!(races.is_none_or(|races| races == usize::from(!waits)));
        }
        let at_once = gate.is_none();
        drop(gate);
        let seen = if waits || at_once { &old } else { &new };
        assert!(
            device.finish(later) == source.bytes(seen.clone()),
            "waits: {waits}"
        );
        device.synchronize().unwrap();
        let now = device.read_later(block, 4 * MB);
        assert!(device.finish(now) == source.bytes(new.clone()));
    }
}

fn the_cap_is_kept<D: Bench>() {
    let cap = 10 * MB;
    let mut device = D::open(cap);
    let granule = device.granule();
    let mut pool = StreamOrdered::new(cap, PageAccess::Read);
    let mut blocks: Vec<_> = (0..10)
        .map(|_| pool.take(&mut device, MB).unwrap())
        .collect();
    assert!(matches!(
        pool.take(&mut device, granule),
        Err(Error::Internal(_))
    ));
    // What was given back can be had again, at once and any number of times.
    for _ in 0..100 {
        pool.give(&mut device, blocks.remove(0), MB).unwrap();
        blocks.push(pool.take(&mut device, MB).unwrap());
    }
    for block in blocks {
        pool.give(&mut device, block, MB).unwrap();
    }
    assert_eq!(
        (Pool::<D>::used_bytes(&pool), Pool::<D>::peak_bytes(&pool)),
        (0, cap)
    );
}

/// It is no part of a view: kernels may write there.
fn lasting_memory_counts_and_is_written<D: Bench>() {
    let source = Source::noise(MB as usize);
    let mut device = D::open(2 * MB);
    assert_eq!(device.alloc_lasting(0), Ok(DevicePtr::EMPTY));
    let at = device.alloc_lasting(MB).unwrap();
    assert_eq!(at.0 % 64, 0);
    let block = device.alloc(MB).unwrap();
    assert!(block.0 >= at.0 + MB || at.0 >= block.0 + MB, "they overlap");
    device.bring(at, source.host(0..MB)).unwrap();
    let arrived = device.record_copy().unwrap();
    device.compute_wait(&arrived).unwrap();
    device.upload(at.offset(64), &[7; 64]).unwrap();
    let later = device.read_later(at, MB);
    let found = device.finish(later);
    assert!(found[..64] == *source.bytes(0..64) && found[128..] == *source.bytes(128..MB));
    assert_eq!(found[64..128], [7; 64]);
    let beyond = device.bring(at.offset(MB - 64), source.host(0..128));
    assert!(matches!(beyond, Err(Error::Internal(_))));
}

fn activations_come_and_go<D: Bench>() {
    let mut device = D::open(MB);
    assert_eq!(device.alloc_scratch(0), Ok(DevicePtr::EMPTY));
    let sent: Vec<u8> = (0..100_000u32).map(|i| (i * 31 / 7) as u8).collect();
    let mut got = vec![0; sent.len()];
    let at = device.alloc_scratch(sent.len() as u64).unwrap();
    assert_eq!(at.0 % 64, 0);
    device.upload(at, &sent).unwrap();
    device.download(at, &mut got).unwrap();
    assert!(got == sent);
    device.upload(at.offset(100), &[1, 2, 3]).unwrap();
    device.download(at.offset(99), &mut got[..5]).unwrap();
    assert_eq!(got[..5], [sent[99], 1, 2, 3, sent[103]]);
    device.free_scratch(at, sent.len() as u64).unwrap();
    // Weights can be read and written in the same way: mutable buffers are.
    let weight = device.alloc(device.granule()).unwrap();
    device.upload(weight, &[7; 64]).unwrap();
    device.download(weight, &mut got[..64]).unwrap();
    assert_eq!(got[..64], [7; 64]);
}

fn what_was_uploaded_may_change_at_once<D: Bench>() {
    let mut device = D::open(MB);
    for len in [8, 4096, 65_536, 65_537, 3 * MB as usize] {
        let at = device.alloc_scratch(len as u64).unwrap();
        let mut found = vec![0; len];
        let mut src = vec![0; len];
        for byte in 1..20 {
            src.fill(byte);
            device.upload(at, &src).unwrap();
            src.fill(200);
            device.download(at, &mut found).unwrap();
            assert!(found == vec![byte; len], "{len} bytes, round {byte}");
        }
        device.free_scratch(at, len as u64).unwrap();
    }
}

/// Room for an output in `bytes`.
fn room(bytes: &mut [u8]) -> HostRoom {
    // SAFETY: the tests leave the bytes alone until they have waited for the device.
    unsafe { HostRoom::new(bytes.as_mut_ptr(), bytes.len()) }
}

fn outputs_are_there_behind_the_wait_as_they_were<D: Bench>() {
    let mut device = D::open(MB);
    // Some of them are too large together, one alone.
    let sizes = [0, 1, 100, 4097, 600_000, 300_000, 600_000, 8, 3 << 20, 8];
    for round in 1..4 {
        let mut outputs: Vec<Vec<u8>> = sizes.iter().map(|&len| vec![0; len]).collect();
        for (output, byte) in outputs.iter_mut().zip(10 * round..) {
            let len = output.len() as u64;
            let at = device.alloc_scratch(len).unwrap();
            device.upload(at, &vec![byte; output.len()]).unwrap();
            device.download_out(at, room(output)).unwrap();
            // Whatever is written there later comes too late.
            device.upload(at, &vec![200; output.len()]).unwrap();
            device.free_scratch(at, len).unwrap();
        }
        device.finish_compute().unwrap();
        for (output, byte) in outputs.iter().zip(10 * round..) {
            assert!(
                output.iter().all(|&found| found == byte),
                "output of {byte}"
            );
        }
    }
}

fn outputs_are_asked_for_while_kernels_run<D: Bench>() {
    let mut device = D::open(MB);
    let at = device.alloc_scratch(300).unwrap();
    device.upload(at, &[5; 300]).unwrap();
    let Some(gate) = device.hold_compute() else {
        return;
    };
    let mut outputs = [[0u8; 100]; 3];
    for (output, offset) in outputs.iter_mut().zip([0, 100, 200]) {
        device
            .download_out(at.offset(offset), room(output))
            .unwrap();
    }
    drop(gate);
    device.finish_compute().unwrap();
    assert_eq!(outputs, [[5; 100]; 3]);
}

/// Freed and allocated again while the stream has not got there yet.
fn activations_are_reused_in_order<D: Bench>() {
    let mut device = D::open(MB);
    let gate = device.hold_compute();
    if gate.is_none() {
        return;
    }
    drop(gate);
    let expected: Vec<Vec<u8>> = (0..20).map(|round| vec![round + 1; 1 << 20]).collect();
    let mut reads = Vec::new();
    for bytes in &expected {
        let at = device.alloc_scratch(MB).unwrap();
        device.upload(at, bytes).unwrap();
        reads.push(device.read_later(at, MB));
        device.free_scratch(at, MB).unwrap();
    }
    for (later, bytes) in reads.into_iter().zip(&expected) {
        assert!(device.finish(later) == *bytes);
    }
}

fn a_device_may_go_with_work_in_flight<D: Bench>() {
    let source = Source::noise(32 * MB as usize);
    for hold in [false, true] {
        for _ in 0..3 {
            let mut device = D::open(64 * MB);
            device.register(&source);
            let gate = if hold { device.hold_copies() } else { None };
            for _ in 0..2 {
                let block = device.alloc(32 * MB).unwrap();
                device.bring(block, source.all()).unwrap();
            }
            let arrived = device.record_copy().unwrap();
            if gate.is_some() {
                // On the host this would wait.
                device.compute_wait(&arrived).unwrap();
                device.alloc_scratch(MB).unwrap();
            }
            let opener = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(50));
                drop(gate);
            });
            drop(device);
            opener.join().unwrap();
        }
    }
}

fn events_may_outlive_their_device<D: Bench>() {
    let mut device = D::open(MB);
    let events = [
        device.record_copy().unwrap(),
        device.record_compute().unwrap(),
    ];
    drop(device);
    drop(events);
    let mut next = D::open(MB);
    next.synchronize().unwrap();
}
