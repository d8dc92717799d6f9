//! Host bytes together with what keeps them alive.
#![deny(unsafe_code)]

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Result};

/// Bytes in host memory: a part of a mapping, of a vector, or of memory that somebody else promised to
/// keep. They stay readable at the same address while this value or a clone of it lives. So a copy
/// thread may hold a clone and read through [`SharedBytes::addr`].
#[derive(Clone)]
pub struct SharedBytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
}

impl SharedBytes {
    /// The bytes `range` of what `owner` holds. The owner must give the same bytes each time it is asked.
    pub fn new<T>(owner: Arc<T>, range: Range<usize>) -> Result<Self>
    where
        T: AsRef<[u8]> + Send + Sync + 'static,
    {
        if (*owner).as_ref().get(range.clone()).is_none() {
            return Err(Error::Internal(format!(
                "host bytes {range:?} are outside of their owner"
            )));
        }
        Ok(SharedBytes { owner, range })
    }

    /// Bytes with an owner of their own, for tests and tools.
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        SharedBytes {
            owner: Arc::new(bytes),
            range,
        }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // Checked when made; an owner that shrank since would break its own promise.
        (*self.owner)
            .as_ref()
            .get(self.range.clone())
            .unwrap_or_default()
    }

    /// Number of bytes.
    pub fn len(&self) -> u64 {
        self.range.len() as u64
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Address of the first byte.
    pub fn addr(&self) -> *const u8 {
        self.as_slice().as_ptr()
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBytes({} at {:p})", self.len(), self.addr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_outlive_every_name_of_their_owner() {
        let owner = Arc::new(vec![1u8, 2, 3, 4]);
        let part = SharedBytes::new(owner.clone(), 1..3).unwrap();
        drop(owner);
        let clone = part.clone();
        drop(part);
        assert_eq!(clone.as_slice(), [2, 3]);
        assert_eq!((clone.len(), clone.is_empty()), (2, false));
        assert_eq!(clone.addr(), clone.as_slice().as_ptr());
    }

    #[test]
    fn a_range_outside_of_the_owner_is_refused() {
        let refused = SharedBytes::new(Arc::new(vec![0u8; 4]), 2..5);
        assert!(matches!(refused, Err(Error::Internal(_))));
    }
}
