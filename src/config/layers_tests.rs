use super::super::{Budget, BUDGET_BYTES, BUDGET_MB, HOST, POLICY, VERIFY};
use super::*;
use crate::config::PolicyKind;

fn spec(key: &str, value: impl Into<SpecValue>) -> Spec {
    Spec {
        key: key.to_owned(),
        value: value.into(),
    }
}

impl From<bool> for SpecValue {
    fn from(value: bool) -> Self {
        SpecValue::Bool(value)
    }
}

impl From<i64> for SpecValue {
    fn from(value: i64) -> Self {
        SpecValue::Int(value)
    }
}

impl From<&str> for SpecValue {
    fn from(value: &str) -> Self {
        SpecValue::Text(value.to_owned())
    }
}

const GPU: Applies<'_> = Applies {
    method: "forward",
    gpu: true,
    offload: true,
    has_data: false,
};
const CPU: Applies<'_> = Applies { gpu: false, ..GPU };

fn variables(pairs: &[(&str, &str)]) -> Result<Vec<Spec>> {
    from_variables(
        pairs
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string())),
    )
}

/// The options of a load over the three kinds of defaults.
fn layered(load: &[Spec], defaults: [Vec<Spec>; 3], method: Applies<'_>) -> Result<Options> {
    let [process, environment, program] = defaults;
    let layers = [
        (Origin::SetOption, process),
        (Origin::Environment, environment),
        (Origin::Program, program),
    ];
    Options::parse(load)?.layered(&layers, method)
}

#[test]
fn the_strongest_says_what_holds() {
    let budgets = |from: usize| {
        let mb = |at: usize| match at >= from {
            true => vec![spec(BUDGET_MB, at as i64 + 1)],
            false => vec![],
        };
        let options = layered(&mb(0), [mb(1), mb(2), mb(3)], GPU).unwrap();
        (options.budget, options.origin(BUDGET_BYTES))
    };
    let mb = |count: u64| Budget::Bytes(count << 20);
    assert_eq!(budgets(0), (mb(1), Some(Origin::Load)));
    assert_eq!(budgets(1), (mb(2), Some(Origin::SetOption)));
    assert_eq!(budgets(2), (mb(3), Some(Origin::Environment)));
    assert_eq!(budgets(3), (mb(4), Some(Origin::Program)));
    assert_eq!(budgets(4), (Budget::Floor, None));
}

#[test]
fn a_value_that_is_the_default_is_given_all_the_same() {
    let load = [spec(POLICY, "planned")];
    let lru = vec![spec(POLICY, "lru")];
    let options = layered(&load, [lru, vec![], vec![]], GPU).unwrap();
    assert_eq!(options.policy, PolicyKind::Planned);
}

#[test]
fn a_default_that_cannot_take_effect_is_left_out() {
    let of = |specs: Vec<Spec>, load: &[Spec], method| {
        layered(load, [specs, vec![], vec![]], method).unwrap()
    };
    let host = vec![spec(HOST, "staged"), spec(STAGING_MB, 64)];
    assert_eq!(of(host.clone(), &[], CPU), Options::default());
    assert_eq!(of(host, &[], GPU).staging, Some(64 << 20));
    let staging = vec![spec(STAGING_MB, 64)];
    assert_eq!(
        of(staging, &[spec(HOST, "pinned")], GPU).staging,
        None,
        "the ring of another way"
    );
    let link = vec![spec(LINK_GBPS, 25)];
    let lru = [spec(POLICY, "lru")];
    assert_eq!(of(link, &lru, GPU).origin(LINK_GBPS), None);
    let graph = vec![spec(CUDA_GRAPH, 1)];
    assert!(!of(graph, &[spec(SYNC, 1)], GPU).cuda_graph);
    let sync = vec![spec(SYNC, 1)];
    assert!(!of(sync, &[spec(CUDA_GRAPH, 1)], GPU).sync);
    let budget = vec![spec(BUDGET_MB, 1)];
    let resident = Applies {
        offload: false,
        ..GPU
    };
    assert_eq!(of(budget, &[], resident).budget, Budget::Floor);
    let data = vec![spec(DATA, "/w.ptd")];
    let known = Applies {
        has_data: true,
        ..CPU
    };
    assert_eq!(of(data.clone(), &[], known).data, None);
    assert!(of(data, &[], CPU).data.is_some());
}

#[test]
fn unknown_keys_and_wrong_values_are_errors_everywhere() {
    for at in 0..3 {
        for wrong in [
            spec("weight_offload_budgt", 1),
            spec(POLICY, "mru"),
            spec(PTE_SHA256, "00"),
        ] {
            let mut layers = [vec![], vec![], vec![]];
            layers[at] = vec![wrong.clone()];
            let text = layered(&[], layers, CPU).unwrap_err().to_string();
            let names = ["set_option", "environment", "program"];
            assert!(
                text.contains(&wrong.key) && text.contains(names[at]),
                "{text}"
            );
        }
    }
}

