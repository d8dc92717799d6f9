//! What the bytes of weights have to be, in the verified mode.

/// What the bytes have to be.
pub(super) struct Checksums {
    /// CRC-32 of each constant, by index.
    pub(super) expected: Vec<u32>,
    /// For the bytes that are read back.
    pub(super) piece: Vec<u8>,
}
