//! Calls of the C interface with arguments made of bytes: NULL wherever a pointer can be, texts that are none, numbers
//! of items, sizes, strides and dtypes that no tensor has. Whatever the header says of a pointer that is not NULL
//! holds: arrays are as long as is said, or so long that they are refused before they are read.

use std::ffi::{c_char, c_void, CStr, CString};
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

use super::bytes::{Choices, EDGES};
use weightstream::ffi::capi::{
    ws_destroy, ws_execute, ws_execute_into, ws_init, ws_init_on_stream, ws_last_error, ws_model,
    ws_option, ws_options, ws_outputs, ws_outputs_count, ws_outputs_destroy, ws_outputs_get,
    ws_program, ws_required_budget, ws_stats, ws_stats_data, ws_stats_json, ws_tensor,
};
use weightstream::ffi::status::Status;

/// More items than an array is ever made for here; the interface refuses more than 65,536 of anything.
const TOO_MANY: [usize; 3] = [(1 << 16) + 1, usize::MAX, isize::MAX as usize];

/// Passes that went through, so that a test can see that some did.
pub static PASSES: AtomicU64 = AtomicU64::new(0);

/// A program on disk, and one that is loaded; both may be missing.
pub struct Live {
    pte: CString,
    ptd: CString,
    program: Vec<u8>,
    model: *mut ws_model,
}

impl Live {
    /// Nothing is there.
    pub fn none() -> Live {
        Live {
            pte: c"/nowhere.pte".into(),
            ptd: c"/nowhere.ptd".into(),
            program: vec![1; 100],
            model: null_mut(),
        }
    }

    /// Loads the method `forward`; panics if that fails.
    pub fn open(pte: &Path, ptd: &Path) -> Live {
        let text = |path: &Path| CString::new(path.to_str().unwrap()).unwrap();
        let mut live = Live {
            pte: text(pte),
            ptd: text(ptd),
            program: std::fs::read(pte).unwrap(),
            model: null_mut(),
        };
        let program = ws_program {
            data: null(),
            size: 0,
            path: live.pte.as_ptr(),
        };
        // SAFETY: all of them live, and `model` is a place for the answer.
        let status = unsafe {
            let forward = c"forward".as_ptr();
            ws_init(
                &program,
                live.ptd.as_ptr(),
                forward,
                null(),
                &mut live.model,
            )
        };
        assert_eq!(status, Status::Ok, "{}", last_error());
        live
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // SAFETY: NULL, or made by `ws_init` and used no more.
        unsafe { ws_destroy(self.model) };
    }
}

fn last_error() -> String {
    // SAFETY: the text is this thread's, and nothing replaces it during the copy.
    let text = unsafe { CStr::from_ptr(ws_last_error()) };
    text.to_str().expect("errors are UTF-8").to_owned()
}

/// A failure has a text, and none of them is a panic or a broken rule.
fn check(status: Status) -> bool {
    assert_ne!(status, Status::Internal, "{}", last_error());
    assert_ne!(status, Status::Poisoned, "{}", last_error());
    assert!(status == Status::Ok || !last_error().is_empty());
    status == Status::Ok
}

/// Makes a few calls.
pub fn run(live: &Live, bytes: &[u8]) {
    let mut choices = Choices(bytes);
    for _ in 0..4 {
        match choices.below(8) {
            0 => init(live, &mut choices),
            1 => required_budget(live, &mut choices),
            2..=4 => execute(live, &mut choices),
            5 => execute_into(live, &mut choices),
            6 => outputs_without_a_pass(&mut choices),
            _ => stats(live, &mut choices),
        }
    }
}

/// NULL, a few texts, or one that is not UTF-8.
fn text(choices: &mut Choices<'_>, right: &CStr) -> *const c_char {
    match choices.below(12) {
        0 => null(),
        1 => c"".as_ptr(),
        2 => c"\xff\xfe".as_ptr(),
        3 => c"weight_offload_budget_bytes".as_ptr(),
        _ => right.as_ptr(),
    }
}

fn option(choices: &mut Choices<'_>) -> ws_option {
    let keys = [
        c"weight_offload_budget_mb",
        c"weight_offload_budget_bytes",
        c"weight_offload_budget",
        c"weight_offload_policy",
        c"weight_offload_host",
        c"weight_offload_staging_mb",
        c"weight_offload_gather",
        c"weight_offload_device",
        c"weight_offload_verify",
        c"weight_offload_data",
    ];
    let texts = [
        c"auto",
        c"lru",
        c"off",
        c"load",
        c"18446744073709551616",
        c"-1",
    ];
    let (key, value) = (
        keys[choices.below(keys.len())],
        texts[choices.below(texts.len())],
    );
    ws_option {
        key: text(choices, key),
        kind: choices.below(4) as i32 - choices.below(2) as i32,
        number: EDGES[choices.below(EDGES.len())],
        text: text(choices, value),
    }
}

