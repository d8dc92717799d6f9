//! A program as a file or as bytes, for callers without ExecuTorch.
#![deny(unsafe_code)]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

use super::{
    applies, know_packed, program_of, Beside, DataSource, Delegate, LoadRequest, ProgramPlace,
};
use crate::config::{self, Options, Sha256Digest};
use crate::device::CallerStream;
use crate::error::{Error, Result};
use crate::format::{Argument, Pte, Record, Records, Wiring, BACKEND};
use crate::weights::{check_build_id, Catalog, MappedFile, MappedPtd};

/// The bytes of a `.pte`. Methods that are loaded from one such value share weights, budget and state.
pub struct Program<'a> {
    bytes: Bytes<'a>,
    place: ProgramPlace,
}

/// A number for the methods of one program.
fn next_place() -> ProgramPlace {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    ProgramPlace::Number(NEXT.fetch_add(1, Ordering::Relaxed))
}

enum Bytes<'a> {
    Mapped(MappedFile),
    Given(&'a [u8]),
}

/// Checks both files of a program as far as that is possible without loading anything: headers, tables, and
/// that the record says the same in both of its places.
///
/// ExecuTorch reads a file before the backend sees it, and its errors are bare codes; on some damages it
/// crashes. Checked first, a damage is an error that names the file and the offset. Programs without our
/// delegate pass. With `pin` the program must have that SHA-256, which is looked at before anything else.
pub fn check_files(pte: &Path, ptd: &Path, pin: Option<Sha256Digest>) -> Result<()> {
    let program = Program::open(pte)?;
    program.check_pin(pin)?;
    program.check_two_files(ptd)?;
    let parsed = program.parse()?;
    let data = MappedPtd::open(ptd)?;
    for method in parsed.methods() {
        let Ok(delegate) = parsed.delegate(method) else {
            continue; // a constant method, or a program of another kind
        };
        if delegate.backend != BACKEND {
            continue;
        }
        let record = Record::of(&parsed, method)?;
        check_build_id(&record, &data)?;
        check_program_crc(&parsed, method, &data)?;
    }
    Ok(())
}

/// Compares the program's tables with the checksum that `save` left in the `.ptd`: a damage that leaves the tables well-formed
/// changes what ExecuTorch computes without an error. ExecuTorch's own writers leave the mark that stands in its place.
fn check_program_crc(program: &Pte<'_>, method: &str, data: &MappedPtd) -> Result<()> {
    let key = program_crc_key(method);
    let Some(entry) = data.ptd().entry(&key) else {
        return Ok(());
    };
    let entry = &data.file().bytes()[entry.range.clone()];
    if entry == program_crc_mark(method) {
        return Ok(());
    }
    let recorded = entry.get(..4);
    let found = crc32fast::hash(program.tables());
    if recorded == Some(&found.to_le_bytes()[..]) {
        return Ok(());
    }
    Err(Error::Malformed {
        file: program.name().to_owned(),
        offset: 0,
        what: format!(
            "its first {} bytes have CRC-32 {found:08x}, which is not what {} recorded: the program was changed after its export",
            program.tables().len(),
            data.ptd().name()
        ),
    })
}

fn program_crc_key(method: &str) -> String {
    format!("weightstream_program_crc32_{method}")
}

/// What stands in the place of a checksum that is not known: bytes that no weight has.
fn program_crc_mark(method: &str) -> [u8; 32] {
    Sha256::digest(program_crc_key(method)).into()
}

/// Whether the `.ptd` holds the checksum of the program's tables.
pub fn has_program_crc(method: &str, data: &MappedPtd) -> bool {
    let entry = data.ptd().entry(&program_crc_key(method));
    let bytes = entry.map(|entry| &data.file().bytes()[entry.range.clone()]);
    bytes.is_some_and(|bytes| bytes != program_crc_mark(method))
}

