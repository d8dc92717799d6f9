//! Valid records at random, with the data that belongs to them, and damage to single fields.

use super::bytes::{Rng, EDGES};
use crate::support::{FieldValue, PtdSpec, RecordSpec, BUILD_ID};
use weightstream::schedule::{floor, Event, Trace, WeightKind, WeightSpec};

/// A valid record and its data file. Its weights are read by a trace that can happen.
pub fn valid(rng: &mut Rng) -> (RecordSpec, PtdSpec) {
    let mut record = RecordSpec::small();
    let mut data = PtdSpec::default();
    let count = rng.below(6);
    let mut lists: [Vec<i64>; 5] = Default::default();
    let mut names = Vec::new();
    let mut before = (Vec::new(), Vec::new());
    for index in 0..count {
        let name = format!("layer.{index}.weight");
        let mut sizes: Vec<i64> = (0..rng.below(4)).map(|_| 1 + rng.below(4) as i64).collect();
        // Now and then one that is tied to the one before, or only equal to it.
        let tied = index > 0 && rng.one_in(3);
        if tied {
            sizes.clone_from(&before.0);
        }
        let bytes = match tied {
            true => before.1.clone(),
            false => rng.bytes(4 * sizes.iter().product::<i64>() as usize),
        };
        before = (sizes.clone(), bytes.clone());
        let values = [
            rng.below(3) as i64,
            6,
            bytes.len() as i64,
            i64::from(crc32fast::hash(&bytes)),
        ];
        for (list, value) in lists.iter_mut().zip(values) {
            list.push(value);
        }
        lists[4].push(sizes.len() as i64);
        lists[4].extend(&sizes);
        lists[4].extend((0..sizes.len()).map(|d| sizes[d + 1..].iter().product::<i64>()));
        let layout = Some((6, sizes.iter().map(|s| *s as i32).collect()));
        match tied {
            true => data.share(&name, layout, data.segments.len() as u32 - 1),
            false => data.add(&name, layout, bytes),
        };
        names.push(name);
    }
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    record.set_strings("fqns", &names);
    for (name, list) in ["kinds", "dtypes", "nbytes", "crc32", "layouts"]
        .iter()
        .zip(&lists)
    {
        record.set_ints(name, list);
    }
    schedule(rng, &mut record, &lists[0], &lists[2]);
    sizes(rng, &mut record);
    let id = u128::from_str_radix(BUILD_ID, 16).unwrap().to_be_bytes();
    data.add("weightstream_build_id_forward", None, id.to_vec());
    (record, data)
}

/// Symbols beside the one that is a dimension, relations and guards.
fn sizes(rng: &mut Rng, record: &mut RecordSpec) {
    let mut names = vec!["n".to_owned()];
    let mut solutions = Vec::new();
    for number in 1..=rng.below(3) {
        solutions.push(format!(
            "{number} 0 {} {}",
            rng.below(2),
            postfix(rng, number, true)
        ));
        names.push(format!("s{number}"));
    }
    let relations: Vec<_> = (0..rng.below(4))
        .map(|_| {
            let place = (rng.pick(&["i", "o"]), rng.below(2));
            format!(
                "{}0.{} {}",
                place.0,
                place.1,
                postfix(rng, names.len(), false)
            )
        })
        .collect();
    let guards: Vec<_> = (0..rng.below(3))
        .map(|_| postfix(rng, names.len(), false))
        .collect();
    for (field, texts) in [
        ("symbols", names),
        ("solutions", solutions),
        ("relations", relations),
        ("guards", guards),
    ] {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        record.set_strings(field, &texts);
    }
}

const OPERATORS: [&str; 15] = [
    "+", "-", "*", "//", "%", "min", "max", "==", "!=", "<", "<=", ">", ">=", "and", "or",
];

/// An expression over the first `symbols` symbols, and x if `size`.
fn postfix(rng: &mut Rng, symbols: usize, size: bool) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut open = 0;
    while open != 1 || rng.one_in(2) {
        match rng.below(6) {
            0 if open > 0 => words.push("not".to_owned()),
            1..=3 if open > 1 => {
                words.push(rng.pick(&OPERATORS).to_owned());
                open -= 1;
            }
            other => {
                words.push(match other {
                    4 => rng.pick(&EDGES).to_string(),
                    5 if size => "x".to_owned(),
                    _ => format!("s{}", rng.below(symbols)),
                });
                open += 1;
            }
        }
    }
    words.join(" ")
}