fn init(live: &Live, choices: &mut Choices<'_>) {
    let cut = choices.word() as usize % live.program.len();
    let mut damaged = live.program.clone();
    damaged[cut] ^= choices.byte();
    let (data, size): (*const c_void, usize) = match choices.below(5) {
        0 => (damaged.as_ptr().cast(), damaged.len()),
        1 => (live.program.as_ptr().cast(), cut),
        2 => (live.program.as_ptr().cast(), usize::MAX),
        _ => (null(), choices.below(2) * usize::MAX),
    };
    let program = ws_program {
        data,
        size,
        path: if data.is_null() || choices.below(8) == 0 {
            text(choices, &live.pte)
        } else {
            null()
        },
    };
    let items: Vec<_> = (0..choices.below(4)).map(|_| option(choices)).collect();
    let options = match choices.below(8) {
        0 => ws_options {
            items: null(),
            count: choices.below(3),
        },
        1 => ws_options {
            items: items.as_ptr(),
            count: TOO_MANY[choices.below(3)],
        },
        _ => ws_options {
            items: items.as_ptr(),
            count: items.len(),
        },
    };
    let untouched = 0x40 as *mut ws_model;
    let mut model = untouched;
    let place: *mut *mut ws_model = if choices.below(16) == 0 {
        null_mut()
    } else {
        &mut model
    };
    let program: *const _ = if choices.below(16) == 0 {
        null()
    } else {
        &program
    };
    let options: *const _ = if choices.chance() { null() } else { &options };
    let (ptd, method) = (text(choices, &live.ptd), text(choices, c"forward"));
    // SAFETY: every pointer is NULL or live, arrays are as long as is said or refused for their length, and NULL is
    // a stream.
    let status = unsafe {
        match choices.below(4) {
            0 => ws_init_on_stream(program, ptd, method, options, null_mut(), place),
            _ => ws_init(program, ptd, method, options, place),
        }
    };
    if check(status) {
        assert!(model != untouched && !model.is_null());
        // SAFETY: made just now.
        unsafe { ws_destroy(model) };
    } else {
        assert_eq!(model, untouched, "something was written on failure");
    }
}

fn required_budget(live: &Live, choices: &mut Choices<'_>) {
    let mut bytes = 77;
    let place: *mut u64 = if choices.below(8) == 0 {
        null_mut()
    } else {
        &mut bytes
    };
    let (path, method) = (text(choices, &live.pte), text(choices, c"forward"));
    // SAFETY: NULL or live.
    let status = unsafe { ws_required_budget(path, method, place) };
    assert!(
        check(status) || bytes == 77,
        "something was written on failure"
    );
}

/// A tensor that is mostly not what a program wants, over `memory` and `numbers`.
fn tensor(choices: &mut Choices<'_>, memory: &mut [u8], numbers: &[i64; 128]) -> ws_tensor {
    let small = |choices: &mut Choices<'_>| EDGES[choices.below(EDGES.len())] as i32;
    let (data, nbytes): (*mut c_void, usize) = match choices.below(8) {
        0 => (null_mut(), choices.word() as usize),
        // Refused before it is read.
        1 => (memory.as_mut_ptr().cast(), usize::MAX - choices.below(9)),
        2 => (
            memory.as_mut_ptr().cast(),
            choices.word() as usize % memory.len(),
        ),
        _ => (memory.as_mut_ptr().cast(), memory.len()),
    };
    ws_tensor {
        data,
        nbytes,
        dtype: if choices.below(4) == 0 {
            small(choices)
        } else {
            6
        },
        ndim: if choices.below(4) == 0 {
            small(choices)
        } else {
            2
        },
        sizes: if choices.below(12) == 0 {
            null()
        } else {
            numbers.as_ptr()
        },
        strides: if choices.below(3) > 0 {
            null()
        } else {
            numbers[64..].as_ptr()
        },
        device_type: if choices.below(8) == 0 {
            small(choices)
        } else {
            0
        },
        device_index: small(choices),
    }
}

/// Sizes and strides, more than `ndim` may be.
fn numbers(choices: &mut Choices<'_>) -> [i64; 128] {
    let mut numbers = [1; 128];
    (numbers[0], numbers[1], numbers[64]) = (5, 12, 12);
    for _ in 0..choices.below(4) {
        numbers[choices.below(128)] = EDGES[choices.below(EDGES.len())];
    }
    numbers
}

/// Tensors, and how many of them are said to be.
fn tensors(
    choices: &mut Choices<'_>,
    memory: &mut [u8],
    numbers: &[i64; 128],
) -> (Vec<ws_tensor>, usize) {
    let list: Vec<_> = (0..choices.below(3))
        .map(|_| tensor(choices, memory, numbers))
        .collect();
    let count = match choices.below(12) {
        0 => TOO_MANY[choices.below(3)],
        _ => list.len(),
    };
    (list, count)
}

