use super::*;
use crate::device::PageAccess;
use crate::figures::{Piece, View};
use crate::memory::MappedView;
use std::sync::mpsc::channel;

const BIG: u64 = 1 << 20;

fn leaked(byte: u8, len: u64) -> HostBytes {
    HostBytes::from_static(Box::leak(vec![byte; len as usize].into_boxed_slice()))
}

fn read(ptr: DevicePtr, len: u64) -> Vec<u8> {
    // SAFETY: the tests read only what they have allocated, after waiting for its copy.
    unsafe { std::slice::from_raw_parts(ptr.0 as *const u8, len as usize) }.to_vec()
}

/// Stops the copy thread until the result is dropped.
fn hold(device: &mut HostDevice) -> std::sync::mpsc::Sender<()> {
    let (gate, held) = channel();
    device.copier.issue(Command::Hold(held)).unwrap();
    gate
}

#[test]
fn bytes_arrive_and_events_tell() {
    let mut device = HostDevice::new().unwrap();
    for len in [64, 1 << 12, BIG] {
        let ptr = device.alloc(len).unwrap();
        assert_eq!(ptr.0 % 64, 0);
        let gate = hold(&mut device);
        device.bring(ptr, leaked(7, len)).unwrap();
        let event = device.record_copy().unwrap();
        assert_eq!(device.is_done(&event), Ok(false));
        drop(gate);
        device.compute_wait(&event).unwrap();
        assert_eq!(device.is_done(&event), Ok(true));
        assert_eq!(read(ptr, len), vec![7; len as usize]);
        device.free(ptr, len).unwrap();
    }
    assert_eq!(device.live_bytes(), 0);
}

#[test]
fn copies_run_in_the_order_of_issue() {
    let mut device = HostDevice::new().unwrap();
    let ptr = device.alloc(BIG).unwrap();
    for round in 0..50 {
        device.bring(ptr, leaked(round, BIG)).unwrap();
    }
    device.bring(ptr.offset(BIG - 64), leaked(99, 64)).unwrap();
    device.synchronize().unwrap();
    assert_eq!(read(ptr, BIG - 64), vec![49; BIG as usize - 64]);
    assert_eq!(read(ptr.offset(BIG - 64), 64), vec![99; 64]);
}

/// Freed at once instead of in queue order, this test dies of a segmentation fault or reads 1s.
#[test]
fn memory_freed_behind_a_queued_copy_stays_until_then() {
    let mut device = HostDevice::new().unwrap();
    for len in [64, BIG] {
        let gate = hold(&mut device);
        let old = device.alloc(len).unwrap();
        device.bring(old, leaked(1, len)).unwrap();
        device.free(old, len).unwrap();
        let new = device.alloc(len).unwrap();
        device.bring(new, leaked(2, len)).unwrap();
        drop(gate);
        device.synchronize().unwrap();
        assert_eq!(read(new, len), vec![2; len as usize]);
        device.free(new, len).unwrap();
    }
}

#[test]
fn freed_memory_is_used_again_and_never_adds_to_the_peak() {
    let mut device = HostDevice::new().unwrap();
    let a = device.alloc(BIG).unwrap();
    let b = device.alloc(2 * BIG).unwrap();
    device.free(b, 2 * BIG).unwrap();
    assert_eq!((device.live_bytes(), device.cached_bytes), (BIG, 2 * BIG));
    assert_eq!(device.alloc(2 * BIG).unwrap(), b);
    device.free(b, 2 * BIG).unwrap();
    // Another size: what is kept has to give way, as live + cached is at the peak.
    let c = device.alloc(BIG).unwrap();
    assert_eq!(
        (device.live_bytes(), device.cached_bytes, device.peak_bytes),
        (2 * BIG, 0, 3 * BIG)
    );
    device.free(a, BIG).unwrap();
    device.free(c, BIG).unwrap();
}

#[test]
fn scratch_is_counted_apart() {
    let mut device = HostDevice::new().unwrap();
    let ptr = device.alloc_scratch(100).unwrap();
    assert_eq!((device.live_bytes(), device.live_scratch_bytes()), (0, 100));
    assert_eq!(ptr.0 % 64, 0);
    device.free_scratch(ptr, 100).unwrap();
    assert_eq!(device.live_scratch_bytes(), 0);
}

