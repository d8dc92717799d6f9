//! Plans whose copies take bytes over from each other, made by hand or by chance, for programs whose kernels read one
//! weight each; and a bed that carries out what the policy decides over them.

pub mod bed;

use super::session_support::draw::Draw;
use super::session_support::{model, Model};
use std::ops::Range;
use weightstream::figures::{Piece, View};
use weightstream::residency::planned::{Plan, Price, Resident, Streamed};
use weightstream::schedule::Event::{Kernel, Probe, Release};

/// Bytes of a page.
pub const PAGE: u64 = 64;

/// One weight of a plan.
#[derive(Debug, Clone)]
pub struct Streams {
    pub bytes: u64,
    /// Its last pages do not stay for good.
    pub tail: u64,
    /// In the order of the pass: the kernels that read it by one copy, and how many pages that copy takes over.
    pub copies: Vec<(Vec<u32>, u64)>,
}

impl Streams {
    fn head(&self) -> u64 {
        self.bytes.next_multiple_of(PAGE) - self.tail * PAGE
    }

    fn kept(&self, copy: usize) -> u64 {
        (self.head() + self.copies[copy].1 * PAGE).min(self.bytes)
    }
}

/// A program of so many kernels, each of which reads the weight that says so, and the plan for it.
pub fn planned(weights: &[Streams]) -> (Model, Plan) {
    let reads = weights
        .iter()
        .flat_map(|one| one.copies.iter().flat_map(|(at, _)| at));
    let kernels = reads.max().map_or(0, |last| last + 1);
    let weight_at = |at: u32| {
        let reads = |one: &Streams| one.copies.iter().any(|(reads, _)| reads.contains(&at));
        weights.iter().position(reads).unwrap() as u32
    };
    let probes: Vec<u32> = (0..kernels).map(weight_at).collect();
    let events: Vec<_> = (0..kernels)
        .flat_map(|at| [Probe(at), Kernel(at), Release(at)])
        .collect();
    let sizes: Vec<u64> = weights.iter().map(|one| one.bytes).collect();
    let mut model = model(&sizes, &[], &probes, &events);
    // Neighbours there may be one copy.
    model.file = Some(model.bytes.concat());
    (model, plan(weights, kernels))
}

/// Any such program.
pub fn drawn(draw: &mut impl Draw) -> Vec<Streams> {
    let count = draw.between(1, 5) as usize;
    let mut order: Vec<usize> = (0..count).collect();
    (0..draw.below(2 * count as u64 + 1))
        .for_each(|_| order.push(draw.below(count as u64) as usize));
    // At the list's end, all zeros, shuffling would not leave the order alone.
    for at in 0..order.len() {
        let other = at + draw.below((order.len() - at) as u64) as usize;
        order.swap(at, other);
    }
    let one = |weight: usize, draw: &mut _| streams(&order, weight, draw);
    (0..count).map(|weight| one(weight, draw)).collect()
}

fn streams(order: &[usize], weight: usize, draw: &mut impl Draw) -> Streams {
    let pages = draw.between(1, 4);
    let tail = pages - draw.below(pages);
    let mut copies: Vec<(Vec<u32>, u64)> = Vec::new();
    for (at, _) in (0..).zip(order).filter(|(_, read)| **read == weight) {
        match copies.last_mut().filter(|_| draw.one_in(5)) {
            Some((reads, _)) => reads.push(at),
            None => copies.push((vec![at], 0)),
        }
    }
    if copies.len() > 1 {
        copies
            .iter_mut()
            .for_each(|(_, kept)| *kept = draw.below(tail + 1));
    }
    let short = if draw.one_in(2) { draw.below(PAGE) } else { 0 };
    let bytes = pages * PAGE - short;
    Streams {
        bytes,
        tail,
        copies,
    }
}

