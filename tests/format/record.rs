//! Damaged and contradictory records: one case per defect, each naming the field and the constant.

use crate::support::{payload, pte, PteSpec, RecordSpec};
use weightstream::format::{Pte, Record};
use weightstream::{Error, Result};

fn parse(change: impl Fn(&mut RecordSpec)) -> Result<Record> {
    let mut spec = RecordSpec::small();
    change(&mut spec);
    Record::from_payload("m.pte (payload)", &payload(&spec))
}

/// Asserts that the doctored record is malformed in `field`, at a place inside the payload.
#[track_caller]
fn bad(field: &str, words: &str, change: impl Fn(&mut RecordSpec)) {
    match parse(change).expect_err("damage went unnoticed") {
        Error::Malformed { file, offset, what } => {
            assert_eq!(file, "m.pte (payload)");
            assert!(offset >= 8, "offset {offset}");
            assert!(
                what.starts_with(&format!("field '{field}' ")),
                "{field}: {what}"
            );
            assert!(what.contains(words), "'{words}' is not in: {what}");
        }
        other => panic!("expected Malformed, found {other:?}"),
    }
}

/// As [`bad`], with other integers in the field.
#[track_caller]
fn bad_ints(field: &str, values: &[i64], words: &str) {
    bad(field, words, |spec| {
        spec.set_ints(field, values);
    });
}

#[track_caller]
fn bad_strings(field: &str, values: &[&str], words: &str) {
    bad(field, words, |spec| {
        spec.set_strings(field, values);
    });
}

#[test]
fn bytes_that_are_no_record() {
    let malformed = |bytes: &[u8]| match Record::from_payload("p", bytes) {
        Err(Error::Malformed { file, offset, what }) => {
            assert_eq!(file, "p");
            (offset, what)
        }
        other => panic!("expected Malformed, found {other:?}"),
    };
    assert_eq!(malformed(b""), (0, "the record is empty".to_owned()));
    assert_eq!(malformed(b"12345").0, 5);
    assert!(malformed(b"12345").1.contains("is truncated"));
    assert!(malformed(b"\x08\0\0\0ET12\0\0\0\0")
        .1
        .contains("expected 'WSR1', found 'ET12'"));
    let good = payload(&RecordSpec::small());
    for len in 0..good.len() {
        malformed(&good[..len]);
    }
}

#[test]
fn another_format_version_is_said_first() {
    let error = parse(|spec| {
        spec.set_ints("format_version", &[1])
            .set_ints("unheard_of", &[1]);
    })
    .unwrap_err();
    assert!(
        matches!(&error, Error::Mismatch { fact: "format version of the record", found, .. } if found == "1")
    );
    assert!(error.to_string().contains("m.pte (payload)"));
}

#[test]
fn unknown_fields_and_wrong_types() {
    bad_ints("unheard_of", &[1], "is not a field");
    bad_strings("floor", &["1"], "holds strings, expected integers");
    bad_ints("device", &[1], "holds integers, expected strings");
    bad("floor", "stands here a second time", |spec| {
        spec.fields.push(spec.fields[16].clone())
    });
}

#[test]
fn single_values_are_there_and_single() {
    for field in [
        "format_version",
        "offload",
        "floor",
        "hard_minimum",
        "activations",
        "method",
        "build_id",
        "so_key",
        "device",
    ] {
        bad(field, "holds 0 values, expected 1", |spec| {
            spec.remove(field);
        });
    }
    bad_ints("floor", &[1, 2], "holds 2 values, expected 1");
    bad_strings("method", &["a", "b"], "holds 2 values, expected 1");
    bad_strings("method", &[""], "is empty");
}

