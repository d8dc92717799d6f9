//! What belongs to the process that made it, and does not survive `fork`: a child has its parent's memory, and neither its
//! threads nor its CUDA contexts.

use crate::error::{Error, Result};

/// A value that is used and ended only in the process that made it. A child of that process leaks it: its end may wait
/// for threads that are not there, or call a driver that is not usable.
#[derive(Debug)]
pub struct OfProcess<T> {
    made_in: u32,
    /// `None` only while it is dropped.
    value: Option<T>,
}

impl<T> OfProcess<T> {
    /// A value of this process.
    pub fn new(value: T) -> OfProcess<T> {
        OfProcess {
            made_in: std::process::id(),
            value: Some(value),
        }
    }

    /// The value, in the process that made it.
    pub fn get(&self) -> Result<&T> {
        let here = std::process::id();
        match &self.value {
            Some(value) if here == self.made_in => Ok(value),
            _ => Err(Error::Poisoned(format!(
                "it was loaded in process {}, and this is process {here}, forked from it: threads and GPU contexts do not \
                 survive fork",
                self.made_in
            ))),
        }
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if std::process::id() != self.made_in {
            std::mem::forget(self.value.take());
        }
    }
}
