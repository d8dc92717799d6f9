use super::*;
use crate::format::{BuildId, Dim, InputSpec, ScalarType, Sizes, Target};

const MIB: u64 = 1 << 20;

fn record(activations: Option<u64>, inputs: &[&[i64]]) -> Record {
    let input = |(number, dims): (usize, &&[i64])| InputSpec {
        name: format!("x{number}"),
        dtype: ScalarType::from_number(6).unwrap(),
        dims: dims
            .iter()
            .map(|&max| Dim {
                min: 0,
                max,
                symbol: None,
            })
            .collect(),
    };
    Record {
        version: 4,
        method: "forward".to_owned(),
        build_id: BuildId([0; 16]),
        so_key: String::new(),
        offload: true,
        device: "cpu".to_owned(),
        target: Target {
            os: String::new(),
            arch: String::new(),
            isa: String::new(),
            torch: String::new(),
            sms: Vec::new(),
            tuned: true,
        },
        constants: Vec::new(),
        probes: Vec::new(),
        gathers: Vec::new(),
        places: Vec::new(),
        access_order: Vec::new(),
        trace: Vec::new(),
        floor: 0,
        hard_minimum: 0,
        activations,
        call: Vec::new(),
        inputs: inputs.iter().enumerate().map(input).collect(),
        outputs: Vec::new(),
        sizes: Sizes::default(),
    }
}

fn floor_of(bytes: u64) -> Floor {
    Floor {
        direct: bytes,
        staging: 0,
        pinned: 0,
        pair: None,
        copy: None,
        hard_minimum: bytes,
        everything: 0,
    }
}

#[test]
fn the_budget_is_what_is_free_less_the_headroom_and_at_most_everything() {
    // free, activations, inputs (float32, maxima), everything -> budget; granule 512
    type Row = (u64, u64, &'static [&'static [i64]], u64, u64);
    let rows: [Row; 8] = [
        (1024 * MIB, 0, &[], 4096 * MIB, 768 * MIB),
        (1024 * MIB, 100 * MIB, &[], 4096 * MIB, 668 * MIB),
        (
            1024 * MIB,
            100 * MIB,
            &[&[MIB as i64]],
            4096 * MIB,
            664 * MIB,
        ),
        // Each input is rounded up to the granule by itself; one without dimensions has one element.
        (
            1024 * MIB,
            0,
            &[&[1], &[129], &[]],
            4096 * MIB,
            768 * MIB - 2048,
        ),
        (1024 * MIB, 0, &[&[0, 7]], 4096 * MIB, 768 * MIB),
        (1024 * MIB, 0, &[], 300 * MIB, 300 * MIB),
        (RESERVE, 0, &[], 300 * MIB, 0),
        (10, u64::MAX - 1, &[], 300 * MIB, 0),
    ];
    for (free, activations, inputs, everything, expected) in rows {
        let record = record(Some(activations), inputs);
        let auto = AutoBudget::new(&record, everything, free, 512).unwrap();
        assert_eq!(auto.bytes(), expected, "{auto}");
    }
    let inputs: &[&[i64]] = &[&[MIB as i64]];
    let auto = AutoBudget::new(
        &record(Some(100 * MIB), inputs),
        4096 * MIB,
        1024 * MIB,
        512,
    )
    .unwrap();
    assert_eq!(auto.with_graphs(7 * MIB).bytes() + 111 * MIB, auto.bytes());
}

#[test]
fn less_than_the_floor_is_refused_with_the_arithmetic() {
    let auto = AutoBudget::new(&record(Some(MIB), &[]), 900 * MIB, 300 * MIB, 64).unwrap();
    assert_eq!(auto.accepted(&floor_of(43 * MIB)), Ok(43 * MIB));
    let error = auto.accepted(&floor_of(43 * MIB + 1)).unwrap_err();
    assert!(matches!(
        &error,
        Error::BudgetTooSmall { budget, floor, .. } if *budget == 43 * MIB && *floor == 43 * MIB + 1
    ));
    let text = error.to_string();
    for part in [
        "needs at least 45088769 bytes",
        "weight_offload_budget = auto chose 45088768 bytes (43.0 MB): 314572800 bytes (300.0 MB) free",
        "less 269484032 bytes (257.0 MB)",
        "activations 1048576 bytes (1.0 MB), inputs 0 bytes, graphs 0 bytes, reserve 268435456 bytes (256.0 MB)",
        "at most 943718400 bytes (900.0 MB) for all weights",
    ] {
        assert!(text.contains(part), "'{part}' in: {text}");
    }
}

#[test]
fn shapes_without_a_bound_are_refused_by_name() {
    type Row = (Option<u64>, &'static [&'static [i64]], &'static str);
    let cases: [Row; 3] = [
        (
            Some(1),
            &[&[4], &[2, 1 << 62]],
            "input 'x1' has a dimension without an upper bound",
        ),
        (
            None,
            &[&[4]],
            "one of its activations has a size without an upper bound",
        ),
        (Some(1), &[&[1 << 40, 1 << 40]], "input 'x0' is too large"),
    ];
    for (activations, inputs, expected) in cases {
        let error = AutoBudget::new(&record(activations, inputs), 1, 1, 64).unwrap_err();
        assert!(matches!(error, Error::Option { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}
