"""Rules of programs with several methods, and of sessions: what is one, and what must not be."""

from edits import delete, replace
from mutant import Mutant

MUTANTS = [
    Mutant(
        "switch-begins-with-empty-memory",
        delete(),
        "memory falls into pieces that were never tried, and a read finds no room",
        ("session:methods",),
    ),
    Mutant(
        "twin-is-of-the-same-slot",
        replace("other.slot", "slot"),
        "a pass after a switch takes other bytes for those of its weight",
        ("session:methods",),
    ),
    Mutant(
        "graph-is-primed",
        delete(),
        "a graph is not replayed after a pass of another method",
        ("session:methods",),
    ),
    Mutant(
        "primed-ring-holds-what-the-graph-found",
        replace("one[0]", "at"),
        "a replay begins with the tails of another method",
        ("session:graphs",),
    ),
]
