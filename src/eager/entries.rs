//! What callers call from outside: each has an order of reads of its own.

use crate::error::{Error, Result};
use crate::schedule::{Event, ProbeId, Trace, WeightIndex};
use crate::store::{Constants, Method, WeightLayout};

/// One order of reads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Entry {
    /// The weight of each read, in the order of a pass.
    pub reads: Vec<WeightIndex>,
    /// Reads, kernels, and where reads end.
    pub events: Vec<Event>,
    /// Reads that take some rows of a table, ascending: they are done in place, in host memory, unless everything stays or the
    /// table's file is staged.
    pub gather: Vec<ProbeId>,
}

/// What was counted of one entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EntryStats {
    /// Complete passes.
    pub passes: u64,
    /// Bytes that its passes copied to the device, those that ended early with them.
    pub bytes_copied: u64,
    /// Passes whose weights gave way.
    pub gave_way: u64,
}

impl EntryStats {
    /// As JSON.
    pub fn to_json(&self) -> String {
        let EntryStats {
            passes,
            bytes_copied,
            gave_way,
        } = self;
        format!(
            "{{\"passes\": {passes}, \"bytes_copied\": {bytes_copied}, \"gave_way\": {gave_way}}}"
        )
    }
}

impl Entry {
    /// As a method over these constants, of which some cannot be read in place.
    pub(super) fn method(self, constants: &Constants, absent: &[bool]) -> Result<Method> {
        let (count, reads) = (constants.specs.len(), self.reads.len());
        let ascending = self.gather.windows(2).all(|pair| pair[0] < pair[1]);
        let last = self.gather.last();
        if !ascending || last.is_some_and(|&last| last as usize >= reads) {
            return Err(Error::InvalidInput(format!(
                "reads that take rows of a table are {:?}: they ascend, and are some of {reads} reads",
                self.gather
            )));
        }
        let is_there = |read: &ProbeId| {
            let weight = self.reads[*read as usize];
            absent.get(weight as usize) != Some(&true)
        };
        let gather = { self.gather.iter() }.copied().filter(is_there).collect();
        Ok(Method {
            // Dtypes and sizes are the caller's.
            layouts: vec![WeightLayout::default(); count],
            trace: Trace::new(self.events, self.reads, count)?,
            gather,
            places: Vec::new(),
            share: 1,
        })
    }
}
