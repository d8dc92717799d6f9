//! `weightstream plan` and `inspect` of a program of several methods: what is of one method, and what is of the program.

use crate::support::{payload_of, pte, PteSpec, RecordSpec};
use serde_json::Value;
use std::ffi::OsString;
use weightstream::command;

const SIZE: u64 = 64 << 20;

/// 'decode' reads the first 8 of the 24 weights of 'prefill', of 64 MiB each.
fn program() -> PteSpec {
    let record = |method: &str, weights: i64| {
        let mut record = RecordSpec::gpu_chain(weights);
        let keys: Vec<_> = (0..weights).map(|n| format!("layers.{n}.weight")).collect();
        let keys: Vec<_> = keys.iter().map(String::as_str).collect();
        record.method = method.to_owned();
        record
            .set_ints("format_version", &[5])
            .set_strings("method", &[method])
            .set_strings("keys", &keys);
        record
    };
    let (decode, prefill) = (record("decode", 8), record("prefill", 24));
    let mut program = PteSpec::new(&decode, b"not a library");
    program.constants.clear();
    program.delegates[0].processed = payload_of(&decode, &[&prefill]);
    let mut second = program.delegates[0].clone();
    second.method = prefill.method.clone();
    second.processed = payload_of(&prefill, &[&decode]);
    program.delegates.push(second);
    program
}

fn run(name: &str, more: &[&str]) -> Result<String, String> {
    run_of(&program(), name, more)
}

fn run_of(program: &PteSpec, name: &str, more: &[&str]) -> Result<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.pte");
    std::fs::write(&file, pte(program)).unwrap();
    let mut arguments: Vec<OsString> = vec![name.into(), file.into()];
    arguments.extend(more.iter().map(Into::into));
    let outcome = command::run("weightstream", arguments);
    match outcome.failed() {
        true => Err(outcome.text),
        false => Ok(outcome.text),
    }
}

fn json(name: &str, more: &[&str]) -> Value {
    let text = run(name, &[&["--json"], more].concat()).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// What a pass under each policy copies, and the least, at half of all weights.
fn bytes(more: &[&str]) -> [u64; 3] {
    let found = json("plan", &[&["--budget", "50%"], more].concat());
    let one = |of: &Value| of["bytes_per_pass"].as_u64().unwrap();
    let least = found["limit_bytes_per_pass"].as_u64().unwrap();
    [one(&found["lru"]), one(&found["planned"]), least]
}

#[test]
fn figures_are_of_the_method_that_was_asked_for() {
    let [lru, planned, least] = bytes(&["--method", "prefill"]);
    assert_eq!(least, 12 * SIZE);
    assert!(least <= planned && planned <= lru, "{planned} {lru}");
    let [lru, planned, least] = bytes(&["--method", "decode"]);
    assert_eq!((lru, least), (0, 0));
    // The plan is that of the program, which keeps weights that only prefill reads.
    assert!(planned <= 8 * SIZE, "{planned}");
    for method in ["decode", "prefill"] {
        assert_eq!(json("plan", &["--method", method])["method"], method);
    }
}

#[test]
fn without_a_method_figures_are_the_mean_and_not_below_the_least() {
    let of = |method: &str| bytes(&["--method", method]);
    let (decode, prefill) = (of("decode"), of("prefill"));
    let mean = bytes(&[]);
    for at in 0..3 {
        assert_eq!(mean[at], (decode[at] + prefill[at]) / 2, "{at}");
    }
    let [_, planned, least] = mean;
    assert!(least <= planned, "{least} {planned}");
    let shares = ["--method-share", "decode=0.75,prefill=0.25"];
    assert_eq!(bytes(&shares)[2], 3 * SIZE);
    let text = run("plan", &["--budget", "50%"]).unwrap();
    let words = [
        "methods 'decode', 'prefill'",
        "that is the mean: decode",
        "of a method's weights exceeds the budget",
    ];
    for words in words {
        assert!(text.contains(words), "{words}: {text}");
    }
    let found = json("plan", &[]);
    assert_eq!(found["method"], Value::Null);
    assert_eq!(found["budgets"].as_array().unwrap().len(), 20);
}

/// The least is nothing then, and nothing can be divided by it.
#[test]
fn a_method_whose_weights_fit_has_a_least_of_nothing() {
    let text = run("plan", &["--budget", "50%", "--method", "decode"]).unwrap();
    let words = [
        "method 'decode' of 'decode', 'prefill'",
        "8 reads in a trace of 24 events",
        "the least is 0 bytes",
    ];
    for words in words {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(!text.contains("that is the mean"), "{text}");
}

/// The program says how often each method runs, as a load reads it.
#[test]
fn shares_of_the_program_count() {
    let mut program = program();
    for delegate in &mut program.delegates {
        let shares = b"decode=0.75,prefill=0.25".to_vec();
        let key = "weight_offload_method_share".to_owned();
        delegate.compile_specs.push((key, shares));
    }
    let text = run_of(&program, "plan", &["--json", "--budget", "50%"]).unwrap();
    let found: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(found["limit_bytes_per_pass"], 3 * SIZE);
    let error = run("plan", &["--method-share", "decode=1"]).unwrap_err();
    assert!(error.contains("says nothing of 'prefill'"), "{error}");
}

#[test]
fn graphs_are_of_the_method_that_was_asked_for() {
    let shapes = ["--graph-shapes", "decode:n=1,2;prefill:n=8"];
    let graphs = |more: &[&str]| {
        let all = [&["--budget", "100%"], &shapes[..], more].concat();
        json("plan", &all)["graphs"]["methods"].take()
    };
    assert_eq!(graphs(&[]).as_array().unwrap().len(), 2);
    let decode = graphs(&["--method", "decode"]);
    assert_eq!(decode.as_array().unwrap().len(), 1);
    assert_eq!(
        (&decode[0]["method"], &decode[0]["graphs"]),
        (&"decode".into(), &2.into())
    );
}

#[test]
fn an_inspection_lists_what_is_of_the_method() {
    let all = json("inspect", &[]);
    assert_eq!(all["constants"].as_array().unwrap().len(), 24);
    assert_eq!(all["methods"].as_array().unwrap().len(), 2);
    assert_eq!(
        (&all["method"], &all["inputs"]),
        (&Value::Null, &Value::Null)
    );
    let reads = |of: &Value, at: usize| of["constants"][at]["reads"].as_u64();
    assert_eq!((reads(&all, 0), reads(&all, 8)), (Some(2), Some(1)));
    let decode = json("inspect", &["--method", "decode"]);
    assert_eq!(decode["method"], "decode");
    assert_eq!(decode["constants"].as_array().unwrap().len(), 8);
    assert_eq!(decode["methods"].as_array().unwrap().len(), 1);
    assert_eq!(reads(&decode, 0), Some(1));
    assert_eq!(decode["inputs"][0]["name"], "x");
    // Budget and floor are the program's.
    assert_eq!(decode["floor_bytes"], all["floor_bytes"]);
    let text = run("inspect", &["--method", "decode"]).unwrap();
    assert!(
        text.contains("method 'decode': compiled code takes"),
        "{text}"
    );
    assert!(!text.contains("method 'prefill': compiled"), "{text}");
    assert!(!text.contains("layers.8.weight"), "{text}");
}

#[test]
fn a_method_that_is_not_there_is_refused_with_those_that_are() {
    for name in ["plan", "inspect"] {
        let error = run(name, &["--method", "decoed"]).unwrap_err();
        assert!(error.contains("'decoed' is missing in"), "{error}");
        assert!(
            error.contains("its methods are 'decode', 'prefill'"),
            "{error}"
        );
    }
}
