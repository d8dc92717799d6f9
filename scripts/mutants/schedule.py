"""Rules of the trace, the floor and the times of kernels; and of how a method belongs to its delegate."""

from edits import become, delete, drop, never, replace
from mutant import Mutant

MUTANTS = [
    # --- the trace
    Mutant(
        "only-the-next-probe-is-served",
        drop("if i64::from(expected) == id"),
        "a probe gets the address of another one's weight",
        ("lib:schedule",),
    ),
    Mutant(
        "difference-is-kept",
        delete(),
        "leases that end early or late are not noticed",
        ("lib:schedule",),
    ),
    Mutant(
        "pass-reaches-the-last-kernel",
        replace("<", ">"),
        "compiled code that returns early without an error counts as a pass",
        ("lib:schedule",),
    ),
    Mutant(
        "release-needs-an-open-lease",
        replace("Lease::Open", "state.get(id as usize).copied().unwrap_or(Lease::Open)"),
        "a record may end leases that were never opened, and its floor comes out too small",
        ("lib:schedule",),
    ),
    Mutant(
        "probe-reads-a-recorded-constant",
        replace(">=", ">"),
        "a record may read a constant that it does not have",
        ("lib:schedule",),
    ),
    # --- the floor
    Mutant(
        "floor-has-room-for-the-copy",
        become("{ let _ = copy; pair.max(self.leases()) }"),
        "at the floor a copy waits for the kernel whose bytes it does not take",
        ("lib:schedule",),
    ),
    Mutant(
        "floor-has-room-for-all-leases",
        drop(".max(self.leases())"),
        "a model that returns its weights is accepted with a budget that cannot hold them",
        ("lib:schedule",),
    ),
    Mutant(
        "floor-has-room-for-two-kernels",
        replace("union(here, next)", "union(here, &next[..0])"),
        "the next kernel's weights do not fit beside those of the one that runs",
        ("lib:schedule",),
    ),
    Mutant(
        "hard-minimum-counts-direct-constants",
        drop("direct_bytes(weights, granule).saturating_add"),
        "the hard minimum leaves no room for direct constants",
        ("lib:schedule",),
    ),
    Mutant(
        "hard-minimum-is-the-largest-sum",
        drop("most.max"),
        "the largest sum of open leases is not the one that is asked for",
        ("lib:schedule",),
    ),
    Mutant(
        "sizes-do-not-wrap-around",
        replace("u64::MAX", "0"),
        "a size that no machine has, taken from a file, becomes a small budget",
        ("session:mutants",),
    ),
    # --- the times of kernels
    Mutant(
        "times-are-of-this-program",
        never(),
        "plans go by the times of kernels that are not this program's",
        ("lib:times",),
    ),
    Mutant(
        "times-are-of-all-reads",
        replace("next as usize == probes", "true"),
        "a file that was cut off says of the rest that it takes no time",
        ("lib:times",),
    ),
    # --- a method and its delegate
    Mutant(
        "method-is-one-delegate",
        replace("1", "_"),
        "a method that computes something outside of its delegate is run without it",
        ("format:wiring",),
    ),
    Mutant(
        "outputs-come-in-the-methods-order",
        become("let output = outputs_at.get(&value).map(|_| Source::Output(index));"),
        "outputs come in the order of the compiled code, which is not the exported one",
        ("format:wiring",),
    ),
    Mutant(
        "inputs-are-checked-in-the-methods-order",
        become("let own = index.min(self.inputs.len() - 1);"),
        "an input is checked as another one",
        ("lib:inputs",),
    ),
]
