//! The GPU as a device, beyond the contract of all devices: what its pool counts, what it refuses, how it ends. And
//! what is said where there is no GPU.

use crate::device_support::gate::{stream_like, while_captured};
use crate::device_support::{gpu, Bench, Mapping, Source};
use std::time::Instant;
use weightstream::device::{cuda, CudaDevice, Device, HostDevice, PageAccess};
use weightstream::figures::{Piece, View};
use weightstream::memory::MappedView;
use weightstream::Error;

const MB: u64 = 1 << 20;

/// Where there is no driver this is an error that says so, each time, and nothing else stops working.
#[test]
fn asking_for_cuda_without_a_driver_names_the_library() {
    for _ in 0..2 {
        let outcomes = [
            cuda::device_count().err(),
            CudaDevice::new(0).err(),
            // SAFETY: null is the default stream.
            unsafe { CudaDevice::with_stream(0, std::ptr::null_mut()) }.err(),
        ];
        for outcome in outcomes {
            match outcome {
                None => println!("skipped: there is a driver here"),
                Some(Error::Missing { name, place }) => {
                    assert_eq!(name, "libcuda.so.1");
                    assert!(place.contains("cannot open shared object file"), "{place}");
                    assert!(place.contains("NVIDIA driver"), "{place}");
                }
                Some(Error::Unsupported(what)) => {
                    println!("skipped: a driver without a GPU: {what}")
                }
                Some(other) => panic!("{other}"),
            }
        }
    }
    assert!(HostDevice::new().is_ok());
}

/// What is counted must be what is taken, or the budget is not kept.
#[test]
fn the_granule_is_the_pools_own() {
    let Some(_gpu) = gpu("the_granule_is_the_pools_own") else {
        return;
    };
    let mut device = CudaDevice::open(64 * MB);
    let granule = device.granule();
    for bytes in [
        granule,
        3 * granule,
        5 * granule,
        MB,
        MB + granule,
        2 * MB + granule,
        9 * MB + 7 * granule,
    ] {
        let before = device.counters().unwrap().pool_used_bytes;
        let at = device.alloc(bytes).unwrap();
        let used = device.counters().unwrap().pool_used_bytes - before;
        println!("{bytes} bytes take {used}, at {:#x}", at.0);
        assert_eq!(used, bytes);
    }
}

#[test]
fn free_memory_in_pieces_is_found_or_reported() {
    let Some(_gpu) = gpu("free_memory_in_pieces_is_found_or_reported") else {
        return;
    };
    let mut device = CudaDevice::open(128 * MB);
    let blocks: Vec<_> = (0..16).map(|_| device.alloc(8 * MB).unwrap()).collect();
    blocks
        .iter()
        .step_by(2)
        .for_each(|b| device.free(*b, 8 * MB).unwrap());
    match device.alloc(32 * MB) {
        Ok(at) => device.free(at, 32 * MB).unwrap(),
        Err(Error::OutOfMemory { what, bytes }) => {
            println!("{what}");
            assert_eq!(bytes, 32 * MB);
            assert!(
                what.contains("67108864 bytes handed out") && what.contains("reserved"),
                "{what}"
            );
        }
        Err(other) => panic!("{other}"),
    }
    blocks
        .iter()
        .skip(1)
        .step_by(2)
        .for_each(|b| device.free(*b, 8 * MB).unwrap());
    // Nothing is left in the way: from here on it has to work.
    device.alloc(128 * MB).unwrap();
    println!("{:?}", device.counters().unwrap());
    assert!(
        matches!(device.alloc(512), Err(Error::OutOfMemory { .. })),
        "over the cap"
    );
}

#[test]
fn a_stream_that_is_captured_is_not_lost() {
    let Some(_gpu) = gpu("a_stream_that_is_captured_is_not_lost") else {
        return;
    };
    let home = CudaDevice::open(0);
    let stream = stream_like(home.native_stream());
    // SAFETY: a stream of the device's primary context, which lasts to the end of the process.
    let device = unsafe { CudaDevice::with_stream(0, stream) }.unwrap();
    assert!(!device.is_lost());
    let while_captured = while_captured(stream, || device.is_lost());
    assert!(!while_captured, "a stream that is captured lives");
    assert!(!device.is_lost());
}

