//! The least that any schedule of fixed addresses copies in a pass, as a linear program.

use super::uses::{Cycle, Used};
use microlp::{ComparisonOp, Error, OptimizationDirection, Problem, Variable};
use std::collections::{BTreeMap, BTreeSet};
use weightstream::schedule::{Trace, WeightSpec};

/// A time for which bytes of a weight stay where they are: some of its uses in turn, and the gaps between them. The times are
/// places between kernels, and those behind the end of the pass are in the next one.
struct Arc {
    weight: usize,
    uses: Vec<usize>,
    from: usize,
    to: usize,
}

/// One sum of the program, of variables with their factors.
type Sum = Vec<(Variable, f64)>;

/// The least bytes that a pass copies with `budget` bytes for weights under the rule of [`super::moving::least_copied`], if each
/// byte of memory does the same in every pass, as it does where addresses never change. `None` if there is no such schedule.
///
/// A byte of memory then goes from one arc to another, all around the pass, and waits between them; a byte of a weight lies
/// somewhere else in each of its arcs. All of memory together is a flow along the pass. As each byte has to be at its end what it
/// was at its beginning, those are a flow of their own that begin the pass within arcs that began at one time.
pub fn least_copied_in_place(trace: &Trace, weights: &[WeightSpec], budget: u64) -> Option<f64> {
    let cycle = Cycle::of(trace, weights);
    // The pass is begun where the fewest arcs are open.
    let begun = (0..cycle.kernels).map(|begin| arcs(&cycle, begin));
    let arcs = begun.min_by_key(|arcs| starts(arcs, cycle.kernels).len())?;
    let mut program = Program::new(&cycle);
    program.flow(&arcs, None);
    for start in starts(&arcs, cycle.kernels) {
        program.flow(&arcs, Some(start));
    }
    program.solve(budget as f64)
}

struct Program<'a> {
    cycle: &'a Cycle,
    problem: Problem,
    /// What is in memory at the beginning of a pass.
    room: Sum,
    /// What is there for each use of each weight.
    there: BTreeMap<(usize, usize), Sum>,
}

impl<'a> Program<'a> {
    /// With bytes that stay.
    fn new(cycle: &'a Cycle) -> Self {
        let mut program = Program {
            cycle,
            problem: Problem::new(OptimizationDirection::Minimize),
            room: Vec::new(),
            there: BTreeMap::new(),
        };
        for (weight, Used { bytes, uses }) in cycle.weights.iter().enumerate() {
            let stays = program.problem.add_var(0.0, (0.0, *bytes));
            program.room.push((stays, 1.0));
            for number in 0..uses.len() {
                program.there.insert((weight, number), vec![(stays, 1.0)]);
            }
        }
        program
    }

    /// Memory that begins a pass within the arcs that began at `start` in the one before; or within none.
    fn flow(&mut self, arcs: &[Arc], start: Option<usize>) {
        let kernels = self.cycle.kernels;
        let end = start.unwrap_or(kernels);
        let mut balance: BTreeMap<usize, Sum> = BTreeMap::new();
        let over = |arc: &&Arc| arc.to > kernels && Some(arc.from) == start;
        for arc in arcs.iter().filter(over) {
            let bytes = self.bytes(Some(arc));
            self.room.push((bytes, 1.0));
            balance
                .entry(arc.to - kernels)
                .or_default()
                .push((bytes, 1.0));
        }
        if start.is_none() {
            let bytes = self.bytes(None);
            self.room.push((bytes, 1.0));
            balance.entry(0).or_default().push((bytes, 1.0));
        }
        let begin = *balance.keys().next().expect("something begins it");
        let waits = (begin..end).map(|at| (None, at, at + 1));
        let within = |arc: &&Arc| arc.from >= begin && arc.to <= end;
        let serves = arcs.iter().filter(within);
        for (arc, from, to) in waits.chain(serves.map(|arc| (Some(arc), arc.from, arc.to))) {
            let bytes = self.bytes(arc);
            balance.entry(from).or_default().push((bytes, -1.0));
            balance.entry(to).or_default().push((bytes, 1.0));
        }
        balance.remove(&end);
        for sum in balance.values() {
            self.problem.add_constraint(sum, ComparisonOp::Eq, 0.0);
        }
    }

    /// Bytes that are in an arc, to the beginning of which they are copied; or that wait.
    fn bytes(&mut self, arc: Option<&Arc>) -> Variable {
        let Some(arc) = arc else {
            return self.problem.add_var(0.0, (0.0, f64::INFINITY));
        };
        let most = self.cycle.weights[arc.weight].bytes;
        let bytes = self.problem.add_var(1.0, (0.0, most));
        for &number in &arc.uses {
            let there = self.there.get_mut(&(arc.weight, number));
            there.expect("each use has a sum").push((bytes, 1.0));
        }
        bytes
    }

    fn solve(mut self, budget: f64) -> Option<f64> {
        for ((weight, _), sum) in &self.there {
            let bytes = self.cycle.weights[*weight].bytes;
            self.problem.add_constraint(sum, ComparisonOp::Eq, bytes);
        }
        let room = budget - self.cycle.always;
        self.problem
            .add_constraint(&self.room, ComparisonOp::Le, room);
        let outcome = match self.problem.solve() {
            Err(Error::Infeasible) => return None,
            outcome => outcome.expect("a bounded program"),
        };
        let solution = outcome.into_solution().expect("there is no time limit");
        Some(solution.objective())
    }
}

/// When the arcs began that are open at the end of the pass.
fn starts(arcs: &[Arc], kernels: usize) -> BTreeSet<usize> {
    let over = arcs.iter().filter(|arc| arc.to > kernels);
    over.map(|arc| arc.from).collect()
}

/// All arcs, if the pass begins at kernel `begin`.
fn arcs(cycle: &Cycle, begin: usize) -> Vec<Arc> {
    let kernels = cycle.kernels;
    let mut found = Vec::new();
    for (weight, Used { uses, .. }) in cycle.weights.iter().enumerate() {
        for first in 0..uses.len() {
            let at = uses[first].start;
            let from = (at + kernels - begin) % kernels;
            for count in 1..=uses.len() {
                let numbers: Vec<usize> = (first..first + count).map(|n| n % uses.len()).collect();
                let end = uses[numbers[count - 1]].end;
                // A use that comes before the first one is of the next pass.
                let later = if first + count > uses.len() {
                    kernels
                } else {
                    0
                };
                found.push(Arc {
                    weight,
                    uses: numbers,
                    from,
                    to: from + end + later - at,
                });
            }
        }
    }
    found
}
