"""Rules of plans, and of the policy that carries them out."""

from edits import become, delete, never, replace
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
]
