"""Rules of plans, and of the policy that carries them out."""

from edits import delete, never, replace
from mutant import Mutant

POLICY = ("lib:planned::policy", "policies", "session_planned")
PLAN = ("lib:planned", "session_planned")

MUTANTS = [
    # --- the policy: what may be copied over
    Mutant(
        "leased-tail-stays",
        replace("copy.leases == 0", "true"),
        "a tail is copied over while it is read",
        POLICY,
    ),
    Mutant(
        "claimed-tail-stays",
        replace("copy.unread == 0", "true"),
        "a tail that was copied for a coming read is copied over before it",
        POLICY,
    ),
    Mutant(
        "evict-only-what-is-idle",
        never(),
        "a copy goes to a slot whose tail is being read",
        POLICY,
    ),
    Mutant(
        "every-last-lease-is-marked",
        replace("copy.leases == 0", "copy.leases == 0 && copy.unread == 0"),
        "after a pass that ended early, a copy does not wait for the last kernel that read its slot",
        POLICY,
    ),
    # --- the policy: what is taken back
    Mutant(
        "abort-drops-claims",
        delete(),
        "claims of reads that will not come hold their slots, and a later demand finds none",
        POLICY,
    ),
    Mutant(
        "failed-load-is-not-there",
        delete(),
        "the address of a weight is handed out whose copy was never issued",
        POLICY,
    ),
    Mutant(
        "failed-eviction-is-taken-back",
        delete(),
        "a copy goes to the slot of a tail that is still there, and does not wait for its reader",
        POLICY,
    ),
    # --- the plan: never above the budget
    Mutant(
        "direct-constants-take-pages",
        replace("model.apart.div_ceil(page)", "0"),
        "beside direct constants a plan takes a page more than the budget",
        PLAN,
    ),
    Mutant(
        "ring-takes-memory",
        replace(" + slots.sum::<u64>()", " + 0 * slots.sum::<u64>()"),
        "a plan takes more than the budget by its ring",
        PLAN,
    ),
    Mutant(
        "mappings-are-few",
        never(),
        "a plan needs more mappings than a process may have",
        PLAN,
    ),
    # --- the plan: what shares a slot is never wanted at one time
    Mutant(
        "merged-range-lasts-to-its-last-read",
        delete(),
        "a copy that serves two reads is overwritten after the first",
        PLAN,
    ),
    Mutant(
        "pass-goes-around",
        never(),
        "what is copied for the next pass shares a slot with the last reads of this one",
        PLAN,
    ),
    Mutant(
        "wanted-together-is-apart",
        delete(),
        "two weights that are wanted at one time share a slot",
        PLAN,
    ),
    Mutant(
        "next-copies-are-apart",
        delete(),
        "a copy cannot run beside the kernel that reads what streamed before it",
        PLAN,
    ),
    # --- the plan: where bytes lie
    Mutant(
        "heads-are-apart",
        delete(),
        "heads of two weights have the same memory",
        PLAN,
    ),
    Mutant(
        "tail-begins-after-the-head",
        replace("stream.head(problem.page)", "stream.head(problem.page) + 1"),
        "a byte of a weight is never copied",
        PLAN,
    ),
    Mutant(
        "tail-after-a-head-begins-a-page",
        replace("slot.start.next_multiple_of(page)", "slot.start"),
        "a tail begins in the middle of a page that its head's mapping does not reach",
        PLAN,
    ),
    # --- the cost
    Mutant(
        "clock-waits-for-the-last-read",
        replace(".max(over[0])", ""),
        "a pass is expected to be shorter than its copies can be",
        PLAN,
    ),
]