/// Probes of weights, a trace of them, and the figures that follow.
fn schedule(rng: &mut Rng, record: &mut RecordSpec, kinds: &[i64], nbytes: &[i64]) {
    let weights: Vec<i64> = (0..kinds.len() as i64)
        .filter(|i| kinds[*i as usize] == 0)
        .collect();
    let count = if weights.is_empty() { 0 } else { rng.below(6) };
    let probes: Vec<i64> = (0..count).map(|_| rng.pick(&weights)).collect();
    let mut unseen: Vec<u32> = (0..count as u32).collect();
    let (mut events, mut open, mut kernels) = (Vec::new(), Vec::new(), 0);
    while !unseen.is_empty() || rng.one_in(2) {
        match rng.below(3) {
            0 if !unseen.is_empty() => {
                let id = unseen.swap_remove(rng.below(unseen.len()));
                events.push(Event::Probe(id));
                open.push(id);
            }
            1 if !open.is_empty() => {
                events.push(Event::Release(open.swap_remove(rng.below(open.len()))));
            }
            _ => {
                events.push(Event::Kernel(kernels));
                kernels += 1;
            }
        }
    }
    let code = |event: &Event| match *event {
        Event::Probe(id) => 4 * i64::from(id),
        Event::Kernel(id) => 4 * i64::from(id) + 1,
        Event::Release(id) => 4 * i64::from(id) + 2,
    };
    let specs: Vec<_> = kinds.iter().zip(nbytes).map(specification).collect();
    let of = probes.iter().map(|p| *p as u32).collect();
    let trace = Trace::new(events.clone(), of, kinds.len()).unwrap();
    let floor = floor(&trace, &specs, 64);
    let order: Vec<i64> = trace
        .order()
        .iter()
        .map(|id| probes[*id as usize])
        .collect();
    record
        .set_ints("probes", &probes)
        .set_ints("access_order", &order)
        .set_ints("trace", &events.iter().map(code).collect::<Vec<_>>())
        .set_ints("floor", &[floor.bytes() as i64])
        .set_ints("hard_minimum", &[floor.hard_minimum as i64]);
}

fn specification((kind, bytes): (&i64, &i64)) -> WeightSpec {
    WeightSpec {
        fqn: String::new(),
        bytes: *bytes as u64,
        stored: *bytes as u64,
        kind: match kind {
            0 => WeightKind::Weight,
            1 => WeightKind::Direct,
            _ => WeightKind::Mutable,
        },
    }
}

/// Changes one field.
pub fn damage(rng: &mut Rng, record: &mut RecordSpec) {
    let at = rng.below(record.fields.len());
    let edge = rng.pick(&EDGES);
    let Some((name, value)) = record.fields.get_mut(at) else {
        return;
    };
    match rng.below(12) {
        0 => drop(record.fields.remove(at)),
        1 => {
            let again = (name.clone(), value.clone());
            record.fields.push(again);
        }
        2 => *name = format!("x_{name}"),
        3 => *name = "unknown".to_owned(),
        4 => *value = FieldValue::Ints(vec![edge]),
        _ => change(rng, value, edge),
    }
}

fn change(rng: &mut Rng, value: &mut FieldValue, edge: i64) {
    match value {
        FieldValue::Ints(ints) => {
            let at = rng.below(ints.len());
            if rng.one_in(4) && ints.len() > 1 {
                let other = rng.below(ints.len());
                return ints.swap(at, other);
            }
            match (rng.below(5), ints.get_mut(at)) {
                (0, _) => ints.push(edge),
                (1, _) => drop(ints.pop()),
                (2, Some(int)) => *int = int.wrapping_add(edge),
                (3, Some(int)) => *int ^= 1 << rng.below(64),
                (_, Some(int)) => *int = edge,
                _ => {}
            }
        }
        FieldValue::Strings(texts) => {
            let at = rng.below(texts.len());
            match (rng.below(6), texts.get_mut(at)) {
                (0, _) => texts.push("90,100".to_owned()),
                (1, _) => drop(texts.pop()),
                (2, Some(text)) => text.push('\u{fffd}'),
                (3 | 4, Some(text)) => {
                    let mut words: Vec<String> = text.split(' ').map(str::to_owned).collect();
                    let word = rng.below(words.len());
                    words[word] = match rng.below(3) {
                        0 => rng.pick(&OPERATORS).to_owned(),
                        1 => format!("s{}", rng.below(4)),
                        _ => edge.to_string(),
                    };
                    *text = words.join(" ");
                }
                (_, Some(text)) => drop(text.pop()),
                _ => {}
            }
        }
    }
}
