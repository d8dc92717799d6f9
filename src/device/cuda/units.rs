//! Units of memory and of plans.
#![deny(unsafe_code)]

/// The unit in which the driver's pools hand memory out: an allocation of less takes as much, and all
/// begin at a multiple of it. So the sum that is counted is the sum that is taken.
pub(in crate::device) const GRANULE: u64 = 512;
/// [`Link::bytes_per_copy`](crate::figures::Link::bytes_per_copy) of a link of 55 GB/s, where nobody measured it.
pub(in crate::device) const BYTES_PER_COPY: u64 = 192 << 10;
/// The page that drivers report for an H200 and its like; a device that is there is asked for its own.
pub(in crate::device) const PAGE: u64 = 2 << 20;
