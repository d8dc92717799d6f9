//! The least that any schedule copies in a pass, as a linear program.

use super::uses::Cycle;
use microlp::{ComparisonOp, OptimizationDirection, Problem, Variable};
use weightstream::schedule::{Trace, WeightSpec};

/// Kernels of a pass between two uses of a weight.
struct Gap {
    bytes: f64,
    kernels: Vec<usize>,
}

/// What may be kept, and the bytes that must be there as a whole at each kernel.
struct Gaps {
    gaps: Vec<Gap>,
    there: Vec<f64>,
}

/// The least bytes that a pass copies in steady state with `budget` bytes for weights, if at each kernel what it and the
/// next one read is there, around the end of the pass as well. No schedule copies less, whatever it does with
/// addresses: at each kernel, of each weight of which a use is neither going on nor the next one some bytes are there.
/// Those of them that are there at every kernel between two uses need not be copied for the second, and only those; what is
/// more of it at some kernels only takes room. In a steady state passes may differ, but the mean of what they keep in a gap
/// keeps to the same inequalities, and copies the mean. Fractions of a byte, and a place between any others, are allowed
/// here. `None` if there is not room for what is there as a whole.
pub fn least_copied(trace: &Trace, weights: &[WeightSpec], budget: u64) -> Option<f64> {
    let cycle = Gaps::of(&Cycle::of(trace, weights));
    let room: Vec<f64> = cycle.there.iter().map(|&b| budget as f64 - b).collect();
    if room.iter().any(|&room| room < 0.0) {
        return None;
    }
    let (reached, bound) = (cycle.reached(&room), cycle.bound(&room));
    let scale = cycle.gaps.iter().map(|gap| gap.bytes).sum::<f64>().max(1.0);
    assert!(
        (reached - bound).abs() <= 1e-6 * scale,
        "{reached} can be reached, {bound} is the bound"
    );
    Some(bound.max(0.0))
}

impl Gaps {
    fn of(cycle: &Cycle) -> Gaps {
        let mut gaps = Vec::new();
        let mut there = vec![cycle.always; cycle.kernels];
        for weight in &cycle.weights {
            for (number, one) in weight.uses.iter().enumerate() {
                one.clone()
                    .for_each(|k| there[k % cycle.kernels] += weight.bytes);
                let next = match weight.uses.get(number + 1) {
                    Some(next) => next.start,
                    None => weight.uses[0].start + cycle.kernels,
                };
                gaps.push(Gap {
                    bytes: weight.bytes,
                    kernels: (one.end..next).map(|k| k % cycle.kernels).collect(),
                });
            }
        }
        Gaps { gaps, there }
    }

    /// What is copied if the best part of each weight is kept in each gap.
    fn reached(&self, room: &[f64]) -> f64 {
        let mut problem = Problem::new(OptimizationDirection::Maximize);
        let kept: Vec<Variable> = (self.gaps.iter())
            .map(|gap| problem.add_var(1.0, (0.0, gap.bytes)))
            .collect();
        for (k, &room) in room.iter().enumerate() {
            let over = self.gaps.iter().zip(&kept);
            let row: Vec<_> = over
                .filter(|(gap, _)| gap.kernels.contains(&k))
                .map(|(_, &kept)| (kept, 1.0))
                .collect();
            problem.add_constraint(&row, ComparisonOp::Le, room);
        }
        self.bytes() - solve(&problem).0
    }

    /// A bound that holds whatever the solver found: a price for a byte at each kernel. A byte in a gap saves at most 1, so
    /// that no more is saved than what the room is worth, and what each gap's bytes are worth beyond their price.
    fn bound(&self, room: &[f64]) -> f64 {
        let mut problem = Problem::new(OptimizationDirection::Minimize);
        let prices: Vec<Variable> = (room.iter())
            .map(|&room| problem.add_var(room, (0.0, 1.0)))
            .collect();
        for gap in &self.gaps {
            let beyond = problem.add_var(gap.bytes, (0.0, 1.0));
            let mut row = vec![(beyond, 1.0)];
            row.extend(gap.kernels.iter().map(|&k| (prices[k], 1.0)));
            problem.add_constraint(&row, ComparisonOp::Ge, 1.0);
        }
        let (_, value) = solve(&problem);
        let found: Vec<f64> = prices.iter().map(|&price| value(price).max(0.0)).collect();
        let room: f64 = found
            .iter()
            .zip(room)
            .map(|(price, room)| price * room)
            .sum();
        let beyond = |gap: &Gap| {
            let price: f64 = gap.kernels.iter().map(|&k| found[k]).sum();
            gap.bytes * (1.0 - price).max(0.0)
        };
        self.bytes() - room - self.gaps.iter().map(beyond).sum::<f64>()
    }

    fn bytes(&self) -> f64 {
        self.gaps.iter().map(|gap| gap.bytes).sum()
    }
}

fn solve(problem: &Problem) -> (f64, impl Fn(Variable) -> f64) {
    let outcome = problem.solve().expect("a bounded program with a solution");
    let solution = outcome.into_solution().expect("there is no time limit");
    (solution.objective(), move |variable| {
        solution.var_value(variable)
    })
}
