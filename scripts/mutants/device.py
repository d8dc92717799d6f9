"""Rules of devices and of tensor handles."""

from edits import become, delete, drop, never, replace
from mutant import Mutant

MUTANTS = [
    # --- the ring of `staged`
    Mutant(
        "slot-is-filled-once-it-is-free",
        drop("if self.is_free(job.0, done)"),
        "a piece is overwritten on the host before the device has copied it",
        ("lib:stage_ring",),
    ),
    Mutant(
        "slot-is-free-after-its-own-piece",
        replace("self.slots as u32", "self.slots as u32 + 1"),
        "a piece is overwritten on the host while the device copies it",
        ("lib:stage_ring",),
    ),
    Mutant(
        "failed-read-is-kept",
        become("drop(error);"),
        "a weight whose read failed is computed with",
        ("lib:stage_ring",),
    ),
    Mutant(
        "failed-read-leaves-zeros",
        delete(),
        "kernels follow indices that are the remains of another piece, out of bounds",
        ("lib:stage_ring",),
    ),
    Mutant(
        "failure-is-asked-for",
        replace("!self.shared.turns.has_failed()", "true"),
        "what has waited for the copy does not hear that its read failed",
        ("lib:stage_ring",),
    ),
    Mutant(
        "filled-piece-is-marked-ready",
        become("let _ = mark;"),
        "the copy stream waits for ever",
        ("lib:stage_ring",),
    ),
    Mutant(
        "panic-of-a-reader-is-a-failure",
        never(),
        "a reader that dies leaves bytes that nobody doubts",
        ("lib:stage_ring",),
    ),
    Mutant(
        "end-lets-waiters-through",
        become("let _ = (mark, issued);"),
        "a stream that waits for a piece is not let through at the end",
        ("lib:stage_ring",),
    ),
    Mutant(
        "piece-numbers-wrap-around",
        become("mark >= piece"),
        "after 2^32 pieces slots are taken for free, or nobody goes on",
        ("lib:stage_ring",),
    ),
    Mutant(
        "free-slot-was-read-before",
        replace("Acquire", "Relaxed"),
        "a piece is overwritten on the host while the device copies it",
        ("loom_progress",),
    ),
    Mutant(
        "pushed-piece-wakes-a-reader",
        delete(),
        "a piece is never read, and the copy stream waits for ever",
        ("loom_progress",),
    ),
    Mutant(
        "end-wakes-all-readers",
        replace("notify_all", "notify_one"),
        "the end waits for ever for a reader that sleeps",
        ("loom_progress",),
    ),
    # --- the copy thread of the host
    Mutant(
        "progress-changes-under-the-lock",
        delete(),
        "a kernel on the CPU checks, misses the copy's end, and sleeps for ever",
        ("loom_progress",),
    ),
    Mutant(
        "progress-publishes-what-was-copied",
        replace("Release", "Relaxed"),
        "a kernel on the CPU reads bytes from before the copy that it waited for",
        ("loom_progress",),
    ),
    Mutant(
        "failed-copier-wakes-waiters",
        delete(),
        "a kernel on the CPU waits for ever for a copy thread that has ended",
        ("loom_progress",),
    ),
    # --- the host
    Mutant(
        "host-waits-for-its-copies",
        become("self.copier.is_done(event.commands).map(drop)"),
        "a kernel on the CPU reads a weight before it is there",
        ("lib:device::host", "device:contract"),
    ),
    Mutant(
        "host-keeps-memory-for-later-copies",
        become("drop(block);"),
        "a queued copy writes memory that was given back to the system",
        ("lib:device::host", "device:contract"),
    ),
    # --- tensor handles
    Mutant(
        "last-handle-ends-the-lease",
        never(),
        "a weight may be evicted while another handle still reads it",
        ("lib:aoti",),
    ),
    Mutant(
        "storage-under-a-view-stays",
        replace("storage.refs > 0", "false"),
        "a view of the weight's earlier read looks at the memory of the later one",
        ("lib:slab",),
    ),
    Mutant(
        "probe-gets-its-new-address",
        delete(),
        "kernels read a weight where it lay in the pass before",
        ("lib:slab",),
    ),
    Mutant(
        "deleted-handle-is-stale",
        drop("slot.generation == generation &&"),
        "a stale handle reads the tensor that took its place",
        ("lib:aoti",),
    ),
]
