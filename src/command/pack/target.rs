//! Where the packed file goes. It is written beside its place, and renamed when it is whole.

use super::source::PackSource;
use crate::{Error, Result};
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A place for the packed file, and nothing in it that would be lost.
pub struct PackTarget {
    path: PathBuf,
    /// Of the weights: who may not read them may not read the packed file.
    mode: u32,
    /// Those of the file that is replaced.
    permissions: Option<Permissions>,
}

impl PackTarget {
    /// `output`: if it is not the default one. With `force` a file there is replaced.
    pub fn choose(
        source: &PackSource,
        output: Option<&Path>,
        in_place: bool,
        force: bool,
    ) -> Result<PackTarget> {
        let facts = fs::metadata(&source.path);
        let facts = facts.map_err(|error| failed(&source.path, "cannot stat", &error))?;
        if in_place {
            return PackTarget::in_place(&source.path, &facts);
        }
        let path = output.map_or_else(|| default_output(&source.path), Path::to_owned);
        if source.program_is_at(&path) {
            return Err(refused(
                &path,
                "this is the program; --output names another file",
            ));
        }
        match fs::metadata(&path) {
            Ok(facts) if !facts.is_file() => Err(refused(
                &path,
                "this is not a regular file; --output names another one",
            )),
            Ok(_) if !force => Err(refused(
                &path,
                "this file is there already; --force replaces it, and --output names another one",
            )),
            _ => Ok(PackTarget {
                path,
                mode: facts.mode(),
                permissions: None,
            }),
        }
    }

    fn in_place(path: &Path, facts: &Metadata) -> Result<PackTarget> {
        // Of a link the file that it leads to is replaced.
        let path = path
            .canonicalize()
            .map_err(|error| failed(path, "cannot find", &error))?;
        Ok(PackTarget {
            path,
            mode: facts.mode(),
            permissions: Some(facts.permissions()),
        })
    }
}

/// `NAME.packed.ptd` of `NAME.ptd`.
fn default_output(weights: &Path) -> PathBuf {
    weights.with_extension("packed.ptd")
}

/// A file that is not whole yet. Dropped, it is removed.
pub struct NewFile {
    target: PackTarget,
    part: PathBuf,
    file: File,
    is_kept: bool,
}

impl NewFile {
    pub fn create(target: PackTarget) -> Result<NewFile> {
        // With the process's number: two of them do not write to one file.
        let mut part = target.path.clone().into_os_string();
        part.push(format!(".{}.part", std::process::id()));
        let part = PathBuf::from(part);
        let mut options = OpenOptions::new();
        let file = { options.write(true).create_new(true) }
            .mode(target.mode)
            .open(&part);
        let file = file.map_err(|error| failed(&part, "cannot create", &error))?;
        Ok(NewFile {
            target,
            part,
            file,
            is_kept: false,
        })
    }

    /// The file, for writing.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// What errors call it while it is written.
    pub fn name(&self) -> String {
        self.part.display().to_string()
    }

    /// Puts it to its place, for good. Returns the place.
    pub fn keep(mut self) -> Result<String> {
        if let Some(permissions) = self.target.permissions.take() {
            let set = self.file.set_permissions(permissions);
            set.map_err(|error| failed(&self.part, "cannot set permissions", &error))?;
        }
        let path = &self.target.path;
        let synced = self.file.sync_all();
        synced.map_err(|error| failed(&self.part, "cannot sync", &error))?;
        fs::rename(&self.part, path)
            .map_err(|error| failed(path, "cannot rename the packed file to this", &error))?;
        self.is_kept = true;
        // The new name outlives a crash only if its folder is synced too. Where a file system knows no
        // such thing, the file is there all the same.
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        let _ = File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all());
        Ok(path.display().to_string())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_kept {
            // There is an error to tell already.
            let _ = fs::remove_file(&self.part);
        }
    }
}

fn refused(path: &Path, what: &str) -> Error {
    Error::Io {
        file: path.display().to_string(),
        what: what.to_owned(),
    }
}

fn failed(path: &Path, call: &str, error: &io::Error) -> Error {
    refused(path, &format!("{call}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(path: PathBuf) -> PackTarget {
        PackTarget {
            path,
            mode: 0o600,
            permissions: None,
        }
    }

    fn names(folder: &Path) -> Vec<String> {
        let all = fs::read_dir(folder).unwrap();
        all.map(|one| one.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    #[test]
    fn the_default_output_is_beside_the_weights() {
        let of = |path: &str| default_output(Path::new(path)).display().to_string();
        assert_eq!(of("a/model.ptd"), "a/model.packed.ptd");
        assert_eq!(of("model.v2.ptd"), "model.v2.packed.ptd");
        assert_eq!(of("model"), "model.packed.ptd");
    }

    #[test]
    fn a_file_is_there_as_a_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.packed.ptd");
        drop(NewFile::create(target(path.clone())).unwrap());
        assert_eq!(names(folder.path()), [""; 0]);
        let file = NewFile::create(target(path.clone())).unwrap();
        assert!(!path.exists() && Path::new(&file.name()).exists());
        assert_eq!(file.keep().unwrap(), path.display().to_string());
        assert_eq!(names(folder.path()), ["model.packed.ptd"]);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn what_cannot_be_put_to_its_place_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.packed.ptd");
        let file = NewFile::create(target(path.clone())).unwrap();
        fs::create_dir(&path).unwrap();
        let error = file.keep().unwrap_err().to_string();
        assert!(error.contains("cannot rename"), "{error}");
        assert_eq!(names(folder.path()), ["model.packed.ptd"]);
        let nowhere = NewFile::create(target(folder.path().join("no/model.ptd")));
        assert!(nowhere.err().unwrap().to_string().contains("cannot create"));
    }
}
