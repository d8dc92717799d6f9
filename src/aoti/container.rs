//! A compiled program: its constants, and its runs.

use std::cell::RefCell;
use std::ffi::{c_char, CStr, CString};

use super::context::{outcome, Context, Fail, TorchDevice};
use super::dtype::DType;
use super::hooks::PassHooks;
use super::inputs::place_inputs;
use super::interface::{Functions, Opaque, Pair, ReturnCode};
use super::outputs::{finish, places, Outputs, Reader};
use super::registry::Library;
use super::slab::{Handle, Slab};
use super::tensor::{Dims, Owner, Storage, Tensor};
use crate::device::DevicePtr;
use crate::error::{Error, Result};
use crate::figures::DeviceId;

pub use super::inputs::Input;

/// What the compiled program says about one of its constants. It knows no sizes and no strides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConstantInfo {
    /// Name within the compiled code.
    pub name: String,
    /// Name within the model.
    pub fqn: String,
    /// Scalar type.
    pub dtype: DType,
    /// `ConstantType`: 1 parameter, 2 buffer, 3 tensor literal, 4 folded.
    pub kind: i32,
    /// Bytes of storage, rounded up by the compiler.
    pub bytes: u64,
}

/// What a constant is while the program runs.
#[derive(Debug, Clone, Copy)]
pub enum Binding<'a> {
    /// Only ever passed to probes; needs no memory.
    Placeholder,
    /// Read, and perhaps written, where it lies. The address is taken once and for all.
    Direct {
        /// First byte, valid for the container's life.
        ptr: DevicePtr,
        /// Length.
        nbytes: u64,
        /// Sizes, outermost first.
        sizes: &'a [i64],
        /// Strides in elements.
        strides: &'a [i64],
    },
}

/// A compiled program, ready to run once its constants are bound. One thread at a time.
pub struct Container {
    functions: Functions,
    handle: Opaque,
    slab: Slab,
    device: TorchDevice,
    /// For outputs in device memory; kept for the next run.
    staging: Vec<u8>,
    /// State of random numbers, from one run to the next.
    random: u64,
    constants: Vec<ConstantInfo>,
    bound: Vec<Handle>,
    inputs: Vec<Handle>,
    outputs: Vec<Handle>,
    placeholder: Box<[u32; 1]>,
}

// SAFETY: the compiled container keeps no thread's state between calls, and `&mut self` keeps two threads
// from calling it at once.
unsafe impl Send for Container {}

impl Container {
    /// Makes the library's container for `device` and reads its list of constants.
    /// A CUDA device's primary context must be current, here and in every later call; the end needs none, as
    /// the container has neither events nor memory of its own.
    pub fn new(library: &'static Library, device: DeviceId) -> Result<Container> {
        let functions = Functions::find(library)?;
        let place = TorchDevice::from(device);
        let name = CString::new(device.to_string())
            .map_err(|_| Error::Internal("a null byte in a device name".into()))?;
        let mut container = Container {
            functions,
            handle: std::ptr::null_mut(),
            slab: Slab::new(),
            device: place,
            staging: Vec::new(),
            random: 0,
            constants: Vec::new(),
            bound: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            placeholder: Box::new([0]),
        };
        let (create, handle) = (container.functions.create, &raw mut container.handle);
        let mut context = Context::new(&mut container.slab, None, place);
        // SAFETY: a place for the handle and a terminated name; a null directory means "no cubins beside".
        let code = context.with(|| unsafe { create(handle, 1, name.as_ptr(), std::ptr::null()) });
        outcome(
            &mut context,
            "AOTInductorModelContainerCreateWithDevice",
            code,
        )?;
        container.read_lists()?;
        Ok(container)
    }

    /// The program's constants, in its own order.
    pub fn constants(&self) -> &[ConstantInfo] {
        &self.constants
    }

    /// Number of inputs of a run.
    pub fn num_inputs(&self) -> usize {
        self.inputs.len()
    }

    /// Number of outputs of a run.
    pub fn num_outputs(&self) -> usize {
        self.outputs.len()
    }

    /// Tensor handles alive, constants not counted: zero between runs.
    pub fn live_handles(&self) -> usize {
        self.slab.live()
    }

