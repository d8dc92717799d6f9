//! A device that does nothing until it has to, and then in the worst order that its events allow.

use super::Kernels;
use std::collections::{BTreeMap, VecDeque};
use weightstream::device::{Device, DevicePtr, HostBytes};
use weightstream::error::{Error, Result};

/// Which stream runs ahead of the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Copies run as early as their waits allow: a copy that fails to wait for a reader destroys its bytes.
    CopiesFirst,
    /// Kernels run as early as their waits allow: one that fails to wait for its copy reads garbage.
    KernelsFirst,
    /// By this seed.
    Random(u64),
}

/// A point in one stream: everything issued to it before this number of operations.
pub enum Point {
    Compute(u64),
    Copy(u64),
}

enum ComputeOp {
    Read { at: usize, expected: Vec<u8> },
    WaitForCopies(u64),
}

enum CopyOp {
    Write {
        at: usize,
        src: HostBytes,
    },
    /// What a freed block may become at any time.
    Scribble {
        at: usize,
        len: usize,
    },
    WaitForCompute(u64),
}

pub struct Sim {
    order: Order,
    memory: Vec<u8>,
    /// Live blocks: start and length.
    live: BTreeMap<u64, u64>,
    scratch: BTreeMap<u64, u64>,
    next_scratch: u64,
    compute: VecDeque<ComputeOp>,
    copies: VecDeque<CopyOp>,
    compute_issued: u64,
    copies_issued: u64,
    compute_done: u64,
    copies_done: u64,
    pub wrong_reads: usize,
    pub bytes_copied: u64,
    /// Calls of this name fail once, after so many that work.
    pub fail: Option<(&'static str, usize)>,
    /// Bytes of the pool's address range: free memory in pieces does not serve what is larger than each.
    pub cap: Option<u64>,
    /// Memory for weights is asked for as one block.
    pub one_block: bool,
}

impl Sim {
    pub fn new(order: Order) -> Self {
        Sim {
            one_block: false,
            order,
            memory: vec![0xEE; 64],
            live: BTreeMap::new(),
            scratch: BTreeMap::new(),
            next_scratch: 1 << 40,
            compute: VecDeque::new(),
            copies: VecDeque::new(),
            compute_issued: 0,
            copies_issued: 0,
            compute_done: 0,
            copies_done: 0,
            wrong_reads: 0,
            bytes_copied: 0,
            fail: None,
            cap: None,
        }
    }

    pub fn live_bytes(&self) -> u64 {
        self.live.values().sum()
    }

