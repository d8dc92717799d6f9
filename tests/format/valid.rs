//! Files that are right: what was written is what is read, from either place of the record.

use crate::support::{payload, ptd, pte, FieldValue, PteSpec, RecordSpec};
use weightstream::format::{ConstantKind, Ptd, Pte, Record, ScalarType};
use weightstream::schedule::Event::{Kernel, Probe, Release};

#[test]
fn a_program_gives_back_its_delegate_named_data_and_constants() {
    let record = RecordSpec::small();
    let bytes = pte(&PteSpec::new(&record, b"not really a library"));
    let program = Pte::parse("model.pte", &bytes).unwrap();
    let delegate = program.delegate("forward").unwrap();
    assert_eq!(delegate.backend, "WeightStreamBackend");
    assert_eq!(delegate.processed, payload(&record));
    assert_eq!(delegate.spec("method_name"), Some(b"forward".as_slice()));
    assert_eq!(delegate.spec("other"), None);
    let so_key = format!("weightstream_so_{}", "5".repeat(64));
    assert_eq!(
        program.named_data(&so_key).unwrap(),
        b"not really a library"
    );
    assert_eq!(
        program.named_data_keys().collect::<Vec<_>>(),
        [so_key.as_str()]
    );
    let floor = program
        .constant_method("forward__weight_offload__floor")
        .unwrap();
    assert_eq!(
        (floor.ints.as_slice(), floor.strings.is_empty()),
        ([256].as_slice(), true)
    );
    let fqns = program
        .constant_method("forward__weight_offload__fqns")
        .unwrap();
    assert_eq!(fqns.strings, ["a.weight", "b.weight", "scale", "cache"]);
    assert!(program.methods().any(|method| method == "forward"));
}

#[test]
fn inline_delegate_data_and_a_program_without_segments_are_read() {
    let mut spec = PteSpec::new(&RecordSpec::small(), b"");
    spec.named.clear();
    spec.delegates[0].inline = true;
    let bytes = pte(&spec);
    let program = Pte::parse("model.pte", &bytes).unwrap();
    assert_eq!(
        program.delegate("forward").unwrap().processed,
        spec.delegates[0].processed
    );
}

#[test]
fn a_record_reads_the_same_from_payload_and_program() {
    let spec = RecordSpec::small();
    let bytes = pte(&PteSpec::new(&spec, b"so"));
    let program = Pte::parse("model.pte", &bytes).unwrap();
    let record = Record::from_pte(&program, "forward").unwrap();
    let payload = program.delegate("forward").unwrap().processed;
    assert_eq!(record, Record::from_payload("payload", payload).unwrap());
    assert_eq!(record.build_id.to_string(), crate::support::BUILD_ID);
    assert_eq!(record.build_id_key(), "weightstream_build_id_forward");
    assert_eq!(
        (record.floor, record.hard_minimum, record.offload),
        (256, 192, true)
    );
    assert_eq!(record.activations, Some(320));
    assert_eq!(
        (record.probes.as_slice(), record.access_order.as_slice()),
        ([0, 1, 0].as_slice(), [0, 1, 0].as_slice())
    );
    let trace = [
        Probe(0),
        Kernel(0),
        Probe(1),
        Kernel(1),
        Release(0),
        Probe(2),
        Kernel(2),
        Release(1),
    ];
    assert_eq!(record.trace, trace);
    let kinds: Vec<_> = record
        .constants
        .iter()
        .map(|constant| constant.kind)
        .collect();
    use ConstantKind::{Direct, Mutable, Weight};
    assert_eq!(kinds, [Weight, Weight, Direct, Mutable]);
    let first = record.probed(2).unwrap();
    assert_eq!(
        (first.fqn.as_str(), first.dtype, first.nbytes),
        ("a.weight", ScalarType::F32, 48)
    );
    assert_eq!(
        (first.sizes.as_slice(), first.strides.as_slice()),
        ([4, 3].as_slice(), [3, 1].as_slice())
    );
    assert_eq!(record.probed(3), None);
    let input = &record.inputs[0];
    assert_eq!(
        (input.name.as_str(), input.dims[0].symbol, input.dims[0].max),
        ("x", Some(0), 8)
    );
    assert_eq!((input.dims[1].symbol, input.dims[1].min), (None, 3));
    assert_eq!(record.sizes.name(0), "n");
    assert_eq!(
        (record.outputs[0].dtype, record.outputs[0].ndim),
        (ScalarType::F32, 2)
    );
}

#[test]
fn extra_fields_are_ignored_only_with_their_prefix() {
    let mut spec = RecordSpec::small();
    spec.set_ints("x_planner", &[1, 2, 3]);
    let plain = Record::from_payload("p", &payload(&RecordSpec::small())).unwrap();
    assert_eq!(Record::from_payload("p", &payload(&spec)).unwrap(), plain);
}

