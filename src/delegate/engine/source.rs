//! The session of a program, over bytes that outlive it.

use crate::config::{Options, Verify};
use crate::delegate::delegate_device::DelegateDevice;
use crate::delegate::request::Data;
use crate::device::{HostBytes, HostFile, HostSource};
use crate::error::Result;
use crate::session::Session;
use crate::store::{source_of, Methods, StoreOptions};
use crate::weights::{Catalog, MappedPtd, Segment, SharedBytes};

/// The session of a program whose bytes `data` holds, which must outlive it.
pub(in crate::delegate) fn new_session<D: DelegateDevice>(
    device: D,
    methods: Methods,
    data: &Data,
    choices: StoreOptions,
    options: &Options,
) -> Result<Session<D>> {
    let from = host_source(data);
    // After the budget was accepted: a refused one costs no registration, and no copy.
    let prepared = || format!("preparing all weights on the host, '{}'", data.held.name());
    let source = |device: &mut D| {
        let parts = device.prepare_source(from, data.held);
        let parts = parts.map_err(|error| error.during(prepared))?;
        let segments = segments(&data.catalog);
        let sources = parts.into_iter().zip(segments);
        Ok(sources
            .map(|(part, of)| source_of(part, of.packed.as_ref()))
            .collect())
    };
    let mut session = Session::with_source(device, methods, source, choices)?;
    if options.verify == Verify::EveryRead {
        session.verify_every_read(checksums(&data.catalog))?;
    }
    if options.sync {
        session.wait_for_every_kernel();
    }
    Ok(session)
}

/// The segment of each constant, by index.
fn segments(catalog: &Catalog) -> impl Iterator<Item = &Segment> {
    let constants = catalog.constants().iter();
    constants.map(|constant| catalog.segment(constant.segment))
}

/// The stored bytes of each constant, by index.
fn host_source(data: &Data) -> HostSource {
    let segments = segments(&data.catalog).map(|segment| &segment.bytes);
    let Some(file) = data.file.as_ref().map(MappedPtd::file) else {
        // SAFETY: `ProgramState` keeps the catalog and the caller's memory, whose bytes stay as they are while it lives, and ends its
        // session, and with it the device, first.
        let bytes = |bytes: &SharedBytes| unsafe { HostBytes::new(bytes.addr(), bytes.len()) };
        return HostSource {
            files: Vec::new(),
            parts: segments.map(bytes).collect(),
        };
    };
    let all = file.bytes();
    // SAFETY: `ProgramState` keeps the mapping, and ends its session, and with it the device, first. A session that
    // fails in `Session::with_source` ends there.
    let mapping = unsafe { HostBytes::new(all.as_ptr(), all.len() as u64) };
    let start = all.as_ptr().addr();
    let part = |bytes: &SharedBytes| {
        let offset = bytes.addr().addr().wrapping_sub(start) as u64;
        // The address of no bytes may be any.
        let offset = if bytes.is_empty() { 0 } else { offset };
        mapping.slice(offset..offset + bytes.len())
    };
    HostSource {
        files: vec![HostFile::new(file.name(), file.file().clone(), mapping)],
        parts: segments.map(part).collect(),
    }
}

/// The recorded CRC-32 of each constant, by index.
fn checksums(catalog: &Catalog) -> Vec<u32> {
    let constants = catalog.constants().iter();
    constants.map(|constant| constant.crc32).collect()
}