#[test]
fn variables_are_named_after_the_keys() {
    let found = variables(&[
        ("PATH", "/bin"),
        ("WEIGHTSTREAM_BUDGET_MB", "64"),
        ("WEIGHTSTREAM_BUDGET", "auto"),
        ("WEIGHTSTREAM_LINK_GBPS", "25"),
        ("WEIGHTSTREAM_LIBRARY", "/lib/x.so"),
        ("WEIGHTSTREAM_TEST_DEVICE", "cuda"),
    ])
    .unwrap();
    let expected = [
        spec("weight_offload_budget", "auto"),
        spec(BUDGET_MB, 64),
        spec(LINK_GBPS, "25"),
    ];
    assert_eq!(found, expected);
    let text = variables(&[("WEIGHTSTREAM_BUDGT_MB", "64")]).unwrap_err();
    let text = text.to_string();
    assert!(
        text.contains("WEIGHTSTREAM_BUDGT_MB") && text.contains("WEIGHTSTREAM_BUDGET_MB"),
        "{text}"
    );
}

/// Every load would refuse one that is not known.
#[test]
fn the_variables_of_the_tests_on_a_gpu_are_known() {
    let text = include_str!("../../scripts/gpu_test/environment.py");
    let words = text.split(|letter: char| !letter.is_ascii_uppercase() && letter != '_');
    let names: Vec<_> = words
        .filter(|word| word.starts_with("WEIGHTSTREAM_"))
        .collect();
    assert!(names.contains(&"WEIGHTSTREAM_TEST_DEVICE"), "{names:?}");
    for name in names {
        assert_eq!(variables(&[(name, "1")]).unwrap(), [], "{name}");
    }
}

#[test]
fn a_program_holds_texts() {
    let specs: [(&str, &[u8]); 5] = [
        ("method_name", b"forward"),
        (BUDGET_MB, b"12"),
        (VERIFY, b"load"),
        (SYNC, b"false"),
        (CUDA_GRAPH, b"1"),
    ];
    let found = from_program(specs).unwrap();
    let expected = [
        spec(BUDGET_MB, 12),
        spec(VERIFY, "load"),
        spec(SYNC, false),
        spec(CUDA_GRAPH, true),
    ];
    assert_eq!(found, expected);
    let unknown: (&str, &[u8]) = ("weight_offload_x", b"1");
    assert!(from_program([unknown]).is_err());
}

#[test]
fn a_switch_is_a_bool_however_it_is_given() {
    for on in [
        spec(SYNC, true),
        spec(SYNC, 1),
        spec(SYNC, "true"),
        spec(SYNC, "1"),
    ] {
        let options = layered(&[], [vec![on.clone()], vec![], vec![]], GPU).unwrap();
        assert!(options.sync, "{on:?}");
        let told = options.to_json(true);
        assert!(
            told.contains("\"weight_offload_sync\": {\"value\": true, \"from\": \"set_option\"}"),
            "{told}"
        );
    }
    for off in [
        spec(SYNC, false),
        spec(SYNC, 0),
        spec(SYNC, "false"),
        spec(SYNC, "0"),
    ] {
        assert!(
            !Options::parse(std::slice::from_ref(&off)).unwrap().sync,
            "{off:?}"
        );
    }
    for wrong in [spec(SYNC, 2), spec(SYNC, "on"), spec(SYNC, "True")] {
        let text = Options::parse(&[wrong]).unwrap_err().to_string();
        assert!(text.contains("true or false, or 1 or 0"), "{text}");
    }
}

#[test]
fn json_tells_each_value_and_who_gave_it() {
    let process = vec![spec(VERIFY, "load")];
    let options = layered(&[spec(BUDGET_MB, 3)], [process, vec![], vec![]], CPU).unwrap();
    assert_eq!(
        options.to_json(false),
        "{\"weight_offload_budget_mb\": {\"value\": 3, \"from\": \"load\"}, \
         \"weight_offload_verify\": {\"value\": \"load\", \"from\": \"set_option\"}, \
         \"weight_offload_priority\": {\"value\": 0, \"from\": \"default\"}, \
         \"weight_offload_policy\": {\"value\": \"planned\", \"from\": \"default\"}, \
         \"weight_offload_gather\": {\"value\": \"auto\", \"from\": \"default\"}, \
         \"weight_offload_concurrent\": {\"value\": \"turns\", \"from\": \"default\"}}"
    );
    assert!(options
        .to_json(true)
        .contains("\"weight_offload_cuda_graph\": {\"value\": false, \"from\": \"default\"}"));
    assert_eq!(quoted("a\"\\\n"), "\"a\\\"\\\\\\u000a\"");
}
