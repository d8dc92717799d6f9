//! The bridge to the C++ adapter of ExecuTorch (`cpp/src/backend.cpp`), generated on both sides by cxx.
//! Errors cross as exceptions with their text; `last_status` holds the code of the last one.

use std::pin::Pin;
use std::sync::Arc;

use cxx::SharedPtr;

use super::allocator::{device_allocate, device_copy_in, device_copy_out, device_free};
use super::capi::ws_stats_data;
use super::named_data::{named_bytes, KeptBuffers, KeptData};
use super::specs::{check_defaults, get_default, options, set_defaults};
use super::status::{clear_error, crossing, last_status, set_error, Failure};
use super::types::{Counter, Input, NamedData, OutputSink, RuntimeSpec};
use crate::aoti::outputs::Output;
use crate::config;
use crate::delegate::{
    self, applies, mapped, place, program, Beside, DataSource, Delegate, InputTensor, LoadRequest,
    Memory, Program,
};
use crate::device::HostRoom;
use crate::elastic::Reorder;
use crate::error::Error;
use crate::format::{Records, Wiring};
use crate::system_memory;

#[cxx::bridge(namespace = "weightstream_bridge")]
#[allow(missing_docs, clippy::missing_safety_doc)]
mod ffi {
    unsafe extern "C++" {
        include!("weightstream/src/ffi/types.rs.h");
        include!("weightstream/weightstream.h");

        #[namespace = ""]
        type ws_stats_data = crate::ffi::capi::ws_stats_data;

        type RuntimeSpec = crate::ffi::types::RuntimeSpec;
        type Place = crate::ffi::types::Place;
        type Input<'a> = crate::ffi::types::Input<'a>;
        type Counter = crate::ffi::types::Counter;
        type NamedData = crate::ffi::types::NamedData;
        type OutputSink = crate::ffi::types::OutputSink;
    }

    /// A method of the program that was loaded before.
    struct Beside<'a> {
        loaded: &'a Loaded,
        /// The load begins a session of its own.
        new_session: bool,
    }

    /// One input of a method as callers in Python name it: see `Argument` of the record.
    struct CallInput {
        name: String,
        /// -1: a keyword.
        place: i64,
        /// Empty: a tensor.
        constant: String,
    }

    extern "Rust" {
        type Loaded;

        fn load(
            processed: &[u8],
            method: &str,
            program_at: &[usize],
            specs: Vec<RuntimeSpec>,
            program: Vec<RuntimeSpec>,
            named: SharedPtr<NamedData>,
            beside: &[Beside],
        ) -> Result<Box<Loaded>>;
        fn methods(pte: &str) -> Result<Vec<String>>;
        fn call_inputs(pte: &str, method: &str) -> Result<Vec<CallInput>>;
        fn reset_state(self: &Loaded) -> Result<()>;
        fn set_budget(self: &Loaded, bytes: u64) -> Result<()>;
        /// 0: to this priority; 1: first of its own; 2: last.
        fn reorder(self: &Loaded, to: i32, priority: i64) -> Result<()>;
        fn set_defaults(specs: Vec<RuntimeSpec>) -> Result<()>;
        fn get_default(key: &str) -> Result<RuntimeSpec>;
        fn check_defaults(specs: Vec<RuntimeSpec>) -> Result<()>;
        /// Runs the command `weightstream`; its exit status is `status`.
        fn command(arguments: &[String], status: &mut u8) -> Result<String>;
        fn check_files(pte: &str, ptd: &str, specs: Vec<RuntimeSpec>) -> Result<()>;
        fn check_options(specs: Vec<RuntimeSpec>) -> Result<()>;
        /// Least and largest size of each dimension, one after the other.
        fn input_range(pte: &str, method: &str, input: usize) -> Result<Vec<i64>>;
        fn check_plan(method: &str, bytes: u64) -> Result<()>;
        /// The places of the inputs and of the room must be what they say, during the call.
        unsafe fn execute(
            self: &Loaded,
            inputs: &[Input],
            outputs: Pin<&mut OutputSink>,
        ) -> Result<()>;
        fn stats(self: &Loaded) -> Result<ws_stats_data>;
        fn counters(stats: &ws_stats_data) -> Vec<Counter>;
        fn stats_json(stats: &ws_stats_data, options: &str) -> String;
        fn options(self: &Loaded) -> &str;
        fn check_process(self: &Loaded) -> Result<()>;
        fn count_inputs_copied(self: &Loaded, count: u64);
        fn pack(
            dst: &mut [u8],
            src: &[u8],
            item: usize,
            sizes: &[i64],
            strides: &[i64],
        ) -> Result<()>;
        fn method(self: &Loaded) -> &str;
        fn device(self: &Loaded) -> &str;
        fn num_inputs(self: &Loaded) -> usize;
        fn input_name(self: &Loaded, index: usize) -> String;
        fn output_name(self: &Loaded, index: usize) -> String;
        fn last_status() -> i32;
        fn set_error(text: &str);
        fn clear_error();

        fn device_allocate(index: i32, bytes: usize, alignment: usize) -> Result<usize>;
        fn device_free(index: i32, address: usize) -> Result<()>;
        /// Both must be what they say, during the call.
        unsafe fn device_copy_in(dst: Place, src: &[u8]) -> Result<()>;
        unsafe fn device_copy_out(dst: &mut [u8], src: Place) -> Result<()>;
    }
}

