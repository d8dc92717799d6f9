//! Named data that ExecuTorch has read into memory, as the source of a load's weights.

use cxx::SharedPtr;

use super::types::NamedData;
use crate::error::Error;
use crate::format::{EntryLayout, ScalarType};
use crate::weights::{self, SharedBytes};

/// Named data that ExecuTorch has read into memory.
pub(super) struct KeptData<'a>(pub(super) &'a NamedData);

/// Keeps that memory, for as long as a method lives that reads it.
pub(super) struct KeptBuffers(#[allow(dead_code)] pub(super) SharedPtr<NamedData>);

// SAFETY: after the load nobody calls the object; its end frees buffers, which any thread may do.
unsafe impl Send for KeptBuffers {}
// SAFETY: as above.
unsafe impl Sync for KeptBuffers {}

impl weights::NamedData for KeptData<'_> {
    fn name(&self) -> &str {
        "the program's named data"
    }

    fn layout(&self, key: &str) -> crate::Result<Option<EntryLayout>> {
        let missing = |error: cxx::Exception| missing(key, &error);
        let mut numbers = Vec::new();
        self.0.layout(key, &mut numbers).map_err(missing)?;
        let (dtype, rest) = numbers
            .split_first()
            .ok_or_else(|| Error::Internal(format!("'{key}' has a layout without a dtype")))?;
        let (sizes, dim_order) = rest.split_at(rest.len() / 2);
        let dtype = ScalarType::from_number(*dtype).ok_or_else(|| Error::Mismatch {
            name: key.to_owned(),
            fact: "dtype",
            expected: "a scalar type".to_owned(),
            found: format!("number {dtype} in {}", self.name()),
        })?;
        Ok(Some(EntryLayout {
            dtype,
            sizes: sizes.to_vec(),
            dim_order: dim_order.iter().map(|&dim| dim as u8).collect(),
        }))
    }

    fn bytes(&self, key: &str) -> crate::Result<SharedBytes> {
        let bytes = named_bytes(self.0, key)?;
        // SAFETY: the buffers live as long as the named data, which `KeptBuffers` keeps, and nobody writes to them.
        unsafe { SharedBytes::foreign(bytes.as_ptr(), bytes.len()) }
    }
}

pub(super) fn named_bytes<'a>(named: &'a NamedData, key: &str) -> crate::Result<&'a [u8]> {
    named.bytes(key).map_err(|error| missing(key, &error))
}

fn missing(key: &str, error: &cxx::Exception) -> Error {
    Error::Missing {
        name: key.to_owned(),
        place: format!("the program's named data ({error})"),
    }
}
