//! Numbers out of tensors, and tensors out of numbers.

use super::super::dtype::{DType, Number};
use super::super::slab::Handle;
use super::super::view::TensorView;
use super::args::{run, Out};
use super::table::shim_table;
use half::{bf16, f16};

shim_table! {
    aoti_torch_item_bfloat16, aoti_torch_item_bool, aoti_torch_item_float16, aoti_torch_item_float32,
    aoti_torch_item_float64, aoti_torch_item_int16, aoti_torch_item_int32, aoti_torch_item_int64,
    aoti_torch_item_int8, aoti_torch_item_uint16, aoti_torch_item_uint32, aoti_torch_item_uint64,
    aoti_torch_item_uint8, aoti_torch_scalar_to_tensor_bool, aoti_torch_scalar_to_tensor_float32,
    aoti_torch_scalar_to_tensor_float64, aoti_torch_scalar_to_tensor_int16,
    aoti_torch_scalar_to_tensor_int32, aoti_torch_scalar_to_tensor_int64, aoti_torch_scalar_to_tensor_int8,
    aoti_torch_scalar_to_tensor_uint16, aoti_torch_scalar_to_tensor_uint32,
    aoti_torch_scalar_to_tensor_uint64, aoti_torch_scalar_to_tensor_uint8,
}

fn single<N: Number>(view: &TensorView, dtype: DType) -> Result<N, String> {
    if view.dtype != dtype {
        return Err(format!(
            "the tensor is {}, not {}",
            view.dtype.name(),
            dtype.name()
        ));
    }
    match view.read::<N>()?[..] {
        [value] => Ok(value),
        _ => Err(format!(
            "a tensor of sizes {:?} is not one number",
            view.sizes
        )),
    }
}

macro_rules! items {
    ($($name:ident: $dtype:expr, $number:ty => $ctype:ty, $convert:expr;)*) => {$(
        extern "C" fn $name(tensor: Handle, ret: Out<$ctype>) -> i32 {
            run(stringify!($name), |c| {
                let value = single::<$number>(&c.view(tensor)?, $dtype)?;
                let convert: fn($number) -> $ctype = $convert;
                ret.set(convert(value))
            })
        }
    )*};
}

items! {
    aoti_torch_item_bfloat16: DType::BF16, f64 => u16, |v| bf16::from_f64(v).to_bits();
    aoti_torch_item_float16: DType::F16, f64 => u16, |v| f16::from_f64(v).to_bits();
    aoti_torch_item_float32: DType::F32, f64 => f32, |v| v as f32;
    aoti_torch_item_float64: DType::F64, f64 => f64, |v| v;
    aoti_torch_item_bool: DType::BOOL, i64 => bool, |v| v != 0;
    aoti_torch_item_int8: DType::I8, i64 => i8, |v| v as i8;
    aoti_torch_item_int16: DType::I16, i64 => i16, |v| v as i16;
    aoti_torch_item_int32: DType::I32, i64 => i32, |v| v as i32;
    aoti_torch_item_int64: DType::I64, i64 => i64, |v| v;
    aoti_torch_item_uint8: DType::U8, i64 => u8, |v| v as u8;
    aoti_torch_item_uint16: DType::U16, i64 => u16, |v| v as u16;
    aoti_torch_item_uint32: DType::U32, i64 => u32, |v| v as u32;
    aoti_torch_item_uint64: DType::U64, i64 => u64, |v| v as u64;
}

macro_rules! scalars {
    ($($name:ident: $ctype:ty, $dtype:expr, $number:ty, $convert:expr;)*) => {$(
        extern "C" fn $name(value: $ctype, ret: Out<Handle>) -> i32 {
            run(stringify!($name), |c| {
                let convert: fn($ctype) -> $number = $convert;
                let (fresh, view) = c.result($dtype, &[])?;
                let [handle] = c.filling([fresh], || Ok(view.write(&[convert(value)])?))?;
                ret.set(handle)
            })
        }
    )*};
}

scalars! {
    aoti_torch_scalar_to_tensor_float32: f32, DType::F32, f64, |v| v as f64;
    aoti_torch_scalar_to_tensor_float64: f64, DType::F64, f64, |v| v;
    aoti_torch_scalar_to_tensor_bool: bool, DType::BOOL, i64, |v| v as i64;
    aoti_torch_scalar_to_tensor_int8: i8, DType::I8, i64, |v| v as i64;
    aoti_torch_scalar_to_tensor_int16: i16, DType::I16, i64, |v| v as i64;
    aoti_torch_scalar_to_tensor_int32: i32, DType::I32, i64, |v| v as i64;
    aoti_torch_scalar_to_tensor_int64: i64, DType::I64, i64, |v| v;
    aoti_torch_scalar_to_tensor_uint8: u8, DType::U8, i64, |v| v as i64;
    aoti_torch_scalar_to_tensor_uint16: u16, DType::U16, i64, |v| v as i64;
    aoti_torch_scalar_to_tensor_uint32: u32, DType::U32, i64, |v| v as i64;
    aoti_torch_scalar_to_tensor_uint64: u64, DType::U64, i64, |v| v as i64;
}
