//! Pages of host memory: parts of a file that is nowhere but in memory, mapped over addresses of ours. An access to addresses without
//! memory, and a store where memory is only read, is a fault of the process instead of a wrong weight.

use super::memory_file::{failed, too_large, FilePages, MemoryFile};
use crate::device::pages::{PageAccess, Pages, Purpose, UserStream, UserStreams};
use crate::device::{AddressTable, DevicePtr, Frame};
use crate::error::{Error, Result};
use crate::system_memory;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;

const WRITABLE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Mapping a unit and looking at what the system has left takes about 50 µs. Copying as many bytes takes longer.
const UNIT: u64 = 1 << 20;

/// Allocation granule: the alignment that compiled code expects of its buffers.
pub(in crate::device) const GRANULE: u64 = 64;

/// Bytes of the system's pages; `None` where there are no memory files.
pub(in crate::device) fn page() -> Option<u64> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    // SAFETY: asks for a constant of the system.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let bytes = u64::try_from(bytes).ok()?;
    (bytes > 0 && bytes.is_multiple_of(GRANULE)).then_some(bytes)
}

/// Neighbouring addresses that are ours until this is dropped, which nobody may use later.
struct Addresses {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: addresses that are owned; nothing in them is bound to the thread that took them.
unsafe impl Send for Addresses {}

impl Addresses {
    /// Addresses without memory: an access to them faults.
    fn reserve(bytes: u64) -> Result<Addresses> {
        let size = usize::try_from(bytes).map_err(|_| too_large(bytes))?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let anywhere = std::ptr::null_mut();
        // SAFETY: new addresses, which the system chooses; nothing that exists is touched.
        let start = unsafe { libc::mmap(anywhere, size, libc::PROT_NONE, flags, -1, 0) };
        match start == libc::MAP_FAILED {
            true => Err(failed("reserving addresses with mmap", bytes)),
            false => Ok(Addresses {
                start: start.cast(),
                bytes: size,
            }),
        }
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        // SAFETY: all of it was mapped by `reserve`, and is given back here only.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

/// Pages in host memory. All work of callers is done when a call returns, so their events say nothing.
pub struct HostPages {
    page: u64,
    /// Made when memory is asked for.
    file: Option<Arc<MemoryFile>>,
    pub(super) table: AddressTable<FilePages>,
    addresses: BTreeMap<u64, Addresses>,
}

impl HostPages {
    /// Takes no memory.
    ///
    /// Errors: a system without memory files.
    pub fn new() -> Result<HostPages> {
        let page = page().ok_or_else(|| {
            let why = "memory of the host comes and goes under addresses on Linux only";
            Error::Unsupported(why.to_owned())
        })?;
        Ok(HostPages {
            page,
            file: None,
            table: AddressTable::default(),
            addresses: BTreeMap::new(),
        })
    }

    /// Addresses of ours, all of them reserved.
    fn ours(&self, at: DevicePtr, bytes: u64) -> Result<*mut c_void> {
        let found = self.addresses.range(..=at.0).next_back();
        let inside = |(start, all): &(&u64, &Addresses)| at.0 - **start + bytes <= all.bytes as u64;
        let (start, all) = found
            .filter(inside)
            .ok_or_else(|| Error::Internal(format!("{:#x} is no address of ours", at.0)))?;
        Ok(all.start.wrapping_add((at.0 - start) as usize).cast())
    }

    /// Maps a part of the file over addresses of ours, or nothing: then nobody may access them.
    fn replace(&mut self, at: DevicePtr, bytes: u64, memory: Option<&FilePages>) -> Result<()> {
        let address = self.ours(at, bytes)?;
        let (sharing, file, offset) = match memory {
            Some(pages) => (libc::MAP_SHARED, pages.as_raw_fd(), pages.offset()?),
            None => (
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            ),
        };
        let (flags, access) = (sharing | libc::MAP_FIXED, libc::PROT_NONE);
        // SAFETY: the addresses are inside of our own, so that nothing of others is replaced. Nobody uses what was there: the
        // caller's promise.
        let mapped = unsafe { libc::mmap(address, bytes as usize, access, flags, file, offset) };
        match mapped == libc::MAP_FAILED {
            true => Err(failed("mapping memory with mmap", bytes)),
            false => Ok(()),
        }
    }

    /// The address that a copy of `bytes` bytes writes to, which has memory.
    pub(super) fn pointer(&self, at: DevicePtr) -> *mut u8 {
        self.ours(at, 0)
            .map_or(std::ptr::null_mut(), |at| at.cast())
    }
}

impl Pages for HostPages {
    type Memory = Arc<Frame<FilePages>>;

    fn page(&self) -> u64 {
        self.page
    }

    fn unit(&self) -> u64 {
        UNIT.max(self.page)
    }

    fn total_bytes(&mut self) -> Result<u64> {
        Ok(system_memory::available()?.bytes())
    }

    fn reserve(&mut self, bytes: u64, _purpose: Purpose) -> Result<DevicePtr> {
        // A page that leads nowhere lies behind them.
        let addresses = Addresses::reserve(bytes.saturating_add(self.page))?;
        let start = DevicePtr(addresses.start.expose_provenance() as u64);
        self.addresses.insert(start.0, addresses);
        self.table.add(start, bytes);
        Ok(start)
    }

    fn release(&mut self, start: DevicePtr) -> Result<()> {
        let (_, mapped) = self.table.reservation(start)?;
        mapped.into_iter().for_each(|at| self.table.take(at));
        self.table.remove(start);
        // What is mapped there goes with the addresses.
        self.addresses.remove(&start.0);
        Ok(())
    }

    fn create(&mut self, sizes: &[u64], purpose: Purpose) -> Result<Vec<Self::Memory>> {
        let file = match &self.file {
            // rule: a-child-has-a-file-of-its-own
            Some(file) if file.is_of_this_process() => Arc::clone(file),
            _ => Arc::clone(self.file.insert(MemoryFile::new()?)),
        };
        let taken = file.take(sizes)?.into_iter().zip(sizes);
        Ok(taken
            .map(|(pages, bytes)| self.table.frame(pages, *bytes, purpose))
            .collect())
    }

    fn map(&mut self, at: DevicePtr, memory: &Self::Memory) -> Result<()> {
        let bytes = self.table.check_map(at, memory)?;
        self.replace(at, bytes, Some(&memory.raw))?;
        self.table.insert(at, memory);
        Ok(())
    }

    fn allow(&mut self, at: DevicePtr, bytes: u64, access: PageAccess) -> Result<()> {
        self.table.check_allow(at, bytes)?;
        let protection = match access {
            PageAccess::Read => libc::PROT_READ,
            PageAccess::ReadWrite => WRITABLE,
        };
        // SAFETY: addresses of ours that all have memory, by the checks.
        match unsafe { libc::mprotect(self.ours(at, bytes)?, bytes as usize, protection) } {
            0 => {
                self.table.allow(at, bytes, access);
                Ok(())
            }
            _ => Err(failed("allowing access with mprotect", bytes)),
        }
    }

    fn unmap(&mut self, at: DevicePtr) -> Result<()> {
        let bytes = self.table.mapped(at)?;
        self.replace(at, bytes, None)?;
        self.table.take(at);
        Ok(())
    }
}

impl UserStreams for HostPages {
    type Event = ();
    type Stream = UserStream;

    fn name(&self) -> &str {
        "cpu"
    }

    fn record(&mut self, _stream: UserStream) -> Result<()> {
        Ok(())
    }

    fn stream_wait(&mut self, _stream: UserStream, (): &()) -> Result<()> {
        Ok(())
    }

    fn is_done(&self, (): &()) -> Result<bool> {
        Ok(true)
    }

    fn wait(&mut self, (): &()) -> Result<()> {
        Ok(())
    }

    fn free_bytes(&self) -> Result<u64> {
        Ok(system_memory::available()?.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Units;

    fn at(ptr: DevicePtr) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(ptr.0 as usize)
    }

    #[test]
    fn memory_comes_and_goes_under_addresses_that_stay() {
        let mut units = Units::new(HostPages::new().unwrap());
        let (unit, page) = (units.pages.unit(), units.pages.page());
        let start = units.reserve(unit + page).unwrap();
        units.back(start, unit).unwrap();
        // The last unit is short.
        units.back(start.offset(unit), page).unwrap();
        // SAFETY: both units have memory, which is writable and this test's.
        unsafe {
            at(start).write(1);
            at(start.offset(unit + page - 1)).write(2);
        }
        units.take(start, false).unwrap();
        units.back(start, unit).unwrap();
        // SAFETY: as before.
        let (first, last) = unsafe { (at(start).read(), at(start.offset(unit + page - 1)).read()) };
        assert_eq!(
            (first, last),
            (0, 2),
            "a unit that was taken holds zeros, the other one its bytes"
        );
        units.take(start, false).unwrap();
        units.take(start.offset(unit), false).unwrap();
        units.release(start).unwrap();
    }

    #[test]
    fn a_mirror_shows_the_same_bytes_until_all_are_taken() {
        let mut units = Units::new(HostPages::new().unwrap());
        let unit = units.pages.unit();
        let [home, one, other] = [(); 3].map(|()| units.reserve(unit).unwrap());
        units.back(home, unit).unwrap();
        // SAFETY: a unit that has memory, writable, and this test's; so are all below.
        unsafe { at(home.offset(5)).write(1) };
        units.mirror(one, home).unwrap();
        units.mirror(other, one).unwrap();
        assert!(units.mirror(other, home).is_err(), "it has memory");
        for (written, byte) in [(home, 2), (one, 3), (other, 4)] {
            // SAFETY: as above.
            let seen = |of: DevicePtr| unsafe { at(of.offset(5)).read() };
            assert_eq!([home, one, other].map(seen), [byte - 1; 3]);
            // SAFETY: as above.
            unsafe { at(written.offset(5)).write(byte) };
        }
        units.take(home, true).unwrap();
        units.take(one, false).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { at(other.offset(5)).read() }, 4);
        units.back(home, unit).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { at(home.offset(5)).read() }, 0, "other memory");
    }

    /// A child has the parent's mappings and its file. What it takes or drops there changes nothing for the parent.
    #[test]
    fn a_child_leaves_the_memory_of_its_parent_alone() {
        let mut units = Units::new(HostPages::new().unwrap());
        let unit = units.pages.unit();
        let start = units.reserve(3 * unit).unwrap();
        units.back(start, unit).unwrap();
        // SAFETY: a unit that has memory, writable, and this test's; so are all below.
        unsafe { at(start).write(7) };
        let mut units = Some(units);
        crate::fork::in_child(|| {
            let mut units = units.take().unwrap();
            units.back(start.offset(unit), unit).unwrap();
            // SAFETY: as above.
            unsafe { at(start.offset(unit)).write(9) };
            units.take(start, false).unwrap();
            drop(units);
        });
        let units = units.as_mut().unwrap();
        // The next part of the file, which the child would have taken too.
        units.back(start.offset(2 * unit), unit).unwrap();
        // SAFETY: as above.
        let found = [start, start.offset(2 * unit)].map(|of| unsafe { at(of).read() });
        assert_eq!(found, [7, 0]);
    }

    #[test]
    fn units_of_others_are_refused() {
        let mut units = Units::new(HostPages::new().unwrap());
        let unit = units.pages.unit();
        let start = units.reserve(2 * unit).unwrap();
        let refused = |outcome: Result<()>| assert!(matches!(outcome, Err(Error::Internal(_))));
        refused(units.take(start, false));
        refused(units.back(start, 3 * unit));
        refused(units.back(DevicePtr(start.0 - unit), unit));
        units.back(start, unit).unwrap();
        refused(units.back(start, unit));
        refused(units.take(start.offset(1), false));
        refused(units.release(start));
        units.take(start, false).unwrap();
        units.release(start).unwrap();
        refused(units.release(start));
    }
}
