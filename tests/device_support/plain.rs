//! A small device, as an example of how one is added: memory that is made of vectors, at addresses that are made up.
//!
//! Everything is done on the calling thread before the call returns. So both streams are always idle, their order is the order of
//! the calls, and an event has nothing to say. Nothing here is held, timed or captured: what can go wrong between streams is for the
//! simulated device to find.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use weightstream::device::{
    AddressTable, Device, DevicePtr, Frame, PageAccess, Pages, Purpose, Source,
};
use weightstream::{Error, Result};

const NAME: &str = "plain";
const GRANULE: u64 = 64;
const PAGE: u64 = 4096;
/// More than a page, so that views have units that are whole, and units that end at a border.
const UNIT: u64 = 4 * PAGE;
/// What is asked for beyond this is refused, where a vector that large would end the process.
const TOTAL: u64 = 1 << 32;
/// No address below is ever handed out: small numbers are offsets that somebody took for addresses.
const FIRST: u64 = 1 << 32;

/// Bytes of a piece of memory of pages. It shows at several addresses, and callers hold it besides, so it is shared; only the device
/// looks into it, so nobody ever waits for the lock.
type PageBytes = Mutex<Vec<u8>>;

#[derive(PartialEq)]
enum Kind {
    Weights,
    Scratch,
}

struct Block {
    kind: Kind,
    bytes: Vec<u8>,
}

/// See the module's description.
pub struct Plain {
    /// Addresses are never used again, so that one that was given back is refused for ever.
    next: u64,
    blocks: BTreeMap<u64, Block>,
    table: AddressTable<PageBytes>,
}

impl Plain {
    pub fn new() -> Plain {
        Plain {
            next: FIRST,
            blocks: BTreeMap::new(),
            table: AddressTable::default(),
        }
    }

    /// Bytes of weights' memory that is handed out.
    pub fn live_bytes(&self) -> u64 {
        let weights = self.blocks.values().filter(|b| b.kind == Kind::Weights);
        weights.map(|b| b.bytes.len() as u64).sum::<u64>() + self.table.bytes()
    }

    /// New addresses. A page behind them stays free, so that what runs over the end, or begins before the start, meets nobody.
    fn addresses(&mut self, bytes: u64) -> Result<DevicePtr> {
        let used = bytes.checked_next_multiple_of(PAGE);
        let next = used.and_then(|used| self.next.checked_add(used)?.checked_add(PAGE));
        let start = self.next;
        self.next = next.ok_or_else(|| out_of_memory("addresses", bytes))?;
        Ok(DevicePtr(start))
    }

    fn check_room(&self, what: &str, bytes: u64) -> Result<()> {
        match bytes > TOTAL.saturating_sub(self.live_bytes()) {
            true => Err(out_of_memory(what, bytes)),
            false => Ok(()),
        }
    }

    fn take(&mut self, kind: Kind, bytes: u64) -> Result<DevicePtr> {
        if bytes == 0 {
            return Ok(DevicePtr::EMPTY);
        }
        self.check_room("a block", bytes)?;
        let at = self.addresses(bytes)?;
        let bytes = vec![0; bytes as usize];
        self.blocks.insert(at.0, Block { kind, bytes });
        Ok(at)
    }

    fn give(&mut self, kind: Kind, at: DevicePtr, bytes: u64) -> Result<()> {
        if bytes == 0 && at == DevicePtr::EMPTY {
            return Ok(());
        }
        match self.blocks.get(&at.0) {
            Some(block) if block.kind == kind && block.bytes.len() as u64 == bytes => {
                self.blocks.remove(&at.0);
                Ok(())
            }
            _ => Err(not_ours(at, bytes)),
        }
    }

    /// The block that all of these bytes are in, by its address, and where they are in it.
    fn in_block(&self, at: DevicePtr, bytes: u64) -> Result<(u64, Range<usize>)> {
        let found = self.blocks.range(..=at.0).next_back();
        let found = found.and_then(|(start, block)| {
            let offset = at.0 - start;
            let end = offset.checked_add(bytes)?;
            let inside = end <= block.bytes.len() as u64;
            inside.then_some((*start, offset as usize..end as usize))
        });
        found.ok_or_else(|| not_ours(at, bytes))
    }
}

impl Device for Plain {
    type Event = ();
    type Graph = ();
    type Pages = Plain;

