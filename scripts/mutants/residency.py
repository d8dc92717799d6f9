"""Rules of residency: who may be evicted, how much fits, where it lies."""

from edits import delete, never, replace
from mutant import Mutant

MUTANTS = [
    # --- what never stays
    Mutant(
        "streamed-weight-never-stays",
        replace("weight.is_streamed()", "false"),
        "with a budget for everything a weight stays that never should",
        ("session:pins",),
    ),
    Mutant(
        "lru-streamed-weight-is-copied-again",
        never(),
        "a weight that never stays serves a second pass from one copy",
        ("lib:residency::lru", "session:pins"),
    ),
    Mutant(
        "lru-streamed-weight-ends-the-window",
        replace("present && over", "false"),
        "a read of the next pass is claimed on the copy of this one",
        ("lib:residency::lru", "session:pins"),
    ),
    Mutant(
        "lru-dropped-claim-is-not-over",
        delete(),
        "after a failed load a weight waits for a read of the pass before, and nothing is loaded ahead",
        ("session:pins",),
    ),
    # --- least recently used
    Mutant(
        "lru-lease-before-evict",
        replace("self.leases == 0", "true"),
        "a weight is evicted while it is read",
        ("lib:residency", "policies:bed"),
    ),
    Mutant(
        "lru-claim-before-evict",
        replace("self.claims == 0", "true"),
        "a weight that was brought for a coming read is evicted before it",
        ("lib:residency", "policies:bed"),
    ),
    Mutant(
        "lru-claims-coming-reads",
        delete(),
        "a weight that was brought for a coming read is evicted before it",
        ("lib:residency", "policies:bed"),
    ),
    Mutant(
        "lru-counts-every-lease",
        replace("w.leases += 1", "w.leases = 1"),
        "the first of two leases to end makes the weight evictable",
        ("lib:residency", "policies:bed"),
    ),
    Mutant(
        "lru-stays-within-capacity",
        replace("self.capacity", "self.capacity + 64"),
        "weights occupy more than the budget",
        ("lib:residency", "policies:bed"),
    ),
    Mutant(
        "lru-evicts-only-if-it-helps",
        never(),
        "weights are given up for one that does not fit all the same",
        ("lib:residency",),
    ),
    Mutant(
        "lru-abort-restarts-the-trace",
        delete(),
        "the pass after an aborted one claims other reads than those that come",
        ("lib:residency", "policies:bed"),
    ),
    Mutant(
        "lru-abort-drops-claims",
        delete(),
        "claims of reads that will not come hold their weights for ever",
        ("lib:residency", "policies:bed"),
    ),
    Mutant(
        "lru-failed-load-is-absent",
        delete(),
        "the address of a weight is handed out whose copy was never issued",
        ("lib:residency", "policies:bed"),
    ),
    Mutant(
        "lru-failed-eviction-is-present",
        delete(),
        "memory that a weight still has is planned for another",
        ("lib:residency", "policies:bed"),
    ),
    Mutant(
        "lru-failed-eviction-keeps-its-turn",
        replace("push_front", "push"),
        "what was to go next goes last, and the price of the LRU is wrong",
        ("lib:lru",),
    ),
    # --- pools
    Mutant(
        "pool-keeps-its-cap",
        never(),
        "single allocations may add up to more than the budget",
        ("lib:residency",),
    ),
    Mutant(
        "pool-counts-what-is-out",
        delete(),
        "the cap counts nothing",
        ("lib:residency",),
    ),
    Mutant(
        "pool-counts-mapped-memory",
        delete(),
        "the pool holds more than it says",
        ("session:planned", "session:cases"),
    ),
    Mutant(
        "free-piece-is-large-enough",
        replace("len >= bytes", "len + 64 >= bytes"),
        "two weights lie in the same bytes",
        ("lib:residency", "policies:bed"),
    ),
    Mutant(
        "rest-of-a-piece-lies-apart",
        replace("offset + bytes", "offset + bytes - 64"),
        "two weights share a granule",
        ("lib:residency",),
    ),
    Mutant(
        "only-neighbours-are-joined",
        replace("==", "<="),
        "what lies between two free pieces is handed out although it is in use",
        ("lib:residency",),
    ),
    # --- all resident
    Mutant(
        "resident-weights-are-aligned",
        replace("spec.occupied(granule)", "spec.bytes"),
        "weights that are loaded at load are not aligned as compiled code expects",
        ("lib:residency",),
    ),
    Mutant(
        "table-in-place-takes-no-memory",
        replace("read[index as usize]", "(spec.kind == crate::schedule::WeightKind::Weight)"),
        "a table that is read in place takes memory that the budget does not have",
        ("lib:all_resident", "session:cases"),
    ),
]
