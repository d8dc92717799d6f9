//! Addresses on a device, and bytes of the host that are copied there.

/// An address in device memory. On `host` it is a plain address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// The address of memory without bytes: aligned, not null, never read.
    pub const EMPTY: DevicePtr = DevicePtr(64);

    /// The address `bytes` further on.
    pub fn offset(self, bytes: u64) -> DevicePtr {
        DevicePtr(self.0 + bytes)
    }
}

/// Bytes in host memory that weights are copied from: a part of the `.ptd` mapping.
///
/// Whoever makes one vouches that the bytes outlive every device that they are handed to (see
/// [`HostBytes::new`]); a session must thus be dropped before the mapping it was built over.
#[derive(Debug, Clone, Copy)]
pub struct HostBytes {
    ptr: *const u8,
    len: u64,
}

// SAFETY: `new` demands bytes that nobody writes, so that any thread may read them.
unsafe impl Send for HostBytes {}
// SAFETY: as for `Send`.
unsafe impl Sync for HostBytes {}

impl HostBytes {
    /// # Safety
    /// `ptr..ptr+len` must stay readable and unchanged until every device that this value was handed to is
    /// dropped; who changes them while no pass runs tells each ([`Device::source_changed`](super::Device::source_changed)).
    /// `ptr` may be anything if `len` is 0.
    pub unsafe fn new(ptr: *const u8, len: u64) -> Self {
        HostBytes { ptr, len }
    }

    /// Bytes that live for ever.
    pub fn from_static(bytes: &'static [u8]) -> Self {
        HostBytes {
            ptr: bytes.as_ptr(),
            len: bytes.len() as u64,
        }
    }

    /// Number of bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte; readable for [`HostBytes::len`] bytes.
    pub fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    /// These bytes and `next` as one, if `next` begins where these end.
    pub fn followed_by(&self, next: HostBytes) -> Option<HostBytes> {
        let adjacent = self.ptr.wrapping_add(self.len as usize) == next.ptr;
        // Both promises together are the promise for the whole.
        adjacent.then_some(HostBytes {
            ptr: self.ptr,
            len: self.len + next.len,
        })
    }

    /// The bytes `range` of these. Panics if the range is not inside: ranges are the policies' own.
    pub fn slice(&self, range: std::ops::Range<u64>) -> HostBytes {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "range outside of the bytes"
        );
        // Without `unsafe`: the address is only formed here, and it stays inside by the check above.
        let ptr = self.ptr.wrapping_add(range.start as usize);
        HostBytes {
            ptr,
            len: range.end - range.start,
        }
    }
}
