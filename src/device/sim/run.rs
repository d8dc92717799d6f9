//! The streams run: what may, one operation after the other.

use super::clock::Access;
use super::problem::Problem;
use super::space::{read, POISON};
use super::streams::Op;
use super::Sim;
use crate::device::HostBytes;
use std::ops::Range;
use std::time::Duration;

impl Sim {
    /// Runs what may run, in the order of the device, until `enough`. Where a gate is in the way and `patient` is
    /// set, waits for it to open, as a blocking call does. `false` if it got stuck before.
    pub(super) fn run_until(&mut self, patient: bool, enough: impl Fn(&Sim) -> bool) -> bool {
        while !enough(self) {
            let copies = self.order.copies_next();
            if self.step(copies) || self.step(!copies) {
                continue;
            }
            let held = self.copy.is_held() || self.compute.is_held();
            let idle = self.copy_idle() && self.compute_idle();
            if !held && !idle {
                self.report(Problem::Deadlock);
            }
            if !held || !patient {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    fn step(&mut self, copies: bool) -> bool {
        let next = match copies {
            true => self.copy.next(self.compute.done),
            false => self.compute.next(self.copy.done),
        };
        let moved = next.is_some();
        if let Some(op) = next {
            self.perform(op);
        }
        moved
    }

    fn perform(&mut self, op: Op) {
        match op {
            Op::Kernel(access, reads) => reads
                .into_iter()
                .for_each(|(range, expected)| self.compare(access, range, &expected)),
            Op::Copy(to, src) => self.bytes_mut(&to).copy_from_slice(read(&src)),
            Op::Upload(to, src) => self.bytes_mut(&to).copy_from_slice(&src),
            Op::Download(from) => self.fetched = self.joined(&from),
            Op::Return(from, at) => self.due[at].0 = self.joined(&from),
            Op::Across(to, from) => {
                let through = self.joined(&from);
                self.bytes_mut(&(to..to + through.len() as u64))
                    .copy_from_slice(&through);
            }
            Op::Zero(range) => self.bytes_mut(&range).fill(0),
            Op::Poison(range) => self.bytes_mut(&range).fill(POISON),
            Op::Wait(_) | Op::Gate(_) => {}
        }
    }

    fn joined(&self, parts: &[Range<u64>]) -> Vec<u8> {
        let all: Vec<&[u8]> = parts.iter().map(|part| self.bytes(part)).collect();
        all.concat()
    }

    fn compare(&mut self, access: Access, range: Range<u64>, expected: &HostBytes) {
        let (found, expected) = (self.bytes(&range), read(expected));
        if found != expected {
            let at = found.iter().zip(expected).position(|(a, b)| a != b);
            self.report(Problem::WrongBytes {
                read: access,
                range,
                at: at.unwrap_or(0),
            });
        }
    }
}
