//! What tests need of a device beyond its trait: bytes to copy from, reads that happen when the compute
//! stream gets there, and gates that hold a stream.
//!
//! The GPU is used only where `WEIGHTSTREAM_TEST_DEVICE=cuda` is set.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod gate;
pub mod plain;

/// Each test on the host, on the simulator and on the plain device, and on the GPU where it was asked for.
#[allow(unused_macros, reason = "not each test binary tests every device")]
macro_rules! contract {
    ($($name:ident)*) => {
        mod host {
            $(#[test]
            fn $name() {
                super::$name::<super::HostDevice>();
            })*
        }
        mod sim {
            $(#[test]
            fn $name() {
                super::$name::<super::Sim>();
            })*
        }
        mod plain {
            $(#[test]
            fn $name() {
                super::$name::<super::Plain>();
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

use gate::Gate;
pub use plain::Plain;
use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use weightstream::device::sim::{Actor, Hold, Order, Violation};
use weightstream::device::{
    CudaDevice, Device, DevicePtr, HostBytes, HostDevice, HostFile, PageAccess, Sim,
};
use weightstream::figures::{KeptPages, View};
use weightstream::memory::MappedView;
use weightstream::weights::MappedFile;
use weightstream::Result;

/// After this a held stream goes on by itself, so that a test that fails does not hang.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Bytes in a mapped file, as weights are.
pub struct Source {
    file: MappedFile,
    path: tempfile::TempPath,
}

impl Source {
    /// A file that begins with these parts, each at a page; and the offset of each.
    pub fn new<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> (Source, Vec<u64>) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut at = 0;
        let mut offsets = Vec::new();
        for part in parts {
            offsets.push(at);
            let padding = part.len().next_multiple_of(4096) - part.len();
            file.write_all(part).unwrap();
            file.write_all(&vec![0xEE; padding]).unwrap();
            at += (part.len() + padding) as u64;
        }
        file.flush().unwrap();
        let path = file.into_temp_path();
        let file = MappedFile::open(&path).unwrap();
        (Source { file, path }, offsets)
    }

    /// `len` bytes without a pattern.
    pub fn noise(len: usize) -> Source {
        let mut state = 0x9E37_79B9_7F4A_7C15u64;
        let mut next = || {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 33) as u8
        };
        let bytes: Vec<u8> = (0..len).map(|_| next()).collect();
        Source::new([bytes.as_slice()]).0
    }

    pub fn bytes(&self, range: Range<u64>) -> &[u8] {
        &self.file.bytes()[range.start as usize..range.end as usize]
    }

    pub fn host(&self, range: Range<u64>) -> HostBytes {
        let bytes = self.bytes(range);
        // SAFETY: the mapping is never written, and the tests drop their devices before their sources.
        unsafe { HostBytes::new(bytes.as_ptr(), bytes.len() as u64) }
    }

    /// The file as devices read it that do not touch its mapping.
    pub fn host_file(&self) -> HostFile {
        HostFile::new("weights.ptd", self.file.file().clone(), self.all())
    }

    /// Cuts the file. What is gone must not be touched through the mapping any more.
    pub fn truncate(&self, len: u64) {
        let file = std::fs::OpenOptions::new().write(true).open(&self.path);
        file.unwrap().set_len(len).unwrap();
    }

    pub fn path(&self) -> &std::path::Path {
        &self.path
    }

    pub fn all(&self) -> HostBytes {
        self.host(0..self.file.bytes().len() as u64)
    }
}

/// A device and what is mapped on it, as a store has them.
pub struct Mapping<D: Device> {
    pub device: D,
    views: BTreeMap<DevicePtr, MappedView<D>>,
}

impl<D: Device> Mapping<D> {
    pub fn on(device: D) -> Mapping<D> {
        Mapping {
            device,
            views: BTreeMap::new(),
        }
    }

    pub fn map(&mut self, view: &View) -> Result<DevicePtr> {
        let mapped = MappedView::open(&mut self.device, view, PageAccess::Read)?;
        Ok(self.keep(mapped))
    }

    fn keep(&mut self, mapped: MappedView<D>) -> DevicePtr {
        let at = mapped.at();
        self.views.insert(at, mapped);
        at
    }

    pub fn unmap(&mut self, at: DevicePtr) -> Result<()> {
        self.views.get_mut(&at).unwrap().close(&mut self.device)?;
        self.views.remove(&at);
        Ok(())
    }

    /// The new first address, and what was lost.
    pub fn remap(
        &mut self,
        at: DevicePtr,
        view: &View,
        kept: &[KeptPages],
    ) -> (DevicePtr, Vec<Range<u64>>) {
        let old = self.views.remove(&at).unwrap();
        let moved = old.moved(&mut self.device, view, PageAccess::Read, kept);
        let (mapped, lost) = moved.unwrap();
        (self.keep(mapped), lost)
    }
}

impl<D: Device> std::ops::Deref for Mapping<D> {
    type Target = D;

    fn deref(&self) -> &D {
        &self.device
    }
}

impl<D: Device> std::ops::DerefMut for Mapping<D> {
    fn deref_mut(&mut self) -> &mut D {
        &mut self.device
    }
}

/// The result of a read that the compute stream performs in its order.
pub enum Later {
    Read(Vec<u8>),
    At(DevicePtr, u64),
}

/// A device under test.
pub trait Bench: Device + Sized {
    /// Holds a stream until it is dropped.
    type Gate: Send + 'static;

    /// A device that was told this budget.
    fn open(budget: u64) -> Self;

    /// Makes copies from the source as fast, and as independent of the host, as they can be.
    fn register(&mut self, source: &Source);

    /// Bytes of weights' memory that it has handed out, by its own count.
    fn live(&self) -> u64;

    /// Issues a read to the compute stream.
    fn read_later(&mut self, ptr: DevicePtr, len: u64) -> Later;

    /// Waits for the read.
    fn finish(&mut self, later: Later) -> Vec<u8>;

    /// Holds everything that is issued to the compute stream from now on; `None` if it cannot be held.
    fn hold_compute(&mut self) -> Option<Self::Gate>;

    /// The same for the copy stream.
    fn hold_copies(&mut self) -> Option<Self::Gate>;

    /// Lets a device go on that only moves when it is told to.
    fn go_on(&mut self) {}

    /// How many races the device has seen since it was asked last; `None` if it cannot see any.
    fn races(&mut self) -> Option<usize> {
        None
    }
}

impl Bench for HostDevice {
    type Gate = ();

    fn open(budget: u64) -> Self {
        let mut device = HostDevice::new().unwrap();
        device.set_budget(budget).unwrap();
        device
    }

    fn register(&mut self, _source: &Source) {}

    fn live(&self) -> u64 {
        self.live_bytes()
    }

    fn read_later(&mut self, ptr: DevicePtr, len: u64) -> Later {
        // SAFETY: the tests read memory that they have allocated, after waiting for its copy, if they were
        // told that this is all the device can do (no gate).
        Later::Read(
            unsafe { std::slice::from_raw_parts(ptr.0 as *const u8, len as usize) }.to_vec(),
        )
    }

    fn finish(&mut self, later: Later) -> Vec<u8> {
        match later {
            Later::Read(bytes) => bytes,
            Later::At(..) => panic!("a read of another device"),
        }
    }

    fn hold_compute(&mut self) -> Option<()> {
        None
    }

    fn hold_copies(&mut self) -> Option<()> {
        None
    }
}

impl Bench for Sim {
    type Gate = Hold;

    fn open(budget: u64) -> Self {
        let mut device = Sim::new(Order::Random(budget));
        device.set_budget(budget).unwrap();
        device
    }

    fn register(&mut self, _source: &Source) {}

    fn live(&self) -> u64 {
        self.live_bytes()
    }

    fn read_later(&mut self, ptr: DevicePtr, len: u64) -> Later {
        copy_aside(self, ptr, len)
    }

    fn finish(&mut self, later: Later) -> Vec<u8> {
        fetch_aside(self, later)
    }

    fn hold_compute(&mut self) -> Option<Hold> {
        Some(self.hold(Actor::Compute))
    }

    fn hold_copies(&mut self) -> Option<Hold> {
        Some(self.hold(Actor::Copy))
    }

    fn go_on(&mut self) {
        self.run();
    }

    fn races(&mut self) -> Option<usize> {
        let problems = self.take_problems();
        let races = problems
            .iter()
            .filter(|p| matches!(p, Violation::Race { .. }));
        let races = races.count();
        assert_eq!(races, problems.len(), "{problems:?}");
        Some(races)
    }
}

impl Bench for Plain {
    type Gate = ();

    fn open(budget: u64) -> Self {
        let mut device = Plain::new();
        device.set_budget(budget).unwrap();
        device
    }

    fn register(&mut self, _source: &Source) {}

    fn live(&self) -> u64 {
        self.live_bytes()
    }

    fn read_later(&mut self, ptr: DevicePtr, len: u64) -> Later {
        let mut bytes = vec![0; len as usize];
        self.download(ptr, &mut bytes).unwrap();
        Later::Read(bytes)
    }

    fn finish(&mut self, later: Later) -> Vec<u8> {
        match later {
            Later::Read(bytes) => bytes,
            Later::At(..) => panic!("a read of another device"),
        }
    }

    fn hold_compute(&mut self) -> Option<()> {
        None
    }

    fn hold_copies(&mut self) -> Option<()> {
        None
    }
}

impl Bench for CudaDevice {
    type Gate = Gate;

    fn open(budget: u64) -> Self {
        let mut device = CudaDevice::new(0).unwrap();
        device.set_budget(budget).unwrap();
        device
    }

    fn register(&mut self, source: &Source) {
        self.register_host(source.all(), &[]).unwrap();
    }

    fn live(&self) -> u64 {
        self.counters().unwrap().weight_bytes
    }

    fn read_later(&mut self, ptr: DevicePtr, len: u64) -> Later {
        copy_aside(self, ptr, len)
    }

    fn finish(&mut self, later: Later) -> Vec<u8> {
        fetch_aside(self, later)
    }

    fn hold_compute(&mut self) -> Option<Gate> {
        Some(Gate::close(self.compute_stream(), PATIENCE))
    }

    fn hold_copies(&mut self) -> Option<Gate> {
        Some(Gate::close(self.copy_stream(), PATIENCE))
    }
}

/// Whether the event is done before long. One that `should` be gets more time, since a busy machine may not fail a test; one
/// that should not be costs all of its time.
pub fn is_done_soon<D: Bench>(device: &mut D, event: &D::Event, should: bool) -> bool {
    let limit = PATIENCE / if should { 2 } else { 10 };
    let start = Instant::now();
    while start.elapsed() < limit {
        device.go_on();
        if device.is_done(event).unwrap() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

fn copy_aside<D: Device>(device: &mut D, ptr: DevicePtr, len: u64) -> Later {
    let to = device.alloc_scratch(len).unwrap();
    device.copy_across(to, ptr, len).unwrap();
    Later::At(to, len)
}

fn fetch_aside<D: Device>(device: &mut D, later: Later) -> Vec<u8> {
    let Later::At(at, len) = later else {
        panic!("a read of another device")
    };
    let mut bytes = vec![0; len as usize];
    device.download(at, &mut bytes).unwrap();
    device.free_scratch(at, len).unwrap();
    bytes
}

/// The right to use the GPU, or `None`, said aloud, where it was not asked for. One test at a time: some
/// calls of the driver wait for the whole device, and so for a stream that another test holds.
pub fn gpu(test: &str) -> Option<MutexGuard<'static, ()>> {
    static GPU: Mutex<()> = Mutex::new(());
    if std::env::var("WEIGHTSTREAM_TEST_DEVICE").as_deref() != Ok("cuda") {
        println!("skipped: {test} (set WEIGHTSTREAM_TEST_DEVICE=cuda to run it)");
        return None;
    }
    Some(GPU.lock().unwrap_or_else(PoisonError::into_inner))
}
