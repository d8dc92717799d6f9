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

/// Memory of the caller's on the host that a call fills: the room for an output.
///
/// Whoever makes one vouches for it (see [`HostRoom::new`]).
#[derive(Debug)]
pub struct HostRoom {
    ptr: *mut u8,
    len: usize,
}

// SAFETY: `new` demands memory that nobody else uses, so that any thread may write it.
unsafe impl Send for HostRoom {}

impl HostRoom {
    /// `len` bytes at `ptr`.
    ///
    /// # Safety
    /// They must be initialised, stay writable, and be used by nobody else until the device that this value was handed to has
    /// finished what it computes ([`Device::finish_compute`](super::Device::finish_compute)) or is used no more. `ptr` may be
    /// anything but null if `len` is 0.
    pub unsafe fn new(ptr: *mut u8, len: usize) -> Self {
        HostRoom { ptr, len }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first `len` of these bytes, which are then not this value's; all of them if there are not so many.
    pub(crate) fn first(&mut self, len: usize) -> HostRoom {
        let taken = len.min(self.len);
        let room = HostRoom {
            ptr: self.ptr,
            len: taken,
        };
        *self = HostRoom {
            ptr: self.ptr.wrapping_add(taken),
            len: self.len - taken,
        };
        room
    }

    /// The bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: by the promise that `new` asks for.
        unsafe { std::slice::from_raw_parts_mut(self.ptr, self.len) }
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
    fn a_room_is_divided_and_not_shared() {
        let mut bytes = [0u8; 8];
        // SAFETY: used by nobody else until both rooms are gone.
        let mut rest = unsafe { HostRoom::new(bytes.as_mut_ptr(), bytes.len()) };
        let mut first = rest.first(5);
        first.bytes().fill(1);
        rest.bytes().fill(2);
        assert_eq!((first.len(), rest.len()), (5, 3));
        assert_eq!((rest.first(9).len(), rest.is_empty()), (3, true));
        assert_eq!(bytes, [1, 1, 1, 1, 1, 2, 2, 2]);
    }

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
