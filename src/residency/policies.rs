//! The table of policies: what each offers. Their names and descriptions stand with [`PolicyKind`].

use super::offer::{Request, Residency};
use super::planned;
use super::{all_resident, lru};
use crate::config::PolicyKind;

/// What a policy offers for a program whose weights cannot all stay.
fn offer(request: &Request<'_>) -> Residency {
    match request.kind {
        PolicyKind::Lru => lru::offer(request),
        PolicyKind::Planned => planned::offer(request)
            .unwrap_or_else(|why| lru::offer(request).because(format!("{why}: the LRU is taken"))),
        #[cfg(feature = "sim")]
        PolicyKind::MostRecent => super::most_recent::offer(request),
    }
}

/// The policy that was asked for, unless everything may stay; and what it says where it does not pay.
pub fn choose(request: &Request<'_>) -> Residency {
    match request.all_may_stay() {
        true => all_resident::offer(request),
        false => offer(request),
    }
}

/// A plan for a store whose budget changes: also where everything stays, so that pages can be kept. An error says why there is
/// none.
pub fn choose_elastic(request: &Request<'_>) -> Result<Residency, String> {
    let model = request.model.in_whole_pages();
    let whole = Request {
        model: &model,
        ..*request
    };
    // Where whole pages take more than there is, everything may fit without them.
    let all_fits = request.total() <= request.capacity;
    let request = match all_fits && whole.total() > request.capacity {
        true => request,
        false => &whole,
    };
    match planned::elastic(request) {
        // Direct constants in pages of their own may leave less than a page for all weights.
        Err(_) if request.all_may_stay() => Ok(all_resident::offer(request)),
        planned => planned,
    }
}

/// The least capacity for which there is such a plan: at least that of the request, and at most everything.
pub fn least_elastic(request: &Request<'_>) -> u64 {
    let enough = |capacity| {
        choose_elastic(&Request {
            capacity,
            ..*request
        })
        .is_ok()
    };
    if enough(request.capacity) {
        return request.capacity;
    }
    let (mut below, mut least) = (request.capacity, request.total());
    // More capacity has all plans of less.
    while least - below > request.model.granule {
        let middle = below + (least - below) / 2;
        match enough(middle) {
            true => least = middle,
            false => below = middle,
        }
    }
    least
}

/// Once kernels were timed: a residency by which a pass takes less time than by this one, if it is worth a load of what
/// stays. The request has the times and the link.
pub fn replan(request: &Request<'_>, current: &Residency) -> Option<Residency> {
    planned::better(request, current.plan()?)
}

/// Whether a pass takes clearly less by `other` than by `current`, or copies clearly less if nobody knows how long kernels run. Both
/// are for the methods of the request.
pub fn is_cheaper(request: &Request<'_>, other: &Residency, current: &Residency) -> bool {
    match (other.plan(), current.plan()) {
        (Some(other), Some(current)) => planned::is_cheaper(request, other, current),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::DeviceModel;
    use crate::schedule::{Event, Trace, WeightKind, WeightSpec};

    /// Each row of the table is the policy of its name, on a device on which all can be.
    #[test]
    fn each_policy_has_its_name_and_says_what_it_does() {
        let weight = |at: u32| WeightSpec {
            fqn: at.to_string(),
            bytes: 1000,
            stored: 1000,
            kind: WeightKind::Weight,
        };
        let weights: Vec<_> = (0..8).map(weight).collect();
        let events =
            (0..8).flat_map(|id| [Event::Probe(id), Event::Kernel(id), Event::Release(id)]);
        let trace = Trace::new(events.collect(), (0..8).collect(), 8).unwrap();
        let model = DeviceModel {
            granule: 64,
            bytes_per_copy: 0,
            page: Some(64),
            apart: 0,
            whole_pages: false,
            packed: Default::default(),
        };
        for &kind in PolicyKind::ALL {
            let request = Request {
                kind,
                methods: &[(&trace).into()],
                weights: &weights,
                model: &model,
                capacity: 4096,
                link: None,
                times: &[],
            };
            let policy = choose(&request).policy();
            assert_eq!(policy.name(), kind.name());
            assert!(!policy.everything_stays() && kind.description().ends_with('.'));
            let all = Request {
                capacity: 8 * 1024,
                ..request
            };
            assert!(choose(&all).policy().everything_stays());
        }
        let mut names: Vec<_> = PolicyKind::ALL.iter().map(|kind| kind.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PolicyKind::ALL.len());
        assert_eq!(PolicyKind::default(), PolicyKind::Planned);
    }
}
