//! A program as a file or as bytes, for callers without ExecuTorch.
#![deny(unsafe_code)]

use std::path::{Path, PathBuf};

use super::{Delegate, LoadRequest};
use crate::config::{self, Options};
use crate::error::{Error, Result};
use crate::format::{Pte, Record};
use crate::weights::MappedFile;

/// The bytes of a `.pte`.
pub struct Program<'a> {
    bytes: Bytes<'a>,
}

enum Bytes<'a> {
    Mapped(MappedFile),
    Given(&'a [u8]),
}

impl<'a> Program<'a> {
    /// Maps the file at `path`.
    pub fn open(path: &Path) -> Result<Program<'a>> {
        Ok(Program {
            bytes: Bytes::Mapped(MappedFile::open(path)?),
        })
    }

    /// A program in memory.
    pub fn from_bytes(bytes: &'a [u8]) -> Program<'a> {
        Program {
            bytes: Bytes::Given(bytes),
        }
    }

    fn parse(&self) -> Result<Pte<'_>> {
        match &self.bytes {
            Bytes::Mapped(file) => Pte::parse(file.name(), file.bytes()),
            Bytes::Given(bytes) => Pte::parse("the program in memory", bytes),
        }
    }

    /// Least budget with which `method` can be loaded, as recorded.
    pub fn required_budget(&self, method: &str) -> Result<u64> {
        Ok(Record::from_pte(&self.parse()?, method)?.floor)
    }

    /// Loads `method` with its weights from the file at `data`.
    pub fn load(&self, method: &str, data: PathBuf, options: &Options) -> Result<Delegate> {
        if options.data.is_some() {
            return Err(Error::Option {
                key: config::DATA.to_owned(),
                what: "the path of the .ptd is given as an argument here; leave the option out"
                    .to_owned(),
            });
        }
        let pte = self.parse()?;
        let record = Record::from_pte(&pte, method)?;
        let library = |key: &str| pte.named_data(key);
        Delegate::load(
            LoadRequest {
                record,
                library: &library,
                data,
            },
            options,
        )
    }
}