#[test]
fn numbers_and_names_in_range() {
    bad_ints("offload", &[2], "is 2, expected 0 or 1");
    bad_ints("floor", &[-1], "is -1, expected bytes");
    bad_ints("floor", &[191], "is 191, below the hard minimum of 192");
    bad_ints("hard_minimum", &[-1], "is -1");
    bad_ints("activations", &[-2], "is -2, expected bytes or -1");
    bad_strings(
        "build_id",
        &["00112233445566778899AABBCCDDEEFF"],
        "32 lowercase hex digits",
    );
    bad_strings("build_id", &["0011"], "32 lowercase hex digits");
    bad_strings(
        "build_id",
        &["+0112233445566778899aabbccddeeff"],
        "32 lowercase hex digits",
    );
    bad_strings(
        "so_key",
        &["weightstream_so_123"],
        "64 lowercase hex digits",
    );
    bad_strings("so_key", &[&"5".repeat(80)], "64 lowercase hex digits");
    let error = parse(|spec| {
        spec.set_strings("device", &["tpu"]);
    });
    assert!(
        matches!(error, Err(Error::Unsupported(what)) if what.contains("'tpu'") && what.contains("m.pte"))
    );
}

#[test]
fn the_inputs_of_a_call_have_places_and_values() {
    let named = |spec: &mut RecordSpec, places: &[i64], constants: &[&str]| {
        spec.set_strings("x_call", &["x", "mode"])
            .set_ints("x_call_places", places)
            .set_strings("x_call_constants", constants);
    };
    bad("x_call_places", "holds 1 values, expected 2", |spec| {
        named(spec, &[0], &["", ""])
    });
    bad("x_call_places", "holds -2 for 'mode'", |spec| {
        named(spec, &[0, -2], &["", ""])
    });
    bad(
        "x_call_constants",
        "each of the 2 inputs of a call",
        |spec| named(spec, &[0, 1], &[""]),
    );
}

#[test]
fn the_target_is_complete() {
    bad_strings("target", &["linux", "x86_64"], "holds 2 values, expected 5");
    bad_strings("target", &["linux", "", "x86-64", "2.11.0", ""], "lacks");
    bad_strings(
        "target",
        &["linux", "x86_64", "x86-64", "2.11.0", "90"],
        "1 SM versions for device 'cpu'",
    );
    bad_strings(
        "target",
        &["linux", "x86_64", "x86-64", "2.11.0", "90,"],
        "SM list '90,'",
    );
    let cuda = parse(|spec| {
        spec.set_strings("device", &["cuda"]);
        spec.set_strings("target", &["linux", "x86_64", "x86-64", "2.11.0", "90,100"]);
    });
    let tuned = cuda.unwrap().target;
    assert_eq!((tuned.sms.as_slice(), tuned.tuned), (&[90, 100][..], true));
    let untuned = parse(|spec| {
        spec.set_strings("device", &["cuda"]);
        spec.set_strings("target", &["linux", "x86_64", "x86-64", "2.11.0", "120"]);
        spec.set_ints("x_tuned", &[0]);
    });
    assert!(!untuned.unwrap().target.tuned);
    bad("target", "0 SM versions for device 'cuda'", |spec| {
        spec.set_strings("device", &["cuda"]);
    });
}

#[test]
fn lists_of_constants_agree() {
    for field in ["kinds", "dtypes", "nbytes", "crc32"] {
        bad_ints(field, &[1], "holds 1 values, expected 4, one per constant");
    }
    bad_strings(
        "fqns",
        &["a.weight", "b.weight", "scale", "a.weight"],
        "holds 'a.weight' twice",
    );
    bad_strings(
        "fqns",
        &["a.weight", "", "scale", "cache"],
        "holds an empty name",
    );
}

#[test]
fn facts_of_a_constant() {
    bad_ints("kinds", &[0, 0, 3, 2], "is 3 for 'scale'");
    bad_ints(
        "dtypes",
        &[6, 6, 6, 8],
        "holds 8, which is not the number of a scalar type",
    );
    bad_ints("nbytes", &[48, -64, 20, 16], "is -64 for 'b.weight'");
    bad_ints(
        "nbytes",
        &[48, 60, 20, 16],
        "is 60 for 'b.weight', but float32 of sizes [2, 8] takes 64",
    );
    bad_ints("crc32", &[0, 0, -1, 0], "is -1 for 'scale'");
    bad_ints("crc32", &[0, 0, 0, 1 << 32], "is 4294967296 for 'cache'");
    bad(
        "kinds",
        "says weight for 'a.weight' in a program without offload",
        |spec| {
            spec.set_ints("offload", &[0]);
        },
    );
}

