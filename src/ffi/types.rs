//! The types that cross the bridge to the C++ adapter, generated on both sides by cxx.

use crate::device::DeviceBytes;
use crate::error::Error;

#[cxx::bridge(namespace = "weightstream_bridge")]
#[allow(missing_docs, clippy::missing_safety_doc)]
mod ffi {
    /// Type of a runtime spec's value.
    enum SpecKind {
        Bool,
        Int,
        Text,
    }

    /// One runtime spec.
    struct RuntimeSpec {
        key: String,
        kind: SpecKind,
        number: i64,
        text: String,
    }

    /// Memory of a tensor.
    #[derive(Clone, Copy)]
    struct Place {
        address: usize,
        bytes: usize,
        /// In the numbering of ExecuTorch and PyTorch: 0 the CPU, 1 CUDA.
        device_type: i32,
        device_index: i32,
    }

    /// One input of a call.
    #[derive(Clone, Copy)]
    struct Input<'a> {
        dtype: i32,
        sizes: &'a [i64],
        strides: &'a [i64],
        place: Place,
    }

    /// One counter.
    struct Counter {
        name: &'static str,
        value: u64,
    }

    unsafe extern "C++" {
        include!("weightstream/detail/bridge_types.h");

        type NamedData;
        fn bytes<'a>(self: &'a NamedData, key: &str) -> Result<&'a [u8]>;
        fn layout(self: &NamedData, key: &str, into: &mut Vec<i64>) -> Result<()>;

        type OutputSink;
        fn room(
            self: Pin<&mut OutputSink>,
            index: usize,
            dtype: i32,
            sizes: &[i64],
            strides: &mut Vec<i64>,
        ) -> Result<Place>;
    }

    impl SharedPtr<NamedData> {}
    impl Vec<RuntimeSpec> {}
    impl Vec<Counter> {}
}

pub use ffi::{Counter, Input, NamedData, OutputSink, Place, RuntimeSpec, SpecKind};

impl Place {
    /// The first byte on the host; not null, as slices demand, also where there are none.
    pub(super) fn pointer(&self) -> *mut u8 {
        match self.bytes {
            0 => std::ptr::dangling_mut(),
            _ => std::ptr::with_exposed_provenance_mut(self.address),
        }
    }

    /// # Safety
    /// As `DeviceBytes::new` asks for.
    pub(super) unsafe fn on_device(&self) -> crate::Result<DeviceBytes> {
        if self.device_type != 1 {
            return Err(Error::InvalidInput(format!(
                "its memory is on a device of type {}; 0 is the CPU, 1 CUDA",
                self.device_type
            )));
        }
        let index = device_index(self.device_index)?;
        // SAFETY: by this function's contract.
        Ok(unsafe { DeviceBytes::new(index, self.address as u64, self.bytes as u64) })
    }
}

pub(super) fn device_index(index: i32) -> crate::Result<u32> {
    u32::try_from(index)
        .map_err(|_| Error::InvalidInput(format!("{index} is no index of a device")))
}
