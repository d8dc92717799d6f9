//! What a caller brings along for a GPU: memory that its tensors lie in, and the stream that it works on.

use super::DevicePtr;
use std::ffi::c_void;

/// Bytes in the memory of a GPU that belong to the caller: an input of a call, or the room for an output.
///
/// Whoever makes one vouches for them (see [`DeviceBytes::new`]). A device that is handed one asks the driver
/// besides, so that an address of another kind is an error and not a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceBytes {
    index: u32,
    ptr: DevicePtr,
    len: u64,
}

impl DeviceBytes {
    /// `len` bytes at `ptr`, on the GPU of this index.
    ///
    /// # Safety
    /// Where this is memory of the GPU, it must stay allocated until the call that it is given to has returned;
    /// nobody else may write an input, or use an output's room, in that time. What is issued to the stream of
    /// the call beforehand may still be on its way.
    pub unsafe fn new(index: u32, ptr: u64, len: u64) -> Self {
        DeviceBytes {
            index,
            ptr: DevicePtr(ptr),
            len,
        }
    }

    /// Index of the GPU.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The first byte.
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// Number of bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first `len` of these bytes; all of them if there are not so many.
    pub fn first(&self, len: u64) -> DeviceBytes {
        DeviceBytes {
            len: len.min(self.len),
            ..*self
        }
    }

    /// Whether `len` bytes at `ptr` lie within these.
    pub fn covers(&self, ptr: DevicePtr, len: u64) -> bool {
        let offset = ptr.0.checked_sub(self.ptr.0);
        offset.is_some_and(|offset| offset <= self.len && len <= self.len - offset)
    }
}

/// A stream of the caller's, a `CUstream` or `cudaStream_t`, for kernels and copies to be issued to.
#[derive(Debug, Clone, Copy)]
pub struct CallerStream(*mut c_void);

impl CallerStream {
    /// Null is the default stream, in its legacy meaning.
    ///
    /// # Safety
    /// `stream` is null or a stream that exists until every device that this value was handed to is dropped.
    pub unsafe fn new(stream: *mut c_void) -> Self {
        CallerStream(stream)
    }

    /// The driver's name for it.
    pub fn raw(&self) -> *mut c_void {
        self.0
    }

    /// Whether it is the default stream, by either of its names: null and `CU_STREAM_LEGACY`.
    pub fn is_default(&self) -> bool {
        self.0.addr() <= 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_inside_are_covered_and_no_others() {
        // SAFETY: an address that nobody reads.
        let bytes = unsafe { DeviceBytes::new(1, 0x1000, 64) };
        for (at, len, inside) in [
            (0x1000, 64, true),
            (0x1010, 48, true),
            (0x1040, 0, true),
            (0x1010, 49, false),
            (0xFFF, 1, false),
            (0x1041, 0, false),
            (u64::MAX, 2, false),
            (0x1000, u64::MAX, false),
        ] {
            assert_eq!(bytes.covers(DevicePtr(at), len), inside, "{at:#x} {len}");
        }
        assert_eq!(bytes.first(8).len(), 8);
        assert_eq!(bytes.first(80), bytes);
    }
}