#[test]
fn nothing_needs_no_memory() {
    let mut device = HostDevice::new().unwrap();
    assert_eq!(device.alloc(0), Ok(DevicePtr::EMPTY));
    device.bring(DevicePtr::EMPTY, leaked(0, 0)).unwrap();
    device.free(DevicePtr::EMPTY, 0).unwrap();
    assert_eq!(device.alloc_scratch(0), Ok(DevicePtr::EMPTY));
    device.free_scratch(DevicePtr::EMPTY, 0).unwrap();
}

#[test]
fn stray_addresses_are_refused() {
    let mut device = HostDevice::new().unwrap();
    let ptr = device.alloc(128).unwrap();
    let internal = |r: Result<()>| assert!(matches!(r, Err(Error::Internal(_))), "{r:?}");
    internal(device.bring(ptr, leaked(0, 129)));
    internal(device.bring(ptr.offset(64), leaked(0, 65)));
    internal(device.bring(DevicePtr(8), leaked(0, 1)));
    internal(device.free(ptr.offset(64), 64));
    internal(device.free(ptr, 64));
    internal(device.free_scratch(ptr, 128));
    device.free(ptr, 128).unwrap();
    internal(device.free(ptr, 128));
}

#[test]
fn too_much_memory_is_an_error() {
    let mut device = HostDevice::new().unwrap();
    for bytes in [1 << 60, u64::MAX - 63] {
        assert!(
            matches!(device.alloc(bytes), Err(Error::OutOfMemory { bytes: b, .. }) if b == bytes)
        );
        let scratch = device.alloc_scratch(bytes);
        assert!(
            matches!(scratch, Err(Error::OutOfMemory { .. })),
            "{scratch:?}"
        );
    }
}

/// Without the thread's `catch_unwind` the waits below never return.
#[test]
fn a_dying_copy_thread_is_an_error_and_no_hang() {
    let mut device = HostDevice::new().unwrap();
    let ptr = device.alloc(64).unwrap();
    let before = device.record_copy().unwrap();
    device.copier.issue(Command::Panic).unwrap();
    let after = device.record_copy().unwrap();
    let failed =
        |r: &Result<()>| matches!(r, Err(Error::Device { what, .. }) if what.contains("told to"));
    assert!(failed(&device.compute_wait(&after)));
    assert!(failed(&device.synchronize()));
    assert!(failed(&device.is_done(&after).map(drop)));
    assert_eq!(device.is_done(&before), Ok(true));
    // The queue's other end goes a moment later than the note of the failure.
    let copies = (0..1000).map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        device.bring(ptr, leaked(0, 64))
    });
    assert!(copies.into_iter().any(|r| failed(&r)));
    device.free(ptr, 64).ok();
}

/// Unmapped at once, the copy would write to addresses that others may have got meanwhile.
#[test]
fn a_view_stays_until_queued_copies_are_done() {
    let mut device = HostDevice::new().unwrap();
    let page = device.page().unwrap();
    let view = View {
        bytes: page,
        memory: page,
        pieces: vec![Piece {
            at: 0,
            memory: 0,
            bytes: page,
        }],
    };
    let mut mapped = MappedView::open(&mut device, &view, PageAccess::Read).unwrap();
    let ptr = mapped.at();
    let gate = hold(&mut device);
    device.bring(ptr, leaked(7, page)).unwrap();
    let copied = device.record_copy().unwrap();
    let opener = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(50));
        drop(gate);
    });
    mapped.close(&mut device).unwrap();
    assert_eq!(device.is_done(&copied), Ok(true));
    opener.join().unwrap();
    assert_eq!(device.live_bytes(), 0);
}

/// All pages are taken at load: more than there are would end some process of this machine.
#[test]
fn pages_that_the_system_does_not_have_are_refused() {
    let mut device = HostDevice::new().unwrap();
    let bytes = 1 << 45;
    let piece = Piece {
        at: 0,
        memory: 0,
        bytes,
    };
    let view = View {
        bytes,
        memory: bytes,
        pieces: vec![piece],
    };
    let error = MappedView::open(&mut device, &view, PageAccess::Read)
        .map(drop)
        .unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }));
    assert!(error.to_string().contains("of available memory"), "{error}");
    assert_eq!(device.live_bytes(), 0);
}
