"""Rules of budgets that change, and of stores that share a device."""

from edits import delete, drop, never, replace
from mutant import Mutant

MUTANTS = [
    Mutant(
        "grant-covers-floor-and-leases",
        replace("self.least.max(self.floor)", "self.floor"),
        "bytes of open leases go to another tenant, and the lower cap is accepted",
        ("lib:elastic",),
    ),
    Mutant(
        "lower-tenants-give",
        replace("<", ">="),
        "a fault is refused while models below its range hold memory",
        ("elastic:range_shares",),
    ),
    Mutant(
        "higher-ranges-keep-their-memory",
        replace(" || up_to.is_some_and(|up_to| rank > up_to)", ""),
        "a pass takes memory from a range above its model",
        ("elastic:together", "elastic:range_shares"),
    ),
    Mutant(
        "memory-goes-from-a-pass-after-its-kernels",
        delete(),
        "memory is unmapped while kernels of the pass read it",
        ("elastic:together",),
    ),
    Mutant(
        "leased-memory-stays-in-its-pass",
        replace("stays(unit)", "false"),
        "weights go that a call of the pass reads",
        ("elastic:together",),
    ),
    Mutant(
        "a-pass-that-gave-way-reads-nothing",
        delete(),
        "a read finds addresses without memory",
        ("elastic:together",),
    ),
    Mutant(
        "a-piece-that-fails-ends-no-group",
        replace("!keep && !resumed", "!keep"),
        "one capture of a group fails, and the others lose their memory",
        ("elastic:graph_pool",),
    ),
    Mutant(
        "resident-pass-keeps-its-memory",
        replace("state.running != CurrentPass::Reads || ", ""),
        "weights go that a pass reads without asking",
        ("elastic:eager",),
    ),
    Mutant(
        "lost-pages-are-loaded",
        delete(),
        "a page that the device could not keep is taken for loaded",
        ("lib:moves", "session:budget"),
    ),
    Mutant(
        "weights-move-when-nothing-runs",
        delete(),
        "pages are unmapped while kernels read them",
        ("session:budget",),
    ),
    Mutant(
        "ring-is-forgotten-by-a-new-plan",
        delete(),
        "a pass takes what lies in a slot of the old ring for a tail of the new one",
        ("session:budget",),
    ),
    Mutant(
        "moved-weights-are-of-another-generation",
        delete(),
        "a graph is replayed at addresses that are unmapped",
        ("session:graph",),
    ),
    Mutant(
        "graph-is-of-one-plan",
        replace("self.generation", "0"),
        "the plan's generation is not compared",
        ("session:graph",),
    ),
    Mutant(
        "new-policy-knows-its-method",
        delete(),
        "after a change of the budget a method is served by the plan of another one",
        ("session:methods",),
    ),
    Mutant(
        "pages-of-a-failed-move-are-not-kept",
        replace("std::mem::replace(&mut self.is_loaded, false)", "true"),
        "after a move that failed halfway, pages are kept that hold nothing",
        ("session:budget",),
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
        ("elastic:ranges",),
    ),
    Mutant(
        "unit-goes-when-its-events-are-complete",
        never(),
        "a page is taken while kernels read it",
        ("elastic:ranges",),
    ),
    Mutant(
        "lease-end-records-an-event",
        delete(),
        "a page is taken while kernels read it that were issued under a lease",
        ("elastic:ranges",),
    ),
    Mutant(
        "lease-ends-by-a-mark",
        delete(),
        "the page of a tensor that is gone stays for ever",
        ("elastic:ranges",),
    ),
    Mutant(
        "generation-is-never-used-again",
        replace("fetch_add(1, Ordering::Relaxed)", "load(Ordering::Relaxed)"),
        "other contents are taken for those that were written",
        ("elastic:ranges",),
    ),
    Mutant(
        "lost-contents-are-not-a-hit",
        delete(),
        "a fault answers with contents that are gone",
        ("elastic:ranges",),
    ),
    Mutant(
        "hit-waits-for-the-fill-of-another-stream",
        delete(),
        "a kernel on another stream reads what is not written yet",
        ("elastic:ranges",),
    ),
    Mutant(
        "fill-waits-for-readers-of-other-streams",
        delete(),
        "contents are overwritten while a kernel on another stream reads them",
        ("elastic:ranges",),
    ),
    Mutant(
        "slot-is-filled-after-its-readers",
        delete(),
        "a slot of the ring is overwritten while a kernel reads it",
        ("elastic:range_ring",),
    ),
    Mutant(
        "leased-slot-is-given-to-nobody",
        replace("leased().all(|slot| !slot.overlaps(start, end))", "true"),
        "two allocations have the same bytes of the ring",
        ("elastic:range_ring",),
    ),
    Mutant(
        "replays-of-a-pool-are-ordered",
        delete(),
        "a replay overwrites what one on another stream still uses",
        ("elastic:graph_pool",),
    ),
    Mutant(
        "released-captures-have-replayed",
        delete(),
        "pages are unmapped while a replay uses them",
        ("elastic:graph_pool",),
    ),
    Mutant(
        "addresses-stay-while-a-piece-lives",
        replace("capture.pieces.is_empty()", "true"),
        "the memory of a tensor goes while it lives",
        ("elastic:graph_pool",),
    ),
    Mutant(
        "units-stay-while-a-capture-needs-them",
        replace("needs.max().unwrap_or(0)", "0"),
        "the memory of a capture is given to others",
        ("elastic:graph_pool",),
    ),
    Mutant(
        "segments-end-after-their-stream",
        delete(),
        "the memory of a segment goes while a kernel uses it",
        ("elastic:graph_pool",),
    ),
    # --- weights of eager code
    Mutant(
        "changed-bytes-in-the-ring-are-copied-again",
        drop(".chain(passing)"),
        "a pass reads bytes of the ring that were copied before the weight changed",
        ("elastic:eager",),
    ),
    Mutant(
        "changed-bytes-are-copied-when-nothing-runs",
        delete(),
        "a weight is overwritten while kernels read it",
        ("session:budget",),
    ),
    Mutant(
        "eager-passes-run-one-at-a-time",
        never(),
        "a second pass runs over weights that the first one lets go",
        ("elastic:eager",),
    ),
    Mutant(
        "method-joins-between-passes",
        delete(),
        "weights move while kernels read them",
        ("session:join",),
    ),
    Mutant(
        "new-floor-fits-before-it-is-held",
        never(),
        "tenants hold more than the cap: the floor of one grew while another one held what it lacks",
        ("elastic:pool",),
    ),
    Mutant(
        "moved-weight-is-told",
        delete(),
        "kernels read a weight where it was before",
        ("elastic:eager",),
    ),
    Mutant(
        "failed-read-leaves-no-lease",
        delete(),
        "after a pass that went astray none begins any more",
        ("elastic:eager",),
    ),
    Mutant(
        "eager-pass-keeps-its-memory",
        replace("CurrentPass::None => {", "CurrentPass::None | CurrentPass::Resident => {"),
        "memory moves to another tenant while a pass reads it",
        ("lib:eager",),
    ),
    Mutant(
        "ended-weights-read-no-host-bytes",
        delete(),
        "copies read bytes on the host that their owner has freed",
        ("lib:eager",),
    ),
]
