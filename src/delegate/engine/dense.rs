//! Memory for dense copies of inputs.
#![deny(unsafe_code)]

use crate::error::{Error, Result};

/// What kernels may expect of an input's address.
const ALIGNMENT: usize = 64;

/// Memory for copies of inputs, by the method's numbers.
#[derive(Default)]
pub(super) struct Copies {
    pub of: Vec<Copied>,
    /// What was fetched from a device, with the holes that it has there.
    pub fetched: Vec<u8>,
}

#[derive(Default)]
pub(super) struct Copied {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Copied {
    /// Aligned room for `length` bytes.
    pub fn room(&mut self, length: usize) -> Result<&mut [u8]> {
        grow(&mut self.bytes, length.saturating_add(ALIGNMENT))?;
        let start = self.bytes.as_ptr().align_offset(ALIGNMENT);
        // Only where no address can be aligned at all is it more than that.
        self.start = start.min(ALIGNMENT);
        self.length = length;
        Ok(&mut self.bytes[self.start..][..length])
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..][..self.length]
    }
}

pub(super) fn grow(bytes: &mut Vec<u8>, length: usize) -> Result<()> {
    let more = length.saturating_sub(bytes.len());
    let reserved = bytes.try_reserve_exact(more);
    reserved.map_err(|_| Error::OutOfMemory {
        what: "a dense copy of an input".to_owned(),
        bytes: length as u64,
    })?;
    bytes.resize(bytes.len() + more, 0);
    Ok(())
}
