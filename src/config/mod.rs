//! Options of one load. Every key is known and checked here; nothing is ignored.
#![deny(unsafe_code)]

mod layers;
mod policy;
mod table;
mod values;

use std::fmt;
use std::path::PathBuf;

use crate::error::{Error, Result};
use values::{
    budget_from_bytes, budget_from_word, choice, device_index, digest, from_mb, link_rate, path,
    refuse, refuse_cut, switch,
};

pub use layers::{check_defaults, from_program, get_default, set_defaults, Applies, Given, Origin};
pub use policy::PolicyKind;
pub use table::Row;

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
    /// Where a pass is known to take at most half of the table's bytes.
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

/// Options of one load, after parsing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Options {
    /// The budget.
    pub budget: Budget,
    /// How the bytes to copy are held on the host.
    pub host: HostMemory,
    /// Bytes of the ring of `staged`; `None` means the default.
    pub staging: Option<u64>,
    /// Which tables are read in place.
    pub gather: Gathering,
    /// How plans get to know the link to the device.
    pub link: LinkRate,
    /// File of how long kernels run: read if it is there, otherwise written once they were timed.
    pub kernel_times: Option<PathBuf>,
    /// Index of the device; `None` means the first one.
    pub device: Option<u32>,
    /// Residency policy.
    pub policy: PolicyKind,
    /// Checksum policy.
    pub verify: Verify,
    /// Whether every kernel is waited for before the next one, so that a fault is found where it happened.
    pub sync: bool,
    /// Whether passes are captured as CUDA graphs, and replayed.
    pub cuda_graph: bool,
    /// Path of the `.ptd`; needed when the caller has no mapped named data.
    pub data: Option<PathBuf>,
    /// SHA-256 that the whole `.pte` must have. Only where the program's bytes are at hand, see [`PTE_SHA256`].
    pub pte_sha256: Option<Sha256Digest>,
    /// What was given, and by whom.
    pub given: Vec<Given>,
}

/// Key of a budget that is chosen at load: `auto`.
pub const BUDGET: &str = "weight_offload_budget";
/// Key of the budget in MB (1,048,576 bytes): an integer.
pub const BUDGET_MB: &str = "weight_offload_budget_mb";
/// Key of the budget in bytes: a decimal string, since ExecuTorch's integers have 32 bits.
pub const BUDGET_BYTES: &str = "weight_offload_budget_bytes";
/// Key of the residency policy: the name of a [`PolicyKind`].
pub const POLICY: &str = "weight_offload_policy";
/// Key of the checksum policy: `off`, `load` or `every_read`.
pub const VERIFY: &str = "weight_offload_verify";
/// Key of how the bytes to copy are held on the host: `auto`, `mapped`, `pinned` or `staged`.
pub const HOST: &str = "weight_offload_host";
/// Key of the size of the staging ring in MB (1,048,576 bytes): an integer.
pub const STAGING_MB: &str = "weight_offload_staging_mb";
/// Key of which tables are read in place: `auto`, `on` or `off`.
pub const GATHER: &str = "weight_offload_gather";
/// Key of what the link to the device carries, in GB/s of 1,000,000,000 bytes: a positive number, as a string or an
/// integer; or `auto`: it is timed at load.
pub const LINK_GBPS: &str = "weight_offload_link_gbps";
/// Key of the path of a file of kernels' times.
pub const KERNEL_TIMES: &str = "weight_offload_kernel_times";
/// Key of the index of the device: an integer.
pub const DEVICE: &str = "weight_offload_device";
/// Key of whether every kernel is waited for: 0 or 1.
pub const SYNC: &str = "weight_offload_sync";
/// Key of whether passes are captured as CUDA graphs: 0 or 1.
pub const CUDA_GRAPH: &str = "weight_offload_cuda_graph";
/// Key of the path of the `.ptd`.
pub const DATA: &str = "weight_offload_data";
/// Key of the SHA-256 that the whole `.pte` must have: 64 hexadecimal digits. A backend of ExecuTorch is not given
/// the program, so there it is refused: it could have no effect.
pub const PTE_SHA256: &str = "weight_offload_pte_sha256";

/// ExecuTorch keeps 255 characters of a string value and drops the rest without a word, so a value of
/// this length may be a cut one.
pub const CUT_LENGTH: usize = 255;

