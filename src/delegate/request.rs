//! What a load is asked for: the records, the data, and the program that it belongs to.
#![deny(unsafe_code)]

use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;

use super::place::ProgramPlace;
use super::times::TimesFile;
use super::Delegate;
use crate::device::HostStorage;
use crate::error::Result;
use crate::format::{Records, Wiring};
use crate::weights::{Catalog, MappedPtd, NamedData};

/// Where the bytes of constants are.
#[derive(Clone)]
pub enum DataSource<'a> {
    /// In a `.ptd`, which is opened and checked.
    File(PathBuf),
    /// In memory that the caller has read them into; the second part keeps it for as long as it lives.
    Kept(&'a dyn NamedData, Keeper),
}

/// Keeps memory of the caller's.
pub type Keeper = Arc<dyn Any + Send + Sync>;

impl DataSource<'_> {
    pub(super) fn keeper(&self) -> Option<Keeper> {
        match self {
            DataSource::File(_) => None,
            DataSource::Kept(_, keeper) => Some(keeper.clone()),
        }
    }
}

/// The bytes of a program's constants, and where they are. The order of the fields is the order in which they end.
pub(super) struct Data {
    /// The constants.
    pub catalog: Catalog,
    /// The file that they lie in; `None` where they are in memory that the caller has read them into.
    pub file: Option<MappedPtd>,
    /// Keeps that memory.
    #[allow(dead_code)] // It is kept, and nothing else.
    pub keeper: Option<Keeper>,
    /// How they are held for copies.
    pub held: HostStorage,
    /// Where the times of kernels go, once there are any.
    pub times_file: Option<TimesFile>,
}

/// A method that was loaded before, whose program this load belongs to.
#[derive(Clone, Copy)]
pub enum Beside<'a> {
    /// Another method of its session: both work on one state.
    Session(&'a Delegate),
    /// The first method of a session of its own.
    NewSession(&'a Delegate),
}

/// What a load needs beside the options.
pub struct LoadRequest<'a> {
    /// What the export recorded about the method, and about the others of its program.
    pub records: Records,
    /// Which loaded program the method belongs to, if it has others.
    pub place: Option<ProgramPlace>,
    /// The same, for callers that have a method of it.
    pub beside: Option<Beside<'a>>,
    /// Gives the bytes of the compiled library by its key.
    pub library: &'a dyn Fn(&str) -> Result<&'a [u8]>,
    /// The weights.
    pub data: DataSource<'a>,
    /// How inputs and outputs are given: in the method's order, or straight in the record's.
    pub wiring: Wiring,
}
