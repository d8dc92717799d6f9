"""Rules of devices and of tensor handles."""

from mutant import Mutant

RING = "src/device/cuda/stage_ring.rs"
HOST = "src/device/host/mod.rs"
SLAB = "src/aoti/slab.rs"

MUTANTS = [
    # --- the ring of `staged`
    Mutant(
        "slot-is-filled-too-early",
        RING,
        "Some((piece, offset, len)) if self.is_free(piece) => {",
        "Some((piece, offset, len)) => {",
        "a piece is overwritten on the host before the device has copied it",
        ("lib:stage_ring",),
    ),
    Mutant(
        "slot-counts-as-free-one-piece-early",
        RING,
        "let before = piece.number.wrapping_sub(self.area.shape.slots as u32);",
        "let before = piece.number.wrapping_sub(self.area.shape.slots as u32 + 1);",
        "the same, by one",
        ("lib:stage_ring",),
    ),
    Mutant(
        "failed-read-is-forgotten",
        RING,
        "self.fail(error);\n                        into.fill(0);",
        "drop(error);\n                        into.fill(0);",
        "a weight whose read failed is computed with",
        ("lib:stage_ring",),
    ),
    Mutant(
        "failed-read-leaves-garbage",
        RING,
        "self.fail(error);\n                        into.fill(0);",
        "self.fail(error);",
        "kernels follow indices that are the remains of another piece, out of bounds",
        ("lib:stage_ring",),
    ),
    Mutant(
        "failure-is-not-asked-for",
        RING,
        "if !self.shared.failed.load(Ordering::Acquire) {",
        "if true {",
        "whoever has waited for the copy does not hear that its read failed",
        ("lib:stage_ring",),
    ),
    Mutant(
        "piece-is-never-ready",
        RING,
        "mark.store(self.piece.number, Ordering::Release);",
        "let _ = mark;",
        "the copy stream waits for ever",
        ("lib:stage_ring",),
    ),
    Mutant(
        "panic-of-a-reader-is-silent",
        RING,
        "if std::thread::panicking() {",
        "if false {",
        "a reader that dies leaves bytes that nobody doubts",
        ("lib:stage_ring",),
    ),
    Mutant(
        "end-leaves-waiters",
        RING,
        "mark.store(issued, Ordering::Release);",
        "let _ = (mark, issued);",
        "a stream that waits for a piece is not let through at the end",
        ("lib:stage_ring",),
    ),
    Mutant(
        "piece-numbers-do-not-wrap",
        RING,
        "mark.wrapping_sub(piece) as i32 >= 0",
        "mark >= piece",
        "after 2^32 pieces slots are taken for free, or nobody goes on",
        ("lib:stage_ring",),
    ),
    # --- the host
    Mutant(
        "host-does-not-wait",
        HOST,
        "self.copier.wait(event.commands)",
        "self.copier.is_done(event.commands).map(drop)",
        "a kernel on the CPU reads a weight before it is there",
        ("lib:device::host", "device_contract"),
    ),
    Mutant(
        "host-frees-at-once",
        HOST,
        "// Queued copies may still write it. Whoever gets it next writes it by a later copy only.",
        "if self.peak_bytes > 0 {\n                drop(block);\n                return Ok(());\n            }",
        "a queued copy writes memory that was given back to the system",
        ("lib:device::host", "device_contract"),
    ),
    Mutant(
        "host-copies-anywhere",
        "src/device/host/block.rs",
        "offset <= block.bytes && len <= block.bytes - offset",
        "offset <= block.bytes && len <= len + offset",
        "a copy that leaves its block is not refused",
        ("lib:device::host", "device_contract"),
    ),
    # --- tensor handles
    Mutant(
        "first-handle-ends-the-lease",
        SLAB,
        "if storage.refs > 0 {",
        "if storage.refs > u32::MAX - 1 {",
        "a weight may be evicted while another handle still reads it",
        ("lib:aoti",),
    ),
    Mutant(
        "deleted-handle-is-alive",
        SLAB,
        "Some(slot) if slot.generation == generation && slot.tensor.is_some() => {",
        "Some(slot) if slot.tensor.is_some() => {",
        "a stale handle reads the tensor that took its place",
        ("lib:aoti",),
    ),
    Mutant(
        "view-beyond-its-storage",
        SLAB,
        "tensor.check_within(self.storages[id.0 as usize].storage.bytes)?;",
        "",
        "a view reads the neighbours of a weight",
        ("lib:aoti",),
    ),
    Mutant(
        "tensor-beyond-its-storage",
        SLAB,
        "tensor.check_within(storage.bytes)?;",
        "",
        "the same for the tensor that a probe returns",
        ("lib:aoti",),
    ),
]
