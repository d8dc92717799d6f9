//! The options: one row each. What a load accepts, its errors, `weightstream options`,
//! `docs/options.md` and the C header's text come from here.
#![deny(unsafe_code)]

use super::policy::FOR_TESTS;
use super::{
    refuse, Concurrent, Gathering, HostMemory, PolicyKind, Spec, SpecValue, Verify, Words, BUDGET,
    BUDGET_BYTES, BUDGET_MB, CONCURRENT, CUDA_GRAPH, DATA, DEVICE, GATHER, GRAPH_MB, GRAPH_SHAPES,
    HOST, KERNEL_TIMES, LINK_GBPS, METHOD_SHARE, PACKED_RESIDENTS, PIN, POLICY, PRIORITY,
    PTE_SHA256, STAGING_MB, STREAM, SYNC, VERIFY,
};
use crate::error::Error;
use crate::figures::{DeviceId, PackedResidents};

/// What the keys of options start with.
const PREFIX: &str = "weight_offload_";
/// What the environment variables start with that stand for them.
pub const VARIABLE_PREFIX: &str = "WEIGHTSTREAM_";

/// For which programs an option can do anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// All.
    Any,
    /// Those whose weights are read through probes.
    Offloaded,
    /// Those that run on a GPU.
    Gpu,
}

impl Reach {
    /// What documentation calls it.
    pub fn name(self) -> &'static str {
        match self {
            Reach::Any => "all programs",
            Reach::Offloaded => "offloading programs",
            Reach::Gpu => "GPU programs",
        }
    }
}