#[test]
fn a_record_names_the_inputs_of_a_call_or_leaves_it() {
    let plain = Record::from_payload("p", &payload(&RecordSpec::small())).unwrap();
    assert!(plain.call.is_empty());
    let mut spec = RecordSpec::small();
    spec.set_strings("x_call", &["x", "cache['k']", "mode"])
        .set_ints("x_call_places", &[0, -1, 2])
        .set_strings("x_call_constants", &["", "", "'relu'"]);
    let named = Record::from_payload("p", &payload(&spec)).unwrap();
    let call = named.call.iter();
    let call = call.map(|one| (one.name.as_str(), one.place, one.constant.as_deref()));
    assert_eq!(
        call.collect::<Vec<_>>(),
        [
            ("x", Some(0), None),
            ("cache['k']", None, None),
            ("mode", Some(2), Some("'relu'"))
        ]
    );
}

#[test]
fn an_empty_list_may_be_left_out() {
    let mut spec = RecordSpec::small();
    for name in ["inputs", "input_names", "outputs", "symbols"] {
        spec.remove(name);
    }
    let record = Record::from_payload("p", &payload(&spec)).unwrap();
    assert!(record.inputs.is_empty() && record.outputs.is_empty());
}

#[test]
fn a_program_without_offload_has_only_direct_constants() {
    let mut spec = RecordSpec::small();
    spec.set_ints("offload", &[0])
        .set_ints("kinds", &[1, 1, 1, 2])
        .set_ints("trace", &[1, 5]);
    spec.remove("probes").remove("access_order");
    let record = Record::from_payload("p", &payload(&spec)).unwrap();
    assert!(!record.offload && record.probes.is_empty());
}

#[test]
fn a_data_file_gives_back_layouts_and_ranges() {
    let mut spec = RecordSpec::small_ptd();
    spec.share("tied", Some((6, vec![12])), 0);
    spec.add("empty", Some((4, vec![0, 7])), Vec::new());
    spec.add("scalar", Some((11, vec![])), vec![1]);
    for alignment in [1, 16, 128, 4096] {
        spec.alignment = alignment;
        let bytes = ptd(&spec);
        let data = Ptd::parse("model.ptd", &bytes).unwrap();
        let weight = data.entry("b.weight").unwrap();
        assert_eq!(&bytes[weight.range.clone()], RecordSpec::bytes_of(1));
        assert_eq!(weight.range.start % alignment, 0);
        let layout = weight.layout.as_ref().unwrap();
        assert_eq!(
            (layout.dtype, layout.sizes.as_slice()),
            (ScalarType::F32, [2, 8].as_slice())
        );
        assert_eq!(layout.dim_order, [0, 1]);
        let (one, other) = (data.entry("a.weight").unwrap(), data.entry("tied").unwrap());
        assert_eq!((one.segment, &one.range), (other.segment, &other.range));
        assert!(data.entry("empty").unwrap().range.is_empty());
        assert_eq!(
            data.entry("scalar").unwrap().layout.as_ref().unwrap().dtype,
            ScalarType::Bool
        );
        assert_eq!(
            data.entry("weightstream_build_id_forward").unwrap().layout,
            None
        );
        assert_eq!(data.entry("nobody"), None);
        assert_eq!(data.entries().count(), 8);
    }
}

#[test]
fn padding_behind_the_last_segment_is_not_damage() {
    let mut spec = RecordSpec::small_ptd();
    spec.alignment = 64;
    let mut bytes = ptd(&spec);
    // 16 bytes of build id, then 48 of padding, counted in the header.
    let size = u64::from_le_bytes(bytes[40..48].try_into().unwrap()) + 48;
    bytes[40..48].copy_from_slice(&size.to_le_bytes());
    bytes.extend([0; 48]);
    Ptd::parse("model.ptd", &bytes).unwrap();
}

#[test]
fn a_program_with_the_short_header_of_old_writers_is_read() {
    let spec = PteSpec::new(&RecordSpec::small(), b"so");
    let mut bytes = pte(&spec);
    bytes[12..16].copy_from_slice(&24u32.to_le_bytes());
    bytes[32..40].fill(0);
    let program = Pte::parse("model.pte", &bytes).unwrap();
    assert_eq!(
        program.delegate("forward").unwrap().processed,
        spec.delegates[0].processed
    );
}

#[test]
fn an_integer_constant_is_not_a_string() {
    let mut spec = PteSpec::new(&RecordSpec::small(), b"so");
    spec.constants
        .push(("answer".to_owned(), FieldValue::Ints(vec![42])));
    let bytes = pte(&spec);
    let program = Pte::parse("model.pte", &bytes).unwrap();
    let answer = program.constant_method("answer").unwrap();
    assert_eq!(
        (answer.ints.as_slice(), answer.strings.len()),
        ([42].as_slice(), 0)
    );
}

#[test]
fn activations_without_a_bound_are_told_apart_from_none() {
    for (recorded, read) in [(-1, None), (0, Some(0)), (4096, Some(4096))] {
        let mut spec = RecordSpec::small();
        spec.set_ints("activations", &[recorded]);
        let record = Record::from_payload("payload", &payload(&spec)).unwrap();
        assert_eq!(record.activations, read);
    }
}
