//! The C interface under hostile arguments, over a compiled model where there is a Python to compile it.

use crate::fuzz_support::bytes::Rng;
use crate::fuzz_support::capi::{self, Live};
use crate::support::{ptd, pte, PtdSpec, PteSpec, RecordSpec, BUILD_ID};
use sha2::{Digest, Sha256};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::PathBuf;
use weightstream::schedule::{floor, Event, Trace, WeightKind, WeightSpec};

const CALLS: u64 = 3000;

fn many(live: &Live) {
    let fresh = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    for seed in [1, fresh] {
        for number in 0..CALLS {
            let bytes = Rng::new(seed, number).bytes(160);
            let ran = catch_unwind(AssertUnwindSafe(|| capi::run(live, &bytes)));
            assert!(ran.is_ok(), "seed {seed}, number {number}");
        }
    }
}

#[test]
fn hostile_arguments_without_a_program() {
    many(&Live::none());
}

#[test]
fn hostile_arguments_to_a_loaded_model() {
    let Some(model) = crate::aoti_support::Model::open("mlp") else {
        return;
    };
    weightstream::ffi::capi::ws_set_log(Some(quiet));
    let folder = tempfile::tempdir().unwrap();
    let (pte, ptd) = files(&model, folder.path().to_owned());
    many(&Live::open(&pte, &ptd));
    let passes = capi::PASSES.load(std::sync::atomic::Ordering::Relaxed);
    println!("{passes} passes went through");
    assert!(passes > 0, "no call was right: the arguments are too wild");
}

extern "C" fn quiet(_level: i32, _text: *const std::ffi::c_char) {}

/// The compiled model as a program with a record, as an export would write it.
fn files(model: &crate::aoti_support::Model, folder: PathBuf) -> (PathBuf, PathBuf) {
    let mut fqns: Vec<_> = model.constants.keys().map(String::as_str).collect();
    fqns.sort_unstable();
    let of = |fqn: &str| &model.constants[fqn];
    let (mut record, mut data) = (RecordSpec::small(), PtdSpec::default());
    let ints = |of: &dyn Fn(&str) -> Vec<i64>| fqns.iter().flat_map(|f| of(f)).collect::<Vec<_>>();
    let digest = Sha256::digest(&model.library);
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    record
        .set_strings("so_key", &[&format!("weightstream_so_{digest}")])
        .set_strings("fqns", &fqns)
        .set_ints("kinds", &ints(&|f| vec![i64::from(of(f).1)]))
        .set_ints("dtypes", &ints(&|f| vec![i64::from(of(f).0.dtype.0)]))
        .set_ints("nbytes", &ints(&|f| vec![of(f).0.bytes().len() as i64]))
        .set_ints(
            "crc32",
            &ints(&|f| vec![i64::from(crc32fast::hash(of(f).0.bytes()))]),
        )
        .set_ints(
            "layouts",
            &ints(&|f| {
                let value = &of(f).0;
                let ndim = [value.sizes.len() as i64];
                [&ndim[..], &value.sizes, &value.strides].concat()
            }),
        );
    for fqn in &fqns {
        let (value, _) = of(fqn);
        let sizes = value.sizes.iter().map(|size| *size as i32).collect();
        data.add(
            fqn,
            Some((value.dtype.0 as u8, sizes)),
            value.bytes().to_vec(),
        );
    }
    let id = u128::from_str_radix(BUILD_ID, 16).unwrap().to_be_bytes();
    data.add("weightstream_build_id_forward", None, id.to_vec());
    schedule(model, &fqns, &mut record);
    record
        .set_ints("inputs", &[6, 2, 5, 5, -1, 12, 12, -1])
        .set_ints("outputs", &[6, 2])
        .remove("symbols");
    let (program, weights) = (folder.join("m.pte"), folder.join("m.ptd"));
    std::fs::write(&program, pte(&PteSpec::new(&record, &model.library))).unwrap();
    std::fs::write(&weights, ptd(&data)).unwrap();
    (program, weights)
}

/// The trace as the compiled code has it, watched in one pass; a kernel in front of each end of a lease.
fn schedule(model: &crate::aoti_support::Model, fqns: &[&str], record: &mut RecordSpec) {
    let place = |fqn: &String| fqns.iter().position(|f| f == fqn).unwrap() as u32;
    let probes: Vec<u32> = model.probes.iter().map(place).collect();
    let (mut events, mut codes, mut kernels) = (Vec::new(), Vec::new(), 0);
    let mut hooks = crate::aoti_support::Hooks::new(model);
    model.check(&mut model.container(), &mut hooks, 0);
    for (what, id) in &hooks.events {
        if *what == 'p' {
            events.push(Event::Probe(*id as u32));
            codes.push(4 * id);
        } else {
            events.extend([Event::Kernel(kernels), Event::Release(*id as u32)]);
            codes.extend([4 * i64::from(kernels) + 1, 4 * id + 2]);
            kernels += 1;
        }
    }
    let specs: Vec<_> = fqns
        .iter()
        .map(|fqn| WeightSpec {
            fqn: (*fqn).to_owned(),
            bytes: model.constants[*fqn].0.bytes().len() as u64,
            stored: model.constants[*fqn].0.bytes().len() as u64,
            kind: match model.constants[*fqn].1 {
                true => WeightKind::Direct,
                false => WeightKind::Weight,
            },
        })
        .collect();
    let trace = Trace::new(events, probes.clone(), fqns.len()).unwrap();
    let floor = floor(&trace, &specs, 64);
    let order = trace
        .order()
        .iter()
        .map(|id| i64::from(probes[*id as usize]));
    let order: Vec<i64> = order.collect();
    let probes: Vec<i64> = probes.into_iter().map(i64::from).collect();
    record
        .set_ints("probes", &probes)
        .set_ints("access_order", &order)
        .set_ints("trace", &codes)
        .set_ints("floor", &[floor.bytes() as i64])
        .set_ints("hard_minimum", &[floor.hard_minimum as i64]);
}
