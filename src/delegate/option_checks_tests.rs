use super::*;
use crate::config::{Applies, Spec, SpecValue};
use crate::figures::DeviceModel;
use crate::residency::{choose, Request};
use crate::schedule::{Event, Trace, WeightKind, WeightSpec};

/// The error of a load of eight weights of 1,000 bytes each, with graphs and these options, into so many bytes.
fn refused(more: &[(&str, &str)], capacity: u64) -> Option<Error> {
    let spec = |&(key, value): &(&str, &str)| Spec {
        key: key.to_owned(),
        value: SpecValue::Text(value.to_owned()),
    };
    let specs: Vec<Spec> = [(CUDA_GRAPH, "1")].iter().chain(more).map(spec).collect();
    captured(&Options::parse(&specs).unwrap(), capacity).err()
}

fn captured(options: &Options, capacity: u64) -> Result<bool> {
    let weight = |at: u32| WeightSpec {
        fqn: at.to_string(),
        bytes: 1000,
        stored: 1000,
        kind: WeightKind::Weight,
    };
    let events = (0..8).flat_map(|id| [Event::Probe(id), Event::Kernel(id), Event::Release(id)]);
    let trace = Trace::new(events.collect(), (0..8).collect(), 8).unwrap();
    let residency = choose(&Request {
        kind: options.policy,
        methods: &[(&trace).into()],
        weights: &(0..8).map(weight).collect::<Vec<_>>(),
        model: &DeviceModel {
            granule: 64,
            bytes_per_copy: 0,
            page: Some(64),
            apart: 0,
            whole_pages: false,
            packed: Default::default(),
        },
        capacity,
        link: None,
        times: &[],
    });
    captures(options, HostStorage::Pinned, &*residency.policy())
}

#[test]
fn graphs_under_the_lru_are_refused_with_both_options() {
    let (lru, shapes) = ((POLICY, "lru"), (GRAPH_SHAPES, "n=1,2"));
    for (more, of) in [(&[lru][..], CUDA_GRAPH), (&[lru, shapes], GRAPH_SHAPES)] {
        let Some(Error::Option { key, what }) = refused(more, 4096) else {
            panic!("{more:?} went through");
        };
        assert_eq!(key, of);
        for words in [
            "under the policy 'lru'",
            "take weight_offload_policy = 'planned'",
        ] {
            assert!(what.contains(words), "{words}: {what}");
        }
        // A budget for all weights needs no LRU.
        assert_eq!(refused(more, 1 << 20), None);
    }
    assert_eq!(refused(&[shapes], 4096), None);
}

/// The user asked for no LRU, so its name alone says little.
#[test]
fn a_budget_without_a_plan_is_told_apart() {
    let what = differs(PolicyKind::Planned, "lru");
    assert!(
        what.contains("weight_offload_policy = 'planned' has no plan"),
        "{what}"
    );
    assert!(!what.contains("take"), "{what}");
}

#[test]
fn graphs_that_a_program_has_as_its_default_are_left_out_under_the_lru() {
    let spec = |key: &str, text: &str| Spec {
        key: key.to_owned(),
        value: SpecValue::Text(text.to_owned()),
    };
    let gpu = Applies {
        method: "forward",
        gpu: true,
        offload: true,
        has_data: false,
    };
    let lru = Options::parse(&[spec(POLICY, "lru")]).unwrap();
    let default = lru.with_defaults(&[spec(CUDA_GRAPH, "1")], gpu).unwrap();
    assert!(default.cuda_graph);
    assert_eq!(captured(&default, 4096), Ok(false));
    assert_eq!(captured(&default, 1 << 20), Ok(true));
}
