//! How floating-point numbers are made of bits, from the lowest on: mantissa, exponent, sign.

/// The forms that packed weights may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the names say it all
pub enum NumberForm {
    Bf16,
    F16,
    F32,
    F8E4M3,
    F8E5M2,
}

impl NumberForm {
    /// Each of them.
    pub const ALL: [NumberForm; 5] = [
        NumberForm::Bf16,
        NumberForm::F16,
        NumberForm::F32,
        NumberForm::F8E4M3,
        NumberForm::F8E5M2,
    ];

    /// Bits of the mantissa, which are the lowest.
    pub const fn mantissa_bits(self) -> u32 {
        match self {
            NumberForm::Bf16 => 7,
            NumberForm::F16 => 10,
            NumberForm::F32 => 23,
            NumberForm::F8E4M3 => 3,
            NumberForm::F8E5M2 => 2,
        }
    }

    /// Bits of the exponent. The sign is above them.
    pub const fn exponent_bits(self) -> u32 {
        match self {
            NumberForm::Bf16 | NumberForm::F32 => 8,
            NumberForm::F16 | NumberForm::F8E5M2 => 5,
            NumberForm::F8E4M3 => 4,
        }
    }

    /// Bytes of a number.
    pub const fn bytes(self) -> usize {
        (1 + self.mantissa_bits() + self.exponent_bits()) as usize / 8
    }
}
