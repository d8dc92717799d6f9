"""Rules of budgets that change, and of stores that share a device."""

from edits import always, delete, drop, never, replace
from mutant import Mutant

MUTANTS = [
    Mutant(
        "grant-covers-floor-and-leases",
        replace("self.least.max(self.floor)", "self.floor"),
        "bytes of open leases go to another tenant, and the lower cap is accepted",
        ("lib:elastic",),
    ),
    Mutant(
        "grants-stay-under-the-cap",
        replace("self.free(lane)", "self.cap"),
        "grants together exceed the cap",
        ("lib:elastic",),
    ),
    Mutant(
        "hysteresis-starves-nobody",
        always(),
        "a tenant stays at its floor while an idle one holds bytes",
        ("lib:elastic",),
    ),
    Mutant(
        "tenants-together-stay-under-the-cap",
        drop(".min(before + room)"),
        "a tenant grows into what a busy one still holds",
        ("elastic_pool",),
    ),
    Mutant(
        "shrunk-tenant-holds-its-grant",
        replace("member.held = grant", "()"),
        "what a tenant gave up is there for nobody",
        ("elastic_pool",),
    ),
    Mutant(
        "cap-sinks-at-once",
        never(),
        "memory that another program took is counted as free for sixteen passes",
        ("lib:elastic",),
    ),
    Mutant(
        "kept-page-lies-alike",
        replace("old.memory % page == start % page", "true"),
        "a page is kept in which the weight lies at another place",
        ("lib:moves",),
    ),
    Mutant(
        "kept-page-is-kept-for-all-in-it",
        replace("*entry == from", "true"),
        "a page is kept for one weight, and another one in it is taken for loaded",
        ("lib:moves",),
    ),
    Mutant(
        "host-gives-freed-pages-back",
        delete(),
        "a smaller budget frees nothing",
        ("lib:frames",),
    ),
    Mutant(
        "weights-move-when-nothing-runs",
        delete(),
        "pages are unmapped while kernels read them",
        ("session_budget",),
    ),
    Mutant(
        "sim-sees-pages-that-move-early",
        delete(),
        "the simulator does not see that",
        ("lib:sim",),
    ),
    Mutant(
        "moved-weights-are-of-another-generation",
        delete(),
        "a graph is replayed at addresses that are unmapped",
        ("session_graph",),
    ),
    Mutant(
        "graph-is-of-one-plan",
        replace("self.generation", "0"),
        "the plan's generation is not compared",
        ("session_graph",),
    ),
    Mutant(
        "changed-budget-covers-the-floor",
        replace("budget < floor.bytes()", "false"),
        "a budget below the floor is taken",
        ("session_budget",),
    ),
    Mutant(
        "new-policy-knows-its-method",
        delete(),
        "after a change of the budget a method is served by the plan of another one",
        ("session_methods",),
    ),
    Mutant(
        "pages-of-a-failed-move-are-not-kept",
        replace("std::mem::replace(&mut self.is_loaded, false)", "true"),
        "after a move that failed halfway, pages are kept that hold nothing",
        ("session_budget",),
    ),
    Mutant(
        "sim-sees-units-that-go-early",
        delete(),
        "the simulator does not see that",
        ("lib:sim",),
    ),
]
