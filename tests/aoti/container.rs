//! Programs compiled by Inductor, run without libtorch through hooks that notice misuse.

use crate::aoti_support::{Hooks, Model, Value};
use weightstream::aoti::container::{Binding, Container, Input};
use weightstream::aoti::dtype::DType;
use weightstream::aoti::{calls_of_last_pass, fail_call, registry};
use weightstream::figures::DeviceId;
use weightstream::Error;

const MODELS: [&str; 6] = ["mlp", "mlp_relu", "conv", "decoder", "ops", "same"];

/// The named model; the test ends here without Python.
macro_rules! open {
    ($name:expr) => {
        match Model::open($name) {
            Some(model) => model,
            None => return,
        }
    };
}

#[test]
fn outputs_are_those_of_eager() {
    for name in MODELS {
        let model = open!(name);
        let mut container = model.container();
        let mut hooks = Hooks::new(&model);
        for call in 0..model.calls.len() {
            model.check(&mut container, &mut hooks, call);
        }
        let probes = hooks.events.iter().filter(|e| e.0 == 'p').count();
        assert_eq!(
            probes,
            model.probes.len() * model.calls.len(),
            "{name}: each probe once per pass"
        );
        assert_eq!(hooks.events.len(), 2 * probes, "{name}: each lease ends");
    }
}

#[test]
fn every_failing_call_is_named_leaks_nothing_and_leaves_the_program_usable() {
    for name in MODELS {
        let model = open!(name);
        let mut container = model.container();
        let mut hooks = Hooks::new(&model);
        // The first run makes a few calls more: see the next test.
        model.check(&mut container, &mut hooks, 0);
        model.check(&mut container, &mut hooks, 0);
        let calls = calls_of_last_pass();
        assert!(calls > 3, "{name}: {calls} calls");
        for n in 1..=calls {
            fail_call(n);
            let result = model.run(&mut container, &mut hooks, &model.calls[0].0);
            fail_call(0);
            let named = matches!(&result, Err(Error::Compiled { function, what })
                if function.starts_with("aoti_torch_") && what.contains("a test made this call fail"));
            assert!(named, "{name}, call {n} of {calls}: {:?}", result.err());
            assert_eq!(container.live_handles(), 0, "{name}, call {n}");
            hooks.assert_idle();
            model.check(&mut container, &mut hooks, 0);
        }
    }
}

#[test]
fn a_failing_first_run_leaves_the_program_usable() {
    let model = open!("mlp");
    let mut hooks = Hooks::new(&model);
    model.check(&mut model.container(), &mut hooks, 0);
    for n in 1..=calls_of_last_pass() {
        let mut container = model.container();
        fail_call(n);
        let result = model.run(&mut container, &mut hooks, &model.calls[0].0);
        fail_call(0);
        assert!(matches!(result, Err(Error::Compiled { .. })), "call {n}");
        assert_eq!(container.live_handles(), 0, "call {n}");
        hooks.assert_idle();
        model.check(&mut container, &mut hooks, 0);
    }
}

#[test]
fn errors_of_the_hooks_arrive_as_they_are() {
    let model = open!("decoder");
    let mut container = model.container();
    for id in 0..model.probes.len() as i64 {
        let mut hooks = Hooks::new(&model);
        let error = Error::Divergence {
            position: 7,
            expected: "this".into(),
            found: format!("probe {id}"),
        };
        hooks.fail_probe = Some((id, error.clone()));
        assert_eq!(
            model
                .run(&mut container, &mut hooks, &model.calls[0].0)
                .err(),
            Some(error)
        );
        assert_eq!(container.live_handles(), 0);
        hooks.assert_idle();
    }
    for n in 0.. {
        let mut hooks = Hooks::new(&model);
        hooks.fail_alloc = Some(n);
        let result = model.run(&mut container, &mut hooks, &model.calls[0].0);
        assert_eq!(container.live_handles(), 0);
        hooks.assert_idle();
        match result {
            Ok(_) => {
                assert!(n > 2);
                break;
            }
            Err(error) => assert!(matches!(error, Error::OutOfMemory { .. }), "{error}"),
        }
    }
    model.check(&mut container, &mut Hooks::new(&model), 0);
}

