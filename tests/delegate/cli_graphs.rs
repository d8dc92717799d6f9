//! `weightstream plan --graph-shapes`: how many graphs a load captures, and what they take.

use crate::support::{pte, PteSpec, RecordSpec};
use serde_json::Value;
use std::ffi::OsString;
use weightstream::command;
use weightstream::device::NODE_BYTES;

/// What `weightstream plan` says of a program, or its error.
fn plan(program: &PteSpec, more: &[&str]) -> Result<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.pte");
    std::fs::write(&file, pte(program)).unwrap();
    let mut arguments: Vec<OsString> = vec!["plan".into(), file.into()];
    arguments.extend(more.iter().map(Into::into));
    let outcome = command::run("weightstream", arguments);
    match outcome.failed() {
        true => Err(outcome.text),
        false => Ok(outcome.text),
    }
}

fn program(record: &RecordSpec) -> PteSpec {
    PteSpec::new(record, b"not a library")
}

/// The graphs, and the copies of a pass.
fn graphs(program: &PteSpec, more: &[&str]) -> (Value, u64) {
    let found = plan(program, &[&["--json"], more].concat()).unwrap();
    let found: Value = serde_json::from_str(&found).unwrap();
    let copies = found["planned"]["copies_per_pass"].as_u64().unwrap();
    (found["graphs"].clone(), copies)
}

/// 24 kernels, each with a weight of its own; activations of at most 320 bytes, and an input of n rows of 12 bytes.
#[test]
fn graphs_take_a_node_for_each_kernel_and_each_copy() {
    let mut program = program(&RecordSpec::gpu_chain(24));
    let three = ["--budget", "100%", "--graph-shapes", "n=1,2,8"];
    let (found, copies) = graphs(&program, &three);
    assert_eq!(copies, 0);
    assert_eq!(found["bytes"], 3 * 24 * NODE_BYTES);
    // The input's 96 bytes take a granule in the block.
    assert_eq!(found["block_bytes"], 512 + 320);
    let text = plan(&program, &three).unwrap();
    for words in [
        "graphs: 176,976 bytes",
        "2,458 bytes for each kernel",
        "832 bytes",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let (found, copies) = graphs(&program, &["--budget", "50%", "--graph-shapes", "n=3"]);
    assert!(copies > 0);
    assert_eq!(found["methods"][0]["graphs"], 1);
    assert_eq!(found["methods"][0]["copies"], copies);
    assert_eq!(found["bytes"], (24 + copies) * NODE_BYTES);
    // Nobody asks for any.
    assert_eq!(graphs(&program, &["--budget", "50%"]).0, Value::Null);
    // The program does.
    let shapes = ("weight_offload_graph_shapes".to_owned(), b"n=4,5".to_vec());
    program.delegates[0].compile_specs.push(shapes);
    let (found, _) = graphs(&program, &["--budget", "100%"]);
    assert_eq!(found["bytes"], 2 * 24 * NODE_BYTES);
}

#[test]
fn what_a_load_refuses_is_refused() {
    let gpu = program(&RecordSpec::gpu_chain(24));
    let small = program(&RecordSpec::small());
    for (program, shapes, words) in [
        (&gpu, "m=1", "'m'"),
        (&gpu, "n=9", "found 9"),
        (&gpu, "n=x", "no whole number"),
        (&small, "n=1", "has no graphs"),
    ] {
        let more = ["--budget", "100%", "--graph-shapes", shapes];
        let error = plan(program, &more).unwrap_err();
        assert!(error.contains(words), "{words}: {error}");
    }
    let error = plan(&gpu, &["--graph-shapes", "n=1"]).unwrap_err();
    assert!(error.contains("--budget"), "{error}");
}

/// A load of a program that asks for the LRU runs it wherever not everything fits.
#[test]
fn graphs_under_the_lru_are_refused_with_both_options() {
    let mut lru = program(&RecordSpec::gpu_chain(24));
    let policy = ("weight_offload_policy".to_owned(), b"lru".to_vec());
    lru.delegates[0].compile_specs.push(policy);
    let shapes = ["--graph-shapes", "n=1"];
    let error = plan(&lru, &[&["--budget", "50%"], &shapes[..]].concat()).unwrap_err();
    for words in [
        "weight_offload_graph_shapes",
        "under the policy 'lru'",
        "weight_offload_policy = 'planned' in place of 'lru'",
    ] {
        assert!(error.contains(words), "{words}: {error}");
    }
    plan(&lru, &[&["--budget", "100%"], &shapes[..]].concat()).unwrap();
    // Nobody asks for graphs.
    plan(&lru, &["--budget", "50%"]).unwrap();
}
