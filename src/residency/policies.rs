//! The table of policies: what each offers. Their names and descriptions stand with [`PolicyKind`].

use super::offer::{Request, Residency};
use super::planned;
use super::{all_resident, lru};
use crate::config::PolicyKind;

/// What a policy offers for a program that does not fit.
fn offer(request: &Request<'_>) -> Residency {
    match request.kind {
        PolicyKind::Lru => lru::offer(request),
        PolicyKind::Planned => planned::offer(request)
            .unwrap_or_else(|why| lru::offer(request).because(format!("{why}: the LRU is taken"))),
        #[cfg(feature = "sim")]
        PolicyKind::MostRecent => super::most_recent::offer(request),
    }
}

/// The policy that was asked for, unless the capacity covers everything; and what it says where it does not pay.
pub fn choose(request: &Request<'_>) -> Residency {
    let residency = match request.total() <= request.capacity {
        true => all_resident::offer(request),
        false => offer(request),
    };
    log::info!("policy '{}': {}", request.kind.name(), residency.why);
    residency
}

/// Once kernels were timed: a residency by which a pass takes less time than by this one, if it is worth a load of what
/// stays. The request has the times and the link.
pub fn replan(request: &Request<'_>, current: &Residency) -> Option<Residency> {
    let better = planned::better(request, current.plan()?)?;
    log::info!("policy '{}': {}", request.kind.name(), better.why);
    Some(better)
}
