//! Weights of a module that the caller runs call by call.
#![allow(non_camel_case_types)] // the names are those of the header

use std::cell::RefCell;
use std::ffi::{c_char, c_void, CString};

use super::args;
use crate::device::{CallerStream, HostBytes};
use crate::eager::{Eager, Entry, EntryStats, OffloadBudget, Recorded};
use crate::ffi::status::{guarded, Failure, Status};
use crate::figures::DeviceId;
use crate::process::OfProcess;
use crate::schedule::Event;

/// `WS_OFFLOAD_FLOOR` and `WS_OFFLOAD_SHARED` in the header.
const FLOOR: u64 = u64::MAX;
const SHARED: u64 = u64::MAX - 1;

/// The weights of a module. A child of this process cannot use them.
pub struct ws_offload(OfProcess<Eager>);

/// One weight.
#[repr(C)]
pub struct ws_offload_weight {
    /// For messages.
    pub name: *const c_char,
    /// Its bytes on the host.
    pub data: *const c_void,
    /// How many.
    pub nbytes: u64,
}

/// One event of a pass.
#[repr(C)]
pub struct ws_offload_event {
    /// `ws_offload_event_kind`.
    pub kind: i32,
    /// Of a read that begins or ends, its number; of a kernel, any.
    pub index: u32,
}

/// One order of reads: what calls of one entry do.
#[repr(C)]
pub struct ws_offload_entry {
    /// The weight of each read.
    pub reads: *const u32,
    /// How many.
    pub num_reads: usize,
    /// The events of a pass.
    pub events: *const ws_offload_event,
    /// How many.
    pub num_events: usize,
    /// Reads that take some rows of a table, ascending.
    pub rows: *const u32,
    /// How many.
    pub num_rows: usize,
}

/// What was recorded, and what is wanted.
#[repr(C)]
pub struct ws_offload_recorded {
    /// The device.
    pub device: *const c_char,
    /// What messages and reports call the module.
    pub name: *const c_char,
    /// The stream on which the weights are read.
    pub stream: *mut c_void,
    /// Each weight once.
    pub weights: *const ws_offload_weight,
    /// How many.
    pub num_weights: usize,
    /// The first entry.
    pub entry: ws_offload_entry,
    /// Bytes, `WS_OFFLOAD_FLOOR` or `WS_OFFLOAD_SHARED`.
    pub budget: u64,
    /// Bytes of the budget that the caller holds itself.
    pub beside: u64,
    /// Whose bytes come first, where the budget is shared.
    pub priority: i64,
}

/// A pass that has begun.
#[repr(C)]
pub struct ws_offload_pass {
    /// Another one than before: weights lie elsewhere.
    pub generation: u64,
    /// Whether everything stays.
    pub resident: i32,
}

thread_local! {
    static LAST_JSON: RefCell<CString> = RefCell::new(CString::default());
}

fn event(event: &ws_offload_event) -> Result<Event, Failure> {
    match event.kind {
        0 => Ok(Event::Probe(event.index)),
        1 => Ok(Event::Kernel(event.index)),
        2 => Ok(Event::Release(event.index)),
        kind => Err(Failure::Argument(format!(
            "an event has the kind {kind}; 0 is a read, 1 a kernel, 2 the end of a read"
        ))),
    }
}

/// # Safety
/// Its arrays are NULL or live.
unsafe fn entry(given: &ws_offload_entry) -> Result<Entry, Failure> {
    // SAFETY: all by this function's contract.
    let (reads, events, rows) = unsafe {
        (
            args::array("entry->reads", given.reads, given.num_reads)?,
            args::array("entry->events", given.events, given.num_events)?,
            args::array("entry->rows", given.rows, given.num_rows)?,
        )
    };
    Ok(Entry {
        reads: reads.to_vec(),
        events: events.iter().map(event).collect::<Result<_, Failure>>()?,
        gather: rows.to_vec(),
    })
}

