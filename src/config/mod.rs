//! Options of one load. Every key is known and checked here; nothing is ignored.
#![deny(unsafe_code)]

mod layers;
mod options;
mod patterns;
mod policy;
mod shapes;
mod table;
mod values;

use std::fmt;

use crate::error::Error;
use crate::figures::PackedResidents;

pub use layers::{check_defaults, from_program, get_default, quoted, set_defaults, Applies};
pub use options::{Given, Options, Origin};
pub use patterns::{matches, nearest};
pub use policy::PolicyKind;
pub use shapes::ShapeGroup;
pub use table::{Reach, Row, Values, ROWS};
pub use values::SHARES;

/// What a call does while another one runs over the same program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Concurrent {
    /// It waits for its turn.
    #[default]
    Turns,
    /// It is refused.
    Refuse,
}

/// When weight bytes are compared with their recorded CRC-32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Verify {
    /// Never; headers and tables are checked all the same.
    #[default]
    Off,
    /// Once, at load.
    Load,
    /// At load, and then on the device, before each read. Slow: for debugging and tests.
    EveryRead,
}

/// A SHA-256.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sha256Digest(pub [u8; 32]);

impl fmt::Display for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// How many bytes weights and direct constants may occupy on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Budget {
    /// The least possible one.
    #[default]
    Floor,
    /// What is free on the device at load, less what the method itself will take.
    Auto,
    /// So many.
    Bytes(u64),
    /// What the device's pool grants, beside other stores.
    Shared,
}

/// How the bytes that are copied to a GPU are held on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HostMemory {
    /// Chosen before anything is tried, by what the device can do and by the memory there is.
    #[default]
    Auto,
    /// The mapped file itself, registered with the device for reading.
    Mapped,
    /// A copy of the weights in pinned memory.
    Pinned,
    /// A ring of pinned buffers, filled from the file during the passes.
    Staged,
}

/// Whether tables of which kernels only look rows up are read in place, in host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Gathering {
    /// Where the export recorded that a pass takes at most half of the table's bytes.
    #[default]
    Auto,
    /// All of them, however many rows a pass takes.
    On,
    /// None: they are weights like all others.
    Off,
}

/// What plans take the link to the device for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LinkRate {
    /// Nothing was said: timed, where plans are made for a GPU.
    #[default]
    Unsaid,
    /// What it is found to be at load, and an error where nothing is planned for a link.
    Timed,
    /// A link of so many bytes per second.
    Given(u64),
}

