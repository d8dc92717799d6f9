//! Matrix products.

use super::super::context::{Context, Shim};
use super::super::kernels::experts::{self, Matrices};
use super::super::kernels::gemm::{grouped, product, Affine};
use super::super::kernels::quantized;
use super::super::placed::Placed;
use super::super::slab::Handle;
use super::args::{run, Out};
use super::table::shim_table;

shim_table! {
    aoti_torch_cpu_mm_out, aoti_torch_cpu_addmm_out, aoti_torch_cpu_bmm_out, aoti_torch_cpu_baddbmm_out,
    aoti_torch_cpu__int_mm_out, aoti_torch__mm_plus_mm_out, aoti_torch_cpu_placed_expert_mm,
    aoti_torch_cpu_placed_expert_quantized_mm,
    aoti_torch_cpu_grouped_mm, aoti_torch_cpu_quantized_mm,
}

fn plain(c: &mut Context<'_>, out: Handle, a: Handle, b: Handle) -> Shim {
    Ok(product(
        &c.view(out)?,
        &c.view(a)?,
        &c.view(b)?,
        Affine::PRODUCT,
    )?)
}

fn sum(
    c: &mut Context<'_>,
    out: Handle,
    add: Handle,
    a: Handle,
    b: Handle,
    beta: f64,
    alpha: f64,
) -> Shim {
    let (add, out) = (c.view(add)?, c.view(out)?);
    Ok(product(
        &out,
        &c.view(a)?,
        &c.view(b)?,
        Affine {
            add: Some(&add),
            beta,
            alpha,
        },
    )?)
}

extern "C" fn aoti_torch_cpu_mm_out(out: Handle, a: Handle, b: Handle) -> i32 {
    run("aoti_torch_cpu_mm_out", |c| plain(c, out, a, b))
}

extern "C" fn aoti_torch_cpu_bmm_out(out: Handle, a: Handle, b: Handle) -> i32 {
    run("aoti_torch_cpu_bmm_out", |c| plain(c, out, a, b))
}

extern "C" fn aoti_torch_cpu__int_mm_out(out: Handle, a: Handle, b: Handle) -> i32 {
    run("aoti_torch_cpu__int_mm_out", |c| plain(c, out, a, b))
}

extern "C" fn aoti_torch_cpu_addmm_out(
    out: Handle,
    add: Handle,
    a: Handle,
    b: Handle,
    beta: f64,
    alpha: f64,
) -> i32 {
    run("aoti_torch_cpu_addmm_out", |c| {
        sum(c, out, add, a, b, beta, alpha)
    })
}

extern "C" fn aoti_torch_cpu_baddbmm_out(
    out: Handle,
    add: Handle,
    a: Handle,
    b: Handle,
    beta: f64,
    alpha: f64,
) -> i32 {
    run("aoti_torch_cpu_baddbmm_out", |c| {
        sum(c, out, add, a, b, beta, alpha)
    })
}

extern "C" fn aoti_torch__mm_plus_mm_out(
    out: Handle,
    a: Handle,
    b: Handle,
    x: Handle,
    y: Handle,
) -> i32 {
    run("aoti_torch__mm_plus_mm_out", |c| {
        plain(c, out, a, b)?;
        sum(c, out, out, x, y, 1.0, 1.0)
    })
}

/// Not PyTorch's: the operator `weightstream::grouped_mm` of our exporter.
extern "C" fn aoti_torch_cpu_grouped_mm(
    rows: Handle,
    matrices: Handle,
    offsets: Handle,
    ret: Out<Handle>,
) -> i32 {
    run("aoti_torch_cpu_grouped_mm", |c| {
        let (rows, matrices) = (c.view(rows)?, c.view(matrices)?);
        let ends = c.view(offsets)?.read::<i64>()?;
        if rows.ndim() != 2 || matrices.ndim() != 3 {
            let (rows, matrices) = (&rows.sizes, &matrices.sizes);
            return Err(
                format!("groups of {rows:?} by {matrices:?}; expected 2 and 3 dimensions").into(),
            );
        }
        let (fresh, out) = c.result(rows.dtype, &[rows.sizes[0], matrices.sizes[2]])?;
        let [handle] = c.filling([fresh], || Ok(grouped(&out, &rows, &matrices, &ends)?))?;
        ret.set(handle)
    })
}

/// Not PyTorch's: the operator `weightstream::quantized_mm` of our exporter.
extern "C" fn aoti_torch_cpu_quantized_mm(
    x: Handle,
    packed: Handle,
    scales: Handle,
    group: i64,
    ret: Out<Handle>,
) -> i32 {
    run("aoti_torch_cpu_quantized_mm", |c| {
        let (x, packed, scales) = (c.view(x)?, c.view(packed)?, c.view(scales)?);
        let mut sizes = x.sizes.clone();
        if let (Some(last), Some(rows)) = (sizes.last_mut(), packed.sizes.first()) {
            *last = *rows;
        }
        let (fresh, out) = c.result(x.dtype, &sizes)?;
        let compute = || Ok(quantized::product(&out, &x, &packed, &scales, group)?);
        let [handle] = c.filling([fresh], compute)?;
        ret.set(handle)
    })
}

fn by_experts(
    c: &mut Context<'_>,
    [x, numbers]: [Handle; 2],
    matrices: &Matrices,
    ret: Out<Handle>,
) -> Shim {
    let (x, numbers) = (c.view(x)?, c.view(numbers)?);
    let mut sizes = numbers.sizes.clone();
    sizes.push(matrices.columns());
    let numbers = numbers.read::<i64>()?;
    let (fresh, out) = c.result(x.dtype, &sizes)?;
    let compute = || Ok(experts::product(&out, &x, &numbers, matrices)?);
    let [handle] = c.filling([fresh], compute)?;
    ret.set(handle)
}

/// Matrices that lie where the runtime has said.
fn placed(c: &mut Context<'_>, matrices: Handle, places: Handle) -> Shim<Placed> {
    let (matrices, places) = (c.view(matrices)?, c.view(places)?);
    // SAFETY: the exporter says that each matrix lies in the tensor that follows its first one, and the runtime says of some that they are
    // in memory of the device.
    Ok(unsafe { Placed::new(matrices, places) }?)
}

/// Not PyTorch's: the operator `weightstream::placed_expert_mm` of our exporter.
extern "C" fn aoti_torch_cpu_placed_expert_mm(
    x: Handle,
    numbers: Handle,
    matrices: Handle,
    places: Handle,
    _each: i64,
    transposed: i32,
    ret: Out<Handle>,
) -> i32 {
    run("aoti_torch_cpu_placed_expert_mm", |c| {
        let (all, transposed) = (placed(c, matrices, places)?, transposed != 0);
        let matrices = Matrices::Dense { all, transposed };
        by_experts(c, [x, numbers], &matrices, ret)
    })
}

/// Not PyTorch's: the operator `weightstream::placed_expert_quantized_mm` of our exporter.
extern "C" fn aoti_torch_cpu_placed_expert_quantized_mm(
    x: Handle,
    numbers: Handle,
    packed: Handle,
    scales: Handle,
    places: Handle,
    scale_places: Handle,
    _each: i64,
    group: i64,
    ret: Out<Handle>,
) -> i32 {
    run("aoti_torch_cpu_placed_expert_quantized_mm", |c| {
        let packed = placed(c, packed, places)?;
        let scales = placed(c, scales, scale_places)?;
        let matrices = Matrices::Quantized {
            packed,
            scales,
            group,
        };
        by_experts(c, [x, numbers], &matrices, ret)
    })
}
