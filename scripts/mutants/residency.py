"""Rules of residency: who may be evicted, how much fits, where it lies."""

from edits import delete, replace
from mutant import Mutant

MUTANTS = [
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
]
