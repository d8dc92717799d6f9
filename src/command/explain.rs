//! What the policy `planned` chose at a budget, and why: in five lines, and as JSON.

use super::cost::{Cost, LinkArguments};
use super::model::Model;
use super::size::grouped;
use crate::error::counted;
use crate::residency::planned::Plan;
use serde_json::{json, Value};
use std::fmt::Write;

/// Five lines of a plan, or one where there is none.
pub fn text(model: &Model, link: &LinkArguments, cost: &Cost) -> String {
    let Some(plan) = cost.residency.plan() else {
        return format!("no plan: {}\n", cost.residency.why);
    };
    let mut text = String::new();
    let lines = [
        ("streams", streams(model, plan)),
        ("tails", tails(model, plan)),
        ("ring", ring(model, plan)),
        ("a pass", pass(model, link, cost) + &by_method(model, plan)),
        ("the LRU", lru(cost)),
    ];
    for (what, line) in lines {
        let _ = writeln!(text, "{what:10}{line}");
    }
    text
}

fn streams(model: &Model, plan: &Plan) -> String {
    let streams = plan.streams();
    let sizes = streams
        .iter()
        .map(|&weight| model.methods.constants.specs[weight as usize].bytes);
    let all = model
        .methods
        .constants
        .specs
        .iter()
        .filter(|spec| spec.bytes > 0)
        .count();
    format!(
        "{} of {}, of {} bytes in all{}",
        grouped(streams.len() as u64),
        counted(all as u64, "weight"),
        grouped(sizes.clone().sum()),
        match (sizes.clone().min(), sizes.max()) {
            (Some(least), Some(most)) => {
                format!(
                    ", the smallest {}, the largest {}",
                    grouped(least),
                    grouped(most)
                )
            }
            _ => String::new(),
        }
    )
}

fn tails(model: &Model, plan: &Plan) -> String {
    let page = model.figures.page.unwrap_or(1);
    format!(
        "at most {} bytes of each are copied, in pages of {}; the heads and all other weights stay: {} bytes",
        grouped(plan.tail()),
        grouped(page),
        grouped(plan.view.memory - plan.ring())
    )
}

fn ring(model: &Model, plan: &Plan) -> String {
    let slots = plan.slots.iter().filter(|slot| !slot.is_empty()).count();
    let why = match (&model.times, plan.ahead) {
        (Some(_), 1) => "more would be slower by the times of kernels",
        (Some(_), _) => "fewer would be slower by the times of kernels",
        (None, _) => "no times of kernels ask for more",
    };
    format!(
        "{} bytes in {}, for {} ahead of the read that is served: {why}",
        grouped(plan.ring()),
        counted(slots as u64, "slot"),
        copies(plan.ahead as u64)
    )
}

fn pass(model: &Model, link: &LinkArguments, cost: &Cost) -> String {
    let (price, least) = (cost.planned.price, cost.limit.price.bytes);
    let what = match model.records.all().len() {
        1 => "what exceeds the budget",
        _ => "what of a method's weights exceeds the budget",
    };
    let share = match least {
        0 => format!("; the least is 0 bytes, {what}"),
        _ => format!(
            ", {:.3} of the least, {what}",
            price.bytes as f64 / least as f64
        ),
    };
    format!(
        "copies {} bytes in {}{share}; {:.3} ms at {} GB/s",
        grouped(price.bytes),
        copies(price.copies),
        cost.planned.ms,
        link.link_gbps
    )
}

/// What a pass of each method copies, where there are several.
fn by_method(model: &Model, plan: &Plan) -> String {
    let names = model.records.names();
    if names.len() == 1 {
        return String::new();
    }
    let each = names[model.picked()].iter().zip(model.picked());
    let each: Vec<_> = each
        .map(|(name, at)| format!("{name} {} bytes", grouped(plan.copied(at))))
        .collect();
    let mean = match model.one_name() {
        Some(_) => String::new(),
        None => format!("; that is the mean: {}", each.join(", ")),
    };
    format!(
        "{mean}; a pass after one of another method may copy up to {} bytes more, the ring",
        grouped(plan.ring())
    )
}

fn lru(cost: &Cost) -> String {
    let (price, planned) = (cost.lru.price, cost.planned.price.bytes);
    let times = match planned {
        0 => String::new(),
        _ => format!(", {:.2} times as many", price.bytes as f64 / planned as f64),
    };
    format!(
        "would copy {} bytes in {}{times}",
        grouped(price.bytes),
        copies(price.copies)
    )
}

fn copies(count: u64) -> String {
    match count {
        1 => "1 copy".to_owned(),
        _ => format!("{} copies", grouped(count)),
    }
}

/// The same for programs.
pub fn object(model: &Model, cost: &Cost) -> Value {
    let why = &cost.residency.why;
    let Some(plan) = cost.residency.plan() else {
        let by = match cost.residency.policy().everything_stays() {
            true => "resident",
            false => "lru",
        };
        return json!({ "by": by, "why": why });
    };
    let streamed = plan.streamed.iter().map(|one| {
        json!({
            "fqn": model.methods.constants.specs[one.weight as usize].fqn,
            "bytes": one.range.end - one.range.start,
            "probes": one.probes,
        })
    });
    json!({
        "by": "plan",
        "why": why,
        "resident_bytes": plan.view.memory - plan.ring(),
        "ring_bytes": plan.ring(),
        "slots": plan.slots.iter().filter(|slot| !slot.is_empty()).count(),
        "tail_bytes": plan.tail(),
        "copies_ahead": plan.ahead,
        "page_bytes": model.figures.page,
        "streamed": streamed.collect::<Value>(),
    })
}