/// # Safety
/// Texts and arrays are NULL or live; the bytes of weights stay readable and unchanged until the handle that is made of this ends,
/// and so does the stream.
unsafe fn recorded(given: &ws_offload_recorded) -> Result<Recorded, Failure> {
    // SAFETY: all by this function's contract.
    let (device, name, weights, entry, stream) = unsafe {
        (
            args::text("recorded->device", given.device)?,
            args::text("recorded->name", given.name)?,
            args::array("recorded->weights", given.weights, given.num_weights)?,
            entry(&given.entry)?,
            CallerStream::new(given.stream),
        )
    };
    let weights = weights.iter().map(|weight| {
        // SAFETY: by this function's contract.
        let name = unsafe { args::text("name of a weight", weight.name) }?;
        if weight.data.is_null() && weight.nbytes > 0 {
            return Err(Failure::null(&format!("data of '{name}'")));
        }
        // SAFETY: readable and unchanged, by this function's contract.
        let bytes = unsafe { HostBytes::new(weight.data.cast(), weight.nbytes) };
        Ok((name.to_owned(), bytes))
    });
    Ok(Recorded {
        name: name.to_owned(),
        stream,
        weights: weights.collect::<Result<_, Failure>>()?,
        device: DeviceId::named(device, "for weights of eager code")?,
        entry,
        budget: match given.budget {
            FLOOR => OffloadBudget::Floor,
            SHARED => OffloadBudget::Shared,
            bytes => OffloadBudget::Bytes(bytes),
        },
        priority: given.priority,
        beside: given.beside,
    })
}

/// The weights behind an argument.
///
/// # Safety
/// `offload` is NULL or live.
unsafe fn opened<'a>(offload: *const ws_offload) -> Result<&'a Eager, Failure> {
    // SAFETY: by this function's contract.
    Ok(unsafe { args::reference("offload", offload) }?.0.get()?)
}

/// Plans, takes memory and loads what stays.
///
/// # Safety
/// `recorded` is NULL or live, as are its texts and arrays; the bytes of its weights stay readable and unchanged until
/// [`ws_offload_destroy`], and the stream exists; `offload` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn ws_offload_create(
    recorded: *const ws_offload_recorded,
    offload: *mut *mut ws_offload,
) -> Status {
    guarded(|| {
        // SAFETY: all by this function's contract.
        let (given, offload) = unsafe {
            let given = args::reference("recorded", recorded)?;
            (self::recorded(given)?, args::output("offload", offload)?)
        };
        let made = ws_offload(OfProcess::new(Eager::new(given)?));
        *offload = Box::into_raw(Box::new(made));
        Ok(())
    })
}

/// One more entry.
///
/// # Safety
/// `offload` is NULL or live; `entry` is NULL or live, as are its arrays; `index` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn ws_offload_add_entry(
    offload: *const ws_offload,
    entry: *const ws_offload_entry,
    index: *mut u32,
) -> Status {
    guarded(|| {
        // SAFETY: all by this function's contract.
        let (offload, given, index) = unsafe {
            let given = args::reference("entry", entry)?;
            let index = args::output("index", index)?;
            (opened(offload)?, self::entry(given)?, index)
        };
        *index = offload.add_entry(given)?;
        Ok(())
    })
}

/// Another order in the place of an entry's.
///
/// # Safety
/// `offload` is NULL or live; `entry` is NULL or live, as are its arrays.
#[no_mangle]
pub unsafe extern "C" fn ws_offload_replace_entry(
    offload: *const ws_offload,
    index: u32,
    entry: *const ws_offload_entry,
) -> Status {
    guarded(|| {
        // SAFETY: all by this function's contract.
        let (offload, given) = unsafe {
            let given = args::reference("entry", entry)?;
            (opened(offload)?, self::entry(given)?)
        };
        Ok(offload.replace_entry(index, given)?)
    })
}

/// A pass of an entry begins.
///
/// # Safety
/// `offload` is NULL or live; `pass` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn ws_offload_begin(
    offload: *const ws_offload,
    entry: u32,
    pass: *mut ws_offload_pass,
) -> Status {
    guarded(|| {
        // SAFETY: both by this function's contract.
        let (offload, pass) = unsafe { (opened(offload)?, args::output("pass", pass)?) };
        let begun = offload.begin(entry)?;
        *pass = ws_offload_pass {
            generation: begun.generation,
            resident: i32::from(begun.resident),
        };
        Ok(())
    })
}

