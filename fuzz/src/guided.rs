//! One target under libFuzzer; `WEIGHTSTREAM_FUZZ_TARGET` says which. After libFuzzer's own mutations the headers and
//! checksums of files are put right, mostly, so that what lies behind them is reached.
#![no_main]

use std::path::Path;
use std::sync::OnceLock;

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use weightstream_fuzz::fuzz_support::capi::{self, Live};
use weightstream_fuzz::fuzz_support::driver::{execute, Report};
use weightstream_fuzz::fuzz_support::files::Target;
use weightstream_fuzz::fuzz_support::mutate;
use weightstream_fuzz::policy_support::{policy_of_bytes, pools_of_bytes};

enum Chosen {
    File(Target),
    Policy,
    Pools,
    Capi(Live),
}

// SAFETY: libFuzzer calls the target from one thread; `Live` is a handle that any thread may use.
unsafe impl Send for Chosen {}
// SAFETY: as above.
unsafe impl Sync for Chosen {}

fn chosen() -> &'static Chosen {
    static CHOSEN: OnceLock<Chosen> = OnceLock::new();
    CHOSEN.get_or_init(|| {
        let name = std::env::var("WEIGHTSTREAM_FUZZ_TARGET").unwrap_or_default();
        let file = Target::ALL.into_iter().find(|target| target.name() == name);
        match (file, name.as_str()) {
            (Some(target), _) => Chosen::File(target),
            (None, "policy") => Chosen::Policy,
            (None, "pools") => Chosen::Pools,
            (None, "capi") => Chosen::Capi(live()),
            _ => panic!("WEIGHTSTREAM_FUZZ_TARGET is '{name}', which is no target"),
        }
    })
}

/// The model at `WEIGHTSTREAM_FUZZ_MODEL`, without its ending, if there is one.
fn live() -> Live {
    weightstream::ffi::capi::ws_set_log(Some(quiet));
    match std::env::var("WEIGHTSTREAM_FUZZ_MODEL") {
        Ok(path) => Live::open(
            Path::new(&format!("{path}.pte")),
            Path::new(&format!("{path}.ptd")),
        ),
        Err(_) => Live::none(),
    }
}

extern "C" fn quiet(_level: i32, _text: *const std::ffi::c_char) {}

fuzz_target!(|data: &[u8]| {
    match chosen() {
        Chosen::File(target) => execute(*target, data, &mut Report::default()).unwrap(),
        Chosen::Policy => policy_of_bytes(data),
        Chosen::Pools => pools_of_bytes(data),
        Chosen::Capi(live) => capi::run(live, data),
    }
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let size = fuzzer_mutate(data, size, max_size);
    if let (Chosen::File(target), false) = (chosen(), seed % 4 == 0) {
        let mut bytes = data[..size].to_vec();
        mutate::repair(*target, &mut bytes);
        let kept = bytes.len().min(max_size);
        data[..kept].copy_from_slice(&bytes[..kept]);
        return kept;
    }
    size
});
