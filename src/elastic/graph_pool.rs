//! Memory for the captures of graphs of which one replays at a time: each capture has its own addresses, and all of them show the
//! same units.
//!
//! ```text
//! units of the pool:   | unit 0 | unit 1 | unit 2 |          as many as the largest capture needs
//!                        ^    ^     ^   ^     ^
//! addresses of a:      | 0 .... | 1 .... |    .    |.......  reserved up to the cap
//! addresses of b:      | 0 .... | 1 .... | 2 ....  |.......
//! ```
//!
//! Invariants:
//! - The n-th unit of each capture is the n-th unit of the pool. Addresses are given out once, from low to high.
//! - All units are held: weights of ranges make room for them, and nobody takes them.
//! - A capture's addresses stay until it has ended, its pieces are free and its replays are done.
//! - Replays of a pool are ordered: what is issued to a stream after [`GraphPool::enter`] comes after all replays before.

use super::range::{HeldUnits, Ranges};
use crate::config::quoted;
use crate::device::{DevicePtr, UserStreams};
use crate::error::{bytes_text, Error, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number of a capture in its pool. None is used twice.
pub type CaptureId = u64;

/// Pieces begin at multiples of this, as allocations of the driver do.
const ALIGNMENT: u64 = 512;

/// Captures that share units.
pub struct GraphPool<D: UserStreams> {
    memory: HeldUnits<D>,
    name: String,
    cap: u64,
    state: Mutex<State<D::Stream>>,
}

struct State<S> {
    captures: BTreeMap<CaptureId, Capture>,
    next: CaptureId,
    /// The capture that runs.
    open: Option<CaptureId>,
    /// It went on with what it had: what fails of it leaves that as it was.
    resumed: bool,
    /// Where the last replay was issued.
    last: Option<S>,
    /// Why the last capture got no memory.
    refused: Option<String>,
}

struct Capture {
    start: DevicePtr,
    /// Bytes from the start that were given out.
    used: u64,
    /// Units that show there.
    units: usize,
    /// Pieces that were not freed: address and bytes.
    pieces: BTreeMap<u64, u64>,
    /// It failed or was released.
    ended: bool,
}

/// One capture of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaptureReport {
    /// Its number.
    pub id: CaptureId,
    /// Bytes that it was given.
    pub bytes: u64,
    /// Bytes of these that were not freed.
    pub live: u64,
    /// It failed or was released, and its addresses are still in use.
    pub ended: bool,
}

/// What a pool holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphPoolReport {
    /// Bytes of memory, in whole units.
    pub bytes: u64,
    /// The most that a capture may take.
    pub cap: u64,
    /// Its captures.
    pub captures: Vec<CaptureReport>,
    /// Why the last capture got no memory.
    pub refused: Option<String>,
}

impl GraphPoolReport {
    /// As JSON, in one line.
    pub fn to_json(&self) -> String {
        let one = |capture: &CaptureReport| {
            let CaptureReport {
                id,
                bytes,
                live,
                ended,
            } = capture;
            format!(
                "{{\"id\": {id}, \"bytes\": {bytes}, \"live_bytes\": {live}, \"ended\": {ended}}}"
            )
        };
        let captures: Vec<_> = self.captures.iter().map(one).collect();
        format!(
            "{{\"bytes\": {}, \"cap_bytes\": {}, \"captures\": [{}], \"refused\": {}}}",
            self.bytes,
            self.cap,
            captures.join(", "),
            self.refused.as_deref().map_or("null".to_owned(), quoted)
        )
    }
}

impl<D: UserStreams + 'static> GraphPool<D> {
    /// A pool whose captures may take `cap` bytes each; `None` for what is free on the device now. It costs addresses, and no
    /// memory.
    pub fn new(ranges: &Arc<Ranges<D>>, name: &str, cap: Option<u64>) -> Result<GraphPool<D>> {
        let cap = match cap {
            Some(cap) => cap,
            None => ranges.free_bytes()?,
        };
        Ok(GraphPool {
            memory: ranges.hold(&format!("graph pool '{name}'"), cap)?,
            name: name.to_owned(),
            cap,
            state: Mutex::new(State {
                captures: BTreeMap::new(),
                next: 1,
                open: None,
                resumed: false,
                last: None,
                refused: None,
            }),
        })
    }
}

