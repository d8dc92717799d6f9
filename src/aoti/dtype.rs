//! Scalar types in the numbering that PyTorch and ExecuTorch share, and element conversions.
#![deny(unsafe_code)]

use half::{bf16, f16};

/// A scalar type (`c10::ScalarType`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DType(pub i32);

impl DType {
    /// `uint8`
    pub const U8: DType = DType(0);
    /// `int8`
    pub const I8: DType = DType(1);
    /// `int16`
    pub const I16: DType = DType(2);
    /// `int32`
    pub const I32: DType = DType(3);
    /// `int64`
    pub const I64: DType = DType(4);
    /// `float16`
    pub const F16: DType = DType(5);
    /// `float32`
    pub const F32: DType = DType(6);
    /// `float64`
    pub const F64: DType = DType(7);
    /// `bool`
    pub const BOOL: DType = DType(11);
    /// `bfloat16`
    pub const BF16: DType = DType(15);
    /// `float8_e4m3fn`
    pub const F8E4M3FN: DType = DType(24);
    /// `uint16`
    pub const U16: DType = DType(27);
    /// `uint32`
    pub const U32: DType = DType(28);
    /// `uint64`
    pub const U64: DType = DType(29);

    /// Bytes of one element; `None` for a type that no plain tensor has.
    pub fn itemsize(self) -> Option<usize> {
        Some(match self.0 {
            0 | 1 | 11 | 23..=26 => 1,
            2 | 5 | 15 | 27 => 2,
            3 | 6 | 8 | 28 => 4,
            4 | 7 | 9 | 29 => 8,
            10 => 16,
            _ => return None,
        })
    }

    /// The name that PyTorch prints, for messages.
    pub fn name(self) -> &'static str {
        const NAMES: [&str; 12] = [
            "uint8",
            "int8",
            "int16",
            "int32",
            "int64",
            "float16",
            "float32",
            "float64",
            "complex32",
            "complex64",
            "complex128",
            "bool",
        ];
        match self.0 {
            15 => "bfloat16",
            23 => "float8_e5m2",
            24 => "float8_e4m3fn",
            25 => "float8_e5m2fnuz",
            26 => "float8_e4m3fnuz",
            27 => "uint16",
            28 => "uint32",
            29 => "uint64",
            n => NAMES.get(n as usize).copied().unwrap_or("unknown dtype"),
        }
    }

    /// Whether values are real floating-point numbers that [`Number`] can carry.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F16 | DType::F32 | DType::F64 | DType::BF16)
    }

    /// Whether values are integers (or booleans) that fit an `i64`.
    pub fn is_int(self) -> bool {
        matches!(
            self,
            DType::U8
                | DType::I8
                | DType::I16
                | DType::I32
                | DType::I64
                | DType::BOOL
                | DType::U16
                | DType::U32
        )
    }
}

/// A wide number that elements are computed in: `f64` for floating-point types, `i64` for the others.
/// Both hold every value of their narrow types exactly.
pub trait Number: Copy + PartialOrd + std::fmt::Debug + 'static {
    /// The neutral element of addition.
    const ZERO: Self;
    /// The neutral element of multiplication.
    const ONE: Self;
    /// Sum; integers wrap, as the compiled code's do.
    fn add(self, other: Self) -> Self;
    /// Product; integers wrap.
    fn mul(self, other: Self) -> Self;
    /// From an `f64`, rounding towards zero for integers.
    fn from_f64(value: f64) -> Self;
    /// To an `f64`.
    fn to_f64(self) -> f64;
    /// From an `i64`.
    fn from_i64(value: i64) -> Self;
    /// To an `i64`, rounding towards zero.
    fn to_i64(self) -> i64;
    /// Not a number.
    fn is_nan(self) -> bool;
    /// Quotient; integers round towards minus infinity, and division by zero gives zero.
    fn div(self, other: Self) -> Self;
}

impl Number for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
    fn add(self, other: f64) -> f64 {
        self + other
    }
    fn mul(self, other: f64) -> f64 {
        self * other
    }
    fn from_f64(value: f64) -> f64 {
        value
    }
    fn to_f64(self) -> f64 {
        self
    }
    fn from_i64(value: i64) -> f64 {
        value as f64
    }
    fn to_i64(self) -> i64 {
        self as i64
    }
    fn is_nan(self) -> bool {
        f64::is_nan(self)
    }
    fn div(self, other: f64) -> f64 {
        self / other
    }
}