/// What values an option takes.
#[derive(Debug, Clone, Copy)]
pub enum Values {
    /// One of some words.
    Words(fn() -> Vec<&'static str>),
    /// The words `auto` and `shared`; sizes have keys of their own.
    Auto,
    /// An integer.
    Whole,
    /// A size in MB.
    Mb {
        /// The least one.
        least: u64,
    },
    /// A size in bytes.
    Bytes,
    /// GB/s, or `auto`.
    Rate,
    /// The index of a device.
    Index,
    /// On or off.
    Switch,
    /// Shapes of methods.
    Shapes,
    /// Shares of methods.
    Shares,
    /// Patterns of weights' names.
    Patterns,
    /// A path, and what lies there.
    Path(&'static str),
    /// A SHA-256.
    Digest,
}

impl Values {
    /// What is accepted, for errors and documentation.
    pub fn accepted(&self) -> String {
        match self {
            Values::Words(all) => {
                let quoted: Vec<_> = all().iter().map(|word| format!("'{word}'")).collect();
                format!("a string, one of {}", quoted.join(", "))
            }
            Values::Auto => {
                format!("'auto' or 'shared'; a size goes into {BUDGET_MB} or {BUDGET_BYTES}")
            }
            Values::Whole => "a whole number".to_owned(),
            Values::Mb { least } => {
                format!("a number from {least} up, in MB of 1,048,576 bytes, such as 512 or '0.5'")
            }
            Values::Bytes => "a number of bytes, as a string of decimal digits".to_owned(),
            Values::Rate => "a positive number of GB/s, at most 1000000, or 'auto'".to_owned(),
            Values::Index => "the index of a GPU, such as 1 or 'cuda:1'".to_owned(),
            Values::Switch => "true or false, or 1 or 0".to_owned(),
            Values::Shapes => "sizes of dynamic dimensions, as in 'tokens=1,2,4' or 'decode:batch=1,2;prefill:tokens=128', or 'static'"
                .to_owned(),
            Values::Shares => {
                "methods and their shares, as in 'decode=0.98,prefill=0.02'".to_owned()
            }
            Values::Patterns => {
                "names of weights with * and ?, and commas between, as in 'lm_head.*,layers.0.*'"
                    .to_owned()
            }
            Values::Path(what) => format!("{what}, as a string"),
            Values::Digest => {
                "a SHA-256 as a string of 64 hexadecimal digits (`sha256sum model.pte` prints it)"
                    .to_owned()
            }
        }
    }
}

impl Values {
    /// Whether they are ints to a caller that gives them by their own type.
    pub fn are_ints(&self) -> bool {
        matches!(
            self,
            Values::Mb { .. } | Values::Index | Values::Switch | Values::Whole
        )
    }
}

/// One option.
#[derive(Debug)]
pub struct Row {
    /// Its key.
    pub key: &'static str,
    /// What values it takes.
    pub values: Values,
    /// For which programs it can do anything.
    pub reach: Reach,
    /// What holds where nobody says anything; empty where that is no value of the option.
    pub default: &'static str,
    /// What it does, in sentences.
    pub meaning: &'static str,
}

const fn row(
    key: &'static str,
    values: Values,
    reach: Reach,
    default: &'static str,
    meaning: &'static str,
) -> Row {
    Row {
        key,
        values,
        reach,
        default,
        meaning,
    }
}

fn words<T: Words>() -> Vec<&'static str> {
    let all = T::ALL.iter().map(|(word, _)| *word);
    all.filter(|word| !FOR_TESTS.contains(word)).collect()
}

/// All of them, in the order of the documentation.
pub const ROWS: [Row; 23] = [
    row(
        BUDGET,
        Values::Auto,
        Reach::Offloaded,
        "",
        "'auto' chooses the budget at load: what is free on the device, less what the method takes \
         beside its weights, and at most what all weights occupy. 'shared' lets the store share the \
         device's memory with others: its budget changes between passes. Give one of the three \
         budgets. Without any, the budget is the floor, the least possible one.",
    ),
    row(
        BUDGET_MB,
        Values::Mb { least: 0 },
        Reach::Offloaded,
        "",
        "The budget: device memory for weights and direct constants.",
    ),
    row(
        BUDGET_BYTES,
        Values::Bytes,
        Reach::Offloaded,
        "",
        "The budget in bytes. A string, since ExecuTorch's ints have 32 bits; an int is taken \
         as well.",
    ),
    row(
        PRIORITY,
        Values::Whole,
        Reach::Offloaded,
        "0",
        "Of a store with the budget 'shared': the bytes that a store of higher priority wants come \
         before those of a lower one. Floors come first in any case.",
    ),
    row(
        POLICY,
        Values::Words(words::<PolicyKind>),
        Reach::Any,
        "planned",
        "Who is on the device. 'planned' decides at load what stays and what streams; 'lru' \
         evicts what was used least recently.",
    ),
    row(
        HOST,
        Values::Words(words::<HostMemory>),
        Reach::Gpu,
        "auto",
        "What a GPU copies weights from: the mapped file, registered in place; a copy in pinned \
         memory; or a ring of pinned memory that is filled from the file during passes. 'auto' \
         chooses at load, by what the device can do and by the memory that is free.",
    ),
    row(
        STAGING_MB,
        Values::Mb { least: 1 },
        Reach::Gpu,
        "",
        "Size of the ring of 'staged', at least 8 MB. Without it, the ring holds everything \
         that is copied, but at most 256 MB.",
    ),
    row(
        GATHER,
        Values::Words(words::<Gathering>),
        Reach::Any,
        "auto",
        "Whether tables of which kernels only look rows up (embeddings) are read in place, in \
         host memory. 'auto': where a pass takes at most half of the table.",
    ),
    row(
        PACKED_RESIDENTS,
        Values::Words(words::<PackedResidents>),
        Reach::Gpu,
        "auto",
        "Whether packed weights may stay packed in the budget, decoded at each read. 'auto': where a \
         pass is shorter with them; 'on': wherever there is room; 'off': what stays is raw.",
    ),
    row(
        LINK_GBPS,
        Values::Rate,
        Reach::Gpu,
        "auto",
        "What the link to the GPU carries, in GB/s of 1,000,000,000 bytes; plans weigh by it \
         what a copy costs beside its bytes. 'auto' times the link at load.",
    ),
    row(
        KERNEL_TIMES,
        Values::Path("the path of a file of kernels' times"),
        Reach::Gpu,
        "",
        "A file of how long kernels run. If it is there, plans go by it from the first pass on, \
         and nothing is timed. If not, it is written after the second pass.",
    ),
    row(DEVICE, Values::Index, Reach::Gpu, "0", "The GPU to run on."),
    row(
        VERIFY,
        Values::Words(words::<Verify>),
        Reach::Any,
        "off",
        "When weights are compared with their checksums: never; at load; or at load and on the \
         device before each read, which is slow and meant for debugging.",
    ),
    row(
        SYNC,
        Values::Switch,
        Reach::Gpu,
        "0",
        "Waits for every kernel, so that the error of a fault names only what that kernel had \
         leased. Slow, for debugging.",
    ),
    row(
        CUDA_GRAPH,
        Values::Switch,
        Reach::Gpu,
        "0",
        "Captures the second pass over some shapes as a CUDA graph, copies included, and replays \
         it. Each set of shapes has its own graph. An error where the host has to take part in a \
         pass.",
    ),
    row(
        GRAPH_MB,
        Values::Mb { least: 1 },
        Reach::Gpu,
        "128",
        "The most device memory that all graphs of a program take beside their activations. \
         Graphs that were not used for longest go. An error without weight_offload_cuda_graph.",
    ),
    row(
        GRAPH_SHAPES,
        Values::Shapes,
        Reach::Gpu,
        "",
        "Shapes whose graphs are captured at load, so that the first call over each of them is a \
         replay. An error without weight_offload_cuda_graph, and where the graphs do not fit into \
         weight_offload_graph_mb.",
    ),
    row(
        METHOD_SHARE,
        Values::Shares,
        Reach::Offloaded,
        "",
        "How often each method of a program runs beside the others. Plans keep what the frequent \
         ones read. Without it all methods count the same. Unknown names are errors.",
    ),
    row(
        PIN,
        Values::Patterns,
        Reach::Offloaded,
        "",
        "Weights that always stay on the device, under each policy. They count in the least \
         budget. A table that would be read in place is loaded. A pattern that matches nothing \
         is an error.",
    ),
    row(
        STREAM,
        Values::Patterns,
        Reach::Offloaded,
        "",
        "Weights that never stay: each pass copies them, also where the budget covers them. A \
         table that is read in place stays in host memory. A pattern that matches nothing is an \
         error.",
    ),
    row(
        CONCURRENT,
        Values::Words(words::<Concurrent>),
        Reach::Any,
        "turns",
        "What a call does while another method or session of the same program runs: it waits for \
         its turn, or is refused.",
    ),
    row(
        DATA,
        Values::Path("the path of the .ptd"),
        Reach::Any,
        "",
        "The file of the weights, where the caller's named data is not mapped memory. Functions \
         that take the path themselves need it not.",
    ),
    row(
        PTE_SHA256,
        Values::Digest,
        Reach::Any,
        "",
        "Refuses a program of another hash. For one load, never a default; ExecuTorch's own \
         Module never shows the program, so it cannot take this option.",
    ),
];

impl Row {
    /// The row of a key.
    pub fn of(key: &str) -> Option<&'static Row> {
        ROWS.iter().find(|row| row.key == key)
    }

