//! Memory that shows at several addresses, tested on each device that has it: `host`, `sim` and `plain` always, `cuda` where
//! it was asked for.

use crate::device_support::{gpu, is_done_soon, Bench, Mapping, Plain, Source};
use std::time::Duration;
use weightstream::device::faulty::{Fault, Faults, Faulty};
use weightstream::device::{CudaDevice, Device, DevicePtr, HostDevice, Pages, Sim};
use weightstream::figures::{Piece, View};
use weightstream::Error;

const MB: u64 = 1 << 20;
const BUDGET: u64 = 64 * MB;

contract! {
    bytes_show_at_every_address
    copies_cross_pieces
    copies_that_leave_a_view_are_refused
    views_are_only_read
    unmapping_gives_everything_back
    memory_of_views_is_used_again
    what_cannot_be_mapped_leaves_nothing
    copies_wait_for_the_last_reader_of_any_address
    a_device_may_go_with_copies_to_a_view_in_flight
}

/// Two weights of three pages each. The first page of one and the first two of the other are their own; the others come
/// from a ring of two pages, so that one page shows in both, at 2 and 5.
///
/// ```text
/// address  0 1 2 | 3 4 5
/// memory   0 3 4 | 1 2 4
/// ```
fn two_weights(page: u64) -> View {
    let piece = |(at, memory, pages)| Piece {
        at: at * page,
        memory: memory * page,
        bytes: pages * page,
    };
    View {
        bytes: 6 * page,
        memory: 5 * page,
        pieces: [(0, 0, 1), (1, 3, 2), (3, 1, 2), (5, 4, 1)]
            .map(piece)
            .to_vec(),
    }
}

fn open<D: Bench>() -> (Mapping<D>, DevicePtr, u64) {
    let mut device = Mapping::on(D::open(BUDGET));
    let page = Device::page(&device.device).expect("this device maps memory");
    assert!(page.is_multiple_of(device.granule()));
    let at = device.map(&two_weights(page)).unwrap();
    assert_eq!(at.0 % 64, 0);
    (device, at, page)
}

fn refused(outcome: weightstream::Result<()>, words: &str) {
    match outcome {
        Err(Error::Internal(text)) if text.contains(words) => {}
        other => panic!("{other:?} instead of a refusal that says '{words}'"),
    }
}

/// What kernels read there, once all copies so far have arrived.
fn now<D: Bench>(device: &mut D, ptr: DevicePtr, len: u64) -> Vec<u8> {
    let arrived = device.record_copy().unwrap();
    device.compute_wait(&arrived).unwrap();
    let later = device.read_later(ptr, len);
    device.finish(later)
}

fn bytes_show_at_every_address<D: Bench>() {
    let (mut device, at, page) = open::<D>();
    let source = Source::noise(4 * page as usize);
    device.bring(at, source.host(0..3 * page)).unwrap();
    assert!(now(&mut *device, at, 3 * page) == source.bytes(0..3 * page));
    let shared = [at.offset(2 * page), at.offset(5 * page)];
    assert!(now(&mut *device, shared[1], page) == source.bytes(2 * page..3 * page));
    // And the other way round.
    let read = device.record_compute().unwrap();
    device.copy_wait(&read).unwrap();
    device
        .bring(shared[1], source.host(3 * page..4 * page))
        .unwrap();
    for address in shared {
        assert!(now(&mut *device, address, page) == source.bytes(3 * page..4 * page));
        let mut found = vec![0; page as usize];
        device.download(address, &mut found).unwrap();
        assert!(found == source.bytes(3 * page..4 * page));
    }
    assert!(now(&mut *device, at, 2 * page) == source.bytes(0..2 * page));
}

