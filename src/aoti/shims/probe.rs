//! The call before a weight's first reader.

use super::super::context::{Context, Shim};
use super::super::dtype::DType;
use super::super::hooks::PassHooks;
use super::super::slab::{Handle, Slab};
use super::super::tensor::Owner;
use super::args::{run, Out};
use super::table::shim_table;
use crate::device::DevicePtr;

shim_table! { aoti_torch_cpu_probe, aoti_torch_cuda_probe }

extern "C" fn aoti_torch_cpu_probe(constant: Handle, id: i64, ret: Out<Handle>) -> i32 {
    run("aoti_torch_cpu_probe", |c| ret.set(probe(c, constant, id)?))
}

extern "C" fn aoti_torch_cuda_probe(constant: Handle, id: i64, ret: Out<Handle>) -> i32 {
    run("aoti_torch_cuda_probe", |c| {
        ret.set(probe(c, constant, id)?)
    })
}

/// Asks the hooks for the weight and gives its recorded layout a handle, whose last copy ends the lease. Behind the first pass only
/// the address is new.
fn probe(c: &mut Context<'_>, constant: Handle, id: i64) -> Shim<Handle> {
    // A placeholder, of which nothing is used: to look at it would be to wait for memory that is in no cache.
    c.slab.check_tag(constant)?;
    let (slab, hooks) = c.parts()?;
    let ptr = hooks.probe(id)?;
    if let Some(handle) = slab.of_probe(id, ptr) {
        return Ok(handle);
    }
    let made = first_handle(slab, hooks, id, ptr);
    if made.is_err() {
        hooks.release(id);
    }
    made
}

#[cold]
fn first_handle(slab: &mut Slab, hooks: &dyn PassHooks, id: i64, ptr: DevicePtr) -> Shim<Handle> {
    let layout = hooks.probe_layout(id)?;
    let (owner, dtype) = (Owner::Lease(id), DType(layout.dtype));
    let handle = slab.insert_whole((owner, ptr), dtype, layout.sizes, layout.strides)?;
    slab.keep_for_probe(id, handle)?;
    Ok(handle)
}