/// A delegate of an ExecuTorch program.
pub struct Loaded {
    delegate: Delegate,
}

fn load(
    processed: &[u8],
    method: &str,
    program_at: &[usize],
    specs: Vec<RuntimeSpec>,
    program: Vec<RuntimeSpec>,
    named: SharedPtr<NamedData>,
    beside: &[ffi::Beside],
) -> Result<Box<Loaded>, String> {
    super::log::install();
    crossing(|| {
        let given = options(specs)?;
        let keeper = KeptBuffers(named.clone());
        let named = named
            .as_ref()
            .ok_or_else(|| Error::Internal("no named data".to_owned()))?;
        let records = Records::from_payload("the delegate's payload", processed)?;
        let record = records.own();
        if record.method != method {
            return Err(Failure::from(Error::Mismatch {
                name: method.to_owned(),
                fact: "method of the delegate's payload",
                expected: method.to_owned(),
                found: record.method.clone(),
            }));
        }
        let texts = program
            .iter()
            .map(|spec| (spec.key.as_str(), spec.text.as_bytes()));
        let defaults = config::from_program(texts)?;
        let id = named_bytes(named, &record.build_id_key());
        let mapped = match (&given.data, &id) {
            (None, Ok(id)) => mapped::file_at(id.as_ptr() as usize)?,
            _ => None,
        };
        let options = given.with_defaults(&defaults, applies(record, mapped.is_some()))?;
        let kept = KeptData(named);
        let data = match options.data.clone().or(mapped) {
            Some(path) => DataSource::File(path),
            None if id.is_err() => return Err(Failure::from(no_weights(method))),
            None => DataSource::Kept(&kept, Arc::new(keeper)),
        };
        let library = |key: &str| named_bytes(named, key);
        // ExecuTorch calls the delegate by the program's wiring itself.
        let wiring = Wiring::of_delegate(record.inputs.len(), record.outputs.len());
        let place = match records.all().len() > 1 && beside.is_empty() {
            false => None,
            true => Some(place::program_at(program_at)?),
        };
        let request = LoadRequest {
            records,
            place,
            beside: beside.first().map(of),
            library: &library,
            data,
            wiring,
        };
        let delegate = Delegate::load(request, &options)?;
        Ok(Box::new(Loaded { delegate }))
    })
}

#[cfg(feature = "cli")]
fn command(arguments: &[String], status: &mut u8) -> Result<String, String> {
    crossing(|| {
        let arguments = arguments.iter().map(|argument| argument.into());
        let outcome = crate::command::run("weightstream", arguments);
        *status = outcome.status;
        Ok(outcome.text)
    })
}