#[test]
fn an_index_out_of_bounds_is_an_error() {
    let model = open!("decoder");
    let mut container = model.container();
    let mut hooks = Hooks::new(&model);
    let ids: Vec<u8> = [3i64, 50].iter().flat_map(|v| v.to_le_bytes()).collect();
    let positions: Vec<u8> = [0i64, 1].iter().flat_map(|v| v.to_le_bytes()).collect();
    let dtype = model.calls[0].0[0].dtype;
    let inputs = [
        Value::new(dtype, vec![1, 2], &ids),
        Value::new(dtype, vec![2], &positions),
    ];
    let error = model
        .run(&mut container, &mut hooks, &inputs)
        .err()
        .unwrap();
    let text = error.to_string();
    assert!(
        text.contains("aoti_torch_check") && text.contains("out of bounds"),
        "{text}"
    );
    hooks.assert_idle();
    assert_eq!(container.live_handles(), 0);
    for call in 0..model.calls.len() {
        model.check(&mut container, &mut hooks, call);
    }
}

#[test]
fn two_libraries_in_turn_give_their_own_outputs() {
    let (first, second) = (open!("mlp"), open!("mlp_relu"));
    let (mut one, mut two) = (first.container(), second.container());
    for call in [0, 1, 0] {
        first.check(&mut one, &mut Hooks::new(&first), call);
        second.check(&mut two, &mut Hooks::new(&second), call);
    }
    let loaded = |model: &Model| registry::load("again", &model.library).unwrap() as *const _;
    assert_eq!(loaded(&first), loaded(&first), "one library per content");
    assert_ne!(loaded(&first), loaded(&second));
}

#[test]
fn a_reused_descriptor_number_does_not_give_the_first_library() {
    let (mut first, second) = (open!("mlp"), open!("mlp_relu"));
    let mut second = second;
    // Contents of their own: whatever other tests opened stays out of this. ELF ignores what follows.
    first.library.extend(*b"reuse");
    second.library.extend(*b"reuse");
    // Somebody opens the first library under the plain path of a descriptor, and closes that.
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &first.library).unwrap();
    let descriptors: Vec<_> = (0..16)
        .map(|_| std::fs::File::open(file.path()).unwrap())
        .collect();
    for descriptor in &descriptors {
        use std::os::fd::AsRawFd;
        let path =
            std::ffi::CString::new(format!("/proc/self/fd/{}", descriptor.as_raw_fd())).unwrap();
        // SAFETY: a terminated path of a library that initialises nothing but itself.
        assert!(!unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) }.is_null());
    }
    drop(descriptors);
    let mut container = second.container();
    second.check(&mut container, &mut Hooks::new(&second), 0);
}

#[test]
fn containers_of_one_library_run_on_two_threads() {
    let model = open!("decoder");
    let (a, b) = (open!("decoder"), model);
    std::thread::scope(|scope| {
        for model in [&a, &b] {
            let mut container = model.container();
            let model = Shared(model);
            scope.spawn(move || {
                let model = model.get();
                for _ in 0..20 {
                    for call in 0..model.calls.len() {
                        model.check(&mut container, &mut Hooks::new(model), call);
                    }
                    reset(model);
                }
            });
        }
    });
}

struct Shared<'a>(&'a Model);
// SAFETY: a model is plain data; only one thread uses each.
unsafe impl Send for Shared<'_> {}
impl<'a> Shared<'a> {
    fn get(self) -> &'a Model {
        self.0
    }
}

/// Zeroes the caches that a model wrote, as they were at first.
fn reset(model: &Model) {
    for (value, direct) in model.constants.values() {
        if *direct {
            let ptr = value.ptr().0 as *mut u8;
            // SAFETY: the value's own bytes; no container runs now.
            unsafe { ptr.write_bytes(0, value.bytes().len()) };
        }
    }
}

