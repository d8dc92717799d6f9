//! What the process really holds while weights stream through a small budget.

mod session_support;

use session_support::{chain, play, Pass};
use weightstream::device::HostBytes;
use weightstream::session::SessionOptions;

/// Anonymous resident memory of this process, bytes.
fn rss_anon() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("RssAnon:")).unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        << 10
}

/// One process, one test: other tests in it would be counted as well.
#[test]
fn resident_memory_stays_within_the_budget() {
    const MB: u64 = 1 << 20;
    let sizes: Vec<u64> = (0..40).map(|i| (1 + i % 5) * MB + 4096 * (i % 3)).collect();
    let model = chain(&sizes);
    let before = rss_anon();
    let mut session = model.host(None);
    let budget = session.stats().budget_bytes;
    let mut most = 0;
    for _ in 0..3 {
        play(&model, &mut session, Pass::Complete).unwrap();
        most = most.max(rss_anon().saturating_sub(before));
    }
    assert!(
        most <= budget + 2 * MB,
        "{most} bytes grown at a budget of {budget}"
    );
    drop(session);
    let left = rss_anon().saturating_sub(before);
    assert!(left <= 2 * MB, "{left} bytes left behind");

    // A hundred sessions in turn leave nothing.
    for _ in 0..100 {
        let bytes = model.bytes.iter();
        // SAFETY: the model outlives the sessions of this loop.
        let bytes = bytes
            .map(|b| unsafe { HostBytes::new(b.as_ptr(), b.len() as u64) })
            .collect();
        let device = weightstream::device::HostDevice::new().unwrap();
        let options = SessionOptions::default();
        let program = model.program.clone();
        drop(weightstream::session::Session::new(device, program, bytes, options).unwrap());
    }
    let left = rss_anon().saturating_sub(before);
    assert!(
        left <= 4 * MB,
        "{left} bytes left behind by a hundred sessions"
    );
}
