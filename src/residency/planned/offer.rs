//! What the table of policies has of planned residency: a plan, or why there is none; and a better one, once kernels were
//! timed.

use super::super::offer::{Request, Residency};
use super::cost::{expected, Clocks, Expected, Price};
use super::lru_price::lru_price;
use super::plan::Plan;
use super::search::{keeping, plan, quickest};
use crate::error::bytes_text;
use crate::figures::{Link, PackedResidents};
use crate::schedule::{MethodTrace, WeightSpec};

/// Another plan is taken for a gain of at least one part in so many of a pass: it costs a load of what stays, once, which is
/// some passes.
const WORTH: u64 = 100;

/// The plan, unless the LRU copies less; an error says why there is none.
pub(in super::super) fn offer(request: &Request<'_>) -> Result<Residency, String> {
    let times = Times::of(request);
    let known = request.times.iter().any(Option::is_some);
    if known && times.is_none() && request.link.is_none() {
        log::warn!("the times of kernels are of no use: what the link carries is not known");
    }
    let found = found(request, times.as_ref())?;
    let plan = match cheaper_lru(&found, request) {
        None => found,
        Some(lru) => {
            let other = times.and_then(|times| search(request, Some(&times), lru.bytes));
            other.ok_or_else(|| {
                format!(
                    "the LRU copies {} in a pass, the plan {}",
                    bytes_text(lru.bytes),
                    bytes_text(found.price.bytes)
                )
            })?
        }
    };
    let why = format!(
        "{} are copied in a pass by {} copies, {} stay, {} are the ring{}{}",
        bytes_text(plan.price.bytes),
        plan.price.copies,
        bytes_text(plan.view.memory - plan.ring()),
        bytes_text(plan.ring()),
        packed(&plan),
        request
            .link
            .map_or(String::new(), |link| in_time(link, plan.price))
    );
    Ok(of(request, plan).because(why))
}

/// The plan, whatever the LRU would copy.
pub(in super::super) fn elastic(request: &Request<'_>) -> Result<Residency, String> {
    let plan = found(request, Times::of(request).as_ref())?;
    Ok(of(request, plan))
}

fn found(request: &Request<'_>, times: Option<&Times<'_>>) -> Result<Plan, String> {
    let Some(page) = request.model.page else {
        return Err("this device maps no memory, and plans need that".to_owned());
    };
    search(request, times, u64::MAX).ok_or_else(|| {
        format!(
            "no plan on pages of {} fits into {}",
            bytes_text(page),
            bytes_text(request.capacity)
        )
    })
}

/// A residency by which a pass takes less time than by this plan, if it is worth while: once kernels were timed.
pub(in super::super) fn better(request: &Request<'_>, current: &Plan) -> Option<Residency> {
    let times = Times::of(request)?;
    let before = times.expected(current);
    log::info!("a pass is expected to take {before}");
    // No plan takes less than its kernels, and hardly one less than the copies of what a ring does not hold.
    let worth = before.pass - before.pass / WORTH;
    let missing = current.price.bytes.saturating_sub(current.ring());
    let copies = (times.link.seconds(missing, 0) * 1e9) as u64;
    if before.kernels.max(copies) > worth {
        return None;
    }
    let found = search(request, Some(&times), u64::MAX)?;
    let found = match cheaper_lru(&found, request) {
        None => found,
        Some(lru) => search(request, Some(&times), lru.bytes)?,
    };
    let after = times.expected(&found);
    let why = format!(
        "replanned: {} are copied in a pass by {} copies, {} are the ring; it is expected to take {after}",
        bytes_text(found.price.bytes),
        found.price.copies,
        bytes_text(found.ring()),
    );
    (after.pass < worth).then(|| of(request, found).because(why))
}

/// Whether a pass by `other` is so much shorter than by `current` that it is worth while; or, where no times are known, copies so
/// much less.
pub(in super::super) fn is_cheaper(request: &Request<'_>, other: &Plan, current: &Plan) -> bool {
    let times = Times::of(request);
    let cost = |plan: &Plan| cost_of(request, times.as_ref(), plan);
    let (before, after) = (cost(current), cost(other));
    after < before - before / u128::from(WORTH)
}

