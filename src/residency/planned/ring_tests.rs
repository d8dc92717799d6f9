use super::super::test_support::{chain, in_turn, model, programs, weights, PAGE};
use super::super::timeline::Timeline;
use super::*;
use crate::schedule::{Trace, WeightSpec};
use proptest::prelude::*;

fn ring_of(weights: &[WeightSpec], trace: &Trace, room: u64, ahead: usize) -> Option<Ring> {
    let problem = Problem::new(&[trace.into()], weights, &model(0), room).unwrap();
    let timeline = Timeline::of(&[trace.into()], weights.len());
    let set = Set::new(&timeline, (0..weights.len() as u32).collect(), ahead)?;
    SHAPES[0].ring(&problem, &set)
}

/// Of a chain of weights of so many pages.
fn of_pages(pages: &[u64], room: u64, ahead: usize) -> Option<Ring> {
    let sizes: Vec<u64> = pages.iter().map(|pages| pages * PAGE).collect();
    ring_of(&weights(&sizes), &in_turn(pages.len()), room * PAGE, ahead)
}

fn tails(ring: &Ring) -> Vec<u64> {
    ring.streams.iter().map(|stream| stream.tail).collect()
}

fn length(ring: &Ring) -> u64 {
    ring.slots.iter().map(|slot| slot.end - slot.start).sum()
}

#[test]
fn all_weights_stream_a_little() {
    // 10 heads of 35 pages and two slots of 5 are exactly those that there are.
    let ring = of_pages(&[40; 10], 360, 1).unwrap();
    assert_eq!(tails(&ring), [5; 10]);
    assert_eq!(length(&ring), 10 * PAGE);
    assert_eq!((ring.price.bytes, ring.price.copies), (50 * PAGE, 10));
}

#[test]
fn more_copies_ahead_take_more_slots() {
    // 340 + 4 x 7.5 pages: tails of 7 and 8.
    let ring = of_pages(&[40; 12], 420, 3).unwrap();
    assert_eq!(ring.slots.len(), 4);
    assert!(
        tails(&ring).iter().all(|tail| (7..=8).contains(tail)),
        "{ring:?}"
    );
}

#[test]
fn short_weights_stream_as_a_whole_in_slots_of_their_size() {
    // Pages of 256 bytes; whole weights need no pages of their own.
    let sizes = [300, 700, 300, 700, 300, 700];
    let ring = ring_of(&weights(&sizes), &in_turn(6), 320 + 704, 1).unwrap();
    assert_eq!(ring.slots, [0..704, 704..1024]);
    assert_eq!((ring.price.bytes, ring.price.copies), (3000, 6));
    // Less is no room for two neighbours.
    assert!(ring_of(&weights(&sizes), &in_turn(6), 320 + 640, 1).is_none());
}

#[test]
fn weights_shorter_than_a_page_stay_one_after_the_other() {
    let found = |room| {
        let ring = ring_of(&weights(&[100; 8]), &in_turn(8), room, 1).unwrap();
        (ring.price.copies, length(&ring))
    };
    assert_eq!(found(256), (8, 256));
    assert_eq!(found(256 + 127), (8, 256));
    assert_eq!(found(256 + 128), (7, 256));
    // With the fourth weight that stays, one of the two slots is empty, and its memory is that of a fifth one.
    assert_eq!(found(4 * 128 + 127), (6, 256));
    assert_eq!(found(5 * 128), (4, 128));
    assert_eq!(found(6 * 128), (3, 128));
    assert_eq!(found(7 * 128), (2, 128));
    assert_eq!(found(8 * 128), (0, 0));
}

#[test]
fn a_page_that_is_left_is_used() {
    let bytes = |room: u64| of_pages(&[40; 10], room, 1).unwrap().price.bytes / PAGE;
    let all: Vec<u64> = (200..240).map(bytes).collect();
    // A page less for each, and two less where a slot gets shorter.
    let steps = all.windows(2).map(|pair| pair[0] - pair[1]);
    assert!(steps.clone().all(|step| (1..=2).contains(&step)), "{all:?}");
    assert!(steps.sum::<u64>() > 39);
}