#[test]
fn wrong_counts_and_unbound_constants_are_errors() {
    let model = open!("mlp");
    let mut container = model.container();
    let mut hooks = Hooks::new(&model);
    let error = model.run(&mut container, &mut hooks, &[]).err();
    assert!(matches!(error, Some(Error::InvalidInput(_))), "{error:?}");
    let decoder = open!("decoder");
    let mut other = decoder.container();
    let [ids, positions] = &decoder.calls[0].0[..] else {
        panic!("two inputs")
    };
    let unknown = Input {
        dtype: DType(99),
        ..positions.input()
    };
    // SAFETY: the inputs live during the call.
    let error = unsafe { other.run(&mut hooks, &[ids.input(), unknown], |_| Ok(())) }.err();
    assert!(matches!(error, Some(Error::InvalidInput(_))), "{error:?}");
    assert_eq!(other.live_handles(), 0, "the first input was placed");
    // SAFETY: placeholders need no memory.
    let error = unsafe { container.bind_constants(&[Binding::Placeholder]) }.err();
    assert!(matches!(error, Some(Error::InvalidInput(_))), "{error:?}");
    let library = registry::load("mlp", &model.library).unwrap();
    let mut fresh = Container::new(library, DeviceId::Cpu).unwrap();
    assert!(matches!(
        model.run(&mut fresh, &mut hooks, &model.calls[0].0),
        Err(Error::Internal(_))
    ));
    model.check(&mut container, &mut hooks, 0);
}

#[test]
fn constants_are_listed_and_bad_bindings_name_the_constant() {
    let model = open!("decoder");
    let library = registry::load("decoder", &model.library).unwrap();
    let mut container = Container::new(library, DeviceId::Cpu).unwrap();
    let mut fqns: Vec<_> = container
        .constants()
        .iter()
        .map(|c| c.fqn.as_str())
        .collect();
    fqns.sort_unstable();
    assert_eq!(
        fqns,
        [
            "cache",
            "embed.weight",
            "out.bias",
            "out.weight",
            "qkv.weight"
        ]
    );
    for info in container.constants() {
        let (value, _) = &model.constants[&info.fqn];
        assert_eq!(info.dtype, value.dtype);
        assert_eq!(
            info.bytes,
            value.bytes().len().next_multiple_of(64) as u64,
            "{}",
            info.fqn
        );
    }
    let names: Vec<_> = container
        .constants()
        .iter()
        .map(|c| c.fqn.clone())
        .collect();
    let bindings: Vec<_> = names
        .iter()
        .map(|name| match name.as_str() {
            "cache" => Binding::Direct {
                ptr: model.constants["cache"].0.ptr(),
                nbytes: 64,
                sizes: &[1, 2, 16, 32],
                strides: &[1024, 512, 32, 1],
            },
            _ => Binding::Placeholder,
        })
        .collect();
    // SAFETY: the cache's value lives in `model`.
    let error = unsafe { container.bind_constants(&bindings) }.unwrap_err();
    assert!(
        matches!(&error, Error::Mismatch { name, .. } if name == "cache"),
        "{error}"
    );
}

/// The compiled code of one release of torch deletes the handles that it made before, that of another leaves them.
#[test]
fn constants_are_bound_again_also_after_a_failure() {
    let model = open!("decoder");
    let mut container = model.container();
    let mut hooks = Hooks::new(&model);
    let mut failed = 0;
    for n in 1..200 {
        fail_call(n);
        let result = model.try_bind(&mut container);
        fail_call(0);
        if result.is_ok() {
            break;
        }
        failed += 1;
        let unbound = model.run(&mut container, &mut hooks, &model.calls[0].0);
        assert!(matches!(unbound, Err(Error::Internal(_))), "call {n}");
        model.bind(&mut container);
        model.bind(&mut container);
        assert_eq!(container.live_handles(), 0, "call {n}");
        model.check(&mut container, &mut hooks, 0);
    }
    assert!((5..199).contains(&failed), "{failed} calls");
}

/// To be run by itself, in release. Two ways to another session's state: a container for each session, or all constants bound
/// again at each switch.
#[test]
#[ignore = "prints what a session's own container costs, and what binding at each switch would"]
fn a_container_for_each_session_or_binding_at_each_switch() {
    const TIMES: u32 = 200;
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS"))
            .unwrap();
        let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        kib
    };
    for name in ["mlp", "decoder"] {
        let model = open!(name);
        let mut container = model.container();
        let constants = container.constants().len();
        let began = std::time::Instant::now();
        (0..TIMES).for_each(|_| model.bind(&mut container));
        let bind = began.elapsed() / TIMES;
        let (began, before) = (std::time::Instant::now(), resident());
        let more: Vec<_> = (0..TIMES).map(|_| model.container()).collect();
        println!(
            "{name}, {constants} constants: bound again in {bind:?}; a container takes {:?} and {} KiB",
            began.elapsed() / TIMES,
            (resident() - before) / u64::from(TIMES)
        );
        drop(more);
    }
}
