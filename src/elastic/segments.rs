//! Memory of another allocator's segments, each held from its beginning to its end. Weights of ranges make room for it.

use super::range::{HeldUnits, Ranges};
use crate::device::{DevicePtr, UserStreams};
use crate::error::Result;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The segments of a device.
pub struct Segments<D: UserStreams> {
    ranges: Arc<Ranges<D>>,
    state: Mutex<State<D>>,
}

struct State<D: UserStreams> {
    live: BTreeMap<u64, HeldUnits<D>>,
    /// Those that could not end: their streams were captured.
    late: Vec<(HeldUnits<D>, D::Stream)>,
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
    pub fn alloc(&self, bytes: u64) -> Result<DevicePtr> {
        self.end_late();
        let segment = self.ranges.hold("activations", bytes)?;
        if let Err(error) = segment.grow(segment.units_for(bytes)?) {
            segment.end()?;
            return Err(error);
        }
        let at = segment.start();
        self.lock().live.insert(at.0, segment);
        Ok(at)
    }

    /// Ends a segment, once what was issued to `stream` is done. Whether it is one.
    pub fn free(&self, at: DevicePtr, stream: D::Stream) -> bool {
        self.end_late();
        let Some(segment) = self.lock().live.remove(&at.0) else {
            return false;
        };
        self.end(segment, stream);
        true
    }

    /// Bytes that segments hold.
    pub fn held(&self) -> u64 {
        let state = self.lock();
        let late = state.late.iter().map(|(segment, _)| segment);
        let all = state.live.values().chain(late);
        all.map(|segment| segment.held().unwrap_or(0)).sum()
    }

    fn end_late(&self) {
        let late = std::mem::take(&mut self.lock().late);
        for (segment, stream) in late {
            self.end(segment, stream);
        }
    }

    /// Gives a segment's memory back after everything that was issued to the stream.
    fn end(&self, segment: HeldUnits<D>, stream: D::Stream) {
        // rule: segments-end-after-their-stream
        let ended = self.ranges.finish(stream).and_then(|()| segment.end());
        if let Err(error) = ended {
            log::warn!("a segment stays for now: {error}");
            self.lock().late.push((segment, stream));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<D>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
