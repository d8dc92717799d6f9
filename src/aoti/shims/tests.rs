use std::ffi::c_void;

use super::super::context::{Context, TorchDevice};
use super::super::dtype::DType;
use super::super::hooks::{PassHooks, ProbeLayout};
use super::super::slab::{Handle, Slab};
use super::super::tensor::{contiguous_strides, Dims, Owner, Storage, Tensor};
use super::*;
use crate::device::DevicePtr;
use crate::error::{Error, Result};

#[test]
fn each_name_is_that_of_one_function() {
    let names = names();
    assert!(names.windows(2).all(|pair| pair[0] < pair[1]), "twice");
    assert!(names.iter().all(|name| lookup(name).is_some()));
    assert!(lookup("aoti_torch_no_such_function").is_none());
}

/// Serves one weight of 2 x 3 and keeps a log.
#[derive(Default)]
struct Fake {
    weight: [f32; 6],
    blocks: Vec<Box<[u64]>>,
    log: Vec<String>,
    broken_layout: bool,
    panics: bool,
}

impl PassHooks for Fake {
    fn probe(&mut self, id: i64) -> Result<DevicePtr> {
        self.log.push(format!("probe {id}"));
        Ok(DevicePtr(self.weight.as_ptr().expose_provenance() as u64))
    }
    fn probe_layout(&self, _: i64) -> Result<ProbeLayout<'_>> {
        let strides: &[i64] = if self.broken_layout { &[1] } else { &[3, 1] };
        Ok(ProbeLayout {
            dtype: 6,
            sizes: &[2, 3],
            strides,
        })
    }
    fn release(&mut self, id: i64) {
        assert!(!self.panics, "a broken hook");
        self.log.push(format!("release {id}"));
    }
    fn alloc_activation(&mut self, bytes: u64) -> Result<DevicePtr> {
        self.blocks
            .push(vec![0; bytes.div_ceil(8) as usize].into_boxed_slice());
        let block = self.blocks.last().map(|b| b.as_ptr().expose_provenance());
        self.log.push(format!("alloc {bytes}"));
        Ok(DevicePtr(block.unwrap_or_default() as u64))
    }
    fn free_activation(&mut self, _: DevicePtr, bytes: u64) {
        self.log.push(format!("free {bytes}"));
    }
}

/// The function `name` as the given type.
macro_rules! shim {
    ($name:ident: $($type:tt)*) => {{
        let address: *const c_void = lookup(stringify!($name)).expect(stringify!($name));
        // SAFETY: the table's function has the signature that is written here.
        unsafe { std::mem::transmute::<*const c_void, $($type)*>(address) }
    }};
}

type Empty = unsafe extern "C" fn(i64, *const i64, *const i64, i32, i32, i32, *mut Handle) -> i32;
type View1 = unsafe extern "C" fn(Handle, i64, i64, i64, *mut Handle) -> i32;

fn delete(handle: Handle) -> i32 {
    shim!(aoti_torch_delete_tensor_object: extern "C" fn(Handle) -> i32)(handle)
}

fn probe(constant: Handle, id: i64) -> std::result::Result<Handle, i32> {
    let mut out = Handle::NULL;
    match shim!(aoti_torch_cpu_probe: extern "C" fn(Handle, i64, *mut Handle) -> i32)(
        constant, id, &mut out,
    ) {
        0 => Ok(out),
        code => Err(code),
    }
}

fn input(context: &mut Context<'_>, values: &[f32], sizes: &[i64]) -> Handle {
    let ptr = DevicePtr(values.as_ptr().expose_provenance() as u64);
    let storage = Storage {
        owner: Owner::Borrowed,
        ptr,
        bytes: 4 * values.len() as u64,
    };
    let dims = Dims::new(sizes, &contiguous_strides(sizes)).unwrap();
    context
        .slab
        .insert(
            storage,
            Tensor {
                dtype: DType::F32,
                offset: 0,
                dims,
            },
        )
        .unwrap()
}

/// Runs `body` in a pass with one constant; gives the log and the pass's error.
fn pass(hooks: Fake, body: impl FnOnce(Handle)) -> (Vec<String>, Option<Error>, usize) {
    pass_on(TorchDevice::CPU, hooks, body)
}

fn pass_on(
    device: TorchDevice,
    hooks: Fake,
    body: impl FnOnce(Handle),
) -> (Vec<String>, Option<Error>, usize) {
    within(device, hooks, |context| {
        let constant = input(context, &[0.0], &[1]);
        context.with(|| body(constant));
        let error = context.take_error();
        context.discard(constant);
        error
    })
}

