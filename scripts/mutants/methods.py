"""Rules of programs with several methods, and of sessions: what is one, and what must not be."""

from edits import delete, never, replace
from mutant import Mutant

MUTANTS = [
    Mutant(
        "store-is-found-by-its-program",
        replace("place", "ProgramPlace::Number(0)"),
        "two loads of one file share their caches",
        ("models:methods",),
    ),
    Mutant(
        "state-is-one-by-its-key",
        replace("&constant.key", 'if constant.kind == ConstantKind::Mutable { "" } else { constant.key.as_str() }'),
        "buffers that look alike are one: two caches are mixed",
        ("format:methods",),
    ),
    Mutant(
        "one-key-is-one-weight",
        replace("check_same(first, constant, method)?", "()"),
        "a method reads the bytes of another method's weight",
        ("format:methods",),
    ),
    Mutant(
        "state-of-one-method-is-state-of-all",
        replace("!=", "=="),
        "one method reads its own copy of what another one writes",
        ("format:methods",),
    ),
    Mutant(
        "methods-are-of-one-build",
        never(),
        "the records of two exports are taken for one program",
        ("format:methods",),
    ),
    Mutant(
        "floor-is-that-of-the-method-that-needs-most",
        replace("next.bytes() > most.bytes()", "next.bytes() < most.bytes()"),
        "a budget is accepted with which a method cannot run",
        ("lib:store", "session:methods"),
    ),
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
    Mutant(
        "session-is-of-the-same-program",
        never(),
        "a session is bound to the weights of another program",
        ("models:methods",),
    ),
    Mutant(
        "session-writes-its-own-state",
        replace("state.address(at)", "None"),
        "two sessions write to one cache",
        ("models:methods",),
    ),
    Mutant(
        "options-of-a-program-are-one",
        never(),
        "a budget that a later load gives is silently ignored",
        ("models:methods",),
    ),
    Mutant(
        "session-fits-beside-the-budget",
        never(),
        "a session whose state has no room takes it from other programs",
        ("lib:delegate",),
    ),
]
