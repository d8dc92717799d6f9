//! Times on the compute stream: events that keep time, for the one pass that is timed.

use super::context::{Entered, PrimaryContext};
use super::library::{check, has, log_failure, ELAPSED_TIME};
use super::stream::Stream;
use crate::error::Result;
use cudarc::driver::sys::{self, CUevent, CUevent_flags};
use std::sync::Arc;

/// Recorded once.
struct Mark {
    raw: CUevent,
    context: Arc<PrimaryContext>,
}

// SAFETY: an event may be used from any thread, and the driver locks it.
unsafe impl Send for Mark {}

impl Mark {
    fn new(context: &Arc<PrimaryContext>, _entered: &Entered<'_>) -> Result<Mark> {
        let mut raw = std::ptr::null_mut();
        let flags = CUevent_flags::CU_EVENT_DEFAULT as u32;
        // SAFETY: the context is current, and the driver writes one pointer.
        check("cuEventCreate", unsafe {
            sys::cuEventCreate(&mut raw, flags)
        })?;
        Ok(Mark {
            raw,
            context: Arc::clone(context),
        })
    }

    /// Nanoseconds from this one to `next`; both were come to.
    fn until(&self, next: &Mark, _entered: &Entered<'_>) -> Result<u64> {
        let mut ms = 0.0_f32;
        // SAFETY: both live and keep time, and the driver writes one number.
        check("cuEventElapsedTime", unsafe {
            sys::cuEventElapsedTime_v2(&mut ms, self.raw, next.raw)
        })?;
        Ok((f64::from(ms.max(0.0)) * 1e6) as u64)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let Some(_entered) = self.context.enter_to_drop() else {
            return;
        };
        // SAFETY: made in `new`, and nobody else has it.
        let code = unsafe { sys::cuEventDestroy_v2(self.raw) };
        log_failure(self.context.name(), check("cuEventDestroy", code));
    }
}

/// Whether the driver tells times: those of CUDA 12.8 and later do.
pub(super) fn tell_times() -> bool {
    has(ELAPSED_TIME)
}

/// The marks of a pass, in the order of the stream.
#[derive(Default)]
pub(super) struct Marks(Vec<Mark>);

impl Marks {
    /// One after everything issued so far.
    pub(super) fn add(&mut self, stream: &Stream, entered: &Entered<'_>) -> Result<()> {
        let mark = Mark::new(stream.context(), entered)?;
        stream.record_raw(mark.raw, entered)?;
        self.0.push(mark);
        Ok(())
    }

    /// Nanoseconds between neighbours, and none is left. All of them were come to.
    pub(super) fn take(&mut self, entered: &Entered<'_>) -> Result<Vec<u64>> {
        let all = std::mem::take(&mut self.0);
        let pairs = all.windows(2);
        pairs.map(|pair| pair[0].until(&pair[1], entered)).collect()
    }
}
