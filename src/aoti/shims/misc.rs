//! Gradient mode, checks and warnings.

use super::super::context;
use super::super::slab::Handle;
use super::args::{run, Text};
use super::table::shim_table;

shim_table! {
    aoti_torch_grad_mode_is_enabled, aoti_torch_grad_mode_set_enabled, aoti_torch_check, aoti_torch_warn,
    aoti_torch_check_inf_and_nan,
}

extern "C" fn aoti_torch_grad_mode_is_enabled() -> bool {
    let mut enabled = false;
    context::enter("aoti_torch_grad_mode_is_enabled", |c| {
        enabled = c.grad_enabled;
        Ok(())
    });
    enabled
}

extern "C" fn aoti_torch_grad_mode_set_enabled(enabled: bool) {
    context::enter("aoti_torch_grad_mode_set_enabled", |c| {
        c.grad_enabled = enabled;
        Ok(())
    });
}

/// Keeps the failure of a check. It returns: the trampoline in the compiled library throws the exception
/// that ends the kernel, which must not come from here.
extern "C" fn aoti_torch_check(cond: bool, func: Text, _file: Text, _line: u32, msg: Text) {
    if !cond {
        context::enter("aoti_torch_check", |_| {
            Err(format!("in {}: {}", func.get(), msg.get()).into())
        });
    }
}

extern "C" fn aoti_torch_warn(func: Text, _file: Text, _line: u32, msg: Text) {
    log::warn!("{}: {}", func.get(), msg.get());
}

extern "C" fn aoti_torch_check_inf_and_nan(name: Text, tensor: Handle) -> i32 {
    run("aoti_torch_check_inf_and_nan", |c| {
        let view = c.view(tensor)?;
        if view.dtype.is_float() && view.read::<f64>()?.iter().any(|v| !v.is_finite()) {
            return Err(format!("{} holds an infinity or a NaN", name.get()).into());
        }
        Ok(())
    })
}
