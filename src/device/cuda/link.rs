//! What copies cost here, measured at load before weights take memory.

use super::context::Entered;
use super::lasting::Lasting;
use super::CudaDevice;
use crate::config::LINK_GBPS;
use crate::device::{DevicePtr, HostBytes};
use crate::error::{Error, Result};
use crate::figures::link::{Link, Timed};
use std::time::{Duration, Instant};

/// Bytes that are copied, at most: large enough that a copy's own cost is a tenth of the time in pieces.
const MOST: u64 = 64 << 20;
/// Below this a measurement would say more about the host than about the link.
const LEAST: u64 = 16 << 20;
/// The host issues a piece in less time than the link takes for it.
const SMALL: u64 = 1 << 20;
const LARGE: u64 = 16 << 20;
/// Each is measured so often, and its best counts: whatever disturbs makes it slower.
const ROUNDS: u32 = 3;

impl CudaDevice {
    /// What copies cost is measured when [`Device::calibrate`](crate::device::Device::calibrate) is called. Plans then follow what
    /// was found.
    pub fn time_link(&mut self) {
        self.times_link = true;
    }

    /// What copies cost is known, and need not be measured.
    pub fn set_link(&mut self, link: Link) {
        self.link = Some(link);
    }

    /// Copies some of `source` a few times into memory that is given back. `None` where there is too little of it, or where
    /// what the link costs is not what copies will cost: through the staging ring they also wait for the file.
    pub(super) fn found_link(&mut self, source: HostBytes) -> Result<Option<Link>> {
        // Of a weight with edges, what is registered in place.
        let pieces = self.edges.pieces(source);
        let source = pieces.max_by_key(HostBytes::len).unwrap_or(source);
        let bytes = source.len().min(MOST) / LARGE * LARGE;
        if self.stage.is_some() {
            return Ok(not_timed("weights come through the staging ring"));
        }
        if bytes < LEAST {
            return Ok(not_timed(
                "there is no weight of 16 MiB, or no budget for one",
            ));
        }
        let entered = self.context.enter()?;
        let mut memory = Lasting::default();
        let to = match memory.alloc(&self.context, bytes, &entered) {
            // The weights may still have all they need: this is memory of the moment.
            Err(Error::OutOfMemory { .. }) => {
                return Ok(not_timed("the GPU has no memory left to copy to"));
            }
            found => found?,
        };
        let timed = self.time_pieces(to, source.slice(0..bytes), &entered);
        // Whatever was issued has ended before its memory goes.
        self.copy.synchronize(&entered)?;
        let (few, many) = timed?;
        let found = Link::fitted(bytes, few, many);
        Ok(found.or_else(|| not_timed("the times of copies make no sense")))
    }

    fn time_pieces(
        &self,
        to: DevicePtr,
        source: HostBytes,
        entered: &Entered<'_>,
    ) -> Result<(Timed, Timed)> {
        let once = |piece| self.time_copies(to, source, piece, entered);
        // What comes first wakes the link up.
        once(LARGE)?;
        let (mut few, mut many) = (Duration::MAX, Duration::MAX);
        for _ in 0..ROUNDS {
            few = few.min(once(LARGE)?);
            many = many.min(once(SMALL)?);
        }
        let timed = |piece, time: Duration| Timed {
            copies: source.len() / piece,
            seconds: time.as_secs_f64(),
        };
        Ok((timed(LARGE, few), timed(SMALL, many)))
    }

    /// As in a pass: a wait for a kernel before each copy, and an event after it.
    fn time_copies(
        &self,
        to: DevicePtr,
        source: HostBytes,
        piece: u64,
        entered: &Entered<'_>,
    ) -> Result<Duration> {
        let (kernel, copied) = (self.events.take(entered)?, self.events.take(entered)?);
        self.compute.record(&kernel, entered)?;
        self.copy.synchronize(entered)?;
        let begun = Instant::now();
        for at in (0..source.len()).step_by(piece as usize) {
            self.copy.wait(&kernel, entered)?;
            let part = source.slice(at..at + piece);
            // SAFETY: `to` has as many bytes as `source`, which is a multiple of `piece`, and the caller waits for the
            // stream before it frees them.
            unsafe { self.copy.copy_in(DevicePtr(to.0 + at), part, entered)? };
            self.copy.record(&copied, entered)?;
        }
        self.copy.synchronize(entered)?;
        Ok(begun.elapsed())
    }
}

/// Nothing, with a word on why.
fn not_timed(why: &str) -> Option<Link> {
    log::info!(
        "the link is not timed, as {why}: plans take it for one of 55 GB/s; {LINK_GBPS} can say what it carries"
    );
    None
}
