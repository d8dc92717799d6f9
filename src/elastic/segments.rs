//! Memory of another allocator's segments: each is a range of its own, which is held from its beginning to its end. Weights of
//! ranges make room for it.

use super::range::{Answer, Range, Ranges};
use crate::device::{DevicePtr, UserStreams};
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The segments of a device.
pub struct Segments<D: UserStreams> {
    ranges: Arc<Ranges<D>>,
    state: Mutex<State<D>>,
}

struct State<D: UserStreams> {
    live: BTreeMap<u64, Range<D>>,
    /// Those that could not end: their streams were captured.
    late: Vec<(Range<D>, D::Stream)>,
}

impl<D: UserStreams + 'static> Segments<D> {
    /// None yet.
    pub fn new(ranges: &Arc<Ranges<D>>) -> Segments<D> {
        Segments {
            ranges: ranges.clone(),
            state: Mutex::new(State {
                live: BTreeMap::new(),
                late: Vec::new(),
            }),
        }
    }

    /// A new segment. Weights of ranges go for it; kernels that use these are waited for.
    pub fn alloc(&self, bytes: u64, stream: D::Stream) -> Result<DevicePtr> {
        self.end_late();
        let range = self.ranges.create("a segment", bytes)?;
        let alloc = range.alloc(bytes)?;
        match range.hold(alloc, stream)? {
            Answer::Refused(refusal) => Err(Error::OutOfMemory {
                what: format!("a segment: {}", range.explain(refusal)?),
                bytes,
            }),
            Answer::Hit(place) | Answer::Fill(place) => {
                self.lock().live.insert(place.at.0, range);
                Ok(place.at)
            }
        }
    }

    /// Ends a segment, once what was issued to `stream` is done. Whether it is one.
    pub fn free(&self, at: DevicePtr, stream: D::Stream) -> bool {
        self.end_late();
        let Some(range) = self.lock().live.remove(&at.0) else {
            return false;
        };
        self.end(range, stream);
        true
    }

    fn end_late(&self) {
        let late = std::mem::take(&mut self.lock().late);
        for (range, stream) in late {
            self.end(range, stream);
        }
    }

    /// Gives a segment's memory back after everything that was issued to the stream.
    fn end(&self, range: Range<D>, stream: D::Stream) {
        // rule: segments-end-after-their-stream
        match range.unpin(&[0], stream) {
            Ok(()) => drop(range),
            Err(error) => {
                log::warn!("a segment stays for now: {error}");
                self.lock().late.push((range, stream));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<D>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