fn pointer<T>(choices: &mut Choices<'_>, list: &[T]) -> *const T {
    match choices.below(12) {
        0 => null(),
        _ => list.as_ptr(),
    }
}

fn execute(live: &Live, choices: &mut Choices<'_>) {
    let shape = numbers(choices);
    let mut memory = vec![0; 240];
    let (list, count) = tensors(choices, &mut memory, &shape);
    let untouched = 0x40 as *mut ws_outputs;
    let mut outputs = untouched;
    let place: *mut *mut ws_outputs = if choices.below(16) == 0 {
        null_mut()
    } else {
        &mut outputs
    };
    let inputs = pointer(choices, &list);
    // SAFETY: NULL or live; arrays are as long as is said or refused for their length.
    let status = unsafe { ws_execute(live.model, inputs, count, place) };
    if !check(status) {
        assert_eq!(outputs, untouched, "something was written on failure");
        return;
    }
    PASSES.fetch_add(1, Ordering::Relaxed);
    look_at(outputs, choices);
    // SAFETY: made just now.
    unsafe { ws_outputs_destroy(outputs) };
}

/// Every index, and some that are none.
fn look_at(outputs: *const ws_outputs, choices: &mut Choices<'_>) {
    // SAFETY: live.
    let count = unsafe { ws_outputs_count(outputs) };
    for index in (0..count).chain([count, choices.word() as usize]) {
        let mut view = std::mem::MaybeUninit::<ws_tensor>::uninit();
        // SAFETY: live, and a place for a tensor.
        let status = unsafe { ws_outputs_get(outputs, index, view.as_mut_ptr()) };
        assert_eq!(check(status), index < count);
        if index < count {
            // SAFETY: written, as the call has succeeded; its data lives as long as the outputs.
            let bytes = unsafe {
                let view = view.assume_init();
                std::slice::from_raw_parts(view.data.cast::<u8>(), view.nbytes)
            };
            assert!(bytes.len() < 1 << 20);
        }
    }
    // SAFETY: a NULL place for the tensor.
    assert!(!check(unsafe { ws_outputs_get(outputs, 0, null_mut()) }));
}

fn execute_into(live: &Live, choices: &mut Choices<'_>) {
    let (shape, out_shape) = (numbers(choices), numbers(choices));
    let (mut memory, mut room) = (vec![0; 240], vec![0; 140]);
    let (inputs, num_inputs) = tensors(choices, &mut memory, &shape);
    // Only the call uses the memory of outputs, so there is one at most.
    let (mut outputs, mut num_outputs) = tensors(choices, &mut room, &out_shape);
    outputs.truncate(1);
    num_outputs = num_outputs
        .min(outputs.len())
        .max((num_outputs >> 17).min(1) * num_outputs);
    let (ins, outs) = (pointer(choices, &inputs), pointer(choices, &outputs));
    // SAFETY: as above.
    check(unsafe { ws_execute_into(live.model, ins, num_inputs, outs, num_outputs) });
}

fn outputs_without_a_pass(choices: &mut Choices<'_>) {
    // SAFETY: NULL is allowed or an error in each of them.
    unsafe {
        assert!(!check(ws_outputs_get(
            null(),
            choices.word() as usize,
            null_mut()
        )));
        assert_eq!(ws_outputs_count(null()), 0);
        ws_outputs_destroy(null_mut());
        ws_destroy(null_mut());
        assert!(!check(ws_execute(null_mut(), null(), 0, null_mut())));
    }
}

fn stats(live: &Live, choices: &mut Choices<'_>) {
    let mut room = [0x55_u64; 64];
    let size = match choices.below(3) {
        0 => EDGES[choices.below(EDGES.len())] as u64,
        1 => size_of::<ws_stats_data>() as u64,
        _ => choices.word() % 512,
    };
    room[0] = size;
    let place: *mut ws_stats_data = match choices.below(8) {
        0 => null_mut(),
        _ => room.as_mut_ptr().cast(),
    };
    // SAFETY: NULL or live; the library writes no more than it knows of, and there is room for more.
    let written = check(unsafe { ws_stats(live.model, place) });
    let known = size_of::<ws_stats_data>() as u64;
    let end = if written {
        size.min(known) as usize / 8
    } else {
        1
    };
    assert!(
        room[end.max(1)..].iter().all(|word| *word == 0x55),
        "written too far"
    );
    let mut json = null();
    let place: *mut *const c_char = if choices.chance() {
        null_mut()
    } else {
        &mut json
    };
    // SAFETY: NULL or live.
    if check(unsafe { ws_stats_json(live.model, place) }) {
        // SAFETY: valid until the next such call.
        assert!(unsafe { CStr::from_ptr(json) }.to_bytes().starts_with(b"{"));
    }
}
