//! What the process really holds while weights stream through a small budget.

use crate::session_support::{chain, play, Pass};
use weightstream::config::PolicyKind;
use weightstream::device::HostDevice;

/// Bytes of memory that this process holds and no file does: anonymous, and of memory files. What is mapped twice counts once.
fn held() -> u64 {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let kib = |key: &str| -> u64 {
        let line = rollup.lines().find_map(|line| line.strip_prefix(key));
        line.unwrap()
            .trim()
            .strip_suffix(" kB")
            .unwrap()
            .parse()
            .unwrap()
    };
    (kib("Pss_Anon:") + kib("Pss_Shmem:")) << 10
}

/// One process, one test: other tests in it would be counted as well.
#[test]
fn resident_memory_stays_within_the_budget() {
    const MB: u64 = 1 << 20;
    let sizes: Vec<u64> = (0..40).map(|i| (1 + i % 5) * MB + 4096 * (i % 3)).collect();
    let model = chain(&sizes);
    let before = held();
    let load = |policy| {
        let device = HostDevice::new().unwrap();
        model.session_by(policy, device, None).unwrap()
    };
    for policy in [PolicyKind::Lru, PolicyKind::Planned] {
        let mut session = load(policy);
        let budget = session.stats().budget_bytes;
        let mut most = 0;
        for _ in 0..3 {
            play(&model, &mut session, Pass::Complete).unwrap();
            most = most.max(held().saturating_sub(before));
        }
        assert!(
            most <= budget + 2 * MB,
            "{policy:?}: {most} bytes grown at a budget of {budget}"
        );
        assert!(most > budget / 2, "{policy:?}: {most} bytes cannot be all");
        drop(session);
        let left = held().saturating_sub(before);
        assert!(left <= 2 * MB, "{policy:?}: {left} bytes left behind");
    }

    // A hundred sessions in turn leave nothing.
    for number in 0..100 {
        drop(load([PolicyKind::Lru, PolicyKind::Planned][number % 2]));
    }
    let left = held().saturating_sub(before);
    assert!(
        left <= 4 * MB,
        "{left} bytes left behind by a hundred sessions"
    );
}
