//! The catalog of a method's constants, and where their bytes come from.
//!
//! | file | what it knows |
//! |---|---|
//! | `bytes` | host bytes together with what keeps them alive |
//! | `catalog` | the record and the data file, checked against each other |
//! | `packed` | weights that the data file has packed |
//! | `packed_copy` | packed copies in host memory of weights that no file has packed |
//! | `verify` | checksums, on demand |
//! | `target` | whether this machine can run what was compiled |
//! | `mapping` | files in memory; the only place that maps |

mod bytes;
mod catalog;
mod mapping;
mod packed;
mod packed_copy;
mod target;
mod verify;

pub use bytes::SharedBytes;
pub use catalog::{check_build_id, Catalog, Constant, NamedData, Segment, SegmentId};
pub use mapping::{read_regular, MappedFile, MappedPtd};
pub use packed::{packed_entries, PackedWeight};
pub use packed_copy::PackedCopy;
pub use target::{check_target, Host};
pub use verify::verify_crc;
