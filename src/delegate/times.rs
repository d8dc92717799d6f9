//! How long kernels run, in a file: read at load if it is there, and written once they were timed if it is not.
#![deny(unsafe_code)]

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::config::{Options, KERNEL_TIMES, POLICY};
use crate::error::{Error, Result};
use crate::format::{times, BuildId, Record};
use crate::schedule::KernelTimes;
use crate::weights::read_regular;

/// A file that is not there yet.
pub struct TimesFile {
    path: PathBuf,
    program: BuildId,
    device: String,
}

/// What the file says that `options` name; or that file, to be written. `device` is where the program is to run.
pub fn open(
    record: &Record,
    options: &Options,
    device: String,
) -> Result<(Option<KernelTimes>, Option<TimesFile>)> {
    let Some(path) = options.kernel_times.clone() else {
        return Ok((None, None));
    };
    check(record, options)?;
    if record.is_one_of_several() {
        return Err(Error::Option {
            key: KERNEL_TIMES.to_owned(),
            what: "names times of one method's kernels, and this program has several methods, whose kernels are timed in each run; leave it out"
                .to_owned(),
        });
    }
    let file = TimesFile {
        path,
        program: record.build_id,
        device,
    };
    file.read(record.probes.len())
}

/// Whether a file could be written there.
fn has_folder(path: &Path) -> bool {
    let folder = path.parent();
    folder.is_none_or(|folder| folder.as_os_str().is_empty() || folder.is_dir())
}

/// Only plans ask how long kernels run, and on the CPU nobody times them.
fn check(record: &Record, options: &Options) -> Result<()> {
    let why = match (options.policy, record.device.as_str()) {
        (policy, _) if !policy.plans() => {
            format!("under {POLICY} = {} nothing is planned", policy.name())
        }
        (_, "cpu") => format!(
            "method '{}' was exported for 'cpu', where they do not count: copies cost no time of their own",
            record.method
        ),
        _ => return Ok(()),
    };
    Err(Error::Option {
        key: KERNEL_TIMES.to_owned(),
        what: format!("names times of kernels for plans of what to copy, and {why}; leave it out"),
    })
}

impl TimesFile {
    /// What it says of a program with so many probes; itself, if it is not there and can be.
    fn read(self, probes: usize) -> Result<(Option<KernelTimes>, Option<TimesFile>)> {
        let name = self.path.display().to_string();
        match read_regular(&self.path) {
            Ok(bytes) => {
                let found = times::parse(&name, &bytes, &self.program, probes)?;
                if found.device != self.device {
                    log::warn!(
                        "the times of kernels in '{name}' are of '{}', and this is '{}': plans that go by them may be worse",
                        found.device,
                        self.device
                    );
                }
                log::info!("plans go by the times of kernels in '{name}'");
                Ok((Some(found.times), None))
            }
            Err(error) if error.kind() == ErrorKind::NotFound && has_folder(&self.path) => {
                Ok((None, Some(self)))
            }
            Err(error) => {
                let why = match error.kind() {
                    ErrorKind::NotFound => {
                        "it is not there, nor is the folder to write it to".to_owned()
                    }
                    _ => error.to_string(),
                };
                Err(Error::Io {
                    file: name,
                    what: format!("reading the times of kernels: {why}"),
                })
            }
        }
    }

    /// Writes it, as a whole or not at all, with the weights' names by probe. A failure is told and harms nothing.
    pub fn write<'a>(&self, times: &KernelTimes, fqns: impl Iterator<Item = &'a str>) {
        let text = times::render(times, &self.program, &self.device, fqns);
        let mut part = self.path.clone().into_os_string();
        part.push(".part");
        let written = fs::write(&part, text).and_then(|()| fs::rename(&part, &self.path));
        let name = self.path.display();
        match written {
            Ok(()) => log::info!("the times of kernels were written to '{name}'"),
            Err(error) => {
                log::warn!("the times of kernels could not be written to '{name}': {error}");
            }
        }
    }

    /// Says that it will not be written.
    pub fn give_up(&self) {
        log::warn!(
            "kernels are not timed, so '{}' is not written: nothing streams by a plan, or what the link carries is not known",
            self.path.display()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Event;

    fn file(path: PathBuf, device: &str) -> TimesFile {
        TimesFile {
            path,
            program: BuildId([1; 16]),
            device: device.to_owned(),
        }
    }

    fn times() -> KernelTimes {
        let mut times = KernelTimes::new(2);
        times.add(Event::Probe(0), 17);
        times.add(Event::Release(1), 4);
        times
    }

    #[test]
    fn what_the_first_load_wrote_the_next_one_reads() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("times.txt");
        let (none, first) = file(path.clone(), "NVIDIA X").read(2).unwrap();
        assert_eq!(none, None);
        first.unwrap().write(&times(), ["a", "b"].into_iter());
        let only: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(only.len(), 1);
        // On another device, too: there they may be worth less.
        for device in ["NVIDIA X", "NVIDIA Y"] {
            let (found, none) = file(path.clone(), device).read(2).unwrap();
            assert_eq!(found, Some(times()));
            assert!(none.is_none());
        }
        // Of a program with another number of probes it is an error, and stays.
        assert!(file(path.clone(), "NVIDIA X").read(3).is_err());
        assert!(path.exists());
    }

    #[test]
    fn where_no_file_can_be_the_load_fails_and_a_write_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let nowhere = folder.path().join("no").join("times.txt");
        let error = file(nowhere.clone(), "NVIDIA X").read(2).err().unwrap();
        let error = error.to_string();
        assert!(
            error.contains("times.txt") && error.contains("nor is the folder to write it to"),
            "{error}"
        );
        let error = file(folder.path().to_owned(), "NVIDIA X").read(2).err();
        let error = error.unwrap().to_string();
        assert!(error.contains("this is a directory"), "{error}");
        file(nowhere, "NVIDIA X").write(&times(), ["a", "b"].into_iter());
    }
}