    fn call(&mut self, call: &'static str) -> Result<()> {
        match &mut self.fail {
            Some((name, 0)) if *name == call => {
                self.fail = None;
                Err(Error::Device {
                    call,
                    what: "injected".to_string(),
                })
            }
            Some((name, left)) if *name == call => {
                *left -= 1;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// First fit: freed memory is reused as soon as possible, also by other sizes.
    fn place(&mut self, bytes: u64) -> u64 {
        let mut at = 64;
        for (start, len) in &self.live {
            if start - at >= bytes {
                break;
            }
            at = start + len;
        }
        self.memory
            .resize(self.memory.len().max((at + bytes) as usize), 0xEE);
        at
    }

    fn push_compute(&mut self, op: ComputeOp) {
        self.compute.push_back(op);
        self.compute_issued += 1;
    }

    fn push_copy(&mut self, op: CopyOp) {
        self.copies.push_back(op);
        self.copies_issued += 1;
    }

    /// Runs one operation of a stream; `false` if it is idle or has to wait.
    fn step_compute(&mut self) -> bool {
        match self.compute.front() {
            None => return false,
            Some(ComputeOp::WaitForCopies(n)) if *n > self.copies_done => return false,
            Some(ComputeOp::WaitForCopies(_)) => {}
            Some(ComputeOp::Read { at, expected }) => {
                let found = &self.memory[*at..at + expected.len()];
                self.wrong_reads += usize::from(found != expected.as_slice());
            }
        }
        self.compute.pop_front();
        self.compute_done += 1;
        true
    }

    fn step_copies(&mut self) -> bool {
        match self.copies.front() {
            None => return false,
            Some(CopyOp::WaitForCompute(n)) if *n > self.compute_done => return false,
            Some(CopyOp::WaitForCompute(_)) => {}
            Some(CopyOp::Scribble { at, len }) => self.memory[*at..at + len].fill(0xEE),
            Some(CopyOp::Write { at, src }) => {
                // SAFETY: readable as long as the device lives, by the promise in `HostBytes::new`.
                let src = unsafe { std::slice::from_raw_parts(src.as_ptr(), src.len() as usize) };
                self.memory[*at..at + src.len()].copy_from_slice(src);
            }
        }
        self.copies.pop_front();
        self.copies_done += 1;
        true
    }

    fn run(&mut self) {
        loop {
            let copies_first = match &mut self.order {
                Order::CopiesFirst => true,
                Order::KernelsFirst => false,
                Order::Random(state) => {
                    *state = state
                        .wrapping_mul(6364136223846793005)
                        .wrapping_add(1442695040888963407);
                    *state >> 63 == 0
                }
            };
            let moved = match copies_first {
                true => self.step_copies() || self.step_compute(),
                false => self.step_compute() || self.step_copies(),
            };
            if !moved {
                break;
            }
        }
        assert!(
            self.compute.is_empty() && self.copies.is_empty(),
            "the streams wait for each other"
        );
    }
}

impl Kernels for Sim {
    fn kernel(&mut self, reads: &[(DevicePtr, &[u8])]) {
        for (ptr, expected) in reads.iter().filter(|(_, e)| !e.is_empty()) {
            self.push_compute(ComputeOp::Read {
                at: ptr.0 as usize,
                expected: expected.to_vec(),
            });
        }
    }

    fn check(&mut self) {
        self.run();
        assert_eq!(
            self.wrong_reads, 0,
            "kernels read other bytes than their weights'"
        );
    }
}

impl Device for Sim {
    type Event = Point;

    fn name(&self) -> &'static str {
        "sim"
    }

    fn granule(&self) -> u64 {
        64
    }

    fn alloc(&mut self, bytes: u64) -> Result<DevicePtr> {
        self.call("alloc")?;
        if bytes == 0 {
            return Ok(DevicePtr::EMPTY);
        }
        assert_eq!(bytes % 64, 0);
        let at = self.place(bytes);
        if self.cap.is_some_and(|cap| at + bytes > 64 + cap) {
            return Err(Error::OutOfMemory {
                what: "a weight: no free piece is large enough".to_string(),
                bytes,
            });
        }
        self.live.insert(at, bytes);
        Ok(DevicePtr(at))
    }

    fn free(&mut self, ptr: DevicePtr, bytes: u64) -> Result<()> {
        self.call("free")?;
        if bytes > 0 {
            assert_eq!(
                self.live.remove(&ptr.0),
                Some(bytes),
                "freed what was not allocated"
            );
            self.push_copy(CopyOp::Scribble {
                at: ptr.0 as usize,
                len: bytes as usize,
            });
        }
        Ok(())
    }

    fn prefers_one_block(&self) -> bool {
        self.one_block
    }

    fn discard(&mut self, ptr: DevicePtr, bytes: u64) -> Result<()> {
        self.call("discard")?;
        self.push_copy(CopyOp::Scribble {
            at: ptr.0 as usize,
            len: bytes as usize,
        });
        Ok(())
    }

    fn alloc_scratch(&mut self, bytes: u64) -> Result<DevicePtr> {
        self.call("alloc_scratch")?;
        let at = self.next_scratch;
        self.next_scratch += bytes + 64;
        self.scratch.insert(at, bytes);
        Ok(DevicePtr(at))
    }

    fn free_scratch(&mut self, ptr: DevicePtr, bytes: u64) -> Result<()> {
        self.call("free_scratch")?;
        assert_eq!(
            self.scratch.remove(&ptr.0),
            Some(bytes),
            "freed what was not allocated"
        );
        Ok(())
    }

    fn upload(&mut self, _dst: DevicePtr, _src: &[u8]) -> Result<()> {
        unimplemented!("the sessions under test move no inputs")
    }

    fn download(&mut self, _src: DevicePtr, _dst: &mut [u8]) -> Result<()> {
        unimplemented!("the sessions under test move no outputs")
    }

    fn copy_to_device(&mut self, dst: DevicePtr, src: HostBytes) -> Result<()> {
        self.call("copy_to_device")?;
        if src.is_empty() {
            return Ok(());
        }
        let (start, len) = self
            .live
            .range(..=dst.0)
            .next_back()
            .expect("copied to no block");
        assert!(dst.0 + src.len() <= start + len, "copied beyond a block");
        self.push_copy(CopyOp::Write {
            at: dst.0 as usize,
            src,
        });
        self.bytes_copied += src.len();
        Ok(())
    }

    fn record_compute(&mut self) -> Result<Point> {
        self.call("record_compute")?;
        Ok(Point::Compute(self.compute_issued))
    }

    fn copy_wait(&mut self, event: &Point) -> Result<()> {
        self.call("copy_wait")?;
        match event {
            Point::Compute(n) => self.push_copy(CopyOp::WaitForCompute(*n)),
            Point::Copy(_) => panic!("the copy stream waits for compute events"),
        }
        Ok(())
    }

    fn record_copy(&mut self) -> Result<Point> {
        self.call("record_copy")?;
        Ok(Point::Copy(self.copies_issued))
    }

    fn compute_wait(&mut self, event: &Point) -> Result<()> {
        self.call("compute_wait")?;
        match event {
            Point::Copy(n) => self.push_compute(ComputeOp::WaitForCopies(*n)),
            Point::Compute(_) => panic!("the compute stream waits for copy events"),
        }
        Ok(())
    }

    fn is_done(&self, event: &Point) -> Result<bool> {
        Ok(match event {
            Point::Compute(n) => *n <= self.compute_done,
            Point::Copy(n) => *n <= self.copies_done,
        })
    }

    fn synchronize(&mut self) -> Result<()> {
        self.call("synchronize")?;
        self.run();
        Ok(())
    }
}