#[cfg(not(feature = "cli"))]
fn command(_arguments: &[String], _status: &mut u8) -> Result<String, String> {
    crossing(|| {
        Err(Failure::from(Error::Unsupported(
            "this library was built without its command (the crate's feature `cli`)".to_owned(),
        )))
    })
}

/// See [`program::check_files`]. `specs` are all that the load will have: what is wrong with them is said first.
fn check_files(pte: &str, ptd: &str, specs: Vec<RuntimeSpec>) -> Result<(), String> {
    super::log::install();
    crossing(|| {
        let pin = options(specs)?.pte_sha256;
        Ok(program::check_files(pte.as_ref(), ptd.as_ref(), pin)?)
    })
}

/// Whether the options are right by themselves.
fn check_options(specs: Vec<RuntimeSpec>) -> Result<(), String> {
    crossing(|| {
        options(specs)?;
        Ok(())
    })
}

/// See [`Program::input_range`](crate::delegate::Program::input_range).
fn input_range(pte: &str, method: &str, input: usize) -> Result<Vec<i64>, String> {
    crossing(|| {
        let ranges = Program::open(pte.as_ref())?.input_range(method, input)?;
        let sizes = ranges.into_iter().flat_map(|(least, most)| [least, most]);
        Ok(sizes.collect())
    })
}

/// Whether there is memory for what ExecuTorch takes on the host when it loads a method. Of a little the system is not asked:
/// where it does not tell, only large plans are refused.
fn check_plan(method: &str, bytes: u64) -> Result<(), String> {
    const LITTLE: u64 = 64 << 20;
    crossing(|| match bytes <= LITTLE {
        true => Ok(()),
        false => Ok(system_memory::available()?.check_plan(method, bytes)?),
    })
}

fn of<'a>(beside: &ffi::Beside<'a>) -> Beside<'a> {
    match beside.new_session {
        false => Beside::Session(&beside.loaded.delegate),
        true => Beside::NewSession(&beside.loaded.delegate),
    }
}

/// The methods of a program that run here, in the order of their names.
fn methods(pte: &str) -> Result<Vec<String>, String> {
    crossing(|| Ok(program::Program::open(pte.as_ref())?.methods()?))
}

/// The inputs of a method in its order; none if the exporter did not record their names.
fn call_inputs(pte: &str, method: &str) -> Result<Vec<ffi::CallInput>, String> {
    crossing(|| {
        let inputs = program::Program::open(pte.as_ref())?.call(method)?;
        let inputs = inputs.into_iter().map(|input| ffi::CallInput {
            name: input.name,
            place: input.place.map_or(-1, i64::from),
            constant: input.constant.unwrap_or_default(),
        });
        Ok(inputs.collect())
    })
}