#[test]
fn layouts_are_complete_and_dense() {
    let change =
        |at: usize, value: i64| move |spec: &mut RecordSpec| spec.ints_mut("layouts")[at] = value;
    bad(
        "layouts",
        "strides [4, 1], which are not dense",
        change(3, 4),
    );
    bad(
        "layouts",
        "strides [0, 1], which are not dense",
        change(3, 0),
    );
    bad(
        "layouts",
        "strides [3, -1], which are not dense",
        change(4, -1),
    );
    bad(
        "layouts",
        "impossible sizes [-4, 3] for 'a.weight'",
        change(1, -4),
    );
    bad(
        "layouts",
        "impossible sizes [9223372036854775807, 3]",
        change(1, i64::MAX),
    );
    bad(
        "layouts",
        "where a number of dimensions is expected",
        change(0, -1),
    );
    bad(
        "layouts",
        "where a number of dimensions is expected",
        change(0, 65),
    );
    bad("layouts", "ends too early (at value 19)", change(15, 3));
    bad("layouts", "ends too early", |spec| {
        spec.ints_mut("layouts").pop();
    });
    bad(
        "layouts",
        "holds more than the layouts of 4 constants",
        |spec| spec.ints_mut("layouts").push(0),
    );
    let transposed = parse(|spec| {
        spec.ints_mut("layouts")[3..5].copy_from_slice(&[1, 4]);
    });
    assert_eq!(transposed.unwrap().constants[0].strides, [1, 4]);
}

#[test]
fn probes_name_weights() {
    bad_ints("probes", &[0, 4, 0], "maps probe 1 to constant 4 of 4");
    bad_ints("probes", &[0, -1, 0], "maps probe 1 to constant -1");
    bad_ints(
        "probes",
        &[0, 2, 0],
        "maps probe 1 to 'scale', which is a direct constant",
    );
    bad_ints(
        "access_order",
        &[0, 1],
        "holds 2 values, expected 3, one per probe",
    );
    bad_ints(
        "access_order",
        &[0, 0, 0],
        "says weight 0 at position 1, the trace says weight 1",
    );
}

#[test]
fn gathers_name_reads_of_rows() {
    let parsed = parse(|spec| {
        spec.set_ints("gathers", &[0, 3, 2, -1]);
    });
    let gathers = parsed.unwrap().gathers;
    let found: Vec<_> = gathers
        .iter()
        .map(|one| (one.probe, one.rows, one.row_bytes))
        .collect();
    // 48 bytes of 4 rows.
    assert_eq!(found, [(0, Some(3), 12), (2, None, 12)]);
    assert!(
        gathers[0].pays(72)
            && !gathers[0].pays(71)
            && !gathers[0].pays(0)
            && !gathers[1].pays(u64::MAX)
    );
    bad_ints("gathers", &[0], "ends too early");
    bad_ints("gathers", &[3, 1], "holds probe 3 of 3 out of turn");
    bad_ints("gathers", &[-1, 1], "holds probe -1 of 3 out of turn");
    bad_ints("gathers", &[1, 1, 1, 1], "holds probe 1 of 3 out of turn");
    bad_ints("gathers", &[1, -2], "says that probe 1 takes -2 rows");
    // Columns lie together, not rows.
    bad(
        "gathers",
        "takes rows of 'a.weight', which has none",
        |spec| {
            spec.ints_mut("layouts")[3..5].copy_from_slice(&[1, 4]);
            spec.set_ints("gathers", &[0, 1]);
        },
    );
}

#[test]
fn the_trace_is_a_pass_that_can_happen() {
    let (probe, kernel, release) = (|id: i64| 4 * id, |id: i64| 4 * id + 1, |id: i64| 4 * id + 2);
    bad_ints("trace", &[3], "holds 3, which is not an event");
    bad_ints("trace", &[-4], "holds -4, which is not an event");
    bad_ints("trace", &[i64::MAX - 3], "which is not an event");
    bad_ints("trace", &[probe(0), probe(1)], "never reaches probe 2 of 3");
    bad_ints(
        "trace",
        &[probe(0), probe(1), probe(0)],
        "holds probe 0 of 3 out of turn (event 2)",
    );
    bad_ints("trace", &[probe(3)], "holds probe 3 of 3 out of turn");
    bad_ints("trace", &[kernel(1)], "holds kernel 1, expected kernel 0");
    bad_ints(
        "trace",
        &[probe(0), kernel(0), kernel(0)],
        "holds kernel 0, expected kernel 1",
    );
    bad_ints(
        "trace",
        &[release(0)],
        "releases probe 0, whose lease is not open (event 0)",
    );
    bad_ints(
        "trace",
        &[probe(0), release(0), release(0)],
        "releases probe 0, whose lease is not open",
    );
    bad_ints(
        "trace",
        &[probe(0), release(0), probe(0)],
        "holds probe 0 of 3 out of turn",
    );
}