/// Key of a budget that is chosen at load, `auto`, or that changes with the device's other stores, `shared`.
pub const BUDGET: &str = "weight_offload_budget";
/// Key of the budget in MB (1,048,576 bytes): an integer.
pub const BUDGET_MB: &str = "weight_offload_budget_mb";
/// Key of the budget in bytes: a decimal string, since ExecuTorch's integers have 32 bits.
pub const BUDGET_BYTES: &str = "weight_offload_budget_bytes";
/// Key of whose bytes come first in the device's pool: an integer.
pub const PRIORITY: &str = "weight_offload_priority";
/// Key of the residency policy: `lru`.
pub const POLICY: &str = "weight_offload_policy";
/// Key of the checksum policy: `off`, `load` or `every_read`.
pub const VERIFY: &str = "weight_offload_verify";
/// Key of how the bytes to copy are held on the host: `auto`, `mapped`, `pinned` or `staged`.
pub const HOST: &str = "weight_offload_host";
/// Key of the size of the staging ring in MB (1,048,576 bytes): an integer.
pub const STAGING_MB: &str = "weight_offload_staging_mb";
/// Key of which tables are read in place: `auto`, `on` or `off`.
pub const GATHER: &str = "weight_offload_gather";
/// Whether packed weights stay packed on the device.
pub const PACKED_RESIDENTS: &str = "weight_offload_packed_residents";
/// Key of what the link to the device carries, in GB/s of 1,000,000,000 bytes: a positive number, as a string or an
/// integer; or `auto`: it is timed at load.
pub const LINK_GBPS: &str = "weight_offload_link_gbps";
/// Key of the path of a file of kernels' times.
pub const KERNEL_TIMES: &str = "weight_offload_kernel_times";
/// Key of the index of the device: an integer.
pub const DEVICE: &str = "weight_offload_device";
/// Key of whether every kernel is waited for: a bool, or 0 or 1.
pub const SYNC: &str = "weight_offload_sync";
/// Key of whether passes are captured as CUDA graphs: a bool, or 0 or 1.
pub const CUDA_GRAPH: &str = "weight_offload_cuda_graph";
/// Key of how much device memory graphs may take, in MB (1,048,576 bytes): an integer.
pub const GRAPH_MB: &str = "weight_offload_graph_mb";
/// Key of the shapes whose graphs are captured at load: `tokens=1,2,4`.
pub const GRAPH_SHAPES: &str = "weight_offload_graph_shapes";
/// Key of how often each method of a program runs beside the others: `decode=0.98,prefill=0.02`.
pub const METHOD_SHARE: &str = "weight_offload_method_share";
/// Key of the weights that always stay: patterns of their FQNs, as in `lm_head.*,layers.0.*`.
pub const PIN: &str = "weight_offload_pin";
/// Key of the weights that never stay: patterns of their FQNs.
pub const STREAM: &str = "weight_offload_stream";
/// Key of what a call does while another method or session of the program runs: `turns` or `refuse`.
pub const CONCURRENT: &str = "weight_offload_concurrent";
/// Key of the path of the `.ptd`.
pub const DATA: &str = "weight_offload_data";
/// Key of the SHA-256 that the whole `.pte` must have: 64 hexadecimal digits. A backend of ExecuTorch is not given
/// the program, so there it is refused: it could have no effect.
pub const PTE_SHA256: &str = "weight_offload_pte_sha256";

/// ExecuTorch keeps 255 characters of a string value and drops the rest without a word, so a value of
/// this length may be a cut one.
pub const CUT_LENGTH: usize = 255;

/// A value that is one of some words.
pub(crate) trait Words: Copy + 'static {
    /// Each word and its value, in the order of documentation.
    const ALL: &'static [(&'static str, Self)];
}

impl Words for PolicyKind {
    const ALL: &'static [(&'static str, Self)] = PolicyKind::NAMES;
}

impl Words for Concurrent {
    const ALL: &'static [(&'static str, Self)] =
        &[("turns", Concurrent::Turns), ("refuse", Concurrent::Refuse)];
}

impl Words for Verify {
    const ALL: &'static [(&'static str, Self)] = &[
        ("off", Verify::Off),
        ("load", Verify::Load),
        ("every_read", Verify::EveryRead),
    ];
}

impl Words for Gathering {
    const ALL: &'static [(&'static str, Self)] = &[
        ("auto", Gathering::Auto),
        ("on", Gathering::On),
        ("off", Gathering::Off),
    ];
}

impl Words for PackedResidents {
    const ALL: &'static [(&'static str, Self)] = &[
        ("auto", PackedResidents::Auto),
        ("on", PackedResidents::On),
        ("off", PackedResidents::Off),
    ];
}

impl Words for HostMemory {
    const ALL: &'static [(&'static str, Self)] = &[
        ("auto", HostMemory::Auto),
        ("mapped", HostMemory::Mapped),
        ("pinned", HostMemory::Pinned),
        ("staged", HostMemory::Staged),
    ];
}

/// The value of one runtime spec. ExecuTorch knows these three types.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpecValue {
    /// A truth value.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A string.
    Text(String),
}

impl SpecValue {
    fn describe(&self) -> String {
        match self {
            SpecValue::Bool(value) => format!("the bool {value}"),
            SpecValue::Int(value) => format!("the int {value}"),
            SpecValue::Text(value) => format!("the string '{value}'"),
        }
    }
}

/// One runtime spec as the caller gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// The key.
    pub key: String,
    /// The value.
    pub value: SpecValue,
}

fn refuse(key: &str, what: String) -> Error {
    Error::Option {
        key: key.to_owned(),
        what,
    }
}

#[cfg(test)]
mod tests;