impl Loaded {
    /// # Safety
    /// The places of the inputs, and those that `outputs` gives, must be what they say, and stay so during the
    /// call.
    unsafe fn execute(
        &self,
        inputs: &[Input<'_>],
        mut outputs: Pin<&mut OutputSink>,
    ) -> Result<(), String> {
        crossing(|| {
            // SAFETY: by this function's contract.
            let input = |input| unsafe { input_tensor(input) };
            let inputs: Vec<InputTensor<'_>> =
                inputs.iter().map(input).collect::<crate::Result<_>>()?;
            self.delegate.execute(&inputs, &mut |index, tensor| {
                // SAFETY: by this function's contract.
                unsafe { write(outputs.as_mut(), index, tensor) }
                    .map_err(|error| error.about(&self.delegate.output_name(index)))
            })?;
            Ok(())
        })
    }

    fn stats(&self) -> Result<ws_stats_data, String> {
        crossing(|| Ok(self.delegate.stats()?.into()))
    }

    fn options(&self) -> &str {
        self.delegate.options()
    }

    /// See [`Delegate::check_process`].
    fn check_process(&self) -> Result<(), String> {
        crossing(|| Ok(self.delegate.check_process()?))
    }

    fn reset_state(&self) -> Result<(), String> {
        crossing(|| Ok(self.delegate.reset_state()?))
    }

    fn set_budget(&self, bytes: u64) -> Result<(), String> {
        crossing(|| Ok(self.delegate.set_budget(bytes)?))
    }

    fn reorder(&self, to: i32, priority: i64) -> Result<(), String> {
        let to = match to {
            0 => Reorder::To(priority),
            1 => Reorder::First,
            _ => Reorder::Last,
        };
        crossing(|| Ok(self.delegate.reorder(to)?))
    }

    fn count_inputs_copied(&self, count: u64) {
        self.delegate.count_inputs_copied(count);
    }

    fn num_inputs(&self) -> usize {
        self.delegate.num_inputs()
    }

    fn input_name(&self, index: usize) -> String {
        self.delegate.input_name(index)
    }

    fn output_name(&self, index: usize) -> String {
        self.delegate.output_name(index)
    }

    fn method(&self) -> &str {
        self.delegate.method()
    }

    fn device(&self) -> &str {
        self.delegate.device()
    }
}

/// All counters by name, in the order of documentation.
fn counters(stats: &ws_stats_data) -> Vec<Counter> {
    let entries = stats.counters.entries();
    entries
        .map(|(name, value)| Counter { name, value })
        .collect()
}

/// See [`Stats::to_json`](crate::counters::Stats::to_json).
fn stats_json(stats: &ws_stats_data, options: &str) -> String {
    stats.counters.to_json(options)
}

/// Copies the elements of a strided tensor to row-major order.
fn pack(
    dst: &mut [u8],
    src: &[u8],
    item: usize,
    sizes: &[i64],
    strides: &[i64],
) -> Result<(), String> {
    crossing(|| Ok(delegate::pack(dst, src, item, sizes, strides)?))
}

/// # Safety
/// The input's place must be what it says, and stay so during `'a`.
unsafe fn input_tensor<'a>(input: &Input<'a>) -> crate::Result<InputTensor<'a>> {
    let place = input.place;
    let memory = match place.device_type {
        // SAFETY: readable host memory, by this function's contract.
        0 => Memory::Host(unsafe { std::slice::from_raw_parts(place.pointer(), place.bytes) }),
        // SAFETY: by this function's contract.
        _ => Memory::Device(unsafe { place.on_device() }?),
    };
    Ok(InputTensor {
        dtype: input.dtype,
        sizes: input.sizes,
        strides: Some(input.strides),
        memory,
    })
}

/// # Safety
/// The place that `outputs` gives must be what it says, and nobody else's during the call.
unsafe fn write(
    outputs: Pin<&mut OutputSink>,
    index: usize,
    tensor: &Output<'_>,
) -> crate::Result<()> {
    let mut strides = Vec::with_capacity(tensor.sizes.len());
    let place = outputs
        .room(index, tensor.dtype.0, tensor.sizes, &mut strides)
        .map_err(|error| Error::InvalidInput(error.to_string()))?;
    match place.device_type {
        0 => {
            // SAFETY: writable host memory that nobody else uses during the call, by this function's contract.
            let room = unsafe { HostRoom::new(place.pointer(), place.bytes) };
            tensor.copy_out(room, &strides)
        }
        // SAFETY: by this function's contract.
        _ => unsafe { place.on_device() }.and_then(|room| tensor.copy_to_caller(room, &strides)),
    }
}

fn no_weights(method: &str) -> Error {
    Error::Missing {
        name: format!("the weights of method '{method}'"),
        place: "what the runtime was given: they are in the .ptd that was saved with the .pte; give it to the runtime as the program's \
                data file, or its path as weight_offload_data (WEIGHTSTREAM_DATA in the environment)"
            .to_owned(),
    }
}
