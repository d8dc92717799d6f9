//! A program's record, and what follows from it.

use crate::config::{
    Options, PolicyKind, Spec, SpecValue, GRAPH_SHAPES, METHOD_SHARE, PIN, POLICY, STREAM,
};
use crate::delegate::{gather, know_packed, mark, program, program::check_files, program_of};
use crate::device;
use crate::figures::{DeviceModel, PackedResidents};
use crate::format::{times, Pte, Record, Records, UnionConstants, BACKEND};
use crate::schedule::{Floor, KernelTimes, ProbeId};
use crate::store::{Method, Methods};
use crate::weights::{read_regular, Catalog, MappedFile, MappedPtd};
use crate::{Error, Result};
use clap::Args;
use std::ops::Range;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct Files {
    /// The program.
    #[arg(index = 1, value_name = "MODEL.pte")]
    pub pte: PathBuf,
    /// Its weights. If given, they are checked to be this program's, and complete.
    #[arg(index = 2, value_name = "WEIGHTS.ptd")]
    pub ptd: Option<PathBuf>,
    /// Which of the program's methods figures and lists are of; without it, the only one, or all of them together. Budget and
    /// floor are the program's: its methods share them.
    #[arg(long, value_name = "NAME")]
    pub method: Option<String>,
    /// Weights that always stay: patterns of their names, as in `weight_offload_pin`.
    #[arg(long, value_name = "PATTERNS")]
    pub pin: Option<String>,
    /// Weights that never stay, as in `weight_offload_stream`.
    #[arg(long, value_name = "PATTERNS")]
    pub stream: Option<String>,
    /// How often each method runs beside the others, as in `weight_offload_method_share`.
    #[arg(long, value_name = "SHARES")]
    pub method_share: Option<String>,
}

#[derive(Args)]
pub struct Form {
    /// Print a JSON object instead of text; sizes are in bytes, times in milliseconds.
    #[arg(long)]
    pub json: bool,
}

impl Files {
    /// The options of a load that decide which weights stay: as given, or as the program has them.
    fn options(&self, program: impl Fn(&str) -> Option<String>) -> Result<Options> {
        let given = [
            (PIN, &self.pin),
            (STREAM, &self.stream),
            (METHOD_SHARE, &self.method_share),
        ];
        let specs = given.into_iter().filter_map(|(key, text)| {
            let text = text.clone().or_else(|| program(key))?;
            let (key, value) = (key.to_owned(), SpecValue::Text(text));
            Some(Spec { key, value })
        });
        Options::parse(&specs.collect::<Vec<_>>())
    }
}

/// No file is larger.
const LARGEST: u64 = 1 << 60;

pub struct Model {
    pub name: String,
    pub record: Record,
    /// The records of all methods.
    pub records: Records,
    /// The constants of all methods, each once.
    pub union: UnionConstants,
    /// All methods, with tables that are read in place.
    pub methods: Methods,
    /// Which of them was asked for; `None`: none, and the program has several.
    asked: Option<usize>,
    /// Bytes of all constants, as they count.
    everything: u64,
    pub figures: DeviceModel,
    /// What a load does with packed weights.
    pub packed: PackedResidents,
    pub floor: Floor,
    /// Whether the data hold the checksum of the program's tables.
    pub has_program_crc: bool,
    /// Shapes whose graphs a load captures, if the program names some itself.
    pub graph_shapes: Option<String>,
    /// The policy that a load runs, if nobody says another one.
    pub policy: PolicyKind,
    /// How long kernels run, if that is known.
    pub times: Option<KernelTimes>,
}

/// The first method that runs here; where there is none the error is that of `forward`.
fn first_method(pte: &Pte<'_>) -> String {
    let ours = |name: &&str| pte.delegate(name).is_ok_and(|one| one.backend == BACKEND);
    let first = pte.methods().filter(ours).min();
    first.unwrap_or("forward").to_owned()
}

fn policy_of(name: String) -> Result<PolicyKind> {
    let spec = Spec {
        key: POLICY.to_owned(),
        value: SpecValue::Text(name),
    };
    Options::parse(&[spec]).map(|options| options.policy)
}

impl Model {
    pub fn open(files: &Files) -> Result<Model> {
        if let Some(ptd) = &files.ptd {
            check_files(&files.pte, ptd, None)?;
        }
        let mapped = MappedFile::open(&files.pte)?;
        let parsed = Pte::parse(mapped.name(), mapped.bytes())?;
        let method = match &files.method {
            Some(method) => method.clone(),
            None => first_method(&parsed),
        };
        let records = Records::of(&parsed, &method)?;
        let record = records.own().clone();
        let (mut has_program_crc, mut catalog) = (false, None);
        if let Some(ptd) = &files.ptd {
            let data = MappedPtd::open(ptd)?;
            let constants = &records.union()?.constants;
            catalog = Some(Catalog::of_program(&record, constants, &data)?);
            has_program_crc = program::has_program_crc(&record.method, &data);
        }
        let specs = parsed.delegate(&method)?.compile_specs;
        let named = |key: &str| {
            let found = specs.iter().find(|(own, _)| *own == key);
            found.map(|(_, text)| String::from_utf8_lossy(text).into_owned())
        };
        let graph_shapes = named(GRAPH_SHAPES).filter(|_| record.device != "cpu");
        let policy = named(POLICY).map_or(Ok(PolicyKind::default()), policy_of)?;
        let (union, mut whole) = program_of(&records)?;
        if let Some(catalog) = &catalog {
            know_packed(&mut whole.constants, catalog, &record.device);
        }
        let options = files.options(named)?;
        mark(&records, &union, &options, &mut whole.constants)?;
        let shares = options.shares_of(&records.names())?;
        for (method, share) in whole.all.iter_mut().zip(shares) {
            method.share = share;
        }
        let only = records.all().len() == 1;
        let asked = (only || files.method.is_some()).then_some(records.method());
        let figures = device::model_of(&record.device).ok_or_else(|| {
            Error::Unsupported(format!(
                "method '{}' was exported for the device '{}'; this build knows 'cpu' and 'cuda'",
                record.method, record.device
            ))
        })?;
        let floor = whole.floor(figures.granule)?;
        let packed = whole.constants.packed_residents(options.packed_residents);
        let (methods, _) = whole.in_place(false)?;
        let everything = methods.everything(figures.granule);
        if everything > LARGEST {
            return Err(Error::Unsupported(format!(
                "the record of method '{}' says that its constants have {everything} bytes: it is damaged",
                record.method
            )));
        }
        Ok(Model {
            name: files.pte.display().to_string(),
            record,
            asked,
            records,
            union,
            methods,
            everything,
            figures,
            packed,
            floor,
            has_program_crc,
            graph_shapes,
            policy,
            times: None,
        })
    }

