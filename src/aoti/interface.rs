//! The functions that every compiled library exports, as Inductor's runtime declares them.

use std::ffi::{c_char, c_void, CString};

use super::registry::Library;
use super::slab::Handle;
use crate::error::Result;

/// A handle or pointer that only the compiled code looks into.
pub(super) type Opaque = *mut c_void;
/// 0, or an error whose text went to stderr.
pub(super) type ReturnCode = i32;

/// A constant's name within the compiled code, and its new handle.
#[repr(C)]
pub(super) struct Pair {
    pub(super) name: *const c_char,
    pub(super) handle: Handle,
}

/// Declares the container's functions (`torch/csrc/inductor/aoti_runtime/interface.h`) and finds them all.
macro_rules! functions {
    ($($field:ident = $symbol:ident($($arg:ty),*);)*) => {
        /// The container's functions in one library.
        pub(super) struct Functions {
            $(pub(super) $field: unsafe extern "C" fn($($arg),*) -> ReturnCode,)*
        }

        impl Functions {
            /// All of them, or an error naming the one that is missing.
            pub(super) fn find(library: &Library) -> Result<Functions> {
                $(
                    let name = CString::new(stringify!($symbol)).unwrap_or_default();
                    let address = library.symbol(&name)?;
                    // SAFETY: Inductor's runtime defines this symbol with this signature in every
                    // library it compiles.
                    let $field = unsafe {
                        std::mem::transmute::<Opaque, unsafe extern "C" fn($($arg),*) -> ReturnCode>(address)
                    };
                )*
                Ok(Functions { $($field),* })
            }
        }
    };
}

functions! {
    create = AOTInductorModelContainerCreateWithDevice(*mut Opaque, usize, *const c_char, *const c_char);
    delete = AOTInductorModelContainerDelete(Opaque);
    run = AOTInductorModelContainerRunSingleThreaded(
        Opaque, *mut Handle, usize, *mut Handle, usize, Opaque, Opaque);
    num_constants = AOTInductorModelContainerGetNumConstants(Opaque, *mut usize);
    constant_name = AOTInductorModelContainerGetConstantName(Opaque, usize, *mut *const c_char);
    constant_fqn = AOTInductorModelContainerGetConstantOriginalFQN(Opaque, usize, *mut *const c_char);
    constant_folded = AOTInductorModelContainerGetConstantFromFolded(Opaque, usize, *mut bool);
    constant_kind = AOTInductorModelContainerGetConstantType(Opaque, usize, *mut i32);
    constant_dtype = AOTInductorModelContainerGetConstantDtype(Opaque, usize, *mut i32);
    constant_bytes = AOTInductorModelContainerGetConstantDataSize(Opaque, usize, *mut usize);
    update = AOTInductorModelContainerUpdateUserManagedConstantBufferPairs(
        Opaque, *const Pair, usize, bool, bool);
    num_inputs = AOTInductorModelContainerGetNumInputs(Opaque, *mut usize);
    num_outputs = AOTInductorModelContainerGetNumOutputs(Opaque, *mut usize);
}
