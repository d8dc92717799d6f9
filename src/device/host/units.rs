//! Units of a range in host memory: addresses without access, and anonymous memory that is mapped over them.

use super::memory_file::{check_available, failed};
use super::pages::{page, Addresses, WRITABLE};
use crate::device::units::{UnitTable, Units, UserStream};
use crate::device::DevicePtr;
use crate::error::{Error, Result};
use crate::system_memory;
use std::collections::BTreeMap;
use std::ffi::c_void;

/// Mapping a unit and looking at what the system has left takes about 50 µs. Copying as many bytes takes longer.
const UNIT: u64 = 1 << 20;

/// Units in host memory. All work is done when a call returns, so events say nothing.
pub struct HostUnits {
    page: u64,
    /// Whether a unit's memory can show at other addresses.
    table: UnitTable<bool>,
    addresses: BTreeMap<u64, Addresses>,
}

impl HostUnits {
    /// Takes no memory.
    ///
    /// Errors: a system without memory that is mapped by page.
    pub fn new() -> Result<HostUnits> {
        let page = page().ok_or_else(|| {
            Error::Unsupported("ranges in host memory are there on Linux only".to_owned())
        })?;
        Ok(HostUnits {
            page,
            table: UnitTable::default(),
            addresses: BTreeMap::new(),
        })
    }

    /// Addresses of ours, all of them reserved.
    fn ours(&self, at: DevicePtr, bytes: u64) -> Result<*mut c_void> {
        let found = self.addresses.range(..=at.0).next_back();
        let inside = |(start, all): &(&u64, &Addresses)| at.0 - **start + bytes <= all.bytes as u64;
        let (start, all) = found
            .filter(inside)
            .ok_or_else(|| Error::Internal(format!("{:#x} is no address of a range", at.0)))?;
        Ok(all.start.wrapping_add((at.0 - start) as usize).cast())
    }

    /// Maps new pages over addresses of ours: such that hold zeros, or such that nobody may access. `sharing` is `MAP_SHARED` for
    /// pages that can show elsewhere.
    fn replace(&mut self, at: DevicePtr, bytes: u64, protection: i32, sharing: i32) -> Result<()> {
        let address = self.ours(at, bytes)?;
        let flags = sharing | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: the addresses are inside of our own, so that nothing of others is replaced. Nobody uses what was there: the
        // caller's promise.
        let mapped = unsafe { libc::mmap(address, bytes as usize, protection, flags, -1, 0) };
        match mapped == libc::MAP_FAILED {
            true => Err(failed("mapping a range's unit with mmap", bytes)),
            false => Ok(()),
        }
    }

    /// Shows pages that can be shared at other addresses of ours as well.
    fn show(&mut self, at: DevicePtr, of: DevicePtr, bytes: u64) -> Result<()> {
        let (to, from) = (self.ours(at, bytes)?, self.ours(of, bytes)?);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: both are inside of our own addresses. An old size of 0 leaves the old mapping, which is shared, as it is.
        let shown = unsafe { libc::mremap(from, 0, bytes as usize, flags, to) };
        match shown == libc::MAP_FAILED {
            true => Err(failed("mapping a range's unit again with mremap", bytes)),
            false => Ok(()),
        }
    }

    /// Moves a unit's bytes to pages that can be shared, at `at` as well.
    fn share(&mut self, at: DevicePtr, of: DevicePtr, bytes: u64) -> Result<()> {
        check_available(bytes)?;
        self.replace(at, bytes, WRITABLE, libc::MAP_SHARED)?;
        let (to, from) = (self.ours(at, bytes)?, self.ours(of, bytes)?);
        // SAFETY: two units of ours that do not overlap; both have memory. Nobody writes there meanwhile: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast(), bytes as usize) };
        let shown = self.show(of, at, bytes);
        if shown.is_err() {
            self.replace(at, bytes, libc::PROT_NONE, libc::MAP_PRIVATE)?;
        }
        shown
    }
}

impl Units for HostUnits {
    type Event = ();
    type Stream = UserStream;

    fn name(&self) -> &str {
        "cpu"
    }

    fn page(&self) -> u64 {
        self.page
    }

    fn unit(&self) -> u64 {
        UNIT.max(self.page)
    }

    fn reserve(&mut self, bytes: u64) -> Result<DevicePtr> {
        let addresses = Addresses::reserve(bytes)?;
        let start = DevicePtr(addresses.start.expose_provenance() as u64);
        self.addresses.insert(start.0, addresses);
        self.table.add(start, bytes);
        Ok(start)
    }

    fn release(&mut self, start: DevicePtr) -> Result<()> {
        self.table.check_released(start)?;
        self.table.remove(start);
        self.addresses.remove(&start.0);
        Ok(())
    }

    fn back(&mut self, at: DevicePtr, bytes: u64) -> Result<()> {
        self.table.check_back(at, bytes)?;
        check_available(bytes)?;
        self.replace(at, bytes, WRITABLE, libc::MAP_PRIVATE)?;
        self.table.insert(at, bytes, false);
        Ok(())
    }

    fn mirror(&mut self, at: DevicePtr, of: DevicePtr) -> Result<()> {
        let (bytes, &shared) = self.table.get(of)?;
        self.table.check_back(at, bytes)?;
        match shared {
            true => self.show(at, of, bytes)?,
            false => self.share(at, of, bytes)?,
        }
        self.table.take(of);
        self.table.insert(of, bytes, true);
        self.table.insert(at, bytes, true);
        Ok(())
    }

    fn take(&mut self, at: DevicePtr, _keep: bool) -> Result<()> {
        let (bytes, _) = self.table.get(at)?;
        self.replace(at, bytes, libc::PROT_NONE, libc::MAP_PRIVATE)?;
        self.table.take(at);
        Ok(())
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

    fn at(ptr: DevicePtr) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(ptr.0 as usize)
    }

    #[test]
    fn memory_comes_and_goes_under_addresses_that_stay() {
        let mut units = HostUnits::new().unwrap();
        let (unit, page) = (units.unit(), units.page());
        let start = units.reserve(unit + page).unwrap();
        units.back(start, unit).unwrap();
        // The last unit is short.
        units.back(start.offset(unit), page).unwrap();
        // SAFETY: both units have memory, which is writable and this test's.
        unsafe {
            at(start).write(1);
            at(start.offset(unit + page - 1)).write(2);
        }
        units.take(start, true).unwrap();
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
        let mut units = HostUnits::new().unwrap();
        let unit = units.unit();
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

    #[test]
    fn units_of_others_are_refused() {
        let mut units = HostUnits::new().unwrap();
        let unit = units.unit();
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
