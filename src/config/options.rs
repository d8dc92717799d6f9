//! The options of one load: parsed, checked, and each with who gave it.
#![deny(unsafe_code)]

use std::path::PathBuf;

use super::shapes::shapes;
use super::table::{group, unknown};
use super::values::{
    budget_from_bytes, budget_from_word, device_index, digest, from_mb, link_rate, path, patterns,
    priority, refuse_cut, shares, switch, word,
};
use super::{
    refuse, Budget, Concurrent, Gathering, HostMemory, LinkRate, PolicyKind, Sha256Digest,
    ShapeGroup, Spec, Verify, BUDGET, BUDGET_BYTES, BUDGET_MB, CONCURRENT, CUDA_GRAPH, DATA,
    DEVICE, GATHER, GRAPH_MB, GRAPH_SHAPES, HOST, KERNEL_TIMES, LINK_GBPS, METHOD_SHARE,
    PACKED_RESIDENTS, PIN, POLICY, PRIORITY, PTE_SHA256, STAGING_MB, STREAM, SYNC, VERIFY,
};
use crate::error::Result;
use crate::figures::PackedResidents;

/// Who gave an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The caller, at load.
    Load,
    /// The process, before it: `set_option`.
    SetOption,
    /// An environment variable.
    Environment,
    /// The program itself.
    Program,
}

impl Origin {
    /// Its name in counters and messages.
    pub fn name(self) -> &'static str {
        match self {
            Origin::Load => "load",
            Origin::SetOption => "set_option",
            Origin::Environment => "environment",
            Origin::Program => "program",
        }
    }
}

/// An option, and who gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// Key and value.
    pub spec: Spec,
    /// Who.
    pub origin: Origin,
}

/// Options that each method of a program may have as it likes.
const PER_METHOD: [&str; 3] = [CUDA_GRAPH, GRAPH_MB, GRAPH_SHAPES];

/// Options of one load, after parsing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Options {
    /// The budget.
    pub budget: Budget,
    /// Whose bytes come first, where the budget is shared.
    pub priority: i64,
    /// How the bytes to copy are held on the host.
    pub host: HostMemory,
    /// Bytes of the ring of `staged`; `None` means the default.
    pub staging: Option<u64>,
    /// Which tables are read in place.
    pub gather: Gathering,
    /// Whether packed weights stay packed on the device, which decodes them at each read.
    pub packed_residents: PackedResidents,
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
    /// Most bytes of graphs; `None` means the default.
    pub graph_bytes: Option<u64>,
    /// Shapes whose graphs are captured at load.
    pub graph_shapes: Vec<ShapeGroup>,
    /// How often each method runs beside the others, in parts of [`SHARES`](super::SHARES); those of one program.
    pub shares: Vec<(String, u32)>,
    /// Patterns of the FQNs of weights that always stay.
    pub pin: Vec<String>,
    /// Patterns of the FQNs of weights that never stay.
    pub stream: Vec<String>,
    /// What a call does while another one runs over the same program.
    pub concurrent: Concurrent,
    /// Path of the `.ptd`; needed when the caller has no mapped named data.
    pub data: Option<PathBuf>,
    /// SHA-256 that the whole `.pte` must have. Only where the program's bytes are at hand, see [`PTE_SHA256`].
    pub pte_sha256: Option<Sha256Digest>,
    /// What was given, and by whom.
    pub given: Vec<Given>,
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

    pub(super) fn take(&mut self, spec: &Spec, origin: Origin) -> Result<()> {
        let spec = spec.in_own_type();
        self.apply(&spec)?;
        self.given.push(Given { spec, origin });
        Ok(())
    }

    fn apply(&mut self, spec: &Spec) -> Result<()> {
        refuse_cut(spec)?;
        match spec.key.as_str() {
            BUDGET => self.set_budget(&spec.key, budget_from_word(spec)?)?,
            BUDGET_MB => self.set_budget(&spec.key, Budget::Bytes(from_mb(spec)?))?,
            BUDGET_BYTES => self.set_budget(&spec.key, Budget::Bytes(budget_from_bytes(spec)?))?,
            PRIORITY => self.priority = priority(spec)?,
            HOST => self.host = word(spec)?,
            STAGING_MB => self.staging = Some(from_mb(spec)?),
            GATHER => self.gather = word(spec)?,
            PACKED_RESIDENTS => self.packed_residents = word(spec)?,
            LINK_GBPS => self.link = link_rate(spec)?,
            KERNEL_TIMES => self.kernel_times = Some(path(spec)?),
            DEVICE => self.device = Some(device_index(spec)?),
            POLICY => self.policy = word(spec)?,
            VERIFY => self.verify = word(spec)?,
            SYNC => self.sync = switch(spec)?,
            CUDA_GRAPH => self.cuda_graph = switch(spec)?,
            GRAPH_MB => self.graph_bytes = Some(from_mb(spec)?),
            GRAPH_SHAPES => self.graph_shapes = shapes(spec)?,
            METHOD_SHARE => self.shares = shares(spec)?,
            PIN => self.pin = patterns(spec)?,
            STREAM => self.stream = patterns(spec)?,
            CONCURRENT => self.concurrent = word(spec)?,
            DATA => self.data = Some(path(spec)?),
            PTE_SHA256 => self.pte_sha256 = Some(digest(spec)?),
            _ => return Err(unknown(&spec.key)),
        }
        Ok(())
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

    /// The first load of a method of a program says what holds for all of them: an error if this load says something else.
    pub fn check_like(&self, first: &Options) -> Result<()> {
        let said = |one: &Options, key: &str| {
            let same = |given: &&Given| group(&given.spec.key) == group(key);
            one.given.iter().find(same).map(|given| given.spec.clone())
        };
        for Given { spec, .. } in &self.given {
            let before = said(first, &spec.key);
            let same = match group(&spec.key) {
                BUDGET => self.budget == first.budget,
                key if PER_METHOD.contains(&key) => true,
                _ => before.as_ref() == Some(spec),
            };
            if !same {
                let before = before.map_or("nothing".to_owned(), |before| {
                    format!("{} for {}", before.value.describe(), before.key)
                });
                return Err(refuse(
                    &spec.key,
                    format!(
                        "is {} here, and the program's first method was loaded with {before}: methods of one program share it",
                        spec.value.describe()
                    ),
                ));
            }
        }
        Ok(())
    }

    /// The shares of these methods, in their order: equal ones where nothing was said.
    pub fn shares_of(&self, methods: &[&str]) -> Result<Vec<u32>> {
        if self.shares.is_empty() {
            return Ok(vec![1; methods.len()]);
        }
        let unknown = |(name, _): &&(String, u32)| !methods.contains(&name.as_str());
        if let Some((name, _)) = self.shares.iter().find(unknown) {
            return Err(refuse(
                METHOD_SHARE,
                format!(
                    "names '{name}'; the methods of this program are {}",
                    methods.join(", ")
                ),
            ));
        }
        let share = |method: &&str| {
            let said = self.shares.iter().find(|(name, _)| name == method);
            let missing = || {
                let what = format!("says nothing of '{method}': name each method of the program");
                refuse(METHOD_SHARE, what)
            };
            said.map(|(_, share)| *share).ok_or_else(missing)
        };
        methods.iter().map(share).collect()
    }

    /// Who gave an option; `None` if nobody did. The ways to give a budget are one option.
    pub fn origin(&self, key: &str) -> Option<Origin> {
        let same = |given: &&Given| group(&given.spec.key) == group(key);
        self.given.iter().find(same).map(|given| given.origin)
    }
}