    /// Times of kernels, from a file of this program.
    pub fn read_times(&mut self, file: &Path) -> Result<()> {
        if self.record.device == "cpu" {
            return Err(Error::Unsupported(format!(
                "method '{}' was exported for 'cpu', where plans do not go by the times of kernels; leave them out",
                self.record.method
            )));
        }
        if self.records.all().len() > 1 {
            return Err(Error::Unsupported(
                "the times are those of one method's kernels, and this program has several methods; leave them out"
                    .to_owned(),
            ));
        }
        let name = file.display().to_string();
        let bytes = read_regular(file).map_err(|error| Error::Io {
            file: name.clone(),
            what: format!("reading the times of kernels: {error}"),
        })?;
        let (program, probes) = (&self.record.build_id, self.record.probes.len());
        self.times = Some(times::parse(&name, &bytes, program, probes)?.times);
        Ok(())
    }

    /// Bytes of all constants, as they count.
    pub fn everything(&self) -> u64 {
        self.everything
    }

    /// The methods that figures are of: the one that was asked for, or all.
    pub fn picked(&self) -> Range<usize> {
        match self.asked {
            Some(at) => at..at + 1,
            None => 0..self.methods.all.len(),
        }
    }

    /// Their records.
    pub fn picked_records(&self) -> &[Record] {
        &self.records.all()[self.picked()]
    }

    /// The name of the one method that figures are of, if it is one.
    pub fn one_name(&self) -> Option<&str> {
        self.asked.map(|at| self.records.names()[at])
    }

    /// The bytes that a pass of a method reads, as they count, and those of them that each pass copies whatever the budget.
    pub fn read_by(&self, method: usize) -> (u64, u64) {
        let specs = &self.methods.constants.specs;
        let mut reads = self.methods.all[method].trace.probes().to_vec();
        reads.sort_unstable();
        reads.dedup();
        let read = reads.iter().map(|&weight| &specs[weight as usize]);
        let streamed = read.clone().filter(|one| one.is_streamed());
        (
            read.fold(0, |sum, one| {
                sum.saturating_add(one.occupied(self.figures.granule))
            }),
            streamed.map(|one| one.stored.min(one.bytes)).sum(),
        )
    }

    /// Bytes by which the stored bytes of what a pass of a method reads are fewer than those that kernels read.
    pub fn saved_by(&self, method: usize) -> u64 {
        let specs = &self.methods.constants.specs;
        let mut reads = self.methods.all[method].trace.probes().to_vec();
        reads.sort_unstable();
        reads.dedup();
        let saved = reads.iter().map(|&weight| &specs[weight as usize]);
        saved.map(|one| one.bytes.saturating_sub(one.stored)).sum()
    }

    /// The bytes that a pass of a method reads in place at the most; of reads without a bound, none. Pinned tables are on the device.
    pub fn read_in_place(&self, method: usize) -> u64 {
        let record = &self.records.all()[method];
        let weight = |probe: ProbeId| record.probes.get(probe as usize);
        let is_pinned = |probe: &ProbeId| {
            let known = weight(*probe).and_then(|&one| self.union.index[method].get(one as usize));
            known.is_some_and(|&one| self.methods.constants.is_pinned(one))
        };
        let in_place = gather::by_rule(record).into_iter();
        let in_place: Vec<_> = in_place.filter(|probe| !is_pinned(probe)).collect();
        let gathers = record.gathers.iter();
        let gathers = gathers.filter(|one| in_place.contains(&one.probe));
        gathers
            .filter_map(|one| one.bytes())
            .fold(0, u64::saturating_add)
    }

    /// `method 'forward'`, or all of them; `method 'decode' of 'decode', 'prefill'` where one of several was asked for.
    pub fn names(&self) -> String {
        let all = self.records.names();
        let quoted: Vec<_> = all.iter().map(|name| format!("'{name}'")).collect();
        match (self.one_name(), all.len()) {
            (Some(name), 1) => format!("method '{name}'"),
            (Some(name), _) => format!("method '{name}' of {}", quoted.join(", ")),
            (None, _) => format!("methods {}", quoted.join(", ")),
        }
    }

    /// The program's only method.
    pub fn method(&self) -> &Method {
        &self.methods.all[self.records.method()]
    }
}
