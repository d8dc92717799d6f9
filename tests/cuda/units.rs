//! Units of ranges on a GPU: memory comes and goes under addresses that stay, while other work runs.

use crate::device_support::gpu;
use weightstream::device::cuda::memory;
use weightstream::device::{CudaPages, DeviceBytes, DevicePtr, Pages, UserStream, UserStreams};
use weightstream::memory::Units;
use weightstream::Error;

fn at(ptr: DevicePtr, len: u64) -> DeviceBytes {
    // SAFETY: the tests use a unit's memory while it is there, and nobody else does.
    unsafe { DeviceBytes::new(0, ptr.0, len) }
}

fn contents(ptr: DevicePtr, len: u64) -> Vec<u8> {
    let mut found = vec![0; len as usize];
    memory::copy_out(&mut found, at(ptr, len)).unwrap();
    found
}

#[test]
fn memory_comes_and_goes_under_addresses_that_stay() {
    let Some(_gpu) = gpu("memory_comes_and_goes_under_addresses_that_stay") else {
        return;
    };
    let mut units = Units::new(CudaPages::new(0).unwrap());
    let (unit, page) = (units.pages.unit(), units.pages.page());
    let start = units.reserve(2 * unit + page).unwrap();
    let last = start.offset(2 * unit);
    units.back(start, unit).unwrap();
    units.back(last, page).unwrap();
    let bytes: Vec<u8> = (0..page).map(|byte| (byte % 251) as u8).collect();
    memory::copy_in(at(start, page), &bytes).unwrap();
    memory::copy_in(at(last, page), &bytes).unwrap();
    let event = units.pages.record(UserStream::DEFAULT).unwrap();
    units.pages.wait(&event).unwrap();
    assert_eq!(units.pages.is_done(&event), Ok(true));
    // The memory itself moves where it is kept: so do the bytes, which nobody may rely on.
    units.take(start, true).unwrap();
    units.back(start.offset(unit), unit).unwrap();
    assert!(contents(start.offset(unit), page) == bytes);
    assert!(contents(last, page) == bytes);
    // Kept memory of another size goes.
    units.take(last, true).unwrap();
    units.back(start, unit).unwrap();
    units.take(start, true).unwrap();
    units.trim();
    assert!(matches!(
        units.back(start.offset(unit), unit),
        Err(Error::Internal(_))
    ));
    units.take(start.offset(unit), false).unwrap();
    units.release(start).unwrap();
    assert!(matches!(units.release(start), Err(Error::Internal(_))));
}

/// Driver-visible memory is what is backed, and all of it goes back.
#[test]
fn free_memory_is_as_before_when_units_are_gone() {
    let Some(_gpu) = gpu("free_memory_is_as_before_when_units_are_gone") else {
        return;
    };
    let mut units = Units::new(CudaPages::new(0).unwrap());
    let unit = units.pages.unit();
    let start = units.reserve(8 * unit).unwrap();
    let before = units.pages.free_bytes().unwrap();
    for number in 0..8 {
        units.back(start.offset(number * unit), unit).unwrap();
    }
    assert_eq!(before - units.pages.free_bytes().unwrap(), 8 * unit);
    // Each move is unmapped and mapped again, 400 times: access is never refused for good.
    for round in 0..400 {
        let place = start.offset(round % 8 * unit);
        units.take(place, true).unwrap();
        units.back(place, unit).unwrap();
    }
    assert_eq!(before - units.pages.free_bytes().unwrap(), 8 * unit);
    drop(units);
    let units = Units::new(CudaPages::new(0).unwrap());
    assert!(before <= units.pages.free_bytes().unwrap());
}
