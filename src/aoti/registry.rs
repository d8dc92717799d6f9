//! Compiled libraries of this process: one anonymous file, one descriptor and one `dlopen` per content.
//!
//! Such a library never unloads, since it holds unique symbols. `dlopen` compares path texts: a path that
//! was used before gives the library that it named then. So a library is opened once, under a path that
//! nobody else uses, and neither it nor its descriptor is ever closed.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use sha2::{Digest, Sha256};

use super::shims;
use crate::error::{Error, Result};

/// SHA-256 of a library's bytes.
pub type Digest256 = [u8; 32];

/// A compiled library whose table is filled. It lives as long as the process.
#[derive(Debug)]
pub struct Library {
    handle: *mut c_void,
    digest: Digest256,
}

// SAFETY: the handle is only passed to `dlsym`, which may be called from any thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

type Libraries = Option<HashMap<Digest256, &'static Library>>;

static LIBRARIES: Mutex<Libraries> = Mutex::new(None);

/// Opens the library with the contents `bytes`, or finds it open. `name` stands for it in messages.
pub fn load(name: &str, bytes: &[u8]) -> Result<&'static Library> {
    check_elf(name, bytes)?;
    let digest: Digest256 = Sha256::digest(bytes).into();
    hold_at_fork();
    let mut guard = libraries();
    let libraries = guard.get_or_insert_with(HashMap::new);
    if let Some(library) = libraries.get(&digest) {
        return Ok(library);
    }
    let handle = open(name, bytes, libraries.len())?;
    let library = Library { handle, digest };
    library.bind(name)?;
    let library: &'static Library = Box::leak(Box::new(library));
    libraries.insert(digest, library);
    Ok(library)
}

fn libraries() -> MutexGuard<'static, Libraries> {
    // A panic while the lock was held cannot have left half an entry: entries are inserted last.
    LIBRARIES.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    static HELD: RefCell<Option<MutexGuard<'static, Libraries>>> = const { RefCell::new(None) };
}

/// Lets a fork wait until no library is being opened. Otherwise the child would find the lock taken and
/// the loader's lists half written, for ever.
fn hold_at_fork() {
    extern "C" fn before() {
        // A thread that ends has no place for it any more, and opens nothing.
        let _ = HELD.try_with(|held| held.replace(Some(libraries())));
    }
    extern "C" fn after() {
        let _ = HELD.try_with(|held| held.take());
    }
    static SET: Once = Once::new();
    // SAFETY: the functions take and free a lock, on the thread that forks, which does not hold it: nothing forks while it
    // opens a library. The C library forgets them when this one is closed.
    let set = || unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) };
    SET.call_once(|| match set() {
        0 => {}
        code => log::warn!(
            "no fork handler could be set (error {code}): do not fork while a program is loaded"
        ),
    });
}

impl Library {
    /// SHA-256 of the library's bytes.
    pub fn digest(&self) -> Digest256 {
        self.digest
    }

    /// Address of an exported function.
    pub(super) fn symbol(&self, name: &CStr) -> Result<*mut c_void> {
        // SAFETY: the handle came from `dlopen` and is never closed; the name is terminated.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        if address.is_null() {
            let name = name.to_string_lossy().into_owned();
            return Err(Error::Missing {
                name,
                place: "the compiled library".into(),
            });
        }
        Ok(address)
    }

    fn bind(&self, name: &str) -> Result<()> {
        type Lookup = extern "C" fn(*const c_char) -> *mut c_void;
        type Bind = unsafe extern "C" fn(Lookup, *mut *const c_char) -> i64;
        let address = self.symbol(c"weightstream_bind_v1").map_err(|_| {
            Error::Unsupported(format!(
                "{name} was not exported for this backend: it has no weightstream_bind_v1"
            ))
        })?;
        // SAFETY: the exporter defines this symbol with this signature, and changes its name with it.
        let bind: Bind = unsafe { std::mem::transmute(address) };
        MISSING.take();
        let mut first = std::ptr::null();
        // SAFETY: `lookup` may be called with any terminated name, and `first` is a place for a pointer.
        let count = unsafe { bind(lookup, &mut first) };
        let missing = MISSING.take();
        if count == 0 && missing.is_empty() {
            return Ok(());
        }
        Err(Error::Unsupported(format!(
            "{name} calls functions that this version of the backend does not provide: {}; export the model \
             with the version that runs it",
            missing.join(", ")
        )))
    }
}

thread_local! {
    static MISSING: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

extern "C" fn lookup(name: *const c_char) -> *mut c_void {
    // SAFETY: `weightstream_bind_v1` passes the terminated names of its table.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    match shims::lookup(&name) {
        Some(address) => address.cast_mut(),
        None => {
            MISSING.with_borrow_mut(|missing| missing.push(name.into_owned()));
            std::ptr::null_mut()
        }
    }
}

