//! Files that weights lie in: how they are held on the host for copies.

use crate::config::Options;
use crate::device::host_storage::{check_on_cpu, choose, Needs};
use crate::device::{HostBytes, HostFile, HostSource, HostStorage, WeightDevice};
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

    /// What these weights are copied from.
    pub(super) fn source(self, weights: Vec<HostBytes>) -> HostSource {
        HostSource {
            files: self.all.into_iter().map(|one| one.file).collect(),
            parts: weights,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eager::Entry;
    use crate::schedule::{Event, WeightKind, WeightSpec};
    use crate::store::Constants;
    use std::io::Write;

    /// A file, and memory that stands for its mapping.
    fn file(bytes: usize) -> (tempfile::NamedTempFile, WeightFile, HostBytes) {
        let content = vec![7; bytes];
        let mut named = tempfile::NamedTempFile::new().unwrap();
        named.write_all(&content).unwrap();
        let mapping = HostBytes::from_static(Vec::leak(content));
        let opened = WeightFile::open(named.path(), mapping).unwrap();
        (named, opened, mapping)
    }

    #[test]
    fn a_file_of_another_size_is_refused() {
        let (named, _, mapping) = file(100);
        let shorter = WeightFile::open(named.path(), mapping.slice(0..99));
        let text = shorter.err().unwrap().to_string();
        assert!(
            text.contains("it has 100 bytes, and 99 were mapped"),
            "{text}"
        );
        assert!(WeightFile::open(Path::new("/nowhere"), mapping).is_err());
    }

    /// Kernels read rows in place of what is in memory or in a mapped file, and of nothing that is staged.
    #[test]
    fn tables_in_staged_files_are_not_read_in_place() {
        let ((_a, first, one), (_b, second, two)) = (file(100), file(50));
        let memory = HostBytes::from_static(&[1; 30]);
        let weights = [one.slice(10..100), memory, two, one.slice(0..10)];
        let files = WeightFiles {
            all: vec![first, second],
            ..WeightFiles::default()
        };
        let staged = HostStorage::Staged { ring: 1 };
        let absent = files.absent(staged, &weights);
        assert_eq!(absent, [true, false, true, true]);
        for held in [HostStorage::Mapped, HostStorage::Pinned] {
            assert_eq!(files.absent(held, &weights), [false; 4]);
        }
        let spec = |bytes: &HostBytes| WeightSpec {
            fqn: String::new(),
            bytes: bytes.len(),
            stored: bytes.len(),
            kind: WeightKind::Weight,
        };
        let specs = weights.iter().map(spec).collect();
        let reads = [3, 1, 0, 2];
        let event = |read: u32| {
            [
                Event::Probe(read),
                Event::Kernel(read),
                Event::Release(read),
            ]
        };
        let entry = Entry {
            reads: reads.to_vec(),
            events: (0..4).flat_map(event).collect(),
            gather: vec![0, 1, 3],
        };
        let method = entry
            .method(&Constants { specs, staging: 0 }, &absent)
            .unwrap();
        assert_eq!(method.gather, [1]);
        assert_eq!(files.source(weights.to_vec()).files.len(), 2);
    }
}
