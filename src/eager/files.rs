//! Files that weights lie in: how they are held on the host for copies.

use crate::config::Options;
use crate::device::host_storage::{check_on_cpu, choose, Needs};
use crate::device::{HostBytes, HostFile, HostStorage, WeightDevice};
use crate::error::{Error, Result};
use crate::system_memory;
use crate::weights::MappedFile;
use std::path::Path;

/// A file, mapped by the caller.
pub struct WeightFile {
    file: HostFile,
    in_memory: bool,
}

impl WeightFile {
    /// `mapping` is that of the whole file at `path`.
    ///
    /// Errors: there is no such file, or one of another size.
    pub fn open(path: &Path, mapping: HostBytes) -> Result<WeightFile> {
        let opened = MappedFile::open(path)?;
        let found = opened.bytes().len() as u64;
        if found != mapping.len() {
            return Err(Error::Io {
                file: opened.name().to_owned(),
                what: format!(
                    "it has {found} bytes, and {} were mapped; while it is in use it must not be changed",
                    mapping.len()
                ),
            });
        }
        Ok(WeightFile {
            file: HostFile::new(opened.name(), opened.file().clone(), mapping),
            in_memory: opened.is_in_memory(),
        })
    }
}

/// The files, and what is wanted. By default there are none.
#[derive(Default)]
pub struct WeightFiles {
    /// Each once.
    pub all: Vec<WeightFile>,
    /// How they are held on the host: `weight_offload_host` and `weight_offload_staging_mb`.
    pub options: Options,
}

impl WeightFiles {
    /// How the files are held, those that `weights` lie in. `name` is the module's.
    pub(super) fn hold<D: WeightDevice>(
        &self,
        device: &D,
        name: &str,
        weights: &[HostBytes],
    ) -> Result<HostStorage> {
        if let (true, Some(given)) = (self.all.is_empty(), self.options.given.first()) {
            return Err(Error::Option {
                key: given.spec.key.clone(),
                what: format!("is about weights of files, and those of '{name}' lie in none"),
            });
        }
        let Some(access) = device.host_access()? else {
            check_on_cpu(&self.options, &format!("'{name}' runs on 'cpu'"))?;
            return Ok(HostStorage::Mapped);
        };
        if self.all.is_empty() {
            return Ok(HostStorage::Mapped);
        }
        let disk = { self.all.iter() }.filter(|one| !one.in_memory);
        let file_bytes = { disk.clone() }.map(|one| one.file.bytes().len()).sum();
        let of_files = { weights.iter() }.filter(|bytes| self.have(**bytes));
        let needs = Needs {
            file: &match &*self.all {
                [one] => one.file.name().to_owned(),
                all => format!("{} files of '{name}'", all.len()),
            },
            file_bytes,
            in_memory: disk.count() == 0,
            used_bytes: of_files.map(HostBytes::len).sum(),
        };
        let (held, why) = choose(&self.options, &needs, &access, &system_memory::available()?)?;
        log::info!(
            "'{name}': weights of files are held '{}' on the host: {why}",
            held.name()
        );
        Ok(held)
    }

    /// Which weights no kernel can read in place: those of files that need not be in memory.
    pub(super) fn absent(&self, held: HostStorage, weights: &[HostBytes]) -> Vec<bool> {
        let staged = matches!(held, HostStorage::Staged { .. });
        let absent = |bytes: &HostBytes| staged && self.have(*bytes);
        weights.iter().map(absent).collect()
    }

    fn have(&self, bytes: HostBytes) -> bool {
        { self.all.iter() }.any(|one| one.file.range_of(bytes).is_some())
    }

    pub(super) fn into_host(self) -> Vec<HostFile> {
        self.all.into_iter().map(|one| one.file).collect()
    }
}
