//! The structures of the C interface, field for field as in the header.
#![allow(non_camel_case_types)] // the names are those of the header

use crate::counters::Stats;
use std::ffi::{c_char, c_void};

/// One option; see the header for keys and types.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ws_option {
    /// The key.
    pub key: *const c_char,
    /// `ws_option_type`.
    pub kind: i32,
    /// Value of an int or a bool.
    pub number: i64,
    /// Value of a string.
    pub text: *const c_char,
}

/// Options of a load.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ws_options {
    /// The options.
    pub items: *const ws_option,
    /// How many.
    pub count: usize,
}

/// A flatbuffer program: bytes or a path.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ws_program {
    /// The bytes, or NULL.
    pub data: *const c_void,
    /// Number of bytes.
    pub size: usize,
    /// The path, or NULL.
    pub path: *const c_char,
}

/// A view of a tensor.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ws_tensor {
    /// The first element.
    pub data: *mut c_void,
    /// Bytes from there on.
    pub nbytes: usize,
    /// Scalar type.
    pub dtype: i32,
    /// Number of dimensions.
    pub ndim: i32,
    /// Extents.
    pub sizes: *const i64,
    /// Strides in elements, or NULL.
    pub strides: *const i64,
    /// `ws_device_type`: where the data lies.
    pub device_type: i32,
    /// Index of the device.
    pub device_index: i32,
}

/// Counters of a model.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct ws_stats_data {
    /// Size of the structure, as its owner knows it.
    pub struct_size: u64,
    /// In the header each is a field of its own.
    pub counters: Stats,
}

// SAFETY: C++ knows it by the header, which is generated from the same table: fields of 64 bits only, in the same order.
unsafe impl cxx::ExternType for ws_stats_data {
    type Id = cxx::type_id!("ws_stats_data");
    type Kind = cxx::kind::Trivial;
}

impl From<Stats> for ws_stats_data {
    fn from(counters: Stats) -> Self {
        ws_stats_data {
            struct_size: size_of::<ws_stats_data>() as u64,
            counters,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    /// As `tests/cpp/header_c.c` says of the header, and `_run/runtime.py` in Python.
    #[test]
    fn a_tensor_has_the_layout_of_the_header() {
        assert_eq!(size_of::<ws_tensor>(), 48);
        assert_eq!(offset_of!(ws_tensor, strides), 32);
        assert_eq!(offset_of!(ws_tensor, device_type), 40);
        assert_eq!(offset_of!(ws_tensor, device_index), 44);
    }
}
