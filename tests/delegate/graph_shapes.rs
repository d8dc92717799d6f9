//! The shapes whose graphs are captured at load: what the option may say of a program, and how each error names it.

use crate::support::{payload, payload_of, RecordSpec};
use std::path::PathBuf;
use weightstream::config::{Options, Spec, SpecValue};
use weightstream::delegate::graph_shapes::{graph_room, shapes_of};
use weightstream::delegate::{DataSource, Delegate, LoadRequest};
use weightstream::device::NODE_BYTES;
use weightstream::format::{Records, Wiring};
use weightstream::session::GRAPH_BYTES;
use weightstream::{Error, Result};

const KEY: &str = "weight_offload_graph_shapes";

fn text(key: &str, value: &str) -> Spec {
    Spec {
        key: key.to_owned(),
        value: SpecValue::Text(value.to_owned()),
    }
}

/// Inputs `x` of [n, 3] and `mask` of [batch, 2 * n], where n is 1 to 8 and batch is 0 to 4; `n` is even.
fn record() -> RecordSpec {
    let mut record = RecordSpec::small();
    record
        .set_ints(
            "inputs",
            &[6, 2, 1, 8, 0, 3, 3, -1, 6, 2, 0, 4, 1, 2, 16, -1],
        )
        .set_strings("input_names", &["x", "mask"])
        .set_strings("symbols", &["n", "batch"])
        .set_strings("relations", &["i1.1 s0 2 *"])
        .set_strings("guards", &["s0 2 % 0 == s0 1 == or"]);
    record
}

fn fixed() -> RecordSpec {
    let mut record = RecordSpec::small();
    record
        .set_ints("inputs", &[6, 2, 4, 4, -1, 3, 3, -1])
        .remove("symbols");
    record
}

/// Two methods with one dimension each.
fn two() -> Records {
    let mut decode = RecordSpec::small();
    decode.method = "decode".to_owned();
    decode
        .set_ints("format_version", &[5])
        .set_strings("method", &["decode"])
        .set_strings("keys", &["a.weight", "b.weight", "scale", "cache"]);
    let mut prefill = decode.clone();
    prefill.method = "prefill".to_owned();
    prefill
        .set_strings("method", &["prefill"])
        .set_strings("symbols", &["tokens"]);
    Records::from_payload("payload", &payload_of(&decode, &[&prefill])).unwrap()
}

fn records(record: &RecordSpec) -> Records {
    Records::from_payload("payload", &payload(record)).unwrap()
}

/// Name and sizes of the inputs of each shape.
fn shapes(records: &Records, value: &str) -> Result<Vec<(String, Vec<Vec<i64>>)>> {
    let options = Options::parse(&[text(KEY, value)])?;
    let found = shapes_of(records, records.own(), &options)?;
    let found = found.into_iter().map(|shape| (shape.name, shape.inputs));
    Ok(found.collect())
}

#[track_caller]
fn refused(records: &Records, value: &str, words: &[&str]) {
    let error = shapes(records, value).expect_err(value);
    let Error::Option { key, what } = &error else {
        panic!("{value}: {error}");
    };
    assert_eq!(key, KEY);
    for word in words {
        assert!(what.contains(word), "{value}: '{word}' is not in: {what}");
    }
}

#[test]
fn shapes_are_all_combinations_and_what_follows_from_them() {
    let records = records(&record());
    let found = shapes(&records, "n=1,4,batch=0,2").unwrap();
    let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        ["n=1,batch=0", "n=1,batch=2", "n=4,batch=0", "n=4,batch=2"]
    );
    assert_eq!(found[3].1, [[4, 3], [2, 8]]);
    // A list of its own for each pair.
    let pairs = shapes(&records, " n=2, batch=1 ; batch=3,n=8").unwrap();
    let inputs: Vec<_> = pairs.into_iter().map(|(_, inputs)| inputs).collect();
    assert_eq!(inputs, [[[2, 3], [1, 4]], [[8, 3], [3, 16]]]);
}

#[test]
fn a_method_without_dimensions_has_one_shape() {
    let records = records(&fixed());
    let found = shapes(&records, "static").unwrap();
    assert_eq!(found, [("static".to_owned(), vec![vec![4, 3]])]);
    refused(
        &records,
        "n=1",
        &["'n'", "no dynamic dimensions", "'static'"],
    );
    refused(&records, "static;static", &["static", "twice"]);
}

#[test]
fn what_a_program_does_not_allow_is_named() {
    let records = records(&record());
    let all = "n=1 to 8, batch=0 to 4";
    for (value, words) in [
        ("m=1", &["dimension 'm' of method 'forward'", all][..]),
        ("n=1", &["'batch'", "no size", all]),
        ("static", &["'n'", "no size", all]),
        (
            "n=9,batch=1",
            &[
                "n=9,batch=1 of method 'forward'",
                "expected 1 to 8 in dimension 0, found 9",
                all,
            ],
        ),
        ("n=0,batch=1", &["expected 1 to 8 in dimension 0, found 0"]),
        ("n=3,batch=1", &["n=3,batch=1", "compiled for sizes with"]),
        ("n=1,batch=1;batch=1,n=1", &["twice", "method 'forward'"]),
        ("decode:n=1,batch=1", &["method 'decode'", "forward"]),
    ] {
        refused(&records, value, words);
    }
}

