//! Groups of captures in random programs: pieces of one keep each other's memory, groups share.

use super::{Contents, Draw, NOISE, UNIT};
use std::sync::Arc;
use weightstream::device::sim::Actor;
use weightstream::device::{Device, DevicePtr, Sim};
use weightstream::elastic::{CaptureId, GraphPool, Ranges};
use weightstream::Error;

struct Group {
    id: CaptureId,
    pieces: Vec<(DevicePtr, u64)>,
}

/// A graph pool, and the groups that it has.
pub struct Groups {
    ranges: Arc<Ranges<Sim>>,
    pool: GraphPool<Sim>,
    groups: Vec<Group>,
}

impl Groups {
    pub fn new(ranges: &Arc<Ranges<Sim>>) -> Groups {
        Groups {
            ranges: ranges.clone(),
            pool: GraphPool::new(ranges, "groups", Some(12 * UNIT)).unwrap(),
            groups: Vec::new(),
        }
    }

    pub fn step(&mut self, draw: &mut Draw) {
        if self.groups.is_empty() || (self.groups.len() < 4 && draw.below(4) == 0) {
            let id = self.pool.begin().unwrap();
            let mut group = Group {
                id,
                pieces: Vec::new(),
            };
            match self.capture(&mut group, draw) {
                true => self.groups.push(group),
                false => assert!(self.pool.release(id).is_err(), "a capture that failed"),
            }
            return;
        }
        let at = draw.below(self.groups.len() as u64) as usize;
        match draw.below(4) {
            0 => {
                let mut group = self.groups.swap_remove(at);
                self.pool.resume(group.id).unwrap();
                self.capture(&mut group, draw);
                self.groups.push(group);
            }
            1 => {
                let group = self.groups.swap_remove(at);
                self.release(&group);
            }
            _ => self.replay(at, draw),
        }
    }

    /// Everything is given back.
    pub fn end(mut self) {
        for group in std::mem::take(&mut self.groups) {
            self.release(&group);
        }
        self.pool.close().unwrap();
    }

    /// Some pieces more. If one finds no memory, or by chance, the group is what it was.
    fn capture(&self, group: &mut Group, draw: &mut Draw) -> bool {
        let before = group.pieces.len();
        let mut keep = draw.below(8) > 0;
        for _ in 0..1 + draw.below(3) {
            let bytes = 1 + draw.below(2 * UNIT);
            match self.pool.alloc(bytes) {
                Ok(at) => group.pieces.push((at, bytes)),
                Err(Error::OutOfMemory { .. }) => {
                    keep = false;
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
        if !keep {
            for (at, _) in group.pieces.drain(before..) {
                assert!(self.pool.free(at));
            }
        }
        self.pool.end(keep).unwrap();
        keep
    }

    /// All pieces are written, and then read: none has the memory of another.
    fn replay(&self, at: usize, draw: &mut Draw) {
        let group = &self.groups[at];
        self.pool.enter(group.id, Actor::Compute).unwrap();
        self.ranges.with_device(|sim| {
            let written: Vec<_> = { group.pieces.iter() }
                .map(|&(at, bytes)| {
                    let from = draw.below(NOISE as u64 - bytes) as usize;
                    let len = bytes as usize;
                    (at, Contents { from, len })
                })
                .collect();
            for (at, contents) in &written {
                // An upload goes to one unit.
                for (part, bytes) in contents.bytes().chunks(128).enumerate() {
                    sim.upload(at.offset(128 * part as u64), bytes).unwrap();
                }
            }
            let reads: Vec<_> = { written.iter() }
                .map(|(at, contents)| (*at, contents.host()))
                .collect();
            sim.kernel(1, &reads).unwrap();
        });
    }

    fn release(&self, group: &Group) {
        for &(at, _) in &group.pieces {
            assert!(self.pool.free(at));
        }
        self.pool.release(group.id).unwrap();
    }
}
