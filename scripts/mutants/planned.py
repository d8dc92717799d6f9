"""Rules of plans, and of the policy that carries them out."""

from edits import always, delete, drop, never, replace
from mutant import Mutant

POLICY = ("lib:planned::policy", "session_planned", "residency_random")
PLAN = ("lib:planned", "session_planned")

MUTANTS = [
    # --- the policy: who may be copied over
    Mutant(
        "planned-lease-before-evict",
        replace("self.leases == 0", "true"),
        "a weight is copied over while it is read",
        POLICY,
    ),
    Mutant(
        "planned-claim-before-evict",
        replace("self.unread == 0", "true"),
        "a weight that was copied for a coming read is copied over before it",
        POLICY,
    ),
    Mutant(
        "planned-copy-waits-for-its-slot",
        never(),
        "a copy goes to bytes of a weight that is being read",
        POLICY,
    ),
    Mutant(
        "planned-copy-waits-for-the-last-reader",
        replace("over.then_some", "(over && slot.unread == 0).then_some"),
        "after a pass that ended early, a copy does not wait for the last kernel that read its bytes",
        POLICY,
    ),
    Mutant(
        "planned-evicts-all-that-overlap",
        replace("while", "if"),
        "a copy goes over what is still there by the policy's count",
        POLICY,
    ),
    Mutant(
        "planned-weight-lies-in-one-place",
        never(),
        "a weight has two places, and nobody remembers who read the first one",
        POLICY,
    ),
    Mutant(
        "planned-copies-in-order",
        delete(),
        "after a demand, copies ahead go on with another weight than the next one of the plan",
        POLICY,
    ),
    # --- the policy: what is taken back
    Mutant(
        "planned-abort-drops-claims",
        delete(),
        "claims of reads that will not come hold their slots, and a later demand finds no room",
        POLICY,
    ),
    Mutant(
        "planned-abort-restarts-the-order",
        delete(),
        "the pass after an aborted one copies for reads in the middle of the trace",
        POLICY,
    ),
    Mutant(
        "planned-failed-load-is-absent",
        delete(),
        "the address of a weight is handed out whose copy was never issued",
        POLICY,
    ),
    Mutant(
        "planned-failed-eviction-is-present",
        delete(),
        "a copy goes to bytes of a weight that is still there, and does not wait for its reader",
        POLICY,
    ),
    # --- the plan: never above the budget
    Mutant(
        "plan-rounds-the-budget-down",
        replace("/ page", "/ page + 1"),
        "a plan takes a page more than the budget",
        PLAN,
    ),
    Mutant(
        "plan-counts-what-lies-apart",
        drop("self.apart.div_ceil(page) +"),
        "beside direct constants a plan takes a page more than the budget",
        PLAN,
    ),
    # --- the plan: slots that share bytes are never wanted at one time
    Mutant(
        "live-range-lasts-to-its-last-lease",
        replace("max", "min"),
        "a weight's place is given away before its last read",
        PLAN,
    ),
    Mutant(
        "merged-reads-are-one-live-range",
        delete(),
        "a copy that serves two reads is overwritten after the first",
        PLAN,
    ),
    Mutant(
        "shared-bytes-are-apart-in-time",
        always(),
        "two weights that are wanted at one time have the same bytes",
        PLAN,
    ),
    Mutant(
        "live-range-reaches-around-the-pass",
        never(),
        "what is copied for the next pass shares bytes with the last reads of this one",
        PLAN,
    ),
    Mutant(
        "neighbours-have-two-slots",
        delete(),
        "a copy cannot run beside the kernel that reads what streamed before it",
        PLAN,
    ),
    Mutant(
        "ring-holds-its-slots",
        replace("tail", "tail.div_ceil(2)"),
        "two slots have the same memory",
        PLAN,
    ),
    Mutant(
        "heads-lie-apart",
        replace("head", "head.saturating_sub(1)"),
        "heads of two weights have the same memory",
        PLAN,
    ),
    Mutant(
        "head-and-tail-are-the-whole-weight",
        replace("head.min(bytes)", "head.min(bytes) - 1"),
        "a byte of a weight is never copied",
        PLAN,
    ),
]
