//! Graph pools: memory for captures of graphs that another allocator asks for. And segments: memory for its other pools.
#![allow(non_camel_case_types)] // the names are those of the header

use std::collections::BTreeMap;
use std::ffi::{c_char, c_void};
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::args;
use super::origin::MakerProcess;
use super::range::WITH_RANGES;
use super::range_memory::kept_text;
use crate::device::{while_captured, AnyPages, DevicePtr, UserStream};
use crate::elastic::{GraphPool, Ranges, Segments};
use crate::error::Error;
use crate::ffi::status::{caught, guarded, Status};
use crate::figures::DeviceId;

/// `WS_GRAPH_POOL_NO_CAP` in the header.
const NO_CAP: u64 = u64::MAX;

type Pool = GraphPool<AnyPages>;

/// A graph pool. A child of this process cannot use it, and leaks it.
pub struct ws_graph_pool {
    pool: ManuallyDrop<Arc<Pool>>,
    device: DeviceId,
    made_in: MakerProcess,
}

/// What the callbacks look up: they are told a device and an address, and no pool.
#[derive(Default)]
struct Known {
    /// By device.
    pools: Vec<(DeviceId, Weak<Pool>)>,
    segments: BTreeMap<(u32, DeviceId), Arc<Segments<AnyPages>>>,
}

static KNOWN: Mutex<Known> = Mutex::new(Known {
    pools: Vec::new(),
    segments: BTreeMap::new(),
});

fn known() -> MutexGuard<'static, Known> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Known {
    /// The pool of the device whose capture runs.
    fn open(&self, device: DeviceId) -> Option<Arc<Pool>> {
        let mine = self.pools.iter().filter(|(other, _)| *other == device);
        mine.filter_map(|(_, pool)| pool.upgrade())
            .find(|pool| pool.is_open())
    }

    fn segments(&mut self, device: DeviceId) -> Result<Arc<Segments<AnyPages>>, Error> {
        let key = (std::process::id(), device);
        if let Some(segments) = self.segments.get(&key) {
            return Ok(segments.clone());
        }
        let segments = Arc::new(Segments::new(&Ranges::of(device)?));
        self.segments.insert(key, segments.clone());
        Ok(segments)
    }
}

/// The device of a callback: a negative number is the CPU.
fn device_of(index: i32) -> DeviceId {
    u32::try_from(index).map_or(DeviceId::Cpu, DeviceId::Cuda)
}

fn pointer(at: DevicePtr) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(at.0 as usize)
}

/// The pool behind an argument, and a call of it.
///
/// # Safety
/// `pool` is NULL or live.
unsafe fn with(
    pool: *const ws_graph_pool,
    call: impl FnOnce(&Arc<Pool>, DeviceId) -> Result<(), Error>,
) -> Status {
    guarded(|| {
        // SAFETY: by this function's contract.
        let mine = unsafe { args::reference("pool", pool) }?;
        mine.made_in.check("graph pool")?;
        Ok(while_captured(mine.device, || {
            call(&mine.pool, mine.device)
        })??)
    })
}

/// A new pool.
///
/// # Safety
/// Texts are NULL or NUL-terminated; `pool` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn ws_graph_pool_create(
    device: *const c_char,
    name: *const c_char,
    cap_bytes: u64,
    pool: *mut *mut ws_graph_pool,
) -> Status {
    guarded(|| {
        // SAFETY: all by this function's contract.
        let (device, name, pool) = unsafe {
            (
                args::text("device", device)?,
                args::text("name", name)?,
                args::output("pool", pool)?,
            )
        };
        let cap = (cap_bytes != NO_CAP).then_some(cap_bytes);
        let device = DeviceId::named(device, WITH_RANGES)?;
        let made = Arc::new(GraphPool::new(&Ranges::of(device)?, name, cap)?);
        let mut known = known();
        known.pools.retain(|(_, pool)| pool.strong_count() > 0);
        known.pools.push((device, Arc::downgrade(&made)));
        *pool = Box::into_raw(Box::new(ws_graph_pool {
            pool: ManuallyDrop::new(made),
            device,
            made_in: MakerProcess::here(),
        }));
        Ok(())
    })
}

fn runs_already(device: DeviceId) -> Error {
    Error::InvalidInput(format!(
        "a capture of a graph pool runs on {device} already: the allocator's callback is told the device only"
    ))
}

/// A capture begins.
///
/// # Safety
/// `pool` is NULL or live; `capture` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn ws_graph_pool_begin(
    pool: *const ws_graph_pool,
    capture: *mut u64,
) -> Status {
    // SAFETY: by this function's contract.
    let capture = match unsafe { args::output("capture", capture) } {
        Ok(capture) => capture,
        Err(failure) => return guarded(|| Err(failure)),
    };
    // SAFETY: by this function's contract.
    unsafe {
        with(pool, |pool, device| {
            // Nobody else begins one meanwhile.
            let known = known();
            if known.open(device).is_some() {
                return Err(runs_already(device));
            }
            *capture = pool.begin()?;
            Ok(())
        })
    }
}

/// A capture goes on.
///
/// # Safety
/// `pool` is NULL or live.
#[no_mangle]
pub unsafe extern "C" fn ws_graph_pool_resume(pool: *const ws_graph_pool, capture: u64) -> Status {
    // SAFETY: by this function's contract.
    unsafe {
        with(pool, |pool, device| {
            // Nobody else begins one meanwhile.
            let known = known();
            match known.open(device) {
                Some(_) => Err(runs_already(device)),
                None => pool.resume(capture),
            }
        })
    }
}

/// The capture that runs is over.
///
/// # Safety
/// `pool` is NULL or live.
#[no_mangle]
pub unsafe extern "C" fn ws_graph_pool_end(pool: *const ws_graph_pool, keep: i32) -> Status {
    // SAFETY: by this function's contract.
    unsafe { with(pool, |pool, _| pool.end(keep != 0)) }
}

