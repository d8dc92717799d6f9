//! The call in front of a weight's first reader.

use super::super::context::{Context, Shim};
use super::super::dtype::DType;
use super::super::slab::Handle;
use super::super::tensor::Owner;
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
    // A placeholder, of which nothing is used: to look at it would be to wait for memory that is in no cache.
    c.slab.check_tag(constant)?;
    let (slab, hooks) = c.parts()?;
    let ptr = hooks.probe(id)?;
    let made = hooks
        .probe_layout(id)
        .map_err(Into::into)
        .and_then(|layout| {
            let (owner, dtype) = (Owner::Lease(id), DType(layout.dtype));
            Ok(slab.insert_whole((owner, ptr), dtype, layout.sizes, layout.strides)?)
        });
    if made.is_err() {
        hooks.release(id);
    }
    made
}
