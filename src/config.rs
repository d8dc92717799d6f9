//! Options of one load. Every key is known and checked here; nothing is ignored.

/// Which residency policy to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PolicyKind {
    /// Least recently used, with lookahead along the access order.
    #[default]
    Lru,
}

/// When weight bytes are compared with their recorded CRC-32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Verify {
    /// Never; headers and tables are checked all the same.
    #[default]
    Off,
    /// Once, at load.
    Load,
}

/// Options of one load, after parsing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Options {
    /// Bytes that weights and direct constants may occupy on the device; `None` means the floor.
    pub budget: Option<u64>,
    /// Residency policy.
    pub policy: PolicyKind,
    /// Checksum policy.
    pub verify: Verify,
    /// Path of the `.ptd`; needed when the caller has no mapped named data.
    pub data: Option<std::path::PathBuf>,
}
