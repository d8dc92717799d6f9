//! Random programs: weights of any size, and the trace of a pass over them.

use super::draw::{Draw, Seeded};
use weightstream::figures::Link;
use weightstream::schedule::Event::{self, Kernel, Probe, Release};
use weightstream::schedule::{KernelTimes, ProbeId, Trace, WeightKind, WeightSpec};

pub struct Program {
    pub trace: Trace,
    pub weights: Vec<WeightSpec>,
    pub contents: Vec<Vec<u8>>,
}

impl Program {
    /// Weights of up to some pages of `page` bytes each.
    pub fn drawn(draw: &mut impl Draw, page: u64) -> Program {
        let count = draw.between(1, 12).max(draw.below(12));
        let equal = draw.one_in(3).then(|| page * draw.between(1, 8));
        let mut weights: Vec<_> = (0..count)
            .map(|_| {
                spec(
                    equal.unwrap_or_else(|| size(draw, page)),
                    WeightKind::Weight,
                )
            })
            .collect();
        if draw.one_in(3) {
            weights.push(spec(draw.between(1, page), WeightKind::Direct));
        }
        let (events, probes) = Code::drawn(draw, count);
        let content = |(at, one): (usize, &WeightSpec)| noise(at as u64, one.bytes);
        Program {
            trace: Trace::new(events, probes, weights.len()).unwrap(),
            contents: weights.iter().enumerate().map(content).collect(),
            weights,
        }
    }

    /// How long kernels run, and what copies cost: any.
    pub fn times(&self, draw: &mut impl Draw) -> (KernelTimes, Link) {
        let mut times = KernelTimes::new(self.trace.probes().len());
        for &event in self.trace.events() {
            if !matches!(event, Kernel(_)) {
                times.add(event, draw.below(2000));
            }
        }
        (times, Link::of_rate(draw.between(1, 50) << 30))
    }

    /// The leases that are open before each read, if code ends them where the trace does.
    pub fn open_before(&self) -> Vec<Vec<ProbeId>> {
        let mut open = Vec::new();
        let mut before = Vec::new();
        for event in self.trace.events() {
            match *event {
                Probe(id) => {
                    before.push(open.clone());
                    open.push(id);
                }
                Release(id) => open.retain(|&other| other != id),
                Kernel(_) => {}
            }
        }
        before
    }
}

fn spec(bytes: u64, kind: WeightKind) -> WeightSpec {
    WeightSpec {
        fqn: format!("{kind:?} of {bytes}"),
        bytes,
        stored: bytes,
        kind,
    }
}

fn size(draw: &mut impl Draw, page: u64) -> u64 {
    match draw.below(8) {
        0 => 0,
        1 => draw.between(1, page),
        2 => page * draw.between(1, 16),
        _ => page * draw.below(8) + draw.below(page),
    }
}

/// Bytes without a pattern, others for each weight.
fn noise(seed: u64, len: u64) -> Vec<u8> {
    let mut draw = Seeded(seed);
    let words = (0..len.div_ceil(8)).flat_map(|_| draw.next().to_le_bytes());
    words.take(len as usize).collect()
}

/// What compiled code does: kernels in a row, and before each the probes of what it reads first.
struct Code {
    events: Vec<Event>,
    probes: Vec<u32>,
    /// Open leases, and after how many more kernels each ends.
    open: Vec<(ProbeId, u64)>,
}

impl Code {
    fn drawn(draw: &mut impl Draw, weights: u64) -> (Vec<Event>, Vec<u32>) {
        let mut code = Code {
            events: Vec::new(),
            probes: Vec::new(),
            open: Vec::new(),
        };
        let (in_turn, many, long) = (!draw.one_in(3), draw.one_in(4), draw.one_in(4));
        let fewest = if in_turn { weights } else { 1 };
        for kernel in 0..draw.between(fewest, 2 * weights) {
            for read in 0..if many { draw.below(3) } else { 1 } {
                let weight = match in_turn {
                    true => (kernel + read) % weights,
                    false => draw.below(weights),
                };
                let lasts = if long { draw.below(4) } else { 0 };
                code.probe(weight as u32, lasts);
            }
            code.events.push(Kernel(kernel as u32));
            code.end_leases(draw);
        }
        if code.probes.is_empty() {
            code.probe(0, 0);
        }
        code.renamed(draw)
    }

    fn probe(&mut self, weight: u32, lasts: u64) {
        let id = self.probes.len() as ProbeId;
        self.events.push(Probe(id));
        self.probes.push(weight);
        self.open.push((id, lasts));
    }

    /// One kernel is over. What never ends in the trace ends when the code returns.
    fn end_leases(&mut self, draw: &mut impl Draw) {
        let mut over = Vec::new();
        self.open
            .retain_mut(|(id, left)| match left.checked_sub(1) {
                Some(less) => {
                    *left = less;
                    true
                }
                None => {
                    over.push(*id);
                    false
                }
            });
        draw.shuffle(&mut over);
        self.events.extend(over.into_iter().map(Release));
    }

    /// Probes have other numbers than the order in which they are called.
    fn renamed(self, draw: &mut impl Draw) -> (Vec<Event>, Vec<u32>) {
        let mut names: Vec<ProbeId> = (0..self.probes.len() as ProbeId).collect();
        if draw.one_in(2) {
            draw.shuffle(&mut names);
        }
        let mut probes = vec![0; names.len()];
        for (id, weight) in self.probes.iter().enumerate() {
            probes[names[id] as usize] = *weight;
        }
        let renamed = |event| match event {
            Probe(id) => Probe(names[id as usize]),
            Release(id) => Release(names[id as usize]),
            Kernel(number) => Kernel(number),
        };
        (self.events.into_iter().map(renamed).collect(), probes)
    }
}
