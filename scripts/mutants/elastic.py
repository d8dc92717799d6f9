"""Rules of budgets that change, and of stores that share a device."""

from edits import always, become, delete, drop, never, replace
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
        "a-page-is-kept-once",
        drop(".filter(|from| given.insert(*from))"),
        "one page of memory shows in two places that change apart",
        ("lib:moves",),
    ),
    Mutant(
        "lost-pages-are-loaded",
        delete(),
        "a page that the device could not keep is taken for loaded",
        ("lib:moves", "session_budget"),
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
    # --- ranges
    Mutant(
        "unpin-records-an-event",
        delete(),
        "a page is taken while kernels read it",
        ("elastic_ranges",),
    ),
    Mutant(
        "unit-goes-when-its-events-are-complete",
        never(),
        "a page is taken while kernels read it",
        ("elastic_ranges",),
    ),
    Mutant(
        "lease-end-records-an-event",
        delete(),
        "a page is taken while kernels read it that were issued under a lease",
        ("elastic_ranges",),
    ),
    Mutant(
        "lease-ends-by-a-mark",
        delete(),
        "the page of a tensor that is gone stays for ever",
        ("elastic_ranges",),
    ),
    Mutant(
        "generation-is-never-used-again",
        replace("fetch_add(1, Ordering::Relaxed)", "load(Ordering::Relaxed)"),
        "other contents are taken for those that were written",
        ("elastic_ranges",),
    ),
    Mutant(
        "lost-contents-are-not-a-hit",
        delete(),
        "a fault answers with contents that are gone",
        ("elastic_ranges",),
    ),
    Mutant(
        "eviction-sets-the-watermark",
        delete(),
        "each pass faults weights in that the next one evicts",
        ("elastic_ranges",),
    ),
    Mutant(
        "fault-above-the-watermark-is-refused",
        never(),
        "each pass faults weights in that the next one evicts",
        ("elastic_ranges",),
    ),
    Mutant(
        "prioritize-resets-the-watermark",
        delete(),
        "a model that is used again never gets its memory back",
        ("elastic_ranges",),
    ),
    Mutant(
        "newest-range-comes-first",
        become("state.order.push(id);"),
        "the model that was loaded last gets nothing",
        ("elastic_ranges",),
    ),
    Mutant(
        "lower-ranges-give-first",
        drop(".rev()"),
        "a fault takes from ranges of higher priority",
        ("elastic_ranges",),
    ),
    Mutant(
        "hit-waits-for-the-fill-of-another-stream",
        delete(),
        "a kernel on another stream reads what is not written yet",
        ("elastic_ranges",),
    ),
    Mutant(
        "fill-waits-for-readers-of-other-streams",
        delete(),
        "contents are overwritten while a kernel on another stream reads them",
        ("elastic_ranges",),
    ),
    Mutant(
        "ranges-and-stores-stay-under-the-cap",
        drop(".min(state.room())"),
        "ranges and stores together exceed the cap",
        ("elastic_ranges",),
    ),
    # --- weights of eager code
    Mutant(
        "eager-budget-covers-the-floor",
        always(),
        "a budget below the least one is accepted, or refused without its name",
        ("eager",),
    ),
    Mutant(
        "eager-passes-run-one-at-a-time",
        never(),
        "a second pass runs over weights that the first one lets go",
        ("eager",),
    ),
    Mutant(
        "moved-weight-is-told",
        delete(),
        "kernels read a weight where it was before",
        ("eager",),
    ),
    Mutant(
        "failed-read-leaves-no-lease",
        delete(),
        "after a pass that went astray none begins any more",
        ("eager",),
    ),
    Mutant(
        "eager-pass-keeps-its-memory",
        replace("Running::None => {", "Running::None | Running::Resident => {"),
        "memory moves to another tenant while a pass reads it",
        ("eager",),
    ),
    Mutant(
        "ended-weights-read-no-host-bytes",
        delete(),
        "copies read bytes on the host that their owner has freed",
        ("lib:eager",),
    ),
]