    /// Binds every constant; `bindings` are in the order of [`Container::constants`].
    ///
    /// # Safety
    /// Memory of direct constants must stay valid and in place until this value is dropped or binds others.
    pub unsafe fn bind_constants(&mut self, bindings: &[Binding<'_>]) -> Result<()> {
        check_count("constants", self.constants.len(), bindings.len())?;
        let before = std::mem::take(&mut self.bound);
        let mut given = Vec::with_capacity(bindings.len());
        let made = bindings.iter().enumerate().try_for_each(|(i, binding)| {
            given.push(self.constant_handle(i, binding)?);
            Ok(())
        });
        let result = made.and_then(|()| self.update(&given));
        // The compiled code made a handle of its own from each given one.
        let taken = self.slab.leftovers();
        for handle in &taken {
            self.slab.keep(*handle).map_err(Error::Internal)?;
        }
        let mut unused = given;
        // After a failure the compiled code may hold some of its old handles and of the new ones: they stay until
        // the slab ends, and the program stays unbound.
        if result.is_ok() {
            // Code of torch 2.15 deletes what it made before, older code leaves it.
            unused.extend(before.into_iter().filter(|old| self.slab.is_live(*old)));
        }
        unused
            .into_iter()
            .try_for_each(|handle| self.slab.delete(handle).map(drop))
            .map_err(Error::Internal)?;
        result?;
        check_count("constants", self.constants.len(), taken.len())?;
        self.bound = taken;
        Ok(())
    }

    fn constant_handle(&mut self, index: usize, binding: &Binding<'_>) -> Result<Handle> {
        let info = &self.constants[index];
        let (ptr, bytes, dtype, dims) = match *binding {
            Binding::Placeholder => {
                let ptr = DevicePtr(self.placeholder.as_ptr().expose_provenance() as u64);
                (ptr, 4, DType::U8, Dims::contiguous(&[4]))
            }
            Binding::Direct {
                ptr,
                nbytes,
                sizes,
                strides,
            } => (ptr, nbytes, info.dtype, Dims::new(sizes, strides)),
        };
        let made = dims.and_then(|dims| {
            let storage = Storage {
                owner: Owner::Borrowed,
                ptr,
                bytes,
            };
            let handle = self.slab.insert(
                storage,
                Tensor {
                    dtype,
                    offset: 0,
                    dims,
                },
            )?;
            self.slab.keep(handle)?;
            Ok(handle)
        });
        made.map_err(|what| Error::Mismatch {
            name: info.fqn.clone(),
            fact: "layout",
            expected: format!("one within its {bytes} bytes"),
            found: what,
        })
    }

    fn update(&mut self, handles: &[Handle]) -> Result<()> {
        let names: Vec<_> = self
            .constants
            .iter()
            .map(|info| CString::new(info.name.as_str()).unwrap_or_default())
            .collect();
        let pairs: Vec<_> = names
            .iter()
            .zip(handles)
            .map(|(name, handle)| Pair {
                name: name.as_ptr(),
                handle: *handle,
            })
            .collect();
        let (update, own) = (self.functions.update, self.handle);
        let mut context = Context::new(&mut self.slab, None, self.device);
        // SAFETY: the pairs and the names they point to live during the call, which copies the names and
        // makes handles of its own.
        let code =
            context.with(|| unsafe { update(own, pairs.as_ptr(), pairs.len(), false, true) });
        outcome(
            &mut context,
            "AOTInductorModelContainerUpdateUserManagedConstantBufferPairs",
            code,
        )
    }

    /// Runs the program once. `take` gets the outputs while they live; their handles are deleted, and the
    /// leases they hold end, before this returns. The hooks are called from within, on this thread.
    ///
    /// # Safety
    /// The inputs' memory must be as described, and what `hooks` answers must be true.
    pub unsafe fn run(
        &mut self,
        hooks: &mut dyn PassHooks,
        inputs: &[Input<'_>],
        take: impl FnOnce(&Outputs<'_>) -> Result<()>,
    ) -> Result<()> {
        check_count("inputs", self.inputs.len(), inputs.len())?;
        if self.bound.len() != self.constants.len() {
            return Err(Error::Internal(
                "the program ran before its constants were bound".into(),
            ));
        }
        self.outputs.fill(Handle::NULL);
        let stream = hooks.stream();
        let mut context = Context::new(&mut self.slab, Some(hooks), self.device);
        context.random = self.random;
        let result = place_inputs(&mut context, inputs, &mut self.inputs).and_then(|()| {
            let (run, own, none) = (self.functions.run, self.handle, std::ptr::null_mut());
            let (ins, outs) = (&mut self.inputs, &mut self.outputs);
            // SAFETY: as many handles as the container asked for; it takes the inputs and writes outputs.
            let code = context.with(|| unsafe {
                run(
                    own,
                    ins.as_mut_ptr(),
                    ins.len(),
                    outs.as_mut_ptr(),
                    outs.len(),
                    stream,
                    none,
                )
            });
            outcome(
                &mut context,
                "AOTInductorModelContainerRunSingleThreaded",
                code,
            )
        });
        self.random = context.random;
        let result = result.and_then(|()| {
            let places = places(&context, &self.outputs)?;
            let on_host = context.device.is_host();
            let (slab, hooks) = context.parts().map_err(Fail::into_error)?;
            let staging = &mut self.staging;
            let reader = RefCell::new(Reader { hooks, staging });
            let reader = (!on_host).then_some(&reader);
            take(&Outputs::new(slab, &self.outputs, &places, reader)?)
        });
        finish(&mut context, &mut self.outputs, result)
    }

    fn read_lists(&mut self) -> Result<()> {
        let f = &self.functions;
        let count = self.get("GetNumConstants", f.num_constants, 0)?;
        let inputs = self.get("GetNumInputs", f.num_inputs, 0)?;
        let outputs = self.get("GetNumOutputs", f.num_outputs, 0)?;
        self.constants = (0..count)
            .map(|i| self.constant_info(i))
            .collect::<Result<_>>()?;
        self.inputs = vec![Handle::NULL; inputs];
        self.outputs = vec![Handle::NULL; outputs];
        Ok(())
    }

    fn constant_info(&self, index: usize) -> Result<ConstantInfo> {
        let f = &self.functions;
        let name = self.text("GetConstantName", f.constant_name, index)?;
        let fqn = self.text("GetConstantOriginalFQN", f.constant_fqn, index)?;
        if self.get_at("GetConstantFromFolded", f.constant_folded, index, false)? {
            let name = if fqn.is_empty() { name } else { fqn };
            return Err(Error::Unsupported(format!(
                "constant '{name}' is computed by the compiled code (constant folding), so its bytes are in \
                 no file; export again with use_runtime_constant_folding=False"
            )));
        }
        Ok(ConstantInfo {
            kind: self.get_at("GetConstantType", f.constant_kind, index, 0)?,
            dtype: DType(self.get_at("GetConstantDtype", f.constant_dtype, index, 0)?),
            bytes: self.get_at("GetConstantDataSize", f.constant_bytes, index, 0)? as u64,
            name,
            fqn,
        })
    }

    fn get<T>(
        &self,
        what: &str,
        function: unsafe extern "C" fn(Opaque, *mut T) -> ReturnCode,
        mut value: T,
    ) -> Result<T> {
        // SAFETY: the container is alive and `value` is a place for the answer.
        let code = unsafe { function(self.handle, &mut value) };
        answered(what, code)?;
        Ok(value)
    }

    fn get_at<T>(
        &self,
        what: &str,
        function: unsafe extern "C" fn(Opaque, usize, *mut T) -> ReturnCode,
        index: usize,
        mut value: T,
    ) -> Result<T> {
        // SAFETY: the container is alive, the index within its constants, and `value` a place for the answer.
        let code = unsafe { function(self.handle, index, &mut value) };
        answered(what, code)?;
        Ok(value)
    }

    fn text(
        &self,
        what: &str,
        function: unsafe extern "C" fn(Opaque, usize, *mut *const c_char) -> ReturnCode,
        index: usize,
    ) -> Result<String> {
        let text = self.get_at(what, function, index, std::ptr::null())?;
        if text.is_null() {
            return Ok(String::new());
        }
        // SAFETY: a terminated text that lives as long as the container.
        Ok(unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned())
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if self.handle.is_null() {
            return;
        }
        let (delete, own) = (self.functions.delete, self.handle);
        let mut context = Context::new(&mut self.slab, None, self.device);
        // SAFETY: made by `create`, deleted once. What it deletes of its constants' handles is in the slab still.
        let code = context.with(|| unsafe { delete(own) });
        if let Err(error) = outcome(&mut context, "AOTInductorModelContainerDelete", code) {
            log::error!("{error}");
        }
    }
}

impl std::fmt::Debug for Container {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Container")
            .field("constants", &self.constants.len())
            .finish_non_exhaustive()
    }
}

fn answered(what: &str, code: ReturnCode) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    let what_failed = format!("it returned {code} and wrote the reason to stderr");
    Err(Error::Compiled {
        function: format!("AOTInductorModelContainer{what}"),
        what: what_failed,
    })
}

fn check_count(what: &str, expected: usize, found: usize) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    Err(Error::InvalidInput(format!(
        "the program has {expected} {what}, and {found} were given"
    )))
}
