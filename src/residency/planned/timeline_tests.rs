use super::super::test_support::chain;
use super::*;
use Event::{Kernel, Probe, Release};

fn spans(events: Vec<Event>, probes: Vec<u32>) -> Vec<(u32, usize, usize, i64)> {
    let weights = probes.iter().max().map_or(0, |w| w + 1) as usize;
    let trace = Trace::new(events, probes, weights).unwrap();
    let timeline = Timeline::of(&[(&trace).into()], weights);
    let span = |r: &LiveRange| (r.weight, r.first, r.last, r.wanted);
    timeline.ranges.iter().map(span).collect()
}

#[test]
fn bytes_are_wanted_beside_the_kernel_before() {
    let events = vec![
        Probe(0),
        Kernel(0),
        Release(0),
        Kernel(1),
        Probe(1),
        Kernel(2),
        Release(1),
    ];
    // Kernel 1 reads nothing, so the copy for probe 1 has the time of kernel 0 as well. Probe 0's copy has that of kernel 2
    // of the pass before. The last release is in the tail of the trace.
    assert_eq!(spans(events, vec![0, 1]), [(0, 0, 2, 5 - 7), (1, 4, 7, 1)]);
}

#[test]
fn a_lease_until_the_return_lasts_to_the_end() {
    let found = spans(vec![Probe(0), Kernel(0), Probe(1), Kernel(1)], vec![0, 1]);
    assert_eq!(found, [(0, 0, 4, -1), (1, 2, 4, 1)]);
    // Without a kernel there is nothing to copy beside.
    assert_eq!(spans(vec![Probe(0)], vec![0]), [(0, 0, 1, 0)]);
}

fn probes(timeline: &Timeline) -> Vec<Vec<u32>> {
    let ranges = timeline.ranges.iter();
    ranges.map(|range| range.probes.clone()).collect()
}

/// Weight 0 is read by kernels 0, 1, 3 and 6.
fn again() -> Timeline {
    Timeline::of(&[(&chain(&[0, 0, 1, 0, 2, 3, 0], 4)).into()], 4)
}

#[test]
fn reads_that_leave_no_time_for_a_copy_are_one_live_range() {
    let timeline = again();
    let expected = [&[0, 1][..], &[2], &[3], &[4], &[5], &[6]];
    assert_eq!(probes(&timeline), expected);
    assert_eq!(timeline.times, [3, 1, 1, 1]);
    let first = &timeline.ranges[0];
    assert_eq!((first.first, first.last), (0, 5));
}

#[test]
fn close_reads_are_merged_by_distance() {
    let timeline = again();
    // From the end of a lease to the next read: 5 to 9, and 11 to 18.
    assert_eq!(timeline.distances(), [0, 5, 8]);
    assert_eq!(probes(&timeline.merged(0)), probes(&timeline));
    assert_eq!(probes(&timeline.merged(4)), probes(&timeline));
    let near = timeline.merged(5);
    let expected = [&[0, 1, 3][..], &[2], &[4], &[5], &[6]];
    assert_eq!(
        (probes(&near), near.times[0]),
        (expected.map(<[u32]>::to_vec).to_vec(), 2)
    );
    assert_eq!(near.ranges[0].last, 11);
    let all = timeline.merged(8);
    assert_eq!(all.ranges[0].probes, [0, 1, 3, 6]);
    // The last lease ends with the pass, and it is the longest one.
    assert_eq!((all.ranges[0].first, all.ranges[0].last), (0, 21));
    assert_eq!(all.times[0], 1);
}

/// The second read ends before the first one does.
#[test]
fn a_merged_range_lasts_to_its_last_lease() {
    let events = vec![
        Probe(0),
        Kernel(0),
        Probe(1),
        Kernel(1),
        Release(1),
        Probe(2),
        Kernel(2),
        Release(2),
        Kernel(3),
        Release(0),
        Probe(3),
        Kernel(4),
        Release(3),
    ];
    let found = spans(events, vec![0, 0, 1, 2]);
    assert_eq!((found[0].1, found[0].2), (0, 9));
}

#[test]
fn some_distances_are_tried_the_longest_with_them() {
    // Weight 0 is read after 1, 2, 3, ... others.
    let mut reads = vec![0];
    for others in 1..12u32 {
        reads.extend((0..others).map(|at| 1 + (at + others) % 11));
        reads.push(0);
    }
    let timeline = Timeline::of(&[(&chain(&reads, 12)).into()], 12);
    let found = timeline.distances();
    assert_eq!((found.len(), found[0]), (1 + DISTANCES, 0));
    assert!(found.windows(2).all(|pair| pair[0] < pair[1]));
    assert_eq!(timeline.merged(*found.last().unwrap()).times, [1; 12]);
    assert_eq!(
        Timeline::of(&[(&chain(&[0, 1], 2)).into()], 2).distances(),
        [0]
    );
}

#[test]
fn what_is_wanted_in_the_pass_before_is_there_twice() {
    let timeline = Timeline::of(&[(&chain(&[0, 1, 2], 3)).into()], 3);
    let found = timeline.spans(&[0, 2]);
    assert_eq!(found, [(-2, 2, 0), (4, 9, 1), (7, 9, 0)]);
}
