//! The call in front of a weight's first reader.

use super::super::context::{Context, Shim};
use super::super::dtype::DType;
use super::super::slab::Handle;
use super::super::tensor::{Dims, Owner, Storage, Tensor};
use super::args::{run, Out};
use super::shim_table;

shim_table! { aoti_torch_cpu_probe, aoti_torch_cuda_probe }

extern "C" fn aoti_torch_cpu_probe(constant: Handle, id: i64, ret: Out<Handle>) -> i32 {
    run("aoti_torch_cpu_probe", |c| ret.set(probe(c, constant, id)?))
}

extern "C" fn aoti_torch_cuda_probe(constant: Handle, id: i64, ret: Out<Handle>) -> i32 {
    run("aoti_torch_cuda_probe", |c| {
        ret.set(probe(c, constant, id)?)
    })
}

/// Asks the hooks for the weight and gives its recorded layout a handle, whose last copy ends the lease.
fn probe(c: &mut Context<'_>, constant: Handle, id: i64) -> Shim<Handle> {
    c.slab.tensor(constant)?; // a placeholder: only that it exists can be checked
    let (slab, hooks) = c.parts()?;
    let ptr = hooks.probe(id)?;
    let made = hooks
        .probe_layout(id)
        .map_err(Into::into)
        .and_then(|layout| {
            let (dtype, dims) = (
                DType(layout.dtype),
                Dims::new(layout.sizes, layout.strides)?,
            );
            let reach = dims.reach().ok_or("the recorded sizes overflow")? as u64;
            let bytes = reach.saturating_mul(dtype.itemsize().unwrap_or(0) as u64);
            let storage = Storage {
                owner: Owner::Lease(id),
                ptr,
                bytes,
            };
            Ok(slab.insert(
                storage,
                Tensor {
                    dtype,
                    offset: 0,
                    dims,
                },
            )?)
        });
    if made.is_err() {
        hooks.release(id);
    }
    made
}