#[test]
fn what_a_gpu_cannot_do_is_named() {
    let Some(_gpu) = gpu("what_a_gpu_cannot_do_is_named") else {
        return;
    };
    let count = cuda::device_count().unwrap();
    let text = CudaDevice::new(count)
        .err()
        .map(|e| e.to_string())
        .unwrap_or_default();
    assert!(
        text.contains(&format!("'cuda:{count}' is missing")),
        "{text}"
    );

    let mut device = CudaDevice::new(0).unwrap();
    assert!(
        matches!(device.alloc(512), Err(Error::Internal(_))),
        "no budget yet"
    );
    let text = device.set_budget(1 << 50).unwrap_err().to_string();
    assert!(
        text.contains("out of memory: 1125899906842624 bytes") && text.contains("cuda:0"),
        "{text}"
    );
    device.set_budget(MB).unwrap();
    device.set_budget(MB).unwrap();

    let (source, _) = Source::new([[1; 5000].as_slice()]);
    device.register_host(source.all(), &[]).unwrap();
    let text = device
        .register_host(source.all(), &[])
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("cuMemHostRegister failed") && text.contains("bytes 0..8192"),
        "{text}"
    );
    // And the device goes on.
    let at = device.alloc(512).unwrap();
    device.bring(at, source.host(0..512)).unwrap();
    let mut found = [0; 512];
    device.synchronize().unwrap();
    device.download(at, &mut found).unwrap();
    assert_eq!(found, [1; 512]);
}

/// Weights of `each` pages, one behind the other, all but their first page from one ring of `ring` pages: the view of
/// a model that streams.
fn streamed(weights: u64, each: u64, ring: u64, page: u64) -> View {
    let mut pieces = Vec::new();
    let mut at = 0;
    let mut add = |memory: u64, pages: u64| {
        if pages > 0 {
            pieces.push(Piece {
                at: at * page,
                memory: memory * page,
                bytes: pages * page,
            });
            at += pages;
        }
    };
    let mut next = 0;
    for weight in 0..weights {
        add(weight, 1);
        let first = (each - 1).min(ring - next);
        add(weights + next, first);
        add(weights, each - 1 - first);
        next = (next + each - 1) % ring;
    }
    View {
        bytes: at * page,
        memory: (weights + ring) * page,
        pieces,
    }
}

/// Memory that shows at several addresses is taken once, and given back with the last address.
#[test]
fn mapped_memory_is_what_the_driver_counts() {
    let Some(_gpu) = gpu("mapped_memory_is_what_the_driver_counts") else {
        return;
    };
    let mut device = Mapping::on(CudaDevice::open(1024 * MB));
    let page = device.page().expect("this GPU maps memory");
    println!("pages of {page} bytes");
    let view = streamed(64, 12, 128, page);
    assert!(view.memory <= 1024 * MB && view.bytes > 3 * view.memory);
    view.check(page).unwrap();
    // Once before anything is counted: the driver may keep tables for these addresses.
    let start = Instant::now();
    let at = device.map(&view).unwrap();
    println!(
        "{} pieces, {} allocations, {} MiB of memory at {} MiB of addresses: mapped in {:?}",
        view.pieces.len(),
        view.borders().len() - 1,
        view.memory / MB,
        view.bytes / MB,
        start.elapsed()
    );
    let start = Instant::now();
    device.unmap(at).unwrap();
    println!("unmapped in {:?}", start.elapsed());

    let before = device.free_bytes().unwrap();
    let at = device.map(&view).unwrap();
    let taken = before - device.free_bytes().unwrap();
    println!("{} bytes of memory, {taken} taken", view.memory);
    assert!(taken.abs_diff(view.memory) <= 4 * MB, "{taken}");
    let counted = device.counters().unwrap();
    assert_eq!(
        (
            counted.weight_bytes,
            counted.mapped_bytes,
            counted.pool_used_bytes
        ),
        (view.memory, view.memory, 0)
    );
    device.unmap(at).unwrap();
    assert_eq!(device.free_bytes().unwrap(), before);
    // And a device that ends gives back what is mapped.
    device.map(&view).unwrap();
    drop(device);
    let device = CudaDevice::open(MB);
    assert!(device.free_bytes().unwrap().abs_diff(before) <= 32 * MB);
}

/// The pool takes memory in units of 32 MiB; what lies beside it in pages.
#[test]
fn lasting_memory_takes_no_unit_of_the_pool() {
    let Some(_gpu) = gpu("lasting_memory_takes_no_unit_of_the_pool") else {
        return;
    };
    let mut device = CudaDevice::open(64 * MB);
    let page = device.page().expect("this GPU maps memory");
    let before = device.free_bytes().unwrap();
    device.alloc_lasting(1024).unwrap();
    let taken = before - device.free_bytes().unwrap();
    let counted = device.counters().unwrap();
    assert!(taken <= page, "{taken} bytes for 1024");
    assert_eq!(
        (
            counted.weight_bytes,
            counted.lasting_bytes,
            counted.pool_reserved_bytes
        ),
        (1024, 1024, 0)
    );
    assert!(matches!(
        device.alloc(64 * MB),
        Err(Error::OutOfMemory { .. })
    ));
    drop(device);
    assert!(CudaDevice::open(MB).free_bytes().unwrap().abs_diff(before) <= 32 * MB);
}

