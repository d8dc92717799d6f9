//! Element types, in the numbering that ExecuTorch and PyTorch share.

use crate::figures::NumberForm;
use std::fmt;

/// One element type that ExecuTorch can write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs)] // the names say it all
pub enum ScalarType {
    U8 = 0,
    I8 = 1,
    I16 = 2,
    I32 = 3,
    I64 = 4,
    F16 = 5,
    F32 = 6,
    F64 = 7,
    Bool = 11,
    QInt8 = 12,
    QUInt8 = 13,
    QInt32 = 14,
    BF16 = 15,
    QUInt4x2 = 16,
    QUInt2x4 = 17,
    Bits16 = 22,
    F8E5M2 = 23,
    F8E4M3FN = 24,
    F8E5M2FNUZ = 25,
    F8E4M3FNUZ = 26,
    U16 = 27,
    U32 = 28,
    U64 = 29,
}

/// Every type with its name in PyTorch and the bytes of one element.
const TABLE: [(ScalarType, &str, u64); 23] = [
    (ScalarType::U8, "uint8", 1),
    (ScalarType::I8, "int8", 1),
    (ScalarType::I16, "int16", 2),
    (ScalarType::I32, "int32", 4),
    (ScalarType::I64, "int64", 8),
    (ScalarType::F16, "float16", 2),
    (ScalarType::F32, "float32", 4),
    (ScalarType::F64, "float64", 8),
    (ScalarType::Bool, "bool", 1),
    (ScalarType::QInt8, "qint8", 1),
    (ScalarType::QUInt8, "quint8", 1),
    (ScalarType::QInt32, "qint32", 4),
    (ScalarType::BF16, "bfloat16", 2),
    (ScalarType::QUInt4x2, "quint4x2", 1),
    (ScalarType::QUInt2x4, "quint2x4", 1),
    (ScalarType::Bits16, "bits16", 2),
    (ScalarType::F8E5M2, "float8_e5m2", 1),
    (ScalarType::F8E4M3FN, "float8_e4m3fn", 1),
    (ScalarType::F8E5M2FNUZ, "float8_e5m2fnuz", 1),
    (ScalarType::F8E4M3FNUZ, "float8_e4m3fnuz", 1),
    (ScalarType::U16, "uint16", 2),
    (ScalarType::U32, "uint32", 4),
    (ScalarType::U64, "uint64", 8),
];

/// The name in PyTorch of the type with this number, for messages; `number 99` of one that nobody knows.
pub fn dtype_name(number: i32) -> String {
    match number {
        8 => "complex32".to_owned(),
        9 => "complex64".to_owned(),
        10 => "complex128".to_owned(),
        _ => ScalarType::from_number(i64::from(number))
            .map_or_else(|| format!("number {number}"), |known| known.to_string()),
    }
}

impl ScalarType {
    /// The type with this number; `None` if ExecuTorch writes no such type.
    pub fn from_number(number: i64) -> Option<Self> {
        TABLE
            .iter()
            .map(|row| row.0)
            .find(|scalar| i64::from(scalar.number()) == number)
    }

    /// Its number, as compiled code and files hold it.
    pub fn number(self) -> i32 {
        self as i32
    }

    /// Its name in PyTorch, without the `torch.`.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Bytes of one element.
    pub fn itemsize(self) -> u64 {
        self.row().2
    }

    /// How its numbers are made of bits, of the floating-point types that may be packed.
    pub fn form(self) -> Option<NumberForm> {
        match self {
            ScalarType::BF16 => Some(NumberForm::Bf16),
            ScalarType::F16 => Some(NumberForm::F16),
            ScalarType::F32 => Some(NumberForm::F32),
            ScalarType::F8E4M3FN | ScalarType::F8E4M3FNUZ => Some(NumberForm::F8E4M3),
            ScalarType::F8E5M2 | ScalarType::F8E5M2FNUZ => Some(NumberForm::F8E5M2),
            _ => None,
        }
    }

    fn row(self) -> &'static (ScalarType, &'static str, u64) {
        // Every variant stands in the table: a test walks the numbers.
        TABLE.iter().find(|row| row.0 == self).unwrap_or(&TABLE[0])
    }

    /// Bytes of a dense tensor of these sizes; `None` if a size is negative or the product does not fit.
    pub fn dense_bytes<I>(self, sizes: I) -> Option<u64>
    where
        I: IntoIterator<Item = i64>,
    {
        let mut bytes = self.itemsize();
        let mut empty = false;
        for size in sizes {
            let size = u64::try_from(size).ok()?;
            // A zero anywhere makes the tensor empty, whatever the other sizes multiply to.
            empty |= size == 0;
            bytes = bytes.checked_mul(size.max(1))?;
        }
        Some(if empty { 0 } else { bytes })
    }
}

impl fmt::Display for ScalarType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Sizes (or strides) as PyTorch prints them: `[2, 3]`.
pub fn sizes_text(sizes: &[i64]) -> String {
    format!("{sizes:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_its_own_row() {
        let numbers: Vec<i32> = TABLE.iter().map(|row| row.0.number()).collect();
        let mut sorted = numbers.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted, numbers, "in order, none twice");
        for row in &TABLE {
            assert_eq!(
                ScalarType::from_number(i64::from(row.0.number())),
                Some(row.0)
            );
            assert_eq!((row.0.name(), row.0.itemsize()), (row.1, row.2));
            let form = row.0.form().map(NumberForm::bytes);
            assert!(form.is_none_or(|bytes| bytes as u64 == row.2));
        }
    }

    #[test]
    fn numbers_without_a_type_are_refused() {
        for number in [-1, 8, 9, 10, 18, 21, 30, 256, i64::MAX] {
            assert_eq!(ScalarType::from_number(number), None, "{number}");
        }
        assert_eq!(ScalarType::from_number(15), Some(ScalarType::BF16));
        assert_eq!(ScalarType::from_number(4), Some(ScalarType::I64));
    }

    #[test]
    fn dense_bytes_are_checked() {
        assert_eq!(ScalarType::F32.dense_bytes([2, 3]), Some(24));
        assert_eq!(ScalarType::F64.dense_bytes([]), Some(8));
        assert_eq!(ScalarType::F32.dense_bytes([5, 0]), Some(0));
        assert_eq!(ScalarType::F32.dense_bytes([-1]), None);
        assert_eq!(ScalarType::U8.dense_bytes([1 << 32, 1 << 32]), None);
        assert_eq!(sizes_text(&[2, 3]), "[2, 3]");
    }
}