/// What a pass costs: its time, or bytes where no times are known.
fn cost_of(request: &Request<'_>, times: Option<&Times<'_>>, plan: &Plan) -> u128 {
    match times {
        Some(times) => u128::from(times.expected(plan).pass),
        None => plan.cost(request.methods, request.model.bytes_per_copy),
    }
}

/// What stays packed, in words.
fn packed(plan: &Plan) -> String {
    match plan.kept_bytes() {
        0 => String::new(),
        bytes => format!("; of what stays, {} are packed", bytes_text(bytes)),
    }
}

fn of(request: &Request<'_>, plan: Plan) -> Residency {
    let probes = request.methods.iter().map(|one| one.trace.probes().len());
    Residency::of_plan(plan, request.weights, &probes.collect::<Vec<_>>())
}

fn search(request: &Request<'_>, times: Option<&Times<'_>>, most: u64) -> Option<Plan> {
    let (methods, weights, model) = (request.methods, request.weights, request.model);
    let capacity = request.capacity;
    let raw = match times {
        None => plan(methods, weights, model, capacity),
        Some(times) => {
            let clocks = times.clocks();
            quickest(methods, weights, model, capacity, (&clocks, most))
        }
    };
    let packs = weights.iter().any(WeightSpec::is_packed);
    if model.packed == PackedResidents::Off || !packs {
        return raw;
    }
    let cost = |plan: &Plan| cost_of(request, times, plan);
    let packed = keeping(methods, weights, model, capacity, cost);
    let packed = packed.filter(|plan| plan.price.bytes <= most);
    match (raw, packed) {
        (Some(raw), Some(packed)) => {
            let asked = model.packed == PackedResidents::On && !raw.streamed.is_empty();
            let shorter = cost(&packed) < cost(&raw);
            Some(if shorter || asked { packed } else { raw })
        }
        (raw, packed) => raw.or(packed),
    }
}

/// The LRU's price, if it copies less in a pass than this plan. Not for several methods: at each switch the LRU begins with
/// empty memory.
fn cheaper_lru(plan: &Plan, request: &Request<'_>) -> Option<Price> {
    let [MethodTrace { trace, .. }] = *request.methods else {
        return None;
    };
    let lru = lru_price(
        trace,
        request.weights,
        request.model.granule,
        request.capacity,
    );
    lru.filter(|lru| lru.bytes < plan.price.bytes)
}

/// How long kernels run, and what copies cost.
struct Times<'a> {
    methods: &'a [MethodTrace<'a>],
    /// Of each method.
    kernels: Vec<Vec<u64>>,
    link: Link,
}

impl<'a> Times<'a> {
    /// `None` where they are known of no method.
    fn of(request: &Request<'a>) -> Option<Times<'a>> {
        let link = request.link?;
        request.times.iter().flatten().next()?;
        let known = |at: usize| request.times.get(at).copied().flatten();
        let kernels = |(at, one): (usize, &MethodTrace<'_>)| match known(at) {
            Some(times) => times.by_event(one.trace),
            None => vec![0; one.trace.events().len()],
        };
        Some(Times {
            methods: request.methods,
            kernels: request.methods.iter().enumerate().map(kernels).collect(),
            link,
        })
    }

    fn clocks(&self) -> Vec<Clocks<'_>> {
        let link = self.link;
        let each = self.kernels.iter();
        each.map(|kernels| Clocks { kernels, link }).collect()
    }

    fn expected(&self, plan: &Plan) -> Expected {
        expected(plan, self.methods, &self.clocks())
    }
}

/// What the copies of a pass will take, in words.
fn in_time(link: Link, price: Price) -> String {
    let seconds = link.seconds(price.bytes, price.copies);
    format!(
        "; the copies of a pass are expected to take {:.2} ms",
        seconds * 1e3
    )
}

#[cfg(test)]
#[path = "offer_tests.rs"]
mod tests;