#[test]
fn inputs_and_outputs_are_whole() {
    bad_ints("inputs", &[6, 2, 1, 8, 0, 3, 3], "ends too early");
    bad_ints(
        "inputs",
        &[8, 0],
        "holds 8, which is not the number of a scalar type",
    );
    bad_ints("inputs", &[6, 1, 5, 4, -1], "holds a dimension of 5 to 4");
    bad_ints("inputs", &[6, 1, -1, 4, -1], "holds a dimension of -1 to 4");
    bad_ints("inputs", &[6, 1, 1, 4, -2], "holds the symbol -2");
    bad_ints(
        "inputs",
        &[6, 0, 6, 0],
        "holds more inputs than have names, which are 1",
    );
    bad(
        "inputs",
        "holds more inputs than have names, which are 0",
        |spec| {
            spec.remove("input_names");
        },
    );
    bad_ints(
        "inputs",
        &[6, 1, 1, 4, 1],
        "gives dimension 0 of 'x' the symbol 1, `symbols` names 1",
    );
    bad_ints("outputs", &[6], "ends too early");
    bad_ints(
        "outputs",
        &[6, 99],
        "where a number of dimensions is expected",
    );
}

#[test]
fn every_symbol_has_a_name_and_one_value() {
    bad_strings("symbols", &[""], "holds an empty name (entry 0)");
    bad_strings(
        "symbols",
        &["n", "m"],
        "holds 'm', which is no dimension and has no solution (entry 1)",
    );
    let solved = |solutions: &[&str]| {
        let solutions: Vec<String> = solutions.iter().map(|one| (*one).to_owned()).collect();
        move |spec: &mut RecordSpec| {
            let solutions: Vec<&str> = solutions.iter().map(String::as_str).collect();
            spec.set_strings("symbols", &["n", "m", "k"]);
            spec.set_strings("solutions", &solutions);
        }
    };
    let parsed = parse(solved(&["2 0 1 x 3 //", "1 0 1 x s2 - s0 +"])).unwrap();
    let sizes = parsed.sizes;
    let found: Vec<_> = sizes
        .symbols
        .iter()
        .map(|one| (one.name.as_str(), one.input, one.dim))
        .collect();
    assert_eq!(found, [("n", 0, 0), ("m", 0, 1), ("k", 0, 1)]);
    let found: Vec<_> = sizes
        .solutions
        .iter()
        .map(|one| (one.symbol, sizes.infix(&one.value)))
        .collect();
    assert_eq!(
        found,
        [(2, "size // 3".to_owned()), (1, "size - k + n".to_owned())]
    );
    for (entries, words) in [
        (
            ["2 0 1 x", "0 0 1 x"],
            "solves symbol 0, which has a value already (entry 1)",
        ),
        (
            ["2 0 1 x", "2 0 1 x"],
            "solves symbol 2, which has a value already (entry 1)",
        ),
        (
            ["2 0 1 x", "1 0 1 s1"],
            "uses symbol 1 before it has a value (entry 1)",
        ),
        (
            ["2 0 1 x s1 +", "1 0 1 x"],
            "uses symbol 1 before it has a value (entry 0)",
        ),
        (["2 0 1 x", "3 0 1 x"], "names symbol 3 of 3 (entry 1)"),
        (
            ["2 0 1 x", "1 0 2 x"],
            "names dimension 2 of input 0, which is not there (entry 1)",
        ),
        (
            ["2 0 1 x", "1 1 0 x"],
            "names dimension 0 of input 1, which is not there (entry 1)",
        ),
        (
            ["2 0 1 x", "1 0 1"],
            "holds '', which is not a token (entry 1)",
        ),
        (
            ["2 0 1 x", "1 0"],
            "does not start with a symbol, an input and a dimension (entry 1)",
        ),
        (["2 0 1 x", "1 +0 1 x"], "does not start with a symbol"),
        (
            ["2 0 1 x", "1 0 1 y"],
            "holds '1 0 1 y', which holds 'y', which is not a token (entry 1)",
        ),
    ] {
        bad("solutions", words, solved(&entries));
    }
}