/// A replay is issued next.
///
/// # Safety
/// `pool` is NULL or live; `stream` is NULL or a stream.
#[no_mangle]
pub unsafe extern "C" fn ws_graph_pool_enter(
    pool: *const ws_graph_pool,
    capture: u64,
    stream: *mut c_void,
) -> Status {
    // SAFETY: both by this function's contract.
    unsafe {
        let stream = UserStream::new(stream);
        with(pool, |pool, _| pool.enter(capture, stream))
    }
}

/// A capture is replayed no more.
///
/// # Safety
/// `pool` is NULL or live.
#[no_mangle]
pub unsafe extern "C" fn ws_graph_pool_release(pool: *const ws_graph_pool, capture: u64) -> Status {
    // SAFETY: by this function's contract.
    unsafe { with(pool, |pool, _| pool.release(capture)) }
}

/// What a pool holds, as JSON.
///
/// # Safety
/// `pool` is NULL or live; `json` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn ws_graph_pool_report(
    pool: *const ws_graph_pool,
    json: *mut *const c_char,
) -> Status {
    guarded(|| {
        // SAFETY: both by this function's contract.
        let (pool, json) = unsafe { (args::reference("pool", pool)?, args::output("json", json)?) };
        pool.made_in.check("graph pool")?;
        *json = kept_text(pool.pool.report().to_json());
        Ok(())
    })
}

/// Ends a pool; NULL is allowed. After an error it is still there.
///
/// # Safety
/// `pool` is NULL or came from [`ws_graph_pool_create`]; after `WS_OK` it is not used any more.
#[no_mangle]
pub unsafe extern "C" fn ws_graph_pool_destroy(pool: *mut ws_graph_pool) -> Status {
    if pool.is_null() {
        return Status::Ok;
    }
    guarded(|| {
        // SAFETY: live by this function's contract.
        let mine = unsafe { args::reference("pool", pool.cast_const())? };
        let of_parent = mine.made_in.is_parent();
        if !of_parent {
            while_captured(mine.device, || mine.pool.close())??;
        }
        // SAFETY: made by Box::into_raw in ws_graph_pool_create, and used no more, by this function's contract.
        let ended = unsafe { Box::from_raw(pool) };
        if !of_parent {
            drop(ManuallyDrop::into_inner(ended.pool));
        }
        Ok(())
    })
}

/// What a callback gives for `size` bytes: NULL is out of memory, and the log says why.
fn given(
    size: isize,
    device: i32,
    give: impl FnOnce(DeviceId, u64) -> Result<DevicePtr, Error>,
) -> *mut c_void {
    let device = device_of(device);
    let bytes = u64::try_from(size).unwrap_or(0);
    let found = caught(|| Ok(give(device, bytes)?));
    found.map(pointer).unwrap_or_else(|failure| {
        log::warn!("{device}: {}", failure.report().1);
        std::ptr::null_mut()
    })
}

fn logged(device: i32, work: impl FnOnce(DeviceId) -> Result<(), Error>) {
    let device = device_of(device);
    if let Err(failure) = caught(|| Ok(work(device)?)) {
        log::warn!("{device}: {}", failure.report().1);
    }
}

/// Memory of the capture that runs on the device.
#[no_mangle]
pub extern "C" fn ws_graph_pool_alloc(
    size: isize,
    device: i32,
    _stream: *mut c_void,
) -> *mut c_void {
    given(size, device, |device, bytes| {
        let open = known().open(device);
        let pool = open.ok_or_else(|| {
            Error::InvalidInput(
                "no capture of a graph pool runs, and nothing else gets its memory".to_owned(),
            )
        })?;
        while_captured(device, || pool.alloc(bytes))?
    })
}

/// Memory of a capture is not used by the allocator any more.
#[no_mangle]
pub extern "C" fn ws_graph_pool_free(
    at: *mut c_void,
    _size: isize,
    device: i32,
    _stream: *mut c_void,
) {
    logged(device, |device| {
        let at = DevicePtr(at.expose_provenance() as u64);
        let pools: Vec<_> = known()
            .pools
            .iter()
            .filter_map(|(_, pool)| pool.upgrade())
            .collect();
        if !pools.iter().any(|pool| pool.free(at)) {
            log::debug!("{device}: {:#x} is of a graph pool that is gone", at.0);
        }
        Ok(())
    });
}

/// Memory under the device's budget.
#[no_mangle]
pub extern "C" fn ws_segment_alloc(size: isize, device: i32, _stream: *mut c_void) -> *mut c_void {
    given(size, device, |device, bytes| {
        let segments = known().segments(device)?;
        while_captured(device, || segments.alloc(bytes))?
    })
}

/// Bytes that segments of a device hold; 0 where there are none.
#[no_mangle]
pub extern "C" fn ws_segment_bytes(device: i32) -> u64 {
    let key = (std::process::id(), device_of(device));
    let segments = known().segments.get(&key).cloned();
    segments.map_or(0, |segments| segments.held())
}

/// Memory of [`ws_segment_alloc`] goes, after what was issued to its stream.
///
/// # Safety
/// `stream` is NULL or a stream.
#[no_mangle]
pub unsafe extern "C" fn ws_segment_free(
    at: *mut c_void,
    _size: isize,
    device: i32,
    stream: *mut c_void,
) {
    logged(device, |device| {
        let segments = known().segments(device)?;
        let at = DevicePtr(at.expose_provenance() as u64);
        // SAFETY: by this function's contract.
        let stream = unsafe { UserStream::new(stream) };
        while_captured(device, || segments.free(at, stream))?;
        Ok(())
    });
}