    fn name(&self) -> &'static str {
        NAME
    }

    fn granule(&self) -> u64 {
        GRANULE
    }

    fn alloc(&mut self, bytes: u64) -> Result<DevicePtr> {
        self.take(Kind::Weights, bytes)
    }

    fn free(&mut self, ptr: DevicePtr, bytes: u64) -> Result<()> {
        self.give(Kind::Weights, ptr, bytes)
    }

    fn page(&self) -> Option<u64> {
        Some(PAGE)
    }

    fn pages(&mut self) -> Option<&mut Plain> {
        Some(self)
    }

    fn alloc_scratch(&mut self, bytes: u64) -> Result<DevicePtr> {
        self.take(Kind::Scratch, bytes)
    }

    fn free_scratch(&mut self, ptr: DevicePtr, bytes: u64) -> Result<()> {
        self.give(Kind::Scratch, ptr, bytes)
    }

    fn upload(&mut self, dst: DevicePtr, src: &[u8]) -> Result<()> {
        // No bytes touch nothing, whatever their address is: the end of a view is one of nobody's.
        if src.is_empty() {
            return Ok(());
        }
        // Kernels only read a view. Copies of weights come here too, with addresses that may be written.
        self.table.check_written(NAME, dst, src.len() as u64)?;
        let Some(parts) = self.table.behind(dst, src.len() as u64) else {
            let (start, range) = self.in_block(dst, src.len() as u64)?;
            let block = self.blocks.get_mut(&start).expect("it was just found");
            block.bytes[range].copy_from_slice(src);
            return Ok(());
        };
        let mut rest = src;
        for (range, memory) in parts {
            let (here, behind) = rest.split_at((range.end - range.start) as usize);
            memory.lock().unwrap()[as_usize(range)].copy_from_slice(here);
            rest = behind;
        }
        Ok(())
    }

    fn download(&mut self, src: DevicePtr, dst: &mut [u8]) -> Result<()> {
        if dst.is_empty() {
            return Ok(());
        }
        let Some(parts) = self.table.behind(src, dst.len() as u64) else {
            let (start, range) = self.in_block(src, dst.len() as u64)?;
            dst.copy_from_slice(&self.blocks[&start].bytes[range]);
            return Ok(());
        };
        let mut rest = dst;
        for (range, memory) in parts {
            let (here, behind) = rest.split_at_mut((range.end - range.start) as usize);
            here.copy_from_slice(&memory.lock().unwrap()[as_usize(range)]);
            rest = behind;
        }
        Ok(())
    }

    fn bring(&mut self, dst: DevicePtr, src: impl Into<Source>) -> Result<()> {
        let src = src.into().as_stored();
        let src = src.ok_or_else(|| Error::Unsupported("plain decodes nothing".to_owned()))?;
        if src.is_empty() {
            return Ok(());
        }
        let targets = match self.table.targets(dst, src.len()) {
            Some(targets) => targets?,
            None => {
                // All of it is looked at first, since it is copied in pieces.
                self.in_block(dst, src.len())?;
                vec![(dst, 0..src.len())]
            }
        };
        // With the streams one, a copy of weights is an upload; and the trait knows how bytes of the host are read.
        let mut targets = targets.into_iter();
        targets.try_for_each(|(to, part)| self.upload_bytes(to, src.slice(part)))
    }

    fn record_compute(&mut self) -> Result<()> {
        Ok(())
    }

    fn copy_wait(&mut self, _event: &()) -> Result<()> {
        Ok(())
    }

    fn record_copy(&mut self) -> Result<()> {
        Ok(())
    }

    fn compute_wait(&mut self, _event: &()) -> Result<()> {
        Ok(())
    }

    fn is_done(&self, _event: &()) -> Result<bool> {
        Ok(true)
    }

    fn synchronize(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Pages for Plain {
    type Memory = Arc<Frame<PageBytes>>;

    fn page(&self) -> u64 {
        PAGE
    }

    fn unit(&self) -> u64 {
        UNIT
    }

    fn total_bytes(&mut self) -> Result<u64> {
        Ok(TOTAL)
    }

    fn reserve(&mut self, bytes: u64, _purpose: Purpose) -> Result<DevicePtr> {
        let start = self.addresses(bytes)?;
        self.table.add(start, bytes);
        Ok(start)
    }

    fn release(&mut self, start: DevicePtr) -> Result<()> {
        let (_, mapped) = self.table.reservation(start)?;
        mapped.into_iter().for_each(|at| self.table.take(at));
        self.table.remove(start);
        Ok(())
    }

    fn create(&mut self, sizes: &[u64], purpose: Purpose) -> Result<Vec<Self::Memory>> {
        // Asked once for all of them, so that an error leaves nothing.
        let all = sizes
            .iter()
            .try_fold(0u64, |sum, size| sum.checked_add(*size));
        self.check_room(purpose.name(), all.unwrap_or(u64::MAX))?;
        let create = |&bytes: &u64| {
            let memory = Mutex::new(vec![0; bytes as usize]);
            self.table.frame(memory, bytes, purpose)
        };
        Ok(sizes.iter().map(create).collect())
    }

    fn map(&mut self, at: DevicePtr, memory: &Self::Memory) -> Result<()> {
        self.table.check_map(at, memory)?;
        self.table.insert(at, memory);
        Ok(())
    }

    fn allow(&mut self, at: DevicePtr, bytes: u64, access: PageAccess) -> Result<()> {
        self.table.check_allow(at, bytes)?;
        self.table.allow(at, bytes, access);
        Ok(())
    }

    fn unmap(&mut self, at: DevicePtr) -> Result<()> {
        self.table.mapped(at)?;
        self.table.take(at);
        Ok(())
    }
}

fn as_usize(range: Range<u64>) -> Range<usize> {
    range.start as usize..range.end as usize
}

fn out_of_memory(what: &str, bytes: u64) -> Error {
    Error::OutOfMemory {
        what: format!("{what} on {NAME}"),
        bytes,
    }
}

fn not_ours(at: DevicePtr, bytes: u64) -> Error {
    Error::Internal(format!(
        "{bytes} bytes at {:#x} are no memory of this device, or not in the state that was asked for",
        at.0
    ))
}