#[test]
fn what_is_no_shape_is_refused_by_the_option() {
    for (value, words) in [
        ("", &["sizes of dynamic dimensions"][..]),
        ("4", &["sizes of dynamic dimensions"]),
        ("=4", &["sizes of dynamic dimensions"]),
        (":n=1", &["sizes of dynamic dimensions"]),
        ("n=1;", &["sizes of dynamic dimensions"]),
        ("n=", &["'n'", "the size ''", "no whole number"]),
        ("n=1,x", &["'n'", "the size 'x'"]),
        ("n=-1", &["the size '-1'"]),
        ("n=1.5", &["the size '1.5'"]),
        ("n=99999999999999999999", &["no whole number"]),
        ("n=1,2,1", &["'n'", "the size 1 twice"]),
        ("n=1,batch=1,n=2", &["dimension 'n' twice"]),
    ] {
        let error = Options::parse(&[text(KEY, value)]).expect_err(value);
        for word in words {
            let text = error.to_string();
            assert!(text.contains(word), "{value}: '{word}' is not in: {text}");
        }
    }
    let int = Spec {
        key: KEY.to_owned(),
        value: SpecValue::Int(4),
    };
    assert!(Options::parse(&[int]).is_err());
}

#[test]
fn each_method_has_its_own_dimensions() {
    let records = two();
    let found = shapes(&records, "decode:n=1,2;prefill:tokens=8").unwrap();
    assert_eq!(found.len(), 2);
    assert_eq!(shapes(&records, "prefill:tokens=8").unwrap(), []);
    refused(
        &records,
        "n=1",
        &["names no method", "decode, prefill", "'decode:'"],
    );
    refused(&records, "encoder:n=1", &["'encoder'", "decode, prefill"]);
    refused(
        &records,
        "decode:tokens=1",
        &["'tokens'", "'decode'", "n=1 to 8"],
    );
}

#[test]
fn too_many_graphs_are_refused_with_their_number() {
    let mut record = record();
    record.set_ints(
        "inputs",
        &[6, 2, 1, 1000, 0, 3, 3, -1, 6, 2, 0, 1000, 1, 2, 2000, -1],
    );
    record.remove("guards");
    let records = records(&record);
    let sizes: Vec<String> = (1..=60).map(|size| size.to_string()).collect();
    let value = format!("batch=1,n={}", sizes.join(","));
    assert_eq!(shapes(&records, &value).unwrap().len(), 60);
    // More than fit into a string of ExecuTorch's.
    let options = Options {
        graph_shapes: vec![weightstream::config::ShapeGroup {
            method: None,
            dims: vec![
                ("n".to_owned(), (1..=100).collect()),
                ("batch".to_owned(), (1..=100).collect()),
            ],
        }],
        ..Options::default()
    };
    let error = shapes_of(&records, records.own(), &options).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("10000 graphs") && text.contains("1024"),
        "{text}"
    );
}

/// `auto` keeps so much free: a node for each kernel and each read, for each shape of each method.
#[test]
fn memory_of_graphs_is_counted_before_there_is_a_plan() {
    let records = two();
    let room = |specs: &[Spec]| graph_room(&records, &Options::parse(specs).unwrap()).unwrap();
    assert_eq!(room(&[]), GRAPH_BYTES);
    // Three kernels and three reads.
    let bytes = 3 * 6 * NODE_BYTES;
    let shapes = text(KEY, "decode:n=1,2;prefill:tokens=8");
    assert_eq!(room(std::slice::from_ref(&shapes)), bytes);
    // Whatever they are told, they never take more than the cap.
    let cap = |bytes| Options {
        graph_bytes: Some(bytes),
        ..Options::parse(std::slice::from_ref(&shapes)).unwrap()
    };
    assert_eq!(graph_room(&records, &cap(bytes - 1)), Ok(bytes - 1));
    assert_eq!(graph_room(&records, &cap(bytes + 1)), Ok(bytes));
}

/// Before the data, the library or a driver are asked for.
#[test]
fn a_load_refuses_shapes_first() {
    let mut gpu = record();
    gpu.set_strings("device", &["cuda"])
        .set_strings("target", &["linux", "x86_64", "x86-64", "2.11.0", "90"]);
    let graph = text("weight_offload_cuda_graph", "1");
    for (record, specs, key, word) in [
        (
            &record(),
            vec![text(KEY, "n=1,batch=1")],
            KEY,
            "without weight_offload_cuda_graph",
        ),
        (
            &record(),
            vec![text(KEY, "n=1,batch=1"), graph.clone()],
            "weight_offload_cuda_graph",
            "has no graphs",
        ),
        (
            &gpu,
            vec![text(KEY, "n=1,batch=1")],
            KEY,
            "without weight_offload_cuda_graph",
        ),
        (
            &gpu,
            vec![text(KEY, "n=9,batch=1"), graph.clone()],
            KEY,
            "expected 1 to 8 in dimension 0, found 9",
        ),
    ] {
        let request = LoadRequest {
            records: records(record),
            place: None,
            beside: None,
            library: &|_: &str| panic!("the library was asked for"),
            data: DataSource::File(PathBuf::from("/nowhere.ptd")),
            wiring: Wiring::straight(2, 1),
        };
        let options = Options::parse(&specs).unwrap();
        let error = Delegate::load(request, &options).err().expect(word);
        assert!(
            matches!(&error, Error::Option { key: found, what } if found == key && what.contains(word)),
            "{error}"
        );
    }
}
