//! Addresses, memory behind them, and who may use it: `device/pages.rs`, tested on each device that has pages.

use crate::device_support::{gpu, Bench, Plain, Source};
use weightstream::device::{
    CudaDevice, Device, DevicePtr, HostDevice, PageAccess, Pages, Purpose, Sim,
};
use weightstream::{Error, Result};

const MB: u64 = 1 << 20;

contract! {
    what_is_not_reserved_or_not_mapped_is_refused
    one_memory_shows_at_two_addresses
    memory_goes_with_its_last_handle_and_address
    more_memory_than_there_is_leaves_nothing
}

fn refused<T: std::fmt::Debug>(outcome: Result<T>) {
    assert!(matches!(outcome, Err(Error::Internal(_))), "{outcome:?}");
}

fn open<D: Bench>(pages: u64) -> (D, u64, DevicePtr) {
    let mut device = D::open(64 * MB);
    let page = Device::page(&device).unwrap();
    let all = device.pages().unwrap();
    assert!(all.unit().is_multiple_of(page) && Pages::page(all) == page);
    let at = all.reserve(pages * page, Purpose::Weights).unwrap();
    assert!(at.0.is_multiple_of(page));
    (device, page, at)
}

fn what_is_not_reserved_or_not_mapped_is_refused<D: Bench>() {
    let (mut device, page, at) = open::<D>(3);
    let pages = device.pages().unwrap();
    let memory = pages.create_one(2 * page, Purpose::Weights).unwrap();
    for stray in [
        DevicePtr(at.0 - page),
        at.offset(2 * page),
        at.offset(3 * page),
    ] {
        refused(pages.map(stray, &memory));
    }
    refused(pages.unmap(at));
    pages.map(at, &memory).unwrap();
    refused(pages.map(at, &memory));
    refused(pages.map(at.offset(page), &memory));
    refused(pages.unmap(at.offset(page)));
    let write = PageAccess::ReadWrite;
    for (start, bytes) in [(at, 3 * page), (at, page), (at.offset(page), page)] {
        refused(pages.allow(start, bytes, write));
    }
    let source = Source::noise(2 * page as usize);
    refused(device.bring(at, source.host(0..page)));
    refused(device.download(at, &mut [0]));
    let pages = device.pages().unwrap();
    pages.allow(at, 2 * page, write).unwrap();
    device.bring(at, source.host(0..2 * page)).unwrap();
    device.synchronize().unwrap();
    refused(device.upload(at.offset(2 * page - 1), &[1, 2]));
    let pages = device.pages().unwrap();
    refused(pages.release(at.offset(page)));
    pages.release(at).unwrap();
    refused(pages.release(at));
    refused(device.download(at, &mut [0]));
}

fn one_memory_shows_at_two_addresses<D: Bench>() {
    let (mut device, page, at) = open::<D>(2);
    let (read, write) = (at, at.offset(page));
    let source = Source::noise(page as usize);
    let pages = device.pages().unwrap();
    let memory = pages.create_one(page, Purpose::Weights).unwrap();
    pages.map(read, &memory).unwrap();
    pages.allow(read, page, PageAccess::Read).unwrap();
    refused(device.bring(read, source.host(0..page)));
    let pages = device.pages().unwrap();
    pages.map(write, &memory).unwrap();
    pages.allow(write, page, PageAccess::ReadWrite).unwrap();
    device.bring(read, source.host(0..page)).unwrap();
    device.synchronize().unwrap();
    device.upload(write.offset(8), &[7; 8]).unwrap();
    // It begins where nothing may be written, and ends where it may.
    refused(device.upload(DevicePtr(write.0 - 8), &[1; 16]));
    let mut found = vec![0; page as usize];
    for seen in [read, write] {
        device.download(seen, &mut found).unwrap();
        assert!(found[..8] == source.bytes(0..8)[..] && found[8..16] == [7; 8]);
        assert!(found[16..] == source.bytes(16..page)[..]);
    }
    // Nobody may write there any more, through no address.
    device
        .pages()
        .unwrap()
        .allow(write, page, PageAccess::Read)
        .unwrap();
    refused(device.upload(write, &[1]));
    refused(device.bring(read, source.host(0..page)));
}

fn memory_goes_with_its_last_handle_and_address<D: Bench>() {
    let (mut device, page, at) = open::<D>(4);
    let pages = device.pages().unwrap();
    let both = pages.create(&[page, 2 * page], Purpose::Weights).unwrap();
    assert_eq!(device.live(), 3 * page);
    let pages = device.pages().unwrap();
    pages.map(at, &both[1]).unwrap();
    pages.map(at.offset(2 * page), &both[1]).unwrap();
    pages.allow(at, 4 * page, PageAccess::ReadWrite).unwrap();
    drop(both);
    assert_eq!(device.live(), 2 * page);
    device.upload(at.offset(page), &[5; 64]).unwrap();
    device.synchronize().unwrap();
    device.pages().unwrap().unmap(at).unwrap();
    refused(device.download(at, &mut [0]));
    let mut found = [0; 64];
    device.download(at.offset(3 * page), &mut found).unwrap();
    assert_eq!((found, device.live()), ([5; 64], 2 * page));
    device.pages().unwrap().unmap(at.offset(2 * page)).unwrap();
    assert_eq!(device.live(), 0);
}

fn more_memory_than_there_is_leaves_nothing<D: Bench>() {
    let (mut device, page, _) = open::<D>(1);
    // The second piece is more than any device has.
    let sizes = [page, 1 << 50];
    let made = device.pages().unwrap().create(&sizes, Purpose::Weights);
    let live = device.live();
    let none = matches!(made.map(drop), Err(Error::OutOfMemory { .. }));
    assert!(none && live == 0, "{live} bytes");
}
