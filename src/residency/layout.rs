//! Where memory lies.

use crate::figures::View;

/// Where memory lies. Decided once, at load; no policy knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// What the addresses are backed by.
    pub memory: Backing,
    /// For each window: bytes from the first address of the memory to the first byte of the weight that is read through it.
    /// A weight has one window, or one for each slot that its tail is copied to.
    pub windows: Vec<u64>,
}

/// What addresses are backed by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backing {
    /// Each weight takes memory of its own from the pool when it is loaded. There are no windows.
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
            memory: Backing::PerWeight,
            windows: Vec::new(),
        }
    }

    /// Bytes that are taken once and kept; 0 where each weight takes its own.
    pub fn bytes(&self) -> u64 {
        match &self.memory {
            Backing::PerWeight => 0,
            Backing::Block(bytes) => *bytes,
            Backing::Mapped(view) => view.memory,
        }
    }

    /// Whether each weight has memory of its own.
    pub fn is_per_weight(&self) -> bool {
        self.memory == Backing::PerWeight
    }

    /// How the memory is seen, if it is mapped.
    pub fn view(&self) -> Option<&View> {
        match &self.memory {
            Backing::Mapped(view) => Some(view),
            _ => None,
        }
    }
}