#[test]
fn relations_and_guards_name_what_is_there() {
    let parsed = parse(|spec| {
        spec.set_strings("relations", &["i0.1 3", "o0.1 64", "o0.0 8 s0 *"]);
        spec.set_strings("guards", &["s0 8 % 0 =="]);
    });
    let sizes = parsed.unwrap().sizes;
    let shown = |relations: &[weightstream::format::Relation]| -> Vec<_> {
        let one =
            |one: &weightstream::format::Relation| (one.index, one.dim, sizes.infix(&one.size));
        relations.iter().map(one).collect()
    };
    assert_eq!(shown(&sizes.inputs), [(0, 1, "3".to_owned())]);
    assert_eq!(
        shown(&sizes.outputs),
        [(0, 1, "64".to_owned()), (0, 0, "8*n".to_owned())]
    );
    assert_eq!(sizes.infix(&sizes.guards[0]), "n % 8 == 0");
    for (entry, words) in [
        (
            "i0.2 3",
            "names dimension 2 of input 0, which is not there (entry 0)",
        ),
        ("i1.0 3", "names dimension 0 of input 1, which is not there"),
        (
            "o0.2 3",
            "names dimension 2 of output 0, which is not there",
        ),
        (
            "o1.0 3",
            "names dimension 0 of output 1, which is not there",
        ),
        ("i0 3", "names no dimension of an input"),
        ("o.0 3", "names no dimension of an output"),
        ("i0.-1 3", "names no dimension of an input"),
        ("x0.1 3", "names neither an input nor an output"),
        ("", "names neither an input nor an output"),
        ("i0.1", "holds '', which is not a token"),
        ("i0.1 s1", "names symbol 1 of 1"),
        ("i0.1 x", "holds 'x', which is not a token"),
        ("i0.1 s0 +", "has 1 values for '+', expected 2"),
    ] {
        bad_strings("relations", &[entry], words);
    }
    bad_strings(
        "guards",
        &["1", "s0 s0"],
        "holds 's0 s0', which leaves 2 values, expected 1 (entry 1)",
    );
    bad_strings("guards", &["s1"], "names symbol 1 of 1");
}

#[test]
fn a_program_without_a_record_or_with_anothers_is_refused() {
    let mut spec = PteSpec::new(&RecordSpec::small(), b"so");
    spec.constants.clear();
    let bytes = pte(&spec);
    let error = Record::from_pte(&Pte::parse("m.pte", &bytes).unwrap(), "forward").unwrap_err();
    assert!(
        matches!(&error, Error::Missing { name, .. } if name == "forward__weight_offload__format_version")
    );
    assert!(
        error
            .to_string()
            .contains("m.pte: method 'forward' has no weight offload record"),
        "{error}"
    );

    let mut other = RecordSpec::small();
    other.set_strings("method", &["decode"]);
    let bytes = pte(&PteSpec::new(&other, b"so"));
    let error = Record::from_pte(&Pte::parse("m.pte", &bytes).unwrap(), "forward").unwrap_err();
    assert!(
        matches!(&error, Error::Mismatch { name, found, .. } if name == "forward" && found == "decode in m.pte")
    );

    let mut broken = RecordSpec::small();
    broken.set_ints("trace", &[3]);
    let bytes = pte(&PteSpec::new(&broken, b"so"));
    let error = Record::from_pte(&Pte::parse("m.pte", &bytes).unwrap(), "forward").unwrap_err();
    assert!(
        matches!(&error, Error::Malformed { file, offset, .. } if file == "m.pte" && *offset > 8)
    );
}