#[test]
fn what_is_copied_most_often_gets_shorter_first() {
    let reads = [0, 1, 2, 3, 0, 4, 5, 6, 7, 8];
    let (weights, trace) = (weights(&[10 * PAGE; 9]), chain(&reads, 9));
    // Of tails of 5 pages each; ten copies in two slots.
    let full = ring_of(&weights, &trace, 55 * PAGE, 1).unwrap();
    assert_eq!(tails(&full), [5; 9]);
    let more = ring_of(&weights, &trace, 56 * PAGE, 1).unwrap();
    assert_eq!(full.price.bytes - more.price.bytes, 2 * PAGE);
}

#[test]
fn a_weight_that_shares_no_slot_stays() {
    let ring = of_pages(&[40; 5], 180, 1).unwrap();
    assert_eq!((ring.streams.len(), ring.copies.len()), (4, 4));
    // The one in the middle of the pass, or the last one.
    let weights = weights(&[40 * PAGE; 5]);
    let trace = in_turn(5);
    let problem = Problem::new(&[(&trace).into()], &weights, &model(0), 180 * PAGE).unwrap();
    let timeline = Timeline::of(&[(&trace).into()], 5);
    let set = Set::new(&timeline, (0..5).collect(), 1).unwrap();
    let stays = |shape: &dyn RingShape| {
        let streams = shape.ring(&problem, &set).unwrap().streams;
        let mut all = 0..5u32;
        all.find(|weight| streams.iter().all(|stream| stream.weight != *weight))
    };
    assert_eq!(SHAPES.map(stays), [Some(4), Some(1)]);
}

#[test]
fn the_empty_set_is_a_plan_where_all_fits() {
    let (weights, trace) = (weights(&[PAGE; 3]), in_turn(3));
    let ring = |room| {
        let problem = Problem::new(&[(&trace).into()], &weights, &model(0), room).unwrap();
        let timeline = Timeline::of(&[(&trace).into()], 3);
        let set = Set::new(&timeline, Vec::new(), 1).unwrap();
        SHAPES[0].ring(&problem, &set)
    };
    assert!(ring(3 * PAGE - 1).is_none());
    assert_eq!(ring(3 * PAGE).unwrap().price, Price::default());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Of each set by itself, in each shape: more room never makes a tail longer or a pass dearer, and what is said to fit
    /// does, with every tail inside of its slot.
    #[test]
    fn more_room_never_costs_more((weights, trace) in programs(), ahead in 1..4usize, shape in 0..2usize) {
        let timeline = Timeline::of(&[(&trace).into()], weights.len());
        let Some(set) = Set::new(&timeline, (0..weights.len() as u32).collect(), ahead) else { return Ok(()) };
        let all: u64 = weights.iter().map(|w| w.bytes.next_multiple_of(PAGE)).sum();
        let mut before: Option<Ring> = None;
        for room in (0..all + PAGE).step_by(64) {
            let problem = Problem::new(&[(&trace).into()], &weights, &model(0), room).unwrap();
            let Some(ring) = SHAPES[shape].ring(&problem, &set) else {
                prop_assert!(before.is_none(), "nothing for {room}");
                continue;
            };
            let mut memory = problem.total;
            for stream in &ring.streams {
                memory -= stream.occupied - stream.stays(stream.tail, PAGE);
            }
            let end = ring.slots.iter().map(|slot| slot.end).max().unwrap_or(0);
            prop_assert!(memory + length(&ring) <= room && end == length(&ring));
            for copy in &ring.copies {
                let (stream, slot) = (&ring.streams[copy.stream], &ring.slots[copy.slot]);
                let (head, mut start) = (stream.head(PAGE), slot.start);
                if head > 0 {
                    start = start.next_multiple_of(PAGE);
                }
                prop_assert!(start + stream.bytes - head <= slot.end, "{stream:?} in {slot:?}");
            }
            if let Some(before) = &before {
                prop_assert!(ring.price.bytes <= before.price.bytes && ring.price.copies <= before.price.copies);
                let pairs = ring.streams.iter().zip(&before.streams);
                prop_assert!(pairs.into_iter().all(|(now, before)| now.tail <= before.tail), "{ring:?} {before:?}");
            }
            before = Some(ring);
        }
    }
}