const MB: u64 = 1 << 20;
const VERIFIES: [(&str, Verify); 3] = [
    ("off", Verify::Off),
    ("load", Verify::Load),
    ("every_read", Verify::EveryRead),
];
const GATHERINGS: [(&str, Gathering); 3] = [
    ("auto", Gathering::Auto),
    ("on", Gathering::On),
    ("off", Gathering::Off),
];
const HOSTS: [(&str, HostMemory); 4] = [
    ("auto", HostMemory::Auto),
    ("mapped", HostMemory::Mapped),
    ("pinned", HostMemory::Pinned),
    ("staged", HostMemory::Staged),
];

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

impl Options {
    /// Options from runtime specs. An unknown or repeated key, a wrong type or a value that cannot take
    /// effect is an error.
    pub fn parse(specs: &[Spec]) -> Result<Options> {
        let mut options = Options::default();
        for (at, spec) in specs.iter().enumerate() {
            if specs[..at].iter().any(|earlier| earlier.key == spec.key) {
                return Err(refuse(&spec.key, "is given twice".to_owned()));
            }
            options.take(spec, Origin::Load)?;
        }
        options.check_staging()?;
        Ok(options)
    }

    /// What `auto` chooses is only known at load.
    fn check_staging(&self) -> Result<()> {
        let unused = match self.host {
            HostMemory::Mapped => "mapped",
            HostMemory::Pinned => "pinned",
            HostMemory::Auto | HostMemory::Staged => return Ok(()),
        };
        match self.staging {
            None => Ok(()),
            Some(_) => Err(refuse(
                STAGING_MB,
                format!("is the size of the ring of 'staged', and {HOST} is '{unused}'"),
            )),
        }
    }

    fn take(&mut self, spec: &Spec, origin: Origin) -> Result<()> {
        self.apply(spec)?;
        self.given.push(Given {
            spec: spec.clone(),
            origin,
        });
        Ok(())
    }

    fn apply(&mut self, spec: &Spec) -> Result<()> {
        refuse_cut(spec)?;
        match spec.key.as_str() {
            BUDGET => self.set_budget(&spec.key, budget_from_word(spec)?),
            BUDGET_MB => self.set_budget(&spec.key, Budget::Bytes(from_mb(spec, 0)?)),
            BUDGET_BYTES => self.set_budget(&spec.key, Budget::Bytes(budget_from_bytes(spec)?)),
            HOST => {
                self.host = choice(spec, &HOSTS)?;
                Ok(())
            }
            STAGING_MB => {
                self.staging = Some(from_mb(spec, 1)?);
                Ok(())
            }
            GATHER => {
                self.gather = choice(spec, &GATHERINGS)?;
                Ok(())
            }
            LINK_GBPS => {
                self.link = link_rate(spec)?;
                Ok(())
            }
            KERNEL_TIMES => {
                self.kernel_times = Some(path(spec, "the path of a file of kernels' times")?);
                Ok(())
            }
            DEVICE => {
                self.device = Some(device_index(spec)?);
                Ok(())
            }
            POLICY => {
                let named = PolicyKind::ALL.iter().map(|&kind| (kind.name(), kind));
                self.policy = choice(spec, &named.collect::<Vec<_>>())?;
                Ok(())
            }
            VERIFY => {
                self.verify = choice(spec, &VERIFIES)?;
                Ok(())
            }
            SYNC => {
                self.sync = switch(spec)?;
                Ok(())
            }
            CUDA_GRAPH => {
                self.cuda_graph = switch(spec)?;
                Ok(())
            }
            DATA => {
                self.data = Some(path(spec, "the path of the .ptd")?);
                Ok(())
            }
            PTE_SHA256 => {
                self.pte_sha256 = Some(digest(spec)?);
                Ok(())
            }
            _ => Err(unknown(&spec.key)),
        }
    }

    fn set_budget(&mut self, key: &str, budget: Budget) -> Result<()> {
        if self.budget != Budget::Floor {
            return Err(refuse(
                key,
                format!("give one of {BUDGET}, {BUDGET_MB} and {BUDGET_BYTES}, not two"),
            ));
        }
        self.budget = budget;
        Ok(())
    }
}

fn unknown(key: &str) -> Error {
    let keys: Vec<_> = table::ROWS.iter().map(|row| row.key).collect();
    refuse(
        key,
        format!("is unknown; the options are {}", keys.join(", ")),
    )
}

#[cfg(test)]
mod tests;
