//! What the export recorded about one method: its constants, the order in which the compiled code reads
//! them, and what it was compiled for.
//!
//! A record is a bag of named lists of integers or strings in the delegate's processed bytes (`schema/record.fbs`,
//! identifier `WSR1`). `save` writes it a second time, as constant methods `{method}__weight_offload__{field}` of the program;
//! ExecuTorch's own writers do not. An absent field is an empty list. A field that is not in this
//! table is an error, unless its name starts with `x_`: older runtimes read past these, and older exporters write none.
//!
//! | field | holds | meaning |
//! |---|---|---|
//! | `format_version` | 1 int | 4; 5 in a program of several methods |
//! | `method` | 1 string | the method |
//! | `build_id` | 1 string | 32 lowercase hex digits; also in the `.ptd` |
//! | `so_key` | 1 string | key of the compiled library: `weightstream_so_` and the SHA-256 of its bytes |
//! | `offload` | 1 int | 1: weights are read through probes; 0: no probes, everything direct |
//! | `device` | 1 string | `cpu` or `cuda` |
//! | `target` | 5 strings | OS, architecture, ISA level, torch version, SM list (`90,100`; empty on `cpu`) |
//! | `fqns` | n strings | every constant, by the name that the compiled library knows; the position is its weight index |
//! | `keys` | n strings | keys in the `.ptd`; absent: `fqns`. In a program of several methods the key says what is one |
//! | `kinds` | n ints | 0 weight, 1 direct, 2 direct and mutable |
//! | `dtypes` | n ints | scalar type numbers |
//! | `nbytes` | n ints | exact bytes of the dense tensor |
//! | `crc32` | n ints | CRC-32 (IEEE) of these bytes |
//! | `layouts` | ints | per constant: number of dimensions, sizes, strides in elements, as kernels index it |
//! | `probes` | p ints | weight index of each probe |
//! | `access_order` | p ints | weight indices in the order of the trace's probes |
//! | `trace` | ints | `op + 4 * id`: 0 probe, 1 kernel (running number), 2 release |
//! | `floor`, `hard_minimum` | 1 int | bytes, for policy `lru` on `host`; direct constants of all methods count |
//! | `activations` | 1 int | most bytes of activations at one time, for the largest shape; -1: a size is unbounded |
//! | `inputs` | ints | per input: dtype, number of dimensions, then per dimension minimum, maximum, symbol or -1 |
//! | `input_names` | strings | one per input |
//! | `outputs` | ints | per output: dtype, number of dimensions |
//! | `symbols` | strings | names of the symbols, for messages; the position is the number that `inputs` uses |
//! | `solutions` | strings | `k i d postfix`: symbol k follows from x, the size of dimension d of input i, and symbols that have a value |
//! | `relations` | strings | `i0.1 postfix`, `o0.1 postfix`: the size that dimension 1 of input or output 0 must have |
//! | `guards` | strings | postfix that is not zero in any call: the compiler took it for granted |
//! | `x_call` | strings | what callers in Python name each input of the method, in its order: `x`, `state[0]`, `cache['k']` |
//! | `x_call_places` | ints | per input of `x_call`: the place of its argument, or -1 for a keyword |
//! | `x_call_constants` | strings | per input of `x_call`: the value that is part of the program as Python writes it; empty: a tensor |
//! | `x_places` | ints | pairs of a probe of `gathers` and a direct constant of 2 n + 1 int64 for its n rows: bytes from the probe's address to each row; the address of what follows, or 0; counts of reads |
//! | `x_tuned` | 1 int | 0: kernels were compiled for a GPU that was not there, and not tuned. For people: the runtime does not ask |
//!
//! Postfix is that of `expression`. A symbol has its value from a dimension of `inputs` or from exactly one solution. `inputs`, `outputs`,
//! `solutions` and `relations` number inputs and outputs as the delegate does. Each call is checked against them (`delegate/inputs`).

mod constants;
mod decode;
mod expression;
mod fields;
mod records;
mod signature;
mod sizes;
mod trace;

use std::fmt;

use super::ScalarType;
use crate::schedule::{Event, ProbeId, WeightIndex};

pub use expression::Expression;
pub use records::{Records, UnionConstants};
pub use signature::{Argument, Dim, InputSpec, OutputSpec};
pub use sizes::{Relation, Sizes, Solution, Symbol};

/// The backend whose delegates have records.
pub const BACKEND: &str = "WeightStreamBackend";

/// The version of records in programs of several methods.
const SEVERAL: i64 = 5;

