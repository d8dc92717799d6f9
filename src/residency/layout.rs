//! Where memory lies. Decided once, when a program is loaded: the store knows it, and no policy does.

use crate::figures::View;

/// Where weights lie on the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// What backs the addresses.
    pub memory: Memory,
    /// For each window, the offset of a weight's first byte from the start of the addresses. A weight has one window, or one
    /// for each of its live ranges. None where weights have memory of their own.
    pub windows: Vec<u64>,
}

/// What backs the addresses of weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Memory {
    /// Each weight takes memory of its own from the pool when it is loaded.
    PerWeight,
    /// One block of so many bytes.
    Block(u64),
    /// Pages, mapped as the view says.
    Mapped(View),
}

impl Layout {
    /// Memory of its own for each weight.
    pub fn per_weight() -> Layout {
        Layout {
            memory: Memory::PerWeight,
            windows: Vec::new(),
        }
    }

    /// Bytes of memory that is taken at load and kept; 0 where weights have memory of their own.
    pub fn fixed_bytes(&self) -> u64 {
        match &self.memory {
            Memory::PerWeight => 0,
            Memory::Block(bytes) => *bytes,
            Memory::Mapped(view) => view.memory,
        }
    }

    /// Whether each weight has memory of its own.
    pub fn is_per_weight(&self) -> bool {
        self.memory == Memory::PerWeight
    }
}