/// Over pieces that are neighbours as addresses and not in memory, and from and to the middle of them.
fn copies_cross_pieces<D: Bench>() {
    let (mut device, at, page) = open::<D>();
    let source = Source::noise(12 * page as usize);
    for registered in [false, true] {
        if registered {
            device.register(&source);
        }
        let spans = [
            0..page + 1,
            page - 100..5 * page - 8,
            3 * page - 1..3 * page + 1,
            page..3 * page,
        ];
        for (span, from) in spans.into_iter().zip([5, 77, 3, 64 + page]) {
            let len = span.end - span.start;
            let from = from..from + len;
            device
                .bring(at.offset(span.start), source.host(from.clone()))
                .unwrap();
            let found = now(&mut *device, at.offset(span.start), len);
            assert!(found == source.bytes(from.clone()), "{span:?}");
            let mut found = vec![0; len as usize];
            device.download(at.offset(span.start), &mut found).unwrap();
            assert!(found == source.bytes(from), "{span:?}");
            let read = device.record_compute().unwrap();
            device.copy_wait(&read).unwrap();
        }
    }
}

fn copies_that_leave_a_view_are_refused<D: Bench>() {
    let (mut device, at, page) = open::<D>();
    let source = Source::noise(7 * page as usize);
    let end = at.offset(6 * page);
    for (ptr, len) in [
        (at, 6 * page + 1),
        (at.offset(5 * page), page + 1),
        (end, 1),
        (DevicePtr(end.0 - 1), 2),
        (DevicePtr(at.0 - 1), 2),
    ] {
        let outcome = device.bring(ptr, source.host(0..len));
        assert!(matches!(outcome, Err(Error::Internal(_))), "{outcome:?}");
        let outcome = device.download(ptr, &mut vec![0; len as usize]);
        assert!(matches!(outcome, Err(Error::Internal(_))), "{outcome:?}");
    }
    device.bring(end, source.host(0..0)).unwrap();
    device.synchronize().unwrap();
}

fn views_are_only_read<D: Bench>() {
    let (mut device, at, page) = open::<D>();
    let source = Source::noise(6 * page as usize);
    device.bring(at, source.host(0..page)).unwrap();
    device.synchronize().unwrap();
    let scratch = device.alloc_scratch(64).unwrap();
    device.upload(scratch, &[1; 64]).unwrap();
    for ptr in [at, at.offset(6 * page - 64)] {
        refused(device.upload(ptr, &[1; 64]), "only read there");
        refused(device.zero(ptr, 64), "only read there");
        refused(device.copy_across(ptr, scratch, 64), "only read there");
    }
    let outcome = device.free(at, 6 * page);
    assert!(matches!(outcome, Err(Error::Internal(_))), "{outcome:?}");
    device.copy_across(scratch, at, 64).unwrap();
    let mut found = [0; 64];
    device.download(scratch, &mut found).unwrap();
    assert!(found == source.bytes(0..64));
    assert!(now(&mut *device, at, page) == source.bytes(0..page));
    let read = device.record_compute().unwrap();
    device.copy_wait(&read).unwrap();
    device.discard(at, 3 * page).unwrap();
}

fn unmapping_gives_everything_back<D: Bench>() {
    let (mut device, at, page) = open::<D>();
    let source = Source::noise(6 * page as usize);
    let other = device.map(&two_weights(page)).unwrap();
    assert_eq!(device.live(), 10 * page);
    device.bring(at, source.host(0..3 * page)).unwrap();
    device.bring(other, source.host(page..4 * page)).unwrap();
    device.unmap(at).unwrap();
    assert_eq!(device.live(), 5 * page);
    for gone in [at, other.offset(page), DevicePtr(64 << 10)] {
        let released = device.pages().unwrap().release(gone);
        assert!(matches!(released, Err(Error::Internal(_))));
    }
    let outcome = device.bring(at, source.host(0..64));
    assert!(matches!(outcome, Err(Error::Internal(_))), "{outcome:?}");
    assert!(now(&mut *device, other, 3 * page) == source.bytes(page..4 * page));
    device.unmap(other).unwrap();
    assert_eq!(device.live(), 0);
}