impl Number for i64 {
    const ZERO: i64 = 0;
    const ONE: i64 = 1;
    fn add(self, other: i64) -> i64 {
        self.wrapping_add(other)
    }
    fn mul(self, other: i64) -> i64 {
        self.wrapping_mul(other)
    }
    fn from_f64(value: f64) -> i64 {
        value as i64
    }
    fn to_f64(self) -> f64 {
        self as f64
    }
    fn from_i64(value: i64) -> i64 {
        value
    }
    fn to_i64(self) -> i64 {
        self
    }
    fn is_nan(self) -> bool {
        false
    }
    fn div(self, other: i64) -> i64 {
        let quotient = self.checked_div(other).unwrap_or(0);
        let exact = other == 0 || self.wrapping_rem(other) == 0;
        if exact || (self < 0) == (other < 0) {
            quotient
        } else {
            quotient - 1
        }
    }
}

/// Reads one element of type `dtype` from the front of `bytes`.
pub fn load<N: Number>(dtype: DType, bytes: &[u8]) -> Option<N> {
    fn first<const B: usize>(bytes: &[u8]) -> Option<[u8; B]> {
        bytes.first_chunk::<B>().copied()
    }
    Some(match dtype {
        DType::F32 => N::from_f64(f32::from_le_bytes(first(bytes)?) as f64),
        DType::F64 => N::from_f64(f64::from_le_bytes(first(bytes)?)),
        DType::BF16 => N::from_f64(bf16::from_le_bytes(first(bytes)?).to_f64()),
        DType::F16 => N::from_f64(f16::from_le_bytes(first(bytes)?).to_f64()),
        DType::I64 => N::from_i64(i64::from_le_bytes(first(bytes)?)),
        DType::I32 => N::from_i64(i32::from_le_bytes(first(bytes)?) as i64),
        DType::I16 => N::from_i64(i16::from_le_bytes(first(bytes)?) as i64),
        DType::I8 => N::from_i64(*bytes.first()? as i8 as i64),
        DType::U8 => N::from_i64(*bytes.first()? as i64),
        DType::BOOL => N::from_i64((*bytes.first()? != 0) as i64),
        DType::U16 => N::from_i64(u16::from_le_bytes(first(bytes)?) as i64),
        DType::U32 => N::from_i64(u32::from_le_bytes(first(bytes)?) as i64),
        DType::U64 => N::from_i64(i64::try_from(u64::from_le_bytes(first(bytes)?)).ok()?),
        _ => return None,
    })
}

/// One element of type `dtype` holding `value`, in the first bytes of the array.
pub fn store<N: Number>(dtype: DType, value: N) -> Option<[u8; 8]> {
    fn pad<const B: usize>(bytes: [u8; B]) -> [u8; 8] {
        let mut all = [0; 8];
        all[..B].copy_from_slice(&bytes);
        all
    }
    Some(match dtype {
        DType::F32 => pad((value.to_f64() as f32).to_le_bytes()),
        DType::F64 => pad(value.to_f64().to_le_bytes()),
        // Through f32: the compiled code rounds twice as well.
        DType::BF16 => pad(bf16::from_f32(value.to_f64() as f32).to_le_bytes()),
        DType::F16 => pad(f16::from_f32(value.to_f64() as f32).to_le_bytes()),
        DType::I64 | DType::U64 => pad(value.to_i64().to_le_bytes()),
        DType::I32 | DType::U32 => pad((value.to_i64() as i32).to_le_bytes()),
        DType::I16 | DType::U16 => pad((value.to_i64() as i16).to_le_bytes()),
        DType::I8 | DType::U8 => pad((value.to_i64() as i8).to_le_bytes()),
        DType::BOOL => pad([(value.to_f64() != 0.0) as u8]),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_survives_a_round_trip() {
        for (dtype, value) in [
            (0, 200),
            (1, -7),
            (2, -300),
            (3, 1 << 30),
            (4, 1 << 60),
            (11, 1),
            (27, 60000),
        ] {
            let bytes = store(DType(dtype), value).unwrap();
            assert_eq!(
                load::<i64>(DType(dtype), &bytes),
                Some(value),
                "dtype {dtype}"
            );
        }
        for dtype in [DType::F16, DType::F32, DType::F64, DType::BF16] {
            let bytes = store(dtype, -1.5).unwrap();
            assert_eq!(load::<f64>(dtype, &bytes), Some(-1.5), "{}", dtype.name());
        }
        assert_eq!(
            load::<f64>(DType(9), &[0; 8]),
            None,
            "complex numbers are not carried"
        );
        assert_eq!(load::<f64>(DType::F32, &[0; 3]), None, "too few bytes");
    }

    #[test]
    fn integer_division_rounds_down() {
        assert_eq!(Number::div(-7i64, 2), -4);
        assert_eq!(Number::div(7i64, 2), 3);
        assert_eq!(Number::div(-8i64, 2), -4);
        assert_eq!(Number::div(1i64, 0), 0);
    }
}