impl<D: UserStreams> GraphPool<D> {
    /// A capture begins, with addresses of its own: pieces are its until [`GraphPool::end`].
    pub fn begin(&self) -> Result<CaptureId> {
        let mut state = self.lock();
        if let Some(open) = state.open {
            return Err(self.refuse(format!("capture {open} has not ended")));
        }
        self.sweep(&mut state)?;
        let start = self.memory.reserve_mirror()?;
        let id = state.next;
        state.next += 1;
        state.refused = None;
        (state.open, state.resumed) = (Some(id), false);
        let capture = Capture {
            start,
            used: 0,
            units: 0,
            pieces: BTreeMap::new(),
            ended: false,
        };
        state.captures.insert(id, capture);
        Ok(id)
    }

    /// A capture that has ended goes on: the next pieces are behind those that it has. What is captured so replays as one, in this
    /// order.
    pub fn resume(&self, id: CaptureId) -> Result<()> {
        let mut state = self.lock();
        if let Some(open) = state.open {
            return Err(self.refuse(format!("capture {open} has not ended")));
        }
        self.closed(&mut state, id)?;
        self.sweep(&mut state)?;
        state.refused = None;
        (state.open, state.resumed) = (Some(id), true);
        Ok(())
    }

    /// The next `bytes` bytes of the capture that runs.
    pub fn alloc(&self, bytes: u64) -> Result<DevicePtr> {
        let mut state = self.lock();
        let piece = self.piece(&mut state, bytes);
        if let Err(error) = &piece {
            state.refused = Some(error.to_string());
        }
        piece
    }

    fn piece(&self, state: &mut State<D::Stream>, bytes: u64) -> Result<DevicePtr> {
        let open = state.open.and_then(|id| state.captures.get_mut(&id));
        let capture = open.ok_or_else(|| {
            self.refuse("no capture runs, and nothing else gets memory".to_owned())
        })?;
        let size = bytes.max(1).checked_next_multiple_of(ALIGNMENT);
        let end = size.and_then(|size| capture.used.checked_add(size));
        let end = end.filter(|end| *end <= self.cap).ok_or_else(|| {
            let (used, cap) = (bytes_text(capture.used), bytes_text(self.cap));
            let what = format!(
                "a capture of graph pool '{}', which has {used} of a cap of {cap}",
                self.name
            );
            Error::OutOfMemory { what, bytes }
        })?;
        let units = self.memory.units_for(end)?;
        self.memory.grow(units)?;
        for unit in capture.units..units {
            self.memory.mirror(unit, capture.start)?;
            capture.units = unit + 1;
        }
        let at = capture.start.offset(capture.used);
        capture.used = end;
        capture.pieces.insert(at.0, bytes);
        Ok(at)
    }

    /// A piece is not used by its owner any more; kernels of its graph may use it. Whether it was one of this pool. Calls no
    /// driver.
    pub fn free(&self, at: DevicePtr) -> bool {
        let mut state = self.lock();
        let mut captures = state.captures.values_mut();
        captures.any(|capture| capture.pieces.remove(&at.0).is_some())
    }

    /// The capture that runs is over. Without `keep` it failed: all of it goes, but for what it had before it was resumed.
    pub fn end(&self, keep: bool) -> Result<()> {
        let mut state = self.lock();
        let id = state
            .open
            .take()
            .ok_or_else(|| self.refuse("no capture runs that could end".to_owned()))?;
        let resumed = state.resumed;
        if let Some(capture) = state.captures.get_mut(&id) {
            // rule: a-piece-that-fails-ends-no-group
            capture.ended = !keep && !resumed;
        }
        self.sweep(&mut state)
    }