/// For each weight, copy and page of the tail: its page of the ring; and the pages of the ring. Pages of weights are put
/// first-fit, each into a page of the ring that is free from the kernel before its first read to its last one.
fn ring(weights: &[Streams], kernels: u32) -> (Vec<Vec<Vec<u64>>>, u64) {
    let mut taken: Vec<u64> = Vec::new();
    let mut put = |times: u64| {
        let free = taken.iter().position(|other| other & times == 0);
        let at = free.unwrap_or_else(|| {
            taken.push(0);
            taken.len() - 1
        });
        taken[at] |= times;
        at as u64
    };
    let mut places = Vec::new();
    for one in weights {
        let count = one.copies.len();
        let mut all = vec![vec![0; one.tail as usize]; count];
        for page in 0..one.tail {
            let kept = |copy: usize| one.copies[copy % count].1 > page;
            // Copies that begin a run of those which take the page over from each other.
            let mut firsts: Vec<usize> = (0..count).filter(|&copy| !kept(copy)).collect();
            let always = firsts.is_empty();
            if always {
                firsts.push(0);
            }
            for first in firsts {
                let behind = (first + 1..first + count)
                    .take_while(|&copy| kept(copy))
                    .count();
                let run = first..first + behind + 1;
                let times = match always {
                    true => u64::MAX,
                    false => times(one, run.clone(), kernels),
                };
                let place = put(times);
                run.for_each(|copy| all[copy % count][page as usize] = place);
            }
        }
        places.push(all);
    }
    (places, taken.len() as u64)
}

/// The kernels from the one before the first read of these copies to their last read, a bit each.
fn times(one: &Streams, run: Range<usize>, kernels: u32) -> u64 {
    let count = one.copies.len();
    let copies = run.map(|copy| &one.copies[copy % count].0);
    let reads: Vec<u32> = copies.flatten().copied().collect();
    let (mut at, last) = (reads[0], reads[reads.len() - 1]);
    let mut times = 1 << at | 1 << ((at + kernels - 1) % kernels);
    while at != last {
        at = (at + 1) % kernels;
        times |= 1 << at;
    }
    times
}

fn plan(weights: &[Streams], kernels: u32) -> Plan {
    let (places, ring) = ring(weights, kernels);
    let mut view = View::default();
    let (mut resident, mut streamed) = (Vec::new(), Vec::new());
    let heads: u64 = weights.iter().map(Streams::head).sum();
    let mut head_at = 0;
    for ((weight, one), places) in (0..).zip(weights).zip(places) {
        for (copy, (probes, _)) in one.copies.iter().enumerate() {
            let offset = show(&mut view, head_at..head_at + one.head());
            let memory = joined(places[copy].iter().map(|page| heads + page * PAGE));
            for piece in &memory {
                show(&mut view, piece.clone());
            }
            if copy == 0 && one.head() > 0 {
                let range = 0..one.head();
                resident.push(Resident {
                    weight,
                    range,
                    offset,
                });
            }
            streamed.push(Streamed {
                weight,
                range: one.head()..one.bytes,
                kept: one.kept(copy),
                offset,
                memory,
                probes: probes.clone(),
            });
        }
        head_at += one.head();
    }
    streamed.sort_by_key(|one| one.probes[0]);
    view.memory = heads + ring * PAGE;
    let copies = streamed.iter().filter(|one| one.kept < one.range.end);
    let price = Price {
        bytes: copies.clone().map(|one| one.range.end - one.kept).sum(),
        copies: copies.count() as u64,
    };
    Plan {
        block: view.memory,
        ring: ring * PAGE,
        view: Some(view),
        resident,
        streamed,
        price,
    }
}

/// Shows memory at the next address, which it returns.
fn show(view: &mut View, memory: Range<u64>) -> u64 {
    let (at, bytes) = (view.bytes, memory.end - memory.start);
    if bytes > 0 {
        let memory = memory.start;
        view.pieces.push(Piece { at, memory, bytes });
        view.bytes += bytes;
    }
    at
}

/// Pages in their order; neighbours are one.
fn joined(pages: impl Iterator<Item = u64>) -> Vec<Range<u64>> {
    pages.fold(Vec::<Range<u64>>::new(), |mut all, at| {
        match all.last_mut().filter(|last| last.end == at) {
            Some(last) => last.end += PAGE,
            None => all.push(at..at + PAGE),
        }
        all
    })
}

/// What a complete pass copies behind others: all that is not taken over, but for what shares no byte with others.
pub fn copied(plan: &Plan) -> u64 {
    let meets = |a: &Streamed, b: &Streamed| {
        let mut pieces = a.memory.iter();
        a.weight == b.weight
            || pieces.any(|a| b.memory.iter().any(|b| a.start < b.end && b.start < a.end))
    };
    let shares = |one: &&Streamed| {
        let mut others = plan
            .streamed
            .iter()
            .filter(|other| !std::ptr::eq(*other, *one));
        others.any(|other| meets(one, other))
    };
    let streaming = plan.streamed.iter().filter(shares);
    streaming.map(|one| one.range.end - one.kept).sum()
}