/// Blocks of their own and views share one budget, one after the other and at one time.
fn memory_of_views_is_used_again<D: Bench>() {
    let mut device = Mapping::on(D::open(BUDGET));
    let page = Device::page(&device.device).unwrap();
    let source = Source::noise(6 * page as usize);
    for _ in 0..20 {
        let block = device.alloc(2 * page).unwrap();
        let at = device.map(&two_weights(page)).unwrap();
        device.bring(at, source.host(0..3 * page)).unwrap();
        device
            .bring(block, source.host(3 * page..5 * page))
            .unwrap();
        assert!(now(&mut *device, at, 3 * page) == source.bytes(0..3 * page));
        assert!(now(&mut *device, block, 2 * page) == source.bytes(3 * page..5 * page));
        assert_eq!(device.live(), 7 * page);
        let read = device.record_compute().unwrap();
        device.copy_wait(&read).unwrap();
        device.free(block, 2 * page).unwrap();
        device.unmap(at).unwrap();
    }
    assert_eq!(device.live(), 0);
}

fn what_cannot_be_mapped_leaves_nothing<D: Bench>() {
    let mut device = Mapping::on(D::open(BUDGET));
    let page = Device::page(&device.device).unwrap();
    let good = two_weights(page);
    let mut wrong = vec![good.clone(); 4];
    wrong[0].pieces[2].at += page;
    wrong[1].pieces[1].memory += 64;
    wrong[2].memory -= page;
    wrong[3].bytes += page;
    for view in &wrong {
        let outcome = device.map(view);
        assert!(matches!(outcome, Err(Error::Internal(_))), "{outcome:?}");
        assert_eq!(device.live(), 0);
    }
    let at = device.map(&good).unwrap();
    device.unmap(at).unwrap();
}

/// The copy goes to one address, and the kernel reads through the other. Without the wait it reads the new bytes.
fn copies_wait_for_the_last_reader_of_any_address<D: Bench>() {
    for waits in [true, false] {
        let (mut device, at, page) = open::<D>();
        let source = Source::noise(2 * page as usize);
        let (old, new) = (0..page, page..2 * page);
        device.register(&source);
        let (written, seen) = (at.offset(2 * page), at.offset(5 * page));
        device.bring(written, source.host(old.clone())).unwrap();
        device.synchronize().unwrap();

        let gate = device.hold_compute();
        let later = device.read_later(seen, page);
        let read = device.record_compute().unwrap();
        if waits || gate.is_none() {
            device.copy_wait(&read).unwrap();
        }
        device.bring(written, source.host(new.clone())).unwrap();
        let arrived = device.record_copy().unwrap();
        if gate.is_some() {
            assert_eq!(is_done_soon(&mut *device, &arrived, !waits), !waits);
            let races = device.races();
            assert!(races.is_none_or(|races| races == usize::from(!waits)));
        }
        let right = waits || gate.is_none();
        drop(gate);
        let found = device.finish(later);
        let expected = if right { &old } else { &new };
        assert!(found == source.bytes(expected.clone()), "waits: {waits}");
        assert!(now(&mut *device, seen, page) == source.bytes(new));
    }
}

fn a_device_may_go_with_copies_to_a_view_in_flight<D: Bench>() {
    for hold in [false, true] {
        let (mut device, at, page) = open::<D>();
        let source = Source::noise(6 * page as usize);
        device.register(&source);
        let gate = if hold { device.hold_copies() } else { None };
        for _ in 0..20 {
            device.bring(at, source.host(0..6 * page)).unwrap();
        }
        let opener = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(gate);
        });
        drop(device);
        opener.join().unwrap();
    }
}

#[test]
fn what_the_host_cannot_hold_is_out_of_memory() {
    let mut device = Mapping::on(HostDevice::new().unwrap());
    let bytes = 1 << 60;
    let view = View {
        bytes,
        memory: bytes,
        pieces: vec![Piece {
            at: 0,
            memory: 0,
            bytes,
        }],
    };
    let outcome = device.map(&view);
    assert!(
        matches!(outcome, Err(Error::OutOfMemory { .. })),
        "{outcome:?}"
    );
    assert_eq!(device.live_bytes(), 0);
}

