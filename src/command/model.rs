//! A program's record, and what follows from it.

use crate::delegate::{constants_and_method, program, program::check_files};
use crate::device;
use crate::figures::DeviceModel;
use crate::format::{times, Pte, Record};
use crate::schedule::{Floor, KernelTimes};
use crate::store::{Constants, Method};
use crate::weights::{read_regular, Catalog, MappedFile, MappedPtd};
use crate::{Error, Result};
use clap::Args;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct Files {
    /// The program.
    #[arg(value_name = "MODEL.pte")]
    pub pte: PathBuf,
    /// Its weights. If given, they are checked to be this program's, and complete.
    #[arg(value_name = "WEIGHTS.ptd")]
    pub ptd: Option<PathBuf>,
    /// Which of the program's methods.
    #[arg(long, default_value = "forward")]
    pub method: String,
    /// Print a JSON object instead of text; sizes are in bytes, times in milliseconds.
    #[arg(long)]
    pub json: bool,
}

/// No file is larger.
const LARGEST: u64 = 1 << 60;

pub struct Model {
    pub name: String,
    pub record: Record,
    /// With tables that are read in place.
    pub constants: Constants,
    pub method: Method,
    pub figures: DeviceModel,
    pub floor: Floor,
    /// Whether the data hold the checksum of the program's tables.
    pub has_program_crc: bool,
    /// How long kernels run, if that is known.
    pub times: Option<KernelTimes>,
}

impl Model {
    pub fn open(files: &Files) -> Result<Model> {
        if let Some(ptd) = &files.ptd {
            check_files(&files.pte, ptd, None)?;
        }
        let mapped = MappedFile::open(&files.pte)?;
        let parsed = Pte::parse(mapped.name(), mapped.bytes())?;
        let record = Record::of(&parsed, &files.method)?;
        let mut has_program_crc = false;
        if let Some(ptd) = &files.ptd {
            let data = MappedPtd::open(ptd)?;
            Catalog::build(&record, &data)?;
            has_program_crc = program::has_program_crc(&record.method, &data);
        }
        let (constants, whole) = constants_and_method(&record)?;
        let figures = device::model_of(&record.device).ok_or_else(|| {
            Error::Unsupported(format!(
                "method '{}' was exported for the device '{}'; this build knows 'cpu' and 'cuda'",
                record.method, record.device
            ))
        })?;
        let floor = whole.floor(&constants, figures.granule)?;
        let (constants, method, _) = whole.in_place(&constants)?;
        let everything = floor.direct.saturating_add(floor.everything);
        if everything > LARGEST {
            return Err(Error::Unsupported(format!(
                "the record of method '{}' says that its constants have {everything} bytes: it is damaged",
                record.method
            )));
        }
        Ok(Model {
            name: files.pte.display().to_string(),
            record,
            constants,
            method,
            figures,
            floor,
            has_program_crc,
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
        self.floor.direct.saturating_add(self.floor.everything)
    }
}
