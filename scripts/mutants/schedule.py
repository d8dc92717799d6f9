"""Rules of the trace, the floor and the times of kernels; and of how a method belongs to its delegate."""

from edits import delete, drop, replace
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
        "recorded-release-needs-an-open-lease",
        replace("step(&mut leases, id, Lease::Open, Lease::Ended)", "leases.get(id as usize).map(|_| ())"),
        "a record's trace need not be one that can happen",
        ("format:record",),
    ),
]
