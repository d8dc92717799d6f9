//! Blocks that grow where they are: what lies in them stays, and graphs that use them stay right. On the simulator, and on the
//! GPU where it was asked for.

use crate::device_support::{gpu, Bench};
use weightstream::device::{CudaDevice, Device, DevicePtr, Sim};
use weightstream::memory::Growing;
use weightstream::Error;

const KB: u64 = 1 << 10;
const MB: u64 = 1 << 20;

fn opened<D: Bench>() -> (D, Growing, DevicePtr) {
    let mut device = D::open(32 * MB);
    let growing = Growing::open(&mut device).unwrap();
    let growing = growing.expect("this device maps memory");
    let at = growing.at();
    (device, growing, at)
}

fn read<D: Device>(device: &mut D, at: DevicePtr, bytes: usize) -> Vec<u8> {
    let mut found = vec![0; bytes];
    device.download(at, &mut found).unwrap();
    found
}

/// The graph copies the first KB to the second one.
fn captured<D: Device>(device: &mut D, block: DevicePtr) -> D::Graph {
    device.synchronize().unwrap();
    device.begin_capture().unwrap();
    device.copy_across(block.offset(KB), block, KB).unwrap();
    device.end_capture().unwrap()
}

fn grows_under_a_graph<D: Bench>() {
    let (mut device, mut growing, block) = opened::<D>();
    growing.grow(&mut device, 2 * KB).unwrap();
    let graph = captured(&mut device, block);
    assert!(device.graph_bytes(&graph) > 0);
    for (round, bytes) in [(1, 2 * KB), (2, 5 * MB), (3, 5 * MB), (4, 40 * MB)] {
        // What was issued goes on meanwhile.
        device.upload(block, &[round; KB as usize]).unwrap();
        growing.grow(&mut device, bytes).unwrap();
        let end = block.offset(bytes - KB);
        device.replay(&graph).unwrap();
        device.copy_across(end, block.offset(KB), KB).unwrap();
        assert_eq!(read(&mut device, end, KB as usize), [round; KB as usize]);
        let before = block.offset(KB);
        assert_eq!(read(&mut device, before, KB as usize), [round; KB as usize]);
    }
    device.synchronize().unwrap();
    drop(graph);
    growing.close(&mut device).unwrap();
}

fn nothing_else_is_reached<D: Bench>() {
    let (mut device, mut growing, block) = opened::<D>();
    let refused =
        |outcome: weightstream::Result<()>| assert!(matches!(outcome, Err(Error::Internal(_))));
    refused(device.upload(block, &[1]));
    growing.grow(&mut device, 3 * KB).unwrap();
    let end = (3 * KB).next_multiple_of(Device::page(&device).unwrap());
    device.upload(block.offset(end - 1), &[1]).unwrap();
    refused(device.upload(block.offset(end), &[1]));
    refused(device.zero(block.offset(KB), end));
    refused(device.free_scratch(block, 3 * KB));
    device.synchronize().unwrap();
    growing.close(&mut device).unwrap();
    refused(device.upload(block, &[1]));
}

fn a_block_that_cannot_be_had_leaves_the_old_one<D: Bench>() {
    let (mut device, mut growing, block) = opened::<D>();
    growing.grow(&mut device, KB).unwrap();
    device.upload(block, &[7; KB as usize]).unwrap();
    device.synchronize().unwrap();
    let error = growing.grow(&mut device, 1 << 45).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    assert_eq!(read(&mut device, block, KB as usize), [7; KB as usize]);
    growing.grow(&mut device, 4 * KB).unwrap();
    assert_eq!(read(&mut device, block, KB as usize), [7; KB as usize]);
}

macro_rules! blocks {
    ($($name:ident)*) => {
        mod sim {
            $(#[test]
            fn $name() {
                super::$name::<super::Sim>();
            })*
        }
        mod cuda {
            $(#[test]
            fn $name() {
                let Some(_gpu) = super::gpu(stringify!($name)) else { return };
                super::$name::<super::CudaDevice>();
            })*
        }
    };
}

blocks! {
    grows_under_a_graph
    nothing_else_is_reached
    a_block_that_cannot_be_had_leaves_the_old_one
}

/// Blocks take what they hold in whole pages, and graphs what their nodes say.
#[test]
fn what_is_counted_is_what_the_driver_takes() {
    let Some(_gpu) = gpu("what_is_counted_is_what_the_driver_takes") else {
        return;
    };
    let (mut device, mut growing, block) = opened::<CudaDevice>();
    let page = Device::page(&device).unwrap();
    let free = |device: &CudaDevice| device.free_bytes().unwrap();
    let before = free(&device);
    growing.grow(&mut device, 100 * MB + 5).unwrap();
    let taken = before - free(&device);
    assert!(taken.abs_diff(100 * MB) <= 2 * page, "{taken} bytes");
    device.zero(block, MB).unwrap();
    device.synchronize().unwrap();
    let before = free(&device);
    let mut graphs = Vec::new();
    for _ in 0..32 {
        device.synchronize().unwrap();
        device.begin_capture().unwrap();
        for _ in 0..400 {
            device
                .copy_across(block.offset(MB), block, 64 * KB)
                .unwrap();
        }
        let graph = device.end_capture().unwrap();
        device.replay(&graph).unwrap();
        graphs.push(graph);
    }
    device.synchronize().unwrap();
    let counted: u64 = graphs.iter().map(|graph| device.graph_bytes(graph)).sum();
    println!(
        "32 graphs of 400 copies: {counted} bytes counted, {} taken",
        before - free(&device)
    );
    drop(graphs);
    let before = free(&device);
    growing.close(&mut device).unwrap();
    assert!((free(&device) - before).abs_diff(100 * MB) <= 2 * page);
}
