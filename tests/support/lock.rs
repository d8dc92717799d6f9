//! One process at a time: what is compiled for tests is compiled once, whoever asks for it.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Waits until no other process holds this lock; it ends with the value.
pub fn exclusive(path: &Path) -> File {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let lock = File::create(path).unwrap();
    // SAFETY: an open descriptor; the lock ends with it.
    assert_eq!(unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX) }, 0);
    lock
}