impl<'a> Program<'a> {
    /// Maps the file at `path`.
    pub fn open(path: &Path) -> Result<Program<'a>> {
        Ok(Program {
            bytes: Bytes::Mapped(MappedFile::open(path)?),
            place: next_place(),
        })
    }

    /// A program in memory.
    pub fn from_bytes(bytes: &'a [u8]) -> Program<'a> {
        Program {
            bytes: Bytes::Given(bytes),
            place: next_place(),
        }
    }

    fn name(&self) -> &str {
        match &self.bytes {
            Bytes::Mapped(file) => file.name(),
            Bytes::Given(_) => "the program in memory",
        }
    }

    fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped(file) => file.bytes(),
            Bytes::Given(bytes) => bytes,
        }
    }

    fn parse(&self) -> Result<Pte<'_>> {
        Pte::parse(self.name(), self.bytes())
    }

    /// Refuses a program whose bytes have another SHA-256 than `pin`.
    fn check_pin(&self, pin: Option<Sha256Digest>) -> Result<()> {
        let Some(expected) = pin else {
            return Ok(());
        };
        let found = Sha256Digest(Sha256::digest(self.bytes()).into());
        if found == expected {
            return Ok(());
        }
        Err(Error::Mismatch {
            name: self.name().to_owned(),
            fact: "SHA-256 of the program",
            expected: format!("{expected} ({})", config::PTE_SHA256),
            found: format!("{found}: this is not the program that was pinned"),
        })
    }

    /// Refuses data that are this program's own file.
    fn check_two_files(&self, data: &Path) -> Result<()> {
        match &self.bytes {
            Bytes::Mapped(file) if file.is_at(data) => Err(Error::Io {
                file: data.display().to_string(),
                what: "this file was given twice, as the program and as its weights: they are two files, a .pte and a .ptd"
                    .to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// Least budget with which `method` can be loaded, as recorded: that of the method of its program that needs most.
    pub fn required_budget(&self, method: &str) -> Result<u64> {
        let records = Records::of(&self.parse()?, method)?;
        let floors = records.all().iter().map(|record| record.floor);
        Ok(floors.max().unwrap_or(0))
    }

    /// The same for the program: of its only method, or of all that share its weights.
    pub fn least_budget(&self) -> Result<u64> {
        let methods = self.methods()?;
        let first = methods.first().ok_or_else(|| Error::Missing {
            name: BACKEND.to_owned(),
            place: format!("{}: no method has a delegate of it", self.name()),
        })?;
        self.required_budget(first)
    }

    /// The least budget of a method, or of the program, with the weights of `data`, if it is given: packed ones need memory in which they
    /// are decoded.
    pub fn required_budget_with(&self, method: Option<&str>, data: Option<&Path>) -> Result<u64> {
        let least = match method {
            Some(method) => self.required_budget(method)?,
            None => self.least_budget()?,
        };
        let Some(data) = data else {
            return Ok(least);
        };
        let pte = self.parse()?;
        let first = self.methods()?.into_iter().next().unwrap_or_default();
        let records = Records::of(&pte, method.unwrap_or(&first))?;
        let (union, mut methods) = program_of(&records)?;
        let record = records.own();
        let catalog = Catalog::of_program(record, &union.constants, &MappedPtd::open(data)?)?;
        know_packed(&mut methods.constants, &catalog, &record.device);
        Ok(least.saturating_add(methods.constants.staging))
    }

    /// The methods that run here, in the order of their names.
    pub fn methods(&self) -> Result<Vec<String>> {
        let pte = self.parse()?;
        let ours = |name: &&str| pte.delegate(name).is_ok_and(|one| one.backend == BACKEND);
        let mut names: Vec<String> = pte.methods().filter(ours).map(str::to_owned).collect();
        names.sort();
        Ok(names)
    }

    /// The inputs of `method` as its callers name them; none if its exporter did not record them, or ExecuTorch runs it.
    pub fn call(&self, method: &str) -> Result<Vec<Argument>> {
        match self.methods()?.iter().any(|ours| ours == method) {
            true => Ok(Record::of(&self.parse()?, method)?.call),
            false => Ok(Vec::new()),
        }
    }

    /// The least and the largest size of each dimension of an input of `method`, by its number among the method's tensors; nothing
    /// of one that is not read.
    pub fn input_range(&self, method: &str, input: usize) -> Result<Vec<(i64, i64)>> {
        let pte = self.parse()?;
        let record = Record::of(&pte, method)?;
        let wiring = Wiring::of(&pte, method, record.inputs.len(), record.outputs.len())?;
        let own = wiring.delegates_input(input).map(|own| &record.inputs[own]);
        let dims = own.map_or(&[][..], |spec| &spec.dims);
        Ok(dims.iter().map(|dim| (dim.min, dim.max)).collect())
    }

    /// Loads `method` with its weights from the file at `data`. Its inputs and outputs are the method's, in the
    /// order in which it was exported.
    pub fn load(&self, method: &str, data: PathBuf, options: &Options) -> Result<Delegate> {
        self.load_on(method, data, options, None)
    }

    /// The same on a stream of the caller's, see [`Delegate::load_on`].
    pub fn load_on(
        &self,
        method: &str,
        data: PathBuf,
        options: &Options,
        stream: Option<CallerStream>,
    ) -> Result<Delegate> {
        self.load_by(method, data, options, None, |request, options| {
            Delegate::load_on(request, options, stream)
        })
    }

    /// The same for a method of a program of which another one was loaded before, which says what holds: the data, the options
    /// and the stream must be those of that load.
    pub fn load_beside(
        &self,
        beside: Beside<'_>,
        method: &str,
        data: PathBuf,
        options: &Options,
        stream: Option<CallerStream>,
    ) -> Result<Delegate> {
        self.load_by(method, data, options, Some(beside), |request, options| {
            Delegate::load_on(request, options, stream)
        })
    }

    /// For tests: see [`Delegate::load_faulty`].
    #[cfg(any(test, feature = "sim"))]
    #[doc(hidden)]
    pub fn load_faulty(
        &self,
        method: &str,
        data: PathBuf,
        options: &Options,
        faults: &crate::device::faulty::Faults,
    ) -> Result<Delegate> {
        self.load_by(method, data, options, None, |request, options| {
            Delegate::load_faulty(request, options, faults)
        })
    }

    fn load_by(
        &self,
        method: &str,
        data: PathBuf,
        options: &Options,
        beside: Option<Beside<'_>>,
        load: impl FnOnce(LoadRequest<'_>, &Options) -> Result<Delegate>,
    ) -> Result<Delegate> {
        if options.data.is_some() {
            return Err(Error::Option {
                key: config::DATA.to_owned(),
                what: "the path of the .ptd is given as an argument here; leave the option out"
                    .to_owned(),
            });
        }
        // First of all: nothing of a program that is not the pinned one is looked at.
        self.check_pin(options.pte_sha256)?;
        self.check_two_files(&data)?;
        let pte = self.parse()?;
        let records = Records::of(&pte, method)?;
        let record = records.own();
        let wiring = Wiring::of(&pte, method, record.inputs.len(), record.outputs.len())?;
        let library = |key: &str| pte.named_data(key);
        let defaults = config::from_program(pte.delegate(method)?.compile_specs)?;
        let layered = options.with_defaults(&defaults, applies(record, true))?;
        let pinned = Options {
            pte_sha256: None,
            ..layered
        };
        let request = LoadRequest {
            records,
            place: Some(self.place),
            beside,
            library: &library,
            data: DataSource::File(data),
            wiring,
        };
        load(request, &pinned)
    }
}
