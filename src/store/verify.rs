//! The verified mode: bytes on the device are compared with their recorded CRC-32 before a kernel reads them. They
//! are read back through the device, in the order of its compute stream, so that what is seen is what a kernel
//! would see. Slow: for debugging and tests.

use super::checksums::Checksums;
use super::Store;
use crate::device::{Device, DevicePtr};
use crate::error::{Error, Result};
use crate::schedule::{ProbeId, WeightIndex};

/// Bytes that are read back at a time.
const PIECE: u64 = 4 << 20;

impl<D: Device> Store<D> {
    /// From now on every weight is compared with its CRC-32 at each of its probes, before its address is handed
    /// out, and every direct constant is now: before the first pass, which may write to the mutable ones.
    /// `expected` are the checksums of all constants, by index. [`Error::Mismatch`] names the one that differs.
    pub fn verify_every_read(&mut self, expected: Vec<u32>) -> Result<()> {
        let constants = self.constants.specs.len() - self.tables.len();
        if expected.len() != constants {
            return Err(Error::Internal(format!(
                "{constants} constants, {} checksums",
                expected.len()
            )));
        }
        let specs = self.constants.specs.iter();
        let largest = specs.map(|spec| spec.bytes).max().unwrap_or(0);
        self.checksums = Some(Checksums {
            expected,
            piece: vec![0; largest.min(PIECE) as usize],
        });
        for index in 0..constants {
            // Where rows are is told anew in each load.
            if self.tells_rows(index as WeightIndex) {
                continue;
            }
            if let Some(at) = self.direct_address(index) {
                self.verify(
                    index as WeightIndex,
                    at,
                    "loaded once, before the first pass",
                )?;
            }
        }
        Ok(())
    }

    /// Whether every read is verified.
    #[inline]
    pub(crate) fn verifies(&self) -> bool {
        self.checksums.is_some()
    }

    /// A weight, whose copy the compute stream has waited for, is about to be read at `at` by probe `id`.
    #[cold]
    pub(crate) fn verify_read(
        &mut self,
        weight: WeightIndex,
        id: ProbeId,
        at: DevicePtr,
    ) -> Result<()> {
        self.verify(weight, at, &format!("read by probe {id}"))
    }

    fn verify(&mut self, weight: WeightIndex, at: DevicePtr, whose: &str) -> Result<()> {
        let Some(checksums) = &mut self.checksums else {
            return Ok(());
        };
        let table = self.tables.iter().find(|table| table.stands == weight);
        let weight = table.map_or(weight, |table| table.table);
        let spec = &self.constants.specs[weight as usize];
        let mut hasher = crc32fast::Hasher::new();
        let mut done = 0;
        while done < spec.bytes {
            let len = (spec.bytes - done).min(PIECE);
            let piece = &mut checksums.piece[..len as usize];
            let read = self.device.download(at.offset(done), piece);
            read.map_err(|error| error.during(|| format!("verifying '{}'", spec.fqn)))?;
            hasher.update(piece);
            done += len;
        }
        let (expected, found) = (checksums.expected[weight as usize], hasher.finalize());
        if found == expected {
            return Ok(());
        }
        Err(Error::Mismatch {
            name: spec.fqn.clone(),
            fact: "CRC-32 of its bytes on the device",
            expected: format!("{expected:08x} (record)"),
            found: format!(
                "{found:08x} in {} bytes at device address {:#x}, {whose}: its copy went wrong, or something wrote \
                 over it",
                spec.bytes, at.0
            ),
        })
    }
}