/// Refuses what `dlopen` would refuse without saying why.
fn check_elf(name: &str, bytes: &[u8]) -> Result<()> {
    let malformed = |offset, what: &str| {
        Err(Error::Malformed {
            file: name.to_owned(),
            offset,
            what: what.to_owned(),
        })
    };
    let Some(header) = bytes.first_chunk::<64>() else {
        return malformed(bytes.len() as u64, "it is too short for a compiled library");
    };
    if header[..4] != *b"\x7fELF" {
        return malformed(0, "a compiled library must start with the ELF magic");
    }
    let little = header[5] == 1;
    let half = |at: usize| match little {
        true => u16::from_le_bytes([header[at], header[at + 1]]),
        false => u16::from_be_bytes([header[at], header[at + 1]]),
    };
    let found = machine(half(18), header[4], little);
    let expected = machine(62, 2, true);
    if found != expected || !cfg!(target_arch = "x86_64") {
        let here = std::env::consts::ARCH;
        return Err(Error::Unsupported(format!(
            "{name} was compiled for {found}, and this backend runs {expected} code (this machine: {here})"
        )));
    }
    match half(16) {
        3 => Ok(()),
        kind => malformed(16, &format!("ELF type {kind} is not a shared library")),
    }
}

fn machine(number: u16, class: u8, little: bool) -> String {
    let name = match number {
        62 => "x86_64",
        183 => "aarch64",
        3 => "x86",
        40 => "arm",
        243 => "riscv",
        21 => "powerpc64",
        22 => "s390x",
        _ => return format!("ELF machine {number}"),
    };
    match (class, little) {
        (2, true) => name.to_owned(),
        (1, true) => format!("32-bit {name}"),
        (_, _) => format!("big-endian {name}"),
    }
}

fn open(name: &str, bytes: &[u8], count: usize) -> Result<*mut c_void> {
    let fd = memory_file(name, bytes)?;
    // One more "./" per library: a path text of its own, even if someone else opened a descriptor of this
    // number under its plain path before.
    let path = format!("/proc/self/fd/{}{fd}", "./".repeat(count + 1));
    let path = CString::new(path).map_err(|_| Error::Internal("a path with a null byte".into()))?;
    // SAFETY: a terminated path. The library's static initialisers run; that is what loading a program means.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        // SAFETY: `dlerror` gives null or a terminated text that is valid until the next call on this thread.
        let text = unsafe { libc::dlerror().as_ref().map(|text| CStr::from_ptr(text)) };
        let what = text.map_or("no reason given".into(), CStr::to_string_lossy);
        // SAFETY: the descriptor is ours, and no library was opened from it.
        unsafe { libc::close(fd) };
        return Err(Error::Unsupported(format!(
            "{name} cannot be opened as a library: {what}"
        )));
    }
    Ok(handle)
}

/// A sealed anonymous file with the contents `bytes`.
fn memory_file(name: &str, bytes: &[u8]) -> Result<c_int> {
    let fail = |what: &str| {
        let text = std::io::Error::last_os_error();
        Error::Io {
            file: name.to_owned(),
            what: format!("{what}: {text}"),
        }
    };
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a terminated name and known flags. Kernels before 6.3 do not know MFD_EXEC, later ones may
    // insist on it.
    let fd = unsafe {
        match libc::memfd_create(c"weightstream".as_ptr(), flags | libc::MFD_EXEC) {
            -1 => libc::memfd_create(c"weightstream".as_ptr(), flags),
            fd => fd,
        }
    };
    if fd < 0 {
        return Err(fail("memfd_create"));
    }
    let mut rest = bytes;
    while !rest.is_empty() {
        // SAFETY: `rest` is readable for its length.
        let wrote = unsafe { libc::write(fd, rest.as_ptr().cast(), rest.len()) };
        match usize::try_from(wrote) {
            Ok(n) if n > 0 => rest = &rest[n..],
            _ if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
            _ => {
                let error = fail("writing the library to memory");
                // SAFETY: the descriptor is ours.
                unsafe { libc::close(fd) };
                return Err(error);
            }
        }
    }
    let seals = libc::F_SEAL_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
    // SAFETY: plain arguments. A file that cannot be sealed is still private to this process.
    unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) };
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(class: u8, order: u8, kind: u16, machine: u16) -> Vec<u8> {
        let mut bytes = vec![0u8; 64];
        bytes[..4].copy_from_slice(b"\x7fELF");
        (bytes[4], bytes[5]) = (class, order);
        let half = |v: u16| {
            if order == 1 {
                v.to_le_bytes()
            } else {
                v.to_be_bytes()
            }
        };
        bytes[16..18].copy_from_slice(&half(kind));
        bytes[18..20].copy_from_slice(&half(machine));
        bytes
    }

    #[test]
    fn another_architecture_is_named() {
        for (bytes, found) in [
            (header(2, 1, 3, 183), "aarch64"),
            (header(1, 1, 3, 3), "32-bit x86"),
            (header(2, 2, 3, 22), "big-endian s390x"),
            (header(2, 1, 3, 999), "ELF machine 999"),
        ] {
            let error = load("lib", &bytes).unwrap_err();
            assert!(
                matches!(&error, Error::Unsupported(what) if what.contains(found)),
                "{error}"
            );
        }
    }

    #[test]
    fn what_is_no_library_is_malformed() {
        for bytes in [vec![], vec![0x7f; 63], vec![1; 100], header(2, 1, 2, 62)] {
            assert!(matches!(load("lib", &bytes), Err(Error::Malformed { .. })));
        }
        let error = load("lib", &header(2, 1, 3, 62)).unwrap_err();
        assert!(
            matches!(&error, Error::Unsupported(what) if what.contains("cannot be opened")),
            "{error}"
        );
    }
}