/// Runs `body` with the context of a pass on the host.
fn pass_with(
    hooks: Fake,
    body: impl FnOnce(&mut Context<'_>),
) -> (Vec<String>, Option<Error>, usize) {
    within(TorchDevice::CPU, hooks, |context| {
        body(context);
        context.take_error()
    })
}

fn within(
    device: TorchDevice,
    mut hooks: Fake,
    body: impl FnOnce(&mut Context<'_>) -> Option<Error>,
) -> (Vec<String>, Option<Error>, usize) {
    let mut slab = Slab::new();
    let mut context = Context::new(&mut slab, Some(&mut hooks), device);
    let error = body(&mut context);
    let left = context.slab.live();
    slab.validate().unwrap();
    (hooks.log, error, left)
}

#[test]
fn a_lease_lasts_until_the_last_view_of_a_probe_dies() {
    let (log, error, left) = pass(Fake::default(), |constant| {
        let weight = probe(constant, 4).unwrap();
        let mut row = Handle::NULL;
        let narrow = shim!(aoti_torch_cpu_narrow: View1);
        // SAFETY: a place for a handle.
        assert_eq!(unsafe { narrow(weight, 0, 1, 1, &mut row) }, 0);
        assert_eq!(delete(weight), 0);
        let mut at = std::ptr::null_mut::<f32>();
        let data = shim!(aoti_torch_get_data_ptr: extern "C" fn(Handle, *mut *mut f32) -> i32);
        assert_eq!(data(row, &mut at), 0);
        assert!(!at.is_null());
        assert_eq!(delete(row), 0);
    });
    assert_eq!(
        (log, error, left),
        (vec!["probe 4".into(), "release 4".into()], None, 0)
    );
}

#[test]
fn a_probe_that_cannot_be_made_a_tensor_ends_its_lease() {
    let hooks = Fake {
        broken_layout: true,
        ..Fake::default()
    };
    let (log, error, left) = pass(hooks, |constant| assert_eq!(probe(constant, 1), Err(1)));
    assert_eq!((log, left), (vec!["probe 1".into(), "release 1".into()], 0));
    assert!(
        matches!(error, Some(Error::Compiled { function, .. }) if function == "aoti_torch_cpu_probe")
    );
}

#[test]
fn a_probe_of_an_unknown_constant_asks_for_nothing() {
    let (log, error, _) = pass(Fake::default(), |_| {
        assert_eq!(probe(Handle(0x1234), 1), Err(1))
    });
    assert!(log.is_empty() && error.is_some());
}

#[test]
fn deleting_never_fails_towards_the_compiled_code() {
    let hooks = Fake {
        panics: true,
        ..Fake::default()
    };
    let (_, error, left) = pass(hooks, |constant| {
        let weight = probe(constant, 0).unwrap();
        assert_eq!(delete(weight), 0, "the hook panics");
        assert_eq!(delete(weight), 0, "deleted twice");
        assert_eq!(delete(Handle::NULL), 0);
    });
    assert_eq!(left, 0);
    assert!(error
        .unwrap()
        .to_string()
        .contains("panicked: a broken hook"));
    assert_eq!(delete(Handle(77)), 0, "outside a pass");
}

#[test]
fn windows_that_leave_a_weight_are_refused() {
    let (_, error, left) = pass(Fake::default(), |constant| {
        let weight = probe(constant, 0).unwrap();
        let (sizes, strides, mut out) = ([2i64, 3], [3i64, 1], Handle::NULL);
        type Reinterpret =
            unsafe extern "C" fn(Handle, i64, *const i64, *const i64, i64, *mut Handle) -> i32;
        let reinterpret = shim!(aoti_torch__reinterpret_tensor: Reinterpret);
        // SAFETY: lists of two values and a place for a handle.
        unsafe {
            assert_eq!(
                reinterpret(weight, 2, sizes.as_ptr(), strides.as_ptr(), 1, &mut out),
                1
            );
            assert_eq!(
                reinterpret(weight, 2, sizes.as_ptr(), strides.as_ptr(), -1, &mut out),
                1
            );
            assert_eq!(
                reinterpret(weight, -2, sizes.as_ptr(), strides.as_ptr(), 0, &mut out),
                1
            );
            assert_eq!(
                reinterpret(weight, 2, std::ptr::null(), strides.as_ptr(), 0, &mut out),
                1
            );
            assert_eq!(
                reinterpret(
                    weight,
                    2,
                    sizes.as_ptr(),
                    strides.as_ptr(),
                    0,
                    std::ptr::null_mut()
                ),
                1
            );
            assert_eq!(
                reinterpret(
                    weight,
                    1,
                    sizes.as_ptr(),
                    strides[1..].as_ptr(),
                    4,
                    &mut out
                ),
                0
            );
        }
        assert_eq!((delete(out), delete(weight)), (0, 0));
    });
    assert!(error
        .unwrap()
        .to_string()
        .contains("does not fit a storage of 24 bytes"));
    assert_eq!(
        left, 1,
        "the handle whose place was null: the pass reclaims it"
    );
}

#[test]
fn new_tensors_are_given_back() {
    let (log, error, left) = pass(Fake::default(), |constant| {
        let (sizes, mut out) = ([4i64, 0, 2], Handle::NULL);
        let empty = shim!(aoti_torch_empty_strided: Empty);
        // SAFETY: lists of the given lengths and a place for a handle.
        unsafe {
            assert_eq!(
                empty(1, sizes.as_ptr(), [1i64].as_ptr(), 6, 0, -1, &mut out),
                0
            );
            assert_eq!(delete(out), 0);
            assert_eq!(
                empty(3, sizes.as_ptr(), [2i64, 2, 1].as_ptr(), 6, 0, -1, &mut out),
                0,
                "no elements"
            );
            assert_eq!(delete(out), 0);
            assert_eq!(
                empty(1, sizes.as_ptr(), [1i64].as_ptr(), 6, 1, 0, &mut out),
                1,
                "another device"
            );
            assert_eq!(
                empty(1, sizes.as_ptr(), [1i64].as_ptr(), 99, 0, -1, &mut out),
                1,
                "no such dtype"
            );
        }
        let clone = shim!(aoti_torch_clone: extern "C" fn(Handle, *mut Handle) -> i32);
        assert_eq!(clone(constant, &mut out), 0);
        assert_eq!(delete(out), 0);
    });
    assert_eq!(log, ["alloc 16", "free 16", "alloc 4", "free 4"]);
    assert!(error.unwrap().to_string().contains("device type 1"));
    assert_eq!(left, 0);
}

#[test]
fn a_result_that_cannot_be_filled_is_given_back() {
    let (log, error, left) = pass(Fake::default(), |constant| {
        let mut complex = Handle::NULL;
        let view = shim!(aoti_torch_cpu_view_dtype: extern "C" fn(Handle, i32, *mut Handle) -> i32);
        assert_eq!(view(constant, 8, &mut complex), 0, "float32 as complex32");
        let mut out = Handle::NULL;
        let scan =
            shim!(aoti_torch_cpu_logcumsumexp: extern "C" fn(Handle, i64, *mut Handle) -> i32);
        assert_eq!(scan(complex, 0, &mut out), 1);
        assert_eq!((out, delete(complex)), (Handle::NULL, 0));
    });
    assert_eq!(log, ["alloc 4", "free 4"]);
    assert!(error
        .unwrap()
        .to_string()
        .contains("complex32 are not supported"));
    assert_eq!(left, 0);
}

fn draw(out: Handle, sizes: &[i64]) -> i32 {
    type Randint = unsafe extern "C" fn(Handle, i64, i64, *const i64, i64) -> i32;
    let randint = shim!(aoti_torch_cpu_randint_low_out: Randint);
    let count = sizes.len() as i64;
    // SAFETY: a list of the given length.
    unsafe { randint(out, i64::MIN, i64::MAX, sizes.as_ptr(), count) }
}

/// Two seeds of a new program.
fn seeds() -> [i64; 2] {
    let mut found = [0; 2];
    let (_, error, left) = pass(Fake::default(), |_| {
        let empty = shim!(aoti_torch_empty_strided: Empty);
        let item = shim!(aoti_torch_item_int64: extern "C" fn(Handle, *mut i64) -> i32);
        for seed in &mut found {
            let mut out = Handle::NULL;
            // SAFETY: no sizes and no strides, and a place for a handle.
            let code = unsafe { empty(0, [].as_ptr(), [].as_ptr(), 4, 0, -1, &mut out) };
            assert_eq!((code, draw(out, &[]), item(out, seed)), (0, 0, 0));
            assert_eq!(delete(out), 0);
        }
    });
    assert_eq!((error, left), (None, 0));
    found
}

#[test]
fn seeds_differ_from_draw_to_draw_and_are_the_same_in_each_new_program() {
    let [first, second] = seeds();
    assert_ne!(first, second);
    assert_eq!(seeds(), [first, second]);
}

#[test]
fn random_numbers_for_other_sizes_are_refused() {
    let (_, error, _) = pass(Fake::default(), |constant| {
        assert_eq!(draw(constant, &[2]), 1);
    });
    let text = error.map(|e| e.to_string()).unwrap_or_default();
    assert!(text.contains("[1] for [2]"), "{text}");
}

#[path = "conv_tests.rs"]
mod conv_tests;