/// Each call that a view needs fails once. What was taken before is given back, and then it works.
#[test]
fn a_view_may_fail_as_a_block_does() {
    let page = HostDevice::new().unwrap().page().unwrap();
    let view = two_weights(page);
    let opens = [
        "reserve", "create", "map", "allow", "reserve", "map", "allow",
    ];
    for (fault, calls) in [
        (Fault::Call(1), &opens[..1]),
        (Fault::Call(2), &opens[1..2]),
        (Fault::Memory(1), &opens[1..2]),
        (Fault::Call(3), &opens[2..3]),
        (Fault::Call(7), &opens[3..4]),
        (Fault::Call(8), &opens[4..5]),
        (Fault::Call(9), &opens[5..6]),
        (Fault::Call(14), &opens[6..]),
    ] {
        let faults = Faults::new(fault);
        let mut device = Mapping::on(Faulty::new(HostDevice::new().unwrap(), &faults));
        let mapped = device.map(&view);
        let no_memory =
            matches!(mapped, Err(Error::OutOfMemory { bytes, .. }) if bytes == view.memory);
        assert_eq!(no_memory, fault == Fault::Memory(1), "{mapped:?}");
        assert!(mapped.is_err() && faults.live().bytes == 0, "{fault:?}");
        assert_eq!(faults.failed(), calls, "{fault:?}");
        let at = device.map(&view).unwrap();
        assert_eq!(faults.live().bytes, view.memory);
        device.unmap(at).unwrap();
        assert_eq!(faults.live().bytes, 0);
    }
    let made = Faults::new(Fault::None);
    let mut device = Mapping::on(Faulty::new(HostDevice::new().unwrap(), &made));
    let at = device.map(&view).unwrap();
    // What could not be given back can be later.
    for call in 1..=3 {
        let faults = Faults::new(Fault::Call(made.calls() + call));
        let mut device = Mapping::on(Faulty::new(HostDevice::new().unwrap(), &faults));
        let at = device.map(&view).unwrap();
        assert!(device.unmap(at).is_err());
        device.unmap(at).unwrap();
        assert_eq!(faults.live().bytes, 0, "{:?}", faults.failed());
    }
    device.unmap(at).unwrap();
}

const STORE_CHILD: &str = "WEIGHTSTREAM_TEST_STORE_CHILD";

/// Only of use to the next test, in a process of its own: what compiled code would do that stores into a weight.
#[test]
fn store_child() {
    let Ok(which) = std::env::var(STORE_CHILD) else {
        return;
    };
    let (mut device, at, page) = open::<HostDevice>();
    let source = Source::noise(6 * page as usize);
    device.bring(at, source.all()).unwrap();
    device.synchronize().unwrap();
    let block = device.alloc(page).unwrap();
    let address = match which.as_str() {
        "block" => block.0,
        pages => at.0 + pages.parse::<u64>().unwrap() * page + 64,
    };
    println!("storing");
    // SAFETY: addresses that are mapped; that the store is not allowed is what is tested.
    unsafe { (address as *mut u8).write_volatile(1) };
    println!("stored");
}

#[cfg(target_os = "linux")]
#[test]
fn a_store_into_a_view_is_a_fault() {
    use std::os::unix::process::ExitStatusExt;
    for which in ["block", "0", "1", "2", "3", "4", "5"] {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let output = child
            .args(["--exact", "views::store_child", "--nocapture"])
            .env(STORE_CHILD, which)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("storing"), "{output:?}");
        let faults = output.status.signal() == Some(libc::SIGSEGV) && !said.contains("stored");
        assert_eq!(faults, which != "block", "{which}: {output:?}");
    }
}
