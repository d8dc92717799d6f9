//! Free bytes of one block, as pieces of it.

use std::collections::BTreeMap;

/// First fit, lowest offset first: equal calls give equal offsets.
#[derive(Debug, Clone, Default)]
pub(crate) struct FreeList {
    /// Offset and length. No two of them touch.
    free: BTreeMap<u64, u64>,
}

impl FreeList {
    /// All of a block of `cap` bytes.
    pub fn of(cap: u64) -> FreeList {
        FreeList {
            free: (cap > 0).then_some((0, cap)).into_iter().collect(),
        }
    }

    /// None.
    pub fn clear(&mut self) {
        self.free.clear();
    }

    pub fn largest(&self) -> u64 {
        self.free.values().copied().max().unwrap_or(0)
    }

    /// Offset and length of each, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.free.iter().map(|(&offset, &len)| (offset, len))
    }

    /// The offset of `bytes` that were free; `None` if no piece is as large.
    pub fn take(&mut self, bytes: u64) -> Option<u64> {
        let (offset, len) = self.iter().find(|&(_, len)| len >= bytes)?;
        self.free.remove(&offset);
        if len > bytes {
            self.free.insert(offset + bytes, len - bytes);
        }
        Some(offset)
    }

    /// Puts a piece back, joined with its neighbours.
    pub fn give(&mut self, mut offset: u64, mut len: u64) {
        if let Some((&before, &bytes)) = self.free.range(..offset).next_back() {
            if before + bytes == offset {
                self.free.remove(&before);
                offset = before;
                len += bytes;
            }
        }
        if let Some(next) = self.free.remove(&(offset + len)) {
            len += next;
        }
        self.free.insert(offset, len);
    }
}