/// The next reads of the pass.
///
/// # Safety
/// `offload` is NULL or live; `addresses` is NULL or has `count` writable items; `moved` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn ws_offload_read(
    offload: *const ws_offload,
    first: u32,
    count: u32,
    addresses: *mut u64,
    moved: *mut i32,
) -> Status {
    guarded(|| {
        // SAFETY: all by this function's contract.
        let (offload, addresses, moved) = unsafe {
            (
                opened(offload)?,
                args::array_mut("addresses", addresses, count as usize)?,
                args::output("moved", moved)?,
            )
        };
        let reads = first..first.saturating_add(count);
        *moved = i32::from(offload.read(reads, addresses)?);
        Ok(())
    })
}

/// The end of as many reads.
///
/// # Safety
/// `offload` is NULL or live.
#[no_mangle]
pub unsafe extern "C" fn ws_offload_release(
    offload: *const ws_offload,
    first: u32,
    count: u32,
) -> Status {
    guarded(|| {
        // SAFETY: by this function's contract.
        let offload = unsafe { opened(offload) }?;
        Ok(offload.release(first..first.saturating_add(count))?)
    })
}

/// The pass is over.
///
/// # Safety
/// `offload` is NULL or live.
#[no_mangle]
pub unsafe extern "C" fn ws_offload_end(offload: *const ws_offload, completed: i32) -> Status {
    // SAFETY: by this function's contract.
    guarded(|| Ok(unsafe { opened(offload) }?.end(completed != 0)?))
}

/// Where each read of an entry finds its weight, if everything stays.
///
/// # Safety
/// `offload` is NULL or live; `addresses` is NULL or has `count` writable items.
#[no_mangle]
pub unsafe extern "C" fn ws_offload_addresses(
    offload: *const ws_offload,
    entry: u32,
    addresses: *mut u64,
    count: usize,
) -> Status {
    guarded(|| {
        // SAFETY: both by this function's contract.
        let (offload, addresses) = unsafe {
            (
                opened(offload)?,
                args::array_mut("addresses", addresses, count)?,
            )
        };
        Ok(offload.addresses(entry, addresses)?)
    })
}

/// Another budget.
///
/// # Safety
/// `offload` is NULL or live.
#[no_mangle]
pub unsafe extern "C" fn ws_offload_set_budget(offload: *const ws_offload, bytes: u64) -> Status {
    // SAFETY: by this function's contract.
    guarded(|| Ok(unsafe { opened(offload) }?.set_budget(bytes)?))
}

/// Bytes of weights have changed on the host.
///
/// # Safety
/// `offload` is NULL or live; `weights` is NULL or has `count` items.
#[no_mangle]
pub unsafe extern "C" fn ws_offload_copy_again(
    offload: *const ws_offload,
    weights: *const u32,
    count: usize,
) -> Status {
    guarded(|| {
        // SAFETY: both by this function's contract.
        let (offload, weights) =
            unsafe { (opened(offload)?, args::array("weights", weights, count)?) };
        Ok(offload.copy_again(weights)?)
    })
}

/// Counters, as JSON.
///
/// # Safety
/// `offload` is NULL or live; `json` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn ws_offload_stats(
    offload: *const ws_offload,
    json: *mut *const c_char,
) -> Status {
    guarded(|| {
        // SAFETY: both by this function's contract.
        let (offload, json) = unsafe { (opened(offload)?, args::output("json", json)?) };
        let entries: Vec<String> = { offload.entry_stats()?.iter() }
            .map(EntryStats::to_json)
            .collect();
        let mut text = offload.stats()?.to_json("{}");
        // It ends with the brace of the object.
        text.pop();
        let text = format!("{text}, \"entries\": [{}]}}", entries.join(", "));
        let text = CString::new(text).unwrap_or_default();
        *json = LAST_JSON.with_borrow_mut(|last| {
            *last = text;
            last.as_ptr()
        });
        Ok(())
    })
}

/// Gives the memory back; NULL is allowed.
///
/// # Safety
/// `offload` is NULL or came from [`ws_offload_create`], and is not used any more.
#[no_mangle]
pub unsafe extern "C" fn ws_offload_destroy(offload: *mut ws_offload) {
    if !offload.is_null() {
        let ended = guarded(|| {
            // SAFETY: made by Box::into_raw in ws_offload_create, and used no more, by this function's contract.
            drop(unsafe { Box::from_raw(offload) });
            Ok(())
        });
        if ended != Status::Ok {
            log::warn!("the end of an offloaded module failed");
        }
    }
}
