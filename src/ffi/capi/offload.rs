//! Weights of a module that the caller runs call by call.
#![allow(non_camel_case_types)] // the names are those of the header

use std::cell::RefCell;
use std::ffi::{c_char, CString};

use super::args;
use super::offload_recorded::{self, ws_offload_entry, ws_offload_recorded};
use crate::eager::{Eager, EntryStats, ReadOutcome};
use crate::elastic::PassNeeds;
use crate::ffi::status::{guarded, Failure, Status};
use crate::process::OfProcess;

/// The weights of a module. A child of this process cannot use them.
pub struct ws_offload(OfProcess<Eager>);

/// A pass that has begun.
#[repr(C)]
pub struct ws_offload_pass {
    /// Another one than before: weights lie elsewhere.
    pub generation: u64,
    /// Whether everything stays.
    pub resident: i32,
}

/// What a pass needs beside its weights.
#[repr(C)]
pub struct ws_offload_needs {
    /// Bytes that are to be left for it.
    pub room: u64,
    /// Whether it gives memory away while it runs, if it asks for its reads.
    pub gives_way: i32,
    /// Whether it asks for its reads, also where everything stays.
    pub by_reads: i32,
}

thread_local! {
    static LAST_JSON: RefCell<CString> = RefCell::new(CString::default());
}

/// The weights behind an argument.
///
/// # Safety
/// `offload` is NULL or live.
pub(super) unsafe fn opened<'a>(offload: *const ws_offload) -> Result<&'a Eager, Failure> {
    // SAFETY: by this function's contract.
    Ok(unsafe { args::reference("offload", offload) }?.0.get()?)
}

/// Plans, takes memory and loads what stays.
///
/// # Safety
/// `recorded` is NULL or live, as are its texts and arrays; the bytes of its weights and files stay readable and unchanged until
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
            (
                offload_recorded::recorded(given)?,
                args::output("offload", offload)?,
            )
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
            (opened(offload)?, offload_recorded::entry(given)?, index)
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
            (opened(offload)?, offload_recorded::entry(given)?)
        };
        Ok(offload.replace_entry(index, given)?)
    })
}

/// A pass of an entry begins.
///
/// # Safety
/// `offload` is NULL or live; `needs` is NULL or live; `pass` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn ws_offload_begin(
    offload: *const ws_offload,
    entry: u32,
    needs: *const ws_offload_needs,
    pass: *mut ws_offload_pass,
) -> Status {
    guarded(|| {
        // SAFETY: both by this function's contract.
        let (offload, pass) = unsafe { (opened(offload)?, args::output("pass", pass)?) };
        // SAFETY: by this function's contract.
        let needs = unsafe { needs.as_ref() };
        let needs = needs.map_or(PassNeeds::default(), |needs| PassNeeds {
            room: needs.room,
            gives_way: needs.gives_way != 0,
            by_reads: needs.by_reads != 0,
        });
        let begun = offload.begin_with(entry, needs)?;
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
/// `offload` is NULL or live; `addresses` is NULL or has `count` writable items; `found` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn ws_offload_read(
    offload: *const ws_offload,
    first: u32,
    count: u32,
    addresses: *mut u64,
    found: *mut i32,
) -> Status {
    guarded(|| {
        // SAFETY: all by this function's contract.
        let (offload, addresses, found) = unsafe {
            (
                opened(offload)?,
                args::array_mut("addresses", addresses, count as usize)?,
                args::output("found", found)?,
            )
        };
        let reads = first..first.saturating_add(count);
        *found = match offload.read(reads, addresses)? {
            ReadOutcome::Same => 0,
            ReadOutcome::Moved => 1,
            ReadOutcome::Gone => 2,
        };
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
