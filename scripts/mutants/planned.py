"""Rules of plans, and of the policy that carries them out."""

from edits import become, delete, drop, never, replace
from mutant import Mutant

POLICY = ("lib:planned::policy", "policies:bed", "session:planned")
PLAN = ("lib:planned", "policies:bed", "session:planned")

MUTANTS = [
    # --- the policy: who may be copied over
    Mutant(
        "leased-tail-stays",
        replace("copy.leases == 0", "true"),
        "a weight is copied over while it is read",
        POLICY,
    ),
    Mutant(
        "claimed-tail-stays",
        replace("copy.unread == 0", "true"),
        "a weight that was copied for a coming read is copied over before it",
        POLICY,
    ),
    Mutant(
        "evict-only-what-is-idle",
        never(),
        "a copy goes to bytes of a weight that is being read",
        POLICY,
    ),
    Mutant(
        "every-last-lease-is-marked",
        replace("copy.leases == 0", "copy.leases == 0 && copy.unread == 0"),
        "after a pass that ended early, a copy does not wait for the last kernel that read its bytes",
        POLICY,
    ),
    Mutant(
        "streamed-tail-is-copied-again",
        replace("!self.copies[at as usize].always", "true"),
        "a weight that never stays, with a slot for itself, is copied once and stays",
        ("session:pins",),
    ),
    Mutant(
        "every-set-has-what-never-stays",
        replace("problem.is_streamed(one)", "problem.is_streamed(one) && false"),
        "a weight that never stays is resident by a plan whose set it is not in",
        ("lib:planned::search", "session:pins"),
    ),
    Mutant(
        "what-never-stays-has-no-head",
        replace("problem.is_streamed(weight)", "false"),
        "a part of a weight that never stays is resident",
        ("lib:planned::search", "session:pins"),
    ),
    # --- the policy: what is taken back
    Mutant(
        "abort-drops-claims",
        delete(),
        "claims of reads that will not come hold their slots, and a later demand finds no room",
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
        become("let _ = at;"),
        "a copy goes to bytes of a weight that is still there, and does not wait for its reader",
        POLICY,
    ),
    # --- the plan: never above the budget
    Mutant(
        "direct-constants-take-pages",
        replace("model.apart.div_ceil(page)", "model.apart / page"),
        "beside direct constants a plan takes more than the budget",
        PLAN,
    ),
    Mutant(
        "ring-takes-memory",
        drop("+ slots.sum::<u64>()"),
        "a plan takes more than the budget",
        PLAN,
    ),
    Mutant(
        "mappings-are-few",
        never(),
        "a view has more pieces than a process may have mappings",
        PLAN,
    ),
    # --- the plan: bytes that are shared are never wanted at one time
    Mutant(
        "wanted-together-is-apart",
        delete(),
        "two weights that are wanted at one time have the same bytes",
        PLAN,
    ),
    Mutant(
        "next-copies-are-apart",
        become("let _ = ahead;"),
        "a copy cannot run beside the kernel that reads what streamed before it",
        PLAN,
    ),
    Mutant(
        "merged-range-lasts-to-its-last-read",
        replace("max", "min"),
        "a copy that serves two reads is overwritten after the first",
        PLAN,
    ),
    Mutant(
        "pass-goes-around",
        never(),
        "what is copied for the next pass shares bytes with the last reads of this one",
        PLAN,
    ),
    Mutant(
        "tail-begins-after-the-head",
        replace("..stream.bytes", "+ 1..stream.bytes"),
        "a byte of a weight is never copied",
        PLAN,
    ),
    Mutant(
        "heads-are-apart",
        replace("stream.head(self.problem.page)", "stream.head(self.problem.page).saturating_sub(self.problem.page)"),
        "heads of two weights have the same memory",
        PLAN,
    ),
    Mutant(
        "tail-after-a-head-begins-a-page",
        drop(".next_multiple_of(page)"),
        "a tail lies in the page of its head, where it is not seen",
        PLAN,
    ),
    # --- what a plan costs
    Mutant(
        "clock-waits-for-the-last-read",
        drop(".max(over[0])"),
        "a plan whose copies wait for kernels seems to cost nothing",
        PLAN,
    ),
    Mutant(
        "lru-where-it-copies-less",
        become("let lru: Option<Price> = None;"),
        "a plan copies more than the LRU would",
        PLAN,
    ),
]
