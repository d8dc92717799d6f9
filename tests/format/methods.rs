//! The records of a program of several methods: what is one constant, and what such a payload may not say.

use crate::support::{payload_of, RecordSpec};
use weightstream::format::{ConstantKind, Records};
use weightstream::Error;

/// Two methods over the constants of [`RecordSpec::small`]; `keys` are those of the second one.
fn two(keys: [&str; 4]) -> [RecordSpec; 2] {
    let mut first = RecordSpec::small();
    first.method = "decode".to_owned();
    first
        .set_ints("format_version", &[5])
        .set_strings("method", &["decode"])
        .set_strings("keys", &["a.weight", "b.weight", "scale", "cache"]);
    let mut second = first.clone();
    second.method = "prefill".to_owned();
    second
        .set_strings("method", &["prefill"])
        .set_strings("fqns", &["m.a", "m.b", "m.scale", "m.cache"])
        .set_strings("keys", &keys);
    [first, second]
}

fn shared() -> [RecordSpec; 2] {
    two(["a.weight", "b.weight", "scale", "cache"])
}

fn read(own: &RecordSpec, others: &[&RecordSpec]) -> weightstream::Result<Records> {
    Records::from_payload("payload", &payload_of(own, others))
}

#[track_caller]
fn refused(own: &RecordSpec, others: &[&RecordSpec], words: &[&str]) {
    let records = read(own, others).and_then(|records| records.union());
    let error = records.unwrap_err().to_string();
    for word in words {
        assert!(error.contains(word), "'{word}' is not in: {error}");
    }
}

#[test]
fn constants_of_one_key_are_one_whatever_their_names() {
    let [decode, prefill] = shared();
    for (own, other, method) in [(&decode, &prefill, 0), (&prefill, &decode, 1)] {
        let records = read(own, &[other]).unwrap();
        assert_eq!(records.names(), ["decode", "prefill"]);
        assert_eq!(
            (records.method(), &records.own().method),
            (method, &own.method)
        );
        let union = records.union().unwrap();
        assert_eq!(union.constants.len(), 4);
        assert_eq!(union.index, [[0, 1, 2, 3], [0, 1, 2, 3]]);
        assert_eq!(union.constants[3].kind, ConstantKind::Mutable);
    }
}

#[test]
fn constants_of_other_keys_are_others() {
    let [decode, prefill] = two(["b.weight.too", "b.weight", "prefill/scale", "other.cache"]);
    let mut prefill = prefill;
    // The same bytes read around probes are resident: another constant, of the same entry.
    prefill.set_strings("keys", &["a.weight", "b.weight", "b.weight", "other.cache"]);
    prefill.ints_mut("layouts").splice(10..15, [2, 2, 8, 8, 1]);
    prefill.ints_mut("nbytes")[2] = 64;
    let crc = prefill.ints_mut("crc32")[1];
    prefill.ints_mut("crc32")[2] = crc;
    let union = read(&decode, &[&prefill]).unwrap().union().unwrap();
    assert_eq!(union.index, [[0, 1, 2, 3], [0, 1, 4, 5]]);
    let names: Vec<_> = union
        .constants
        .iter()
        .map(|one| (one.fqn.as_str(), one.key.as_str()))
        .collect();
    assert_eq!(names[4], ("m.scale", "b.weight"));
    assert_eq!(names[5], ("m.cache", "other.cache"));
}

/// Two names of one method stay two constants of a program of one method, though their bytes may be one entry.
#[test]
fn a_program_of_one_method_keeps_its_constants_apart() {
    let mut spec = RecordSpec::small();
    spec.set_strings("keys", &["a.weight", "b.weight", "scale", "cache"]);
    let records = read(&spec, &[]).unwrap();
    assert_eq!(records.union().unwrap().index, [[0, 1, 2, 3]]);
    assert!(!records.own().is_one_of_several());
}

#[test]
fn one_key_with_other_bytes_is_refused() {
    let [decode, prefill] = shared();
    let mut other = prefill.clone();
    other.ints_mut("crc32")[1] += 1;
    refused(
        &decode,
        &[&other],
        &["b.weight", "m.b", "prefill", "CRC-32"],
    );
    let mut other = prefill;
    other.ints_mut("layouts").splice(5..10, [2, 8, 2, 2, 1]);
    refused(&decode, &[&other], &["b.weight", "[8, 2]", "[2, 8]"]);
}

#[test]
fn state_of_one_method_is_no_constant_of_another() {
    let [decode, mut prefill] = shared();
    prefill.set_ints("kinds", &[0, 0, 1, 1]);
    refused(&decode, &[&prefill], &["cache", "Mutable", "Direct"]);
}

#[test]
fn methods_are_of_one_build_and_of_one_kind() {
    let [decode, prefill] = shared();
    let mut other = prefill.clone();
    other.set_strings("build_id", &["ff".repeat(16).as_str()]);
    refused(&decode, &[&other], &["build id", "decode", "prefill"]);
    let mut other = prefill.clone();
    other
        .set_strings("device", &["cuda"])
        .set_strings("target", &["linux", "x86_64", "x86-64", "2.11.0", "90"]);
    refused(&decode, &[&other], &["device", "cpu", "cuda"]);
    let mut other = prefill.clone();
    other.set_strings("method", &["decode"]);
    refused(&decode, &[&other], &["names of the methods", "decode"]);
    refused(&decode, &[], &["number of methods", "several", "1"]);
    let mut old = RecordSpec::small();
    old.set_ints("format_version", &[4]);
    refused(&old, &[&prefill], &["number of methods"]);
}

#[test]
fn keys_are_one_for_each_constant() {
    let [decode, mut prefill] = shared();
    prefill.set_strings("keys", &["a.weight"]);
    let error = read(&decode, &[&prefill]).unwrap_err();
    assert!(
        matches!(&error, Error::Malformed { what, .. } if what.contains("'keys' holds 1 keys, expected 4")),
        "{error}"
    );
    prefill.set_strings("keys", &["a.weight", "", "scale", "cache"]);
    let error = read(&decode, &[&prefill]).unwrap_err().to_string();
    assert!(error.contains("an empty key"), "{error}");
}