/// Allocations that were made before the one that fails are given back.
#[test]
fn a_view_that_the_gpu_cannot_hold_leaves_nothing() {
    let Some(_gpu) = gpu("a_view_that_the_gpu_cannot_hold_leaves_nothing") else {
        return;
    };
    // Another device takes some, so that what is free and a bit more is a cap that the device could have.
    let mut other = CudaDevice::open(2048 * MB);
    other.alloc(2048 * MB).unwrap();
    other.synchronize().unwrap();
    let mut device = Mapping::on(CudaDevice::new(0).unwrap());
    let page = device.page().expect("this GPU maps memory");
    let free = device.free_bytes().unwrap();
    let each = ((free + 1024 * MB) / 16).next_multiple_of(page);
    let pieces = (0..16).map(|index| Piece {
        at: index * each,
        memory: index * each,
        bytes: each,
    });
    let view = View {
        bytes: 16 * each,
        memory: 16 * each,
        pieces: pieces.collect(),
    };
    device.set_budget(view.memory).unwrap();
    let refused = device.map(&view);
    println!("{refused:?}");
    assert!(
        matches!(&refused, Err(Error::OutOfMemory { what, bytes }) if what.contains("weights' pages") && (page..=32 * MB).contains(bytes)),
        "{refused:?}"
    );
    assert_eq!(device.counters().unwrap().weight_bytes, 0);
    assert!(device.free_bytes().unwrap().abs_diff(free) <= 64 * MB);
    let at = device.map(&streamed(2, 3, 4, page)).unwrap();
    device.unmap(at).unwrap();
}

/// A copy that comes from a file, in pieces of the ring's, to pieces of a view.
#[test]
fn staged_weights_arrive_in_views() {
    let Some(_gpu) = gpu("staged_weights_arrive_in_views") else {
        return;
    };
    let source = Source::noise(48 * MB as usize);
    let mut device = Mapping::on(CudaDevice::open(64 * MB));
    device
        .stage_host(vec![source.host_file()], cuda::RING_LEAST)
        .unwrap();
    let page = device.page().expect("this GPU maps memory");
    let view = streamed(4, 6, 11, page);
    let at = device.map(&view).unwrap();
    // The third weight's pages begin at the ring's end and go on at its start; the fourth one's are the first one's.
    for (weight, from) in [(0, 5), (3, MB + 77), (1, 3 * MB), (2, 64)] {
        let bytes = 6 * page - 8;
        let to = at.offset(weight * 6 * page);
        device.bring(to, source.host(from..from + bytes)).unwrap();
        let arrived = device.record_copy().unwrap();
        device.compute_wait(&arrived).unwrap();
        let later = device.read_later(to, bytes);
        assert!(
            device.finish(later) == source.bytes(from..from + bytes),
            "weight {weight}"
        );
        let read = device.record_compute().unwrap();
        device.copy_wait(&read).unwrap();
    }
    device.unmap(at).unwrap();
}

const EXIT_CHILD: &str = "WEIGHTSTREAM_TEST_EXIT_CHILD";

static LEFT: std::sync::Mutex<Vec<CudaDevice>> = std::sync::Mutex::new(Vec::new());

extern "C" fn drop_one_left() {
    drop(LEFT.lock().map(|mut left| left.pop()));
}

/// Only of use to the next test, in a process of its own.
#[test]
fn exit_child() {
    if std::env::var_os(EXIT_CHILD).is_none() {
        return;
    }
    let at_exit = || {
        // SAFETY: the handler takes a lock that nobody holds at exit.
        assert_eq!(unsafe { libc::atexit(drop_one_left) }, 0);
    };
    // The first handler runs after the one of the device, when the driver may be gone; the second before.
    at_exit();
    let mut devices = [CudaDevice::open(16 * MB), CudaDevice::open(16 * MB)];
    at_exit();
    for device in &mut devices {
        device.alloc(512).unwrap();
        device.alloc_scratch(512).unwrap();
        let page = device.page().expect("this GPU maps memory");
        MappedView::open(device, &streamed(2, 3, 3, page), PageAccess::Read).unwrap();
    }
    LEFT.lock().unwrap().extend(devices);
}

#[test]
fn devices_left_at_exit_end_quietly() {
    let Some(_gpu) = gpu("devices_left_at_exit_end_quietly") else {
        return;
    };
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    let output = child
        .args(["--exact", "device::exit_child"])
        .env(EXIT_CHILD, "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("1 passed"),
        "{output:?}"
    );
}
