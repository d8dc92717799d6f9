//! What a caller of `ws_offload_create` has recorded, as Rust values.
#![allow(non_camel_case_types)] // the names are those of the header

use std::ffi::{c_char, c_void};

use super::args;
use super::packed::ws_packed;
use super::types::ws_options;
use crate::config::{Options, HOST, STAGING_MB};
use crate::device::{CallerStream, HostBytes};
use crate::eager::{Entry, OffloadBudget, Recorded, RecordedWeight, WeightFile, WeightFiles};
use crate::ffi::status::Failure;
use crate::figures::DeviceId;
use crate::schedule::Event;

/// `WS_OFFLOAD_FLOOR` and `WS_OFFLOAD_SHARED` in the header.
const FLOOR: u64 = u64::MAX;
const SHARED: u64 = u64::MAX - 1;

/// One weight.
#[repr(C)]
pub struct ws_offload_weight {
    /// For messages.
    pub name: *const c_char,
    /// Its bytes on the host.
    pub data: *const c_void,
    /// How many.
    pub nbytes: u64,
    /// NULL, or a packed copy of them.
    pub packed: *const ws_packed,
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

/// A file that weights lie in.
#[repr(C)]
pub struct ws_offload_file {
    /// Its path.
    pub path: *const c_char,
    /// The mapping of the whole file.
    pub data: *const c_void,
    /// Its size.
    pub nbytes: u64,
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
    /// Files that weights lie in.
    pub files: *const ws_offload_file,
    /// How many.
    pub num_files: usize,
    /// How their weights are held on the host.
    pub options: *const ws_options,
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
pub(super) unsafe fn entry(given: &ws_offload_entry) -> Result<Entry, Failure> {
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
/// Texts and arrays are NULL or live; the bytes of weights and files stay readable and unchanged until the handle that is made of this ends;
/// packed copies and the stream live as long.
pub(super) unsafe fn recorded(given: &ws_offload_recorded) -> Result<Recorded, Failure> {
    // SAFETY: all by this function's contract.
    let (device, name, weights, files, entry, stream) = unsafe {
        (
            args::text("recorded->device", given.device)?,
            args::text("recorded->name", given.name)?,
            args::array("recorded->weights", given.weights, given.num_weights)?,
            files(given)?,
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
        // SAFETY: NULL or live, by this function's contract.
        let packed = unsafe { weight.packed.as_ref() };
        if packed.is_some_and(|one| one.nbytes() != weight.nbytes) {
            return Err(Failure::Argument(format!(
                "packed of '{name}' is a copy of another number of bytes than {}",
                weight.nbytes
            )));
        }
        Ok(RecordedWeight {
            packed: packed.map(ws_packed::stored),
            ..RecordedWeight::new(name.to_owned(), bytes)
        })
    });
    Ok(Recorded {
        name: name.to_owned(),
        stream,
        weights: weights.collect::<Result<_, Failure>>()?,
        files,
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

/// # Safety
/// As of [`recorded`].
unsafe fn files(given: &ws_offload_recorded) -> Result<WeightFiles, Failure> {
    // SAFETY: by this function's contract.
    let files = unsafe { args::array("recorded->files", given.files, given.num_files) }?;
    let all = files.iter().map(|file| {
        if file.data.is_null() {
            return Err(Failure::null("data of a file"));
        }
        // SAFETY: a live text, and bytes that stay readable and unchanged, by this function's contract.
        let (path, bytes) = unsafe {
            let path = args::path("path of a file", file.path)?;
            (path, HostBytes::new(file.data.cast(), file.nbytes))
        };
        Ok(WeightFile::open(&path, bytes)?)
    });
    // SAFETY: by this function's contract.
    let specs = unsafe { args::specs(given.options) }?;
    if let Some(other) = { specs.iter() }.find(|spec| ![HOST, STAGING_MB].contains(&&*spec.key)) {
        return Err(Failure::Argument(format!(
            "recorded->options has '{}'; weights of eager code take {HOST} and {STAGING_MB}",
            other.key
        )));
    }
    Ok(WeightFiles {
        all: all.collect::<Result<_, Failure>>()?,
        options: Options::parse(&specs)?,
    })
}

#[cfg(test)]
#[path = "offload_recorded_tests.rs"]
mod tests;