    /// The environment variable: `WEIGHTSTREAM_POLICY` for `weight_offload_policy`.
    pub fn variable(&self) -> String {
        let name = self.key.strip_prefix(PREFIX).unwrap_or("BUDGET");
        VARIABLE_PREFIX.to_owned() + &name.to_uppercase()
    }

    /// The value that a text stands for, where there are only texts: in the environment, and in a program.
    pub fn value(&self, text: &str) -> SpecValue {
        self.own(&SpecValue::Text(text.to_owned()))
    }

    /// The value in the option's own type, however it was given: a switch is a bool, a number is an int.
    fn own(&self, value: &SpecValue) -> SpecValue {
        let own = match (self.values, value) {
            (Values::Switch, SpecValue::Int(number)) => on_or_off(&number.to_string()),
            (Values::Switch, SpecValue::Text(text)) => on_or_off(text),
            (Values::Index, SpecValue::Text(text)) => index_of(text),
            (Values::Mb { .. } | Values::Whole, SpecValue::Text(text)) => number(text),
            _ => None,
        };
        own.unwrap_or_else(|| value.clone())
    }
}

impl Spec {
    /// The same with its value in the option's own type.
    pub(super) fn in_own_type(&self) -> Spec {
        Spec {
            key: self.key.clone(),
            value: Row::of(&self.key)
                .map_or_else(|| self.value.clone(), |row| row.own(&self.value)),
        }
    }
}

/// A text that says an integer; `i64::from_str` would also take a plus sign.
fn number(text: &str) -> Option<SpecValue> {
    let plus = text.starts_with('+');
    let number = text.parse().ok().filter(|_| !plus);
    number.map(SpecValue::Int)
}

/// Of `cuda:1`, `cuda` or `1`.
fn index_of(text: &str) -> Option<SpecValue> {
    match DeviceId::parse_or_first(text) {
        Some(DeviceId::Cuda(index)) => Some(SpecValue::Int(index.into())),
        _ => number(text),
    }
}

/// What a text says of a switch; `None` if it says nothing.
fn on_or_off(text: &str) -> Option<SpecValue> {
    match text {
        "true" | "1" => Some(SpecValue::Bool(true)),
        "false" | "0" => Some(SpecValue::Bool(false)),
        _ => None,
    }
}

/// The three ways to give a budget are one option.
pub fn group(key: &str) -> &str {
    match key {
        BUDGET_MB | BUDGET_BYTES => BUDGET,
        other => other,
    }
}

/// The refusal of a key that is no option's.
pub(super) fn unknown(key: &str) -> Error {
    let keys: Vec<_> = ROWS.iter().map(|row| row.key).collect();
    refuse(
        key,
        format!("is unknown; the options are {}", keys.join(", ")),
    )
}
