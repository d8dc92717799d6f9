//! A program's record, and what follows from it.

use crate::config::{Options, PolicyKind, Spec, SpecValue, GRAPH_SHAPES, PIN, POLICY, STREAM};
use crate::delegate::{mark, program, program::check_files, program_of};
use crate::device;
use crate::figures::DeviceModel;
use crate::format::{times, Pte, Record, Records, UnionConstants, BACKEND};
use crate::schedule::{Floor, KernelTimes};
use crate::store::{Method, Methods};
use crate::weights::{read_regular, Catalog, MappedFile, MappedPtd};
use crate::{Error, Result};
use clap::Args;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct Files {
    /// The program.
    #[arg(index = 1, value_name = "MODEL.pte")]
    pub pte: PathBuf,
    /// Its weights. If given, they are checked to be this program's, and complete.
    #[arg(index = 2, value_name = "WEIGHTS.ptd")]
    pub ptd: Option<PathBuf>,
    /// Which of the program's methods; without it, the only one, or all of them together.
    #[arg(long)]
    pub method: Option<String>,
    /// Weights that always stay: patterns of their names, as in `weight_offload_pin`.
    #[arg(long, value_name = "PATTERNS")]
    pub pin: Option<String>,
    /// Weights that never stay, as in `weight_offload_stream`.
    #[arg(long, value_name = "PATTERNS")]
    pub stream: Option<String>,
}

#[derive(Args)]
pub struct Form {
    /// Print a JSON object instead of text; sizes are in bytes, times in milliseconds.
    #[arg(long)]
    pub json: bool,
}

impl Files {
    /// The options of a load that decide which weights stay.
    fn options(&self) -> Result<Options> {
        let given = [(PIN, &self.pin), (STREAM, &self.stream)];
        let specs = given.into_iter().filter_map(|(key, text)| {
            let value = SpecValue::Text(text.clone()?);
            let key = key.to_owned();
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
    /// Which of them was asked for.
    pub index: usize,
    /// Bytes of all constants, as they count.
    everything: u64,
    pub figures: DeviceModel,
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
        let mut has_program_crc = false;
        if let Some(ptd) = &files.ptd {
            let data = MappedPtd::open(ptd)?;
            Catalog::of_program(&record, &records.union()?.constants, &data)?;
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
        mark(&records, &union, &files.options()?, &mut whole.constants)?;
        let figures = device::model_of(&record.device).ok_or_else(|| {
            Error::Unsupported(format!(
                "method '{}' was exported for the device '{}'; this build knows 'cpu' and 'cuda'",
                record.method, record.device
            ))
        })?;
        let floor = whole.floor(figures.granule)?;
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
            index: records.method(),
            records,
            union,
            methods,
            everything,
            figures,
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
                "plans for several methods do not go by the times of kernels; leave them out"
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

    /// Bytes of the weights that each pass copies, whatever the budget.
    pub fn streamed(&self) -> u64 {
        let specs = self.methods.constants.specs.iter();
        specs
            .filter(|one| one.is_streamed())
            .map(|one| one.bytes)
            .sum()
    }

    /// `method 'forward'`, or all of them.
    pub fn names(&self) -> String {
        let names = self.records.names();
        let names: Vec<_> = names.iter().map(|name| format!("'{name}'")).collect();
        match names.len() {
            1 => format!("method {}", names[0]),
            _ => format!("methods {}", names.join(", ")),
        }
    }

    /// The method that was asked for.
    pub fn method(&self) -> &Method {
        &self.methods.all[self.index]
    }
}
