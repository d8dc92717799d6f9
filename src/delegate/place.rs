//! Where the program lies that an address of its tables belongs to. ExecuTorch gives a backend pointers into the program (the
//! name of the method, the keys of compile specs) and no program; two loads of one file are two programs.
#![deny(unsafe_code)]

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::error::{Error, Result};

/// Which loaded program a method comes from. Two loads of one file are two programs: each has a state of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgramPlace {
    /// The bytes of the program lie here, for as long as a method of it lives.
    Address(usize),
    /// A number that its owner has taken.
    Number(u64),
}

/// What stands in each program with segments from byte 4 on, and the bytes up to the size of its tables after it (ExecuTorch,
/// `schema/extended_header.h`).
const MARK: &[u8; 8] = b"ET12eh00";
const MARK_AT: u64 = 4;
const SIZE_AT: u64 = 16;

/// Memory is read in such pieces, so that one that ends earlier is seen.
const PAGE: u64 = 4096;
/// No tables are larger.
const LARGEST: u64 = 1 << 30;

/// The memory of this process, read so that an address of nothing is an error and no fault.
const MEMORY: &str = "/proc/self/mem";

/// The program whose tables hold all of these addresses. An error if they are of no program, or of several.
pub fn program_at(addresses: &[usize]) -> Result<ProgramPlace> {
    let unknown = |what: String| {
        Error::Unsupported(format!(
            "methods of one program find each other by where it lies in memory: {what}; load it with ExecuTorch's Module"
        ))
    };
    let first = addresses.iter().find(|&&address| address != 0);
    let &first = first.ok_or_else(|| unknown("no address of it was given".to_owned()))?;
    let memory = File::open(MEMORY);
    let memory = memory.map_err(|error| unknown(format!("{MEMORY} cannot be opened ({error})")))?;
    let start = start_of(&memory, first as u64);
    let (start, size) = start.ok_or_else(|| {
        unknown(format!(
            "at {first:#x} and before it there is no program with an extended header"
        ))
    })?;
    let outside = |&&address: &&usize| !(start..start + size).contains(&(address as u64));
    match addresses.iter().find(outside) {
        None => Ok(ProgramPlace::Address(start as usize)),
        Some(other) => Err(unknown(format!(
            "its tables are {size} bytes at {start:#x}, and {other:#x} is not among them"
        ))),
    }
}

/// Where the tables start that hold `address`, and how long they are.
fn start_of(memory: &File, address: u64) -> Option<(u64, u64)> {
    // The piece, and as much of the next one as a mark can reach into.
    let mut bytes = vec![0; PAGE as usize + MARK.len()];
    let mut page = address - address % PAGE;
    let mut end = address + 1;
    while address - page < LARGEST {
        let here = &mut bytes[..(end - page).min(PAGE + MARK.len() as u64) as usize];
        memory.read_exact_at(here, page).ok()?;
        for at in (0..here.len()).rev() {
            if here[at..].starts_with(MARK) {
                let start = (page + at as u64).checked_sub(MARK_AT)?;
                let size = tables_size(memory, start)?;
                if address - start < size {
                    return Some((start, size));
                }
            }
        }
        end = page + MARK.len() as u64;
        page = page.checked_sub(PAGE)?;
    }
    None
}

fn tables_size(memory: &File, start: u64) -> Option<u64> {
    let mut size = [0; 8];
    memory.read_exact_at(&mut size, start + SIZE_AT).ok()?;
    Some(u64::from_le_bytes(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables of `size` bytes with the mark of a program.
    fn tables(size: usize) -> Vec<u8> {
        let mut bytes = vec![7; size];
        bytes[4..12].copy_from_slice(MARK);
        bytes[16..24].copy_from_slice(&(size as u64).to_le_bytes());
        bytes
    }

    fn at(bytes: &[u8], offset: usize) -> usize {
        bytes[offset..].as_ptr().addr()
    }

    #[test]
    fn tables_are_found_from_any_address_in_them() {
        for size in [64, 4096, 70_000] {
            let (one, other) = (tables(size), tables(size));
            for offset in [24, size / 2, size - 1] {
                let found = program_at(&[at(&one, offset), at(&one, 24)]).unwrap();
                assert_eq!(found, ProgramPlace::Address(at(&one, 0)));
                assert_ne!(found, program_at(&[at(&other, offset)]).unwrap());
            }
            let both = program_at(&[at(&one, 24), at(&other, 24)]).unwrap_err();
            assert!(both.to_string().contains("is not among them"), "{both}");
        }
    }

    /// What looks like a program and ends before the address is none.
    #[test]
    fn a_mark_in_between_is_not_taken_for_a_program() {
        let mut outer = tables(9000);
        outer[5000..5064].copy_from_slice(&tables(64));
        let found = program_at(&[at(&outer, 8000)]).unwrap();
        assert_eq!(found, ProgramPlace::Address(at(&outer, 0)));
    }

    #[test]
    fn an_address_of_no_program_is_an_error() {
        for addresses in [&[][..], &[0], &[8]] {
            let error = program_at(addresses).unwrap_err();
            assert!(matches!(error, Error::Unsupported(_)), "{error}");
        }
    }
}
