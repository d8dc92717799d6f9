//! What copies to the GPU cost is measured at load, where that is asked for, in memory that is given back.

use crate::device_support::{gpu, Bench, Source};
use weightstream::device::{CudaDevice, Device, HostFile};
use weightstream::figures::Link;

const MB: u64 = 1 << 20;

/// A device that has taken a budget and registered these bytes, as a load does.
fn device(source: &Source) -> CudaDevice {
    let mut device = CudaDevice::open(256 * MB);
    device.register_host(source.all(), &[0]).unwrap();
    device.time_link();
    device
}

/// How fast it is decides nothing here; that it is a link of a machine of today does.
#[test]
fn copies_are_timed_and_the_memory_is_given_back() {
    let Some(_gpu) = gpu("copies_are_timed_and_the_memory_is_given_back") else {
        return;
    };
    let source = Source::noise(80 << 20);
    let mut device = device(&source);
    let counters = device.counters().unwrap();
    let link = device.calibrate(source.all()).unwrap().unwrap();
    println!("{link}: a copy counts as {} bytes", device.bytes_per_copy());
    let gbps = link.bytes_per_second as f64 / 1e9;
    assert!((0.1..10_000.0).contains(&gbps), "{link}");
    assert!(link.ns_per_copy < 1_000_000, "{link}");
    assert_eq!(device.bytes_per_copy(), link.bytes_per_copy());
    let after = device.counters().unwrap();
    assert_eq!(after.weight_bytes, counters.weight_bytes);
    assert_eq!(after.pool_reserved_bytes, counters.pool_reserved_bytes);
    // Once is enough.
    assert_eq!(device.calibrate(source.all()).unwrap(), Some(link));
    drop(device);
    // Other processes take memory and give it back, but not each time.
    assert!((0..10).any(|_| leaves_free_memory_as_it_was(&source)));
}

/// As the driver counts it, over all processes.
fn leaves_free_memory_as_it_was(source: &Source) -> bool {
    let mut device = device(source);
    let free = device.free_bytes().unwrap();
    device.calibrate(source.all()).unwrap();
    device.free_bytes().unwrap() == free
}

/// What is measured differs from time to time; what plans make of it should not.
#[test]
fn plans_hear_the_same_each_time() {
    let Some(_gpu) = gpu("plans_hear_the_same_each_time") else {
        return;
    };
    let source = Source::noise(80 << 20);
    let found: Vec<_> = (0..5)
        .map(|_| {
            let mut device = device(&source);
            let link = device.calibrate(source.all()).unwrap().unwrap();
            println!("{link}: a copy counts as {} bytes", device.bytes_per_copy());
            device.bytes_per_copy()
        })
        .collect();
    // A step up or down is no error: the machine is not ours alone.
    assert!(found
        .iter()
        .all(|one| [found[0] / 4, found[0], found[0] * 4].contains(one)));
}

#[test]
fn what_is_given_or_would_say_nothing_is_not_measured() {
    let Some(_gpu) = gpu("what_is_given_or_would_say_nothing_is_not_measured") else {
        return;
    };
    let source = Source::noise(80 << 20);
    let mut unasked = CudaDevice::open(256 * MB);
    unasked.register_host(source.all(), &[0]).unwrap();
    assert_eq!(unasked.calibrate(source.all()).unwrap(), None);
    let usual = unasked.bytes_per_copy();
    // Each has registered the bytes, which one device at a time may.
    drop(unasked);
    let mut told = device(&source);
    assert_eq!(told.calibrate(source.host(0..15 * MB)).unwrap(), None);
    assert_eq!(told.bytes_per_copy(), usual);
    let given = Link::of_rate(3_000_000_000);
    told.set_link(given);
    assert_eq!(told.calibrate(source.all()).unwrap(), Some(given));
    assert_eq!(told.bytes_per_copy(), 12 << 10);
    drop(told);
    let mut staged = CudaDevice::open(256 * MB);
    let file: HostFile = source.host_file();
    staged.stage_host(vec![file], 8 * MB).unwrap();
    staged.time_link();
    assert_eq!(staged.calibrate(source.all()).unwrap(), None);
}