/// Everything recorded about one method, validated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// 4, or 5 in a program of several methods.
    pub version: i64,
    /// The method.
    pub method: String,
    /// Ties program, payload and data file together.
    pub build_id: BuildId,
    /// Key of the compiled library among the program's named data.
    pub so_key: String,
    /// Whether weights are read through probes.
    pub offload: bool,
    /// `cpu` or `cuda`.
    pub device: String,
    /// What the compiled library was built for.
    pub target: Target,
    /// All constants; the position is the weight index.
    pub constants: Vec<RecordedConstant>,
    /// Weight index of each probe.
    pub probes: Vec<WeightIndex>,
    /// Probes whose only reader takes rows of the weight, and how many at the most, ascending.
    pub gathers: Vec<Gather>,
    /// Of some of these, where each row is told.
    pub places: Vec<Places>,
    /// Weight indices in the order in which one pass reads them.
    pub access_order: Vec<WeightIndex>,
    /// One pass, in host issue order.
    pub trace: Vec<Event>,
    /// Bytes: the floor of policy `lru` on `host`.
    pub floor: u64,
    /// Bytes: below this some probe cannot be served at all.
    pub hard_minimum: u64,
    /// Bytes: a bound of what the activations of one pass take at one time, outputs included, for any shape of
    /// the inputs. `None`: a size has no upper bound.
    pub activations: Option<u64>,
    /// Inputs of the compiled code.
    pub inputs: Vec<InputSpec>,
    /// Outputs of the compiled code.
    pub outputs: Vec<OutputSpec>,
    /// What their sizes must be.
    pub sizes: Sizes,
    /// The inputs of the method as its callers name them; none if the exporter did not record them.
    pub call: Vec<Argument>,
}

/// 128 bits that differ from export to export.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct BuildId(pub [u8; 16]);

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BuildId({self})")
    }
}

/// What the compiled library was built for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Operating system, as Rust names it: `linux`.
    pub os: String,
    /// Architecture, as Rust names it: `x86_64`.
    pub arch: String,
    /// ISA level: `x86-64`, `x86-64-v2`, `x86-64-v3` or `x86-64-v4`.
    pub isa: String,
    /// Version of torch that compiled it.
    pub torch: String,
    /// SM versions of the embedded kernels; empty on `cpu`.
    pub sms: Vec<u32>,
    /// Whether the kernels were chosen by running them, where there are any: false if no GPU was there at export.
    pub tuned: bool,
}

/// How a constant is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConstantKind {
    /// Offloaded: read through probes.
    Weight,
    /// Loaded once and resident.
    Direct,
    /// Direct, and written to by the program: never merged with another of equal bytes.
    Mutable,
}

/// One constant as recorded at export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedConstant {
    /// Its name.
    pub fqn: String,
    /// Its key in the `.ptd`, and what makes it one with a constant of another method.
    pub key: String,
    /// How it is read.
    pub kind: ConstantKind,
    /// Element type.
    pub dtype: ScalarType,
    /// Exact bytes in the `.ptd`.
    pub nbytes: u64,
    /// CRC-32 of these bytes.
    pub crc32: u32,
    /// Sizes of what kernels index, outermost first.
    pub sizes: Vec<i64>,
    /// Its strides in elements; dense.
    pub strides: Vec<i64>,
}

/// A read of some rows of a weight (its first dimension).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gather {
    /// The probe.
    pub probe: ProbeId,
    /// Most rows that a pass takes, equal ones counted each time; `None` if nobody can tell.
    pub rows: Option<u64>,
    /// Bytes of one row.
    pub row_bytes: u64,
}

/// A read of rows that may lie apart: kernels find in a constant where each is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    /// The probe.
    pub probe: ProbeId,
    /// The constant: for each row how many bytes after the address of the read it lies, int64. As it is stored, they lie one
    /// after the other.
    pub constant: WeightIndex,
    /// Bytes of one row.
    pub row_bytes: u64,
}

impl Gather {
    /// Bytes that a pass takes at the most; saturates.
    pub fn bytes(&self) -> Option<u64> {
        self.rows.map(|rows| rows.saturating_mul(self.row_bytes))
    }

    /// Whether it pays to read a table of so many bytes in place: a pass reads at most half of it. Rows that are
    /// read while copies run arrive at about half of the link's speed, and a table that streams costs its bytes
    /// once in a pass.
    pub fn pays(&self, table: u64) -> bool {
        table > 0 && self.bytes().is_some_and(|bytes| bytes <= table / 2)
    }
}

impl Record {
    /// Key of the entry in the `.ptd` that holds the 16 raw bytes of the build id.
    pub fn build_id_key(&self) -> String {
        format!("weightstream_build_id_{}", self.method)
    }

    /// Whether its program has other methods.
    pub fn is_one_of_several(&self) -> bool {
        self.version == SEVERAL
    }

    /// The constant that probe `id` reads.
    pub fn probed(&self, id: ProbeId) -> Option<&RecordedConstant> {
        self.constants.get(*self.probes.get(id as usize)? as usize)
    }
}