    /// What is issued to `stream` from now on, a replay of this capture, comes after all replays of the pool, and after what else
    /// was issued to their stream so far.
    pub fn enter(&self, id: CaptureId, stream: D::Stream) -> Result<()> {
        let mut state = self.lock();
        self.closed(&mut state, id)?;
        if let Some(last) = state.last.filter(|last| *last != stream) {
            // rule: replays-of-a-pool-are-ordered
            self.memory.ranges.order(last, stream)?;
        }
        state.last = Some(stream);
        Ok(())
    }

    /// The capture is replayed no more. Its addresses go once its pieces are free and its replays are done, which this call waits
    /// for; units that no other capture needs go too.
    pub fn release(&self, id: CaptureId) -> Result<()> {
        let mut state = self.lock();
        self.closed(&mut state, id)?.ended = true;
        self.sweep(&mut state)
    }

    /// Gives everything back. A capture that was not released, or whose pieces are in use, is an error, and the pool stays.
    pub fn close(&self) -> Result<()> {
        let mut state = self.lock();
        self.sweep(&mut state)?;
        match state.captures.len() {
            0 => Ok(()),
            left => Err(self.refuse(format!(
                "captures that were not released, or whose tensors live: {left}"
            ))),
        }
    }

    /// What it holds.
    pub fn report(&self) -> GraphPoolReport {
        let state = self.lock();
        let one = |(id, capture): (&CaptureId, &Capture)| CaptureReport {
            id: *id,
            bytes: capture.used,
            live: capture.pieces.values().sum(),
            ended: capture.ended,
        };
        GraphPoolReport {
            bytes: self.memory.held().unwrap_or(0),
            cap: self.cap,
            captures: state.captures.iter().map(one).collect(),
            refused: state.refused.clone(),
        }
    }

    /// Whether a capture runs.
    pub fn is_open(&self) -> bool {
        self.lock().open.is_some()
    }

    /// A capture that has ended its recording and was not released.
    fn closed<'a>(
        &self,
        state: &'a mut State<D::Stream>,
        id: CaptureId,
    ) -> Result<&'a mut Capture> {
        if state.open == Some(id) {
            return Err(self.refuse(format!("capture {id} has not ended")));
        }
        let found = state.captures.get_mut(&id).filter(|one| !one.ended);
        found.ok_or_else(|| self.refuse(format!("capture {id} is unknown, or was released")))
    }

    /// Takes the addresses of captures that nobody uses any more, and the units that no other capture needs.
    fn sweep(&self, state: &mut State<D::Stream>) -> Result<()> {
        // rule: addresses-stay-while-a-piece-lives
        let over = |capture: &Capture| capture.ended && capture.pieces.is_empty();
        let done = state.captures.iter().filter(|(_, one)| over(one));
        let done: Vec<CaptureId> = done.map(|(id, _)| *id).collect();
        if let (false, Some(last)) = (done.is_empty(), state.last) {
            // rule: released-captures-have-replayed
            self.memory.ranges.finish(last)?;
        }
        for id in done {
            if let Some(capture) = state.captures.get(&id) {
                self.memory.end_mirror(capture.start, capture.units)?;
                state.captures.remove(&id);
            }
        }
        let needs = state.captures.values().map(|capture| capture.units);
        // rule: units-stay-while-a-capture-needs-them
        self.memory.shrink(needs.max().unwrap_or(0))
    }

    fn lock(&self) -> MutexGuard<'_, State<D::Stream>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cold]
    fn refuse(&self, what: String) -> Error {
        Error::InvalidInput(format!("graph pool '{}': {what}", self.name))
    }
}

impl<D: UserStreams> Drop for GraphPool<D> {
    fn drop(&mut self) {
        if let Err(error) = self.close().and_then(|()| self.memory.end()) {
            log::warn!("its memory stays: {error}");
        }
    }
}
