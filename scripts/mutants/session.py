"""Rules of the store and of its passes: stream waits, events, leases, and what is taken back when a call fails."""

from edits import always, become, delete, drop, never, replace
from mutant import Mutant

SAFETY = ("session:safety", "session:random")

MUTANTS = [
    # --- the two rules of stream order
    Mutant(
        "kernel-waits-for-copy",
        replace("self.device.compute_wait(event)", "Ok::<(), Error>(()).inspect(|()| _ = event)"),
        "a kernel reads a weight before its copy has arrived",
        SAFETY,
    ),
    Mutant(
        "copy-waits-for-reader",
        replace("self.device.copy_wait(event)", "Ok::<(), Error>(()).inspect(|()| _ = event)"),
        "a copy overwrites bytes that a kernel still reads",
        SAFETY,
    ),
    Mutant(
        "lease-end-leaves-an-event",
        delete(),
        "nothing says when the last reader of a weight has finished",
        SAFETY,
    ),
    Mutant(
        "lease-end-in-the-tail-leaves-an-event",
        delete(),
        "nothing says when the last reader of a weight has finished whose lease lasts until the code returns",
        ("session:safety", "session:cases"),
    ),
    Mutant(
        "copy-leaves-an-event",
        delete(),
        "a probe finds no event to wait for while the copy runs",
        SAFETY,
    ),
    Mutant(
        "event-comes-after-the-copy",
        become("let copied = self.device.record_copy().and_then(|event| self.device.bring(at, src).map(|()| event));"),
        "the event that a kernel waits for says nothing about the copy",
        SAFETY,
    ),
    Mutant(
        "load-waits-for-its-copies",
        replace("self.device.synchronize()", "Ok::<(), Error>(())"),
        "direct constants, which are read without a wait, have not arrived when the load returns",
        ("session:load", "session:random"),
    ),
    # --- rows of weights on the device
    Mutant(
        "rows-are-told-when-they-are-there",
        replace("|| !self.rows.is_empty()", ""),
        "after a change of the budget kernels read rows whose copies have not arrived",
        ("session:rows",),
    ),
    Mutant(
        "kernel-waits-for-its-rows",
        replace("self.compute_waits_for_copies()?;", ""),
        "kernels are told of a row whose copy may not have arrived",
        ("session:rows",),
    ),
    Mutant(
        "heads-wait-for-readers-of-rows",
        delete(),
        "a head gets its rows back while kernels read others there",
        ("session:rows",),
    ),
    Mutant(
        "kernel-waits-for-the-head",
        replace("self.compute_waits_for_copies()?;", ""),
        "a kernel reads the whole weight before its head has its own rows",
        ("session:rows",),
    ),
    Mutant(
        "heads-have-their-rows-before-a-move",
        replace("self.rows_go_home()?;", ""),
        "pages that stay under another plan have rows that nobody knows of",
        ("session:rows",),
    ),
    Mutant(
        "kept-bytes-are-forgotten-by-a-new-plan",
        replace("self.forget_kept();", ""),
        "weights are decoded from where stored bytes were under another plan",
        ("session:decoded",),
    ),
    Mutant(
        "tables-of-one-weight-say-the-same",
        become("Some(other) if false => other.told_by.push(of.constant),"),
        "one method moves a row, and another one is not told",
        ("session:rows",),
    ),
    Mutant(
        "rows-on-their-way-are-not-home",
        drop("&& !coming"),
        "a kernel reads the whole weight before a row of its head has arrived",
        ("session:rows",),
    ),
    Mutant(
        "lost-rows-poison",
        replace("self.poison(", "let _ = ("),
        "after a copy that failed kernels read rows that are not there",
        ("session:rows",),
    ),
    # --- which probe gets which address
    Mutant(
        "probe-is-the-next-one",
        replace("?;", ".unwrap_or(id as ProbeId);"),
        "compiled code that leaves the trace gets an address all the same",
        ("session:safety",),
    ),
    Mutant(
        "failed-pass-serves-nothing",
        replace("self.pass.failed.is_none()", "true"),
        "compiled code that ignores an error gets addresses for the rest of its pass",
        ("session:safety",),
    ),
    Mutant(
        "poisoned-pass-serves-nothing",
        replace("!self.store.is_poisoned()", "true"),
        "weights are copied over one whose readers are unknown, in the pass that lost them",
        ("session:safety", "session:mutants"),
    ),
    Mutant(
        "poisoned-pass-looks-not-ahead",
        replace("!self.store.is_poisoned()", "true"),
        "the lease end whose event was lost makes room for a copy over its own reader",
        ("session:safety", "session:mutants"),
    ),
    Mutant(
        "poisoned-store-begins-no-pass",
        delete(),
        "a store that cannot be trusted starts another pass",
        ("session:safety",),
    ),
    Mutant(
        "lost-lease-end-poisons",
        delete(),
        "the next eviction of the weight does not know its last reader",
        ("session:safety",),
    ),
    Mutant(
        "poisoned-store-keeps-its-memory",
        replace("!self.store.is_poisoned()", "true"),
        "the memory of a weight whose readers are unknown is given back while they read",
        ("session:safety", "session:mutants"),
    ),
    Mutant(
        "only-what-stays-keeps-its-address",
        always(),
        "probes are answered with where a weight was at load, and nothing that streams is copied",
        ("session:planned", "session:cases"),
    ),
    # --- leases
    Mutant(
        "policy-hears-of-the-lease",
        delete(),
        "the policy evicts a weight while it is read",
        ("session:safety", "session:load"),
    ),
    Mutant(
        "lease-ends-once",
        drop("if *open"),
        "a release without a lease ends another reader's lease",
        ("session:load", "session:safety"),
    ),
    Mutant(
        "lease-ends-with-its-pass",
        always(),
        "a tensor handle that was not deleted is no error of its pass",
        ("session:safety",),
    ),
    Mutant(
        "pass-begins-without-leases",
        delete(),
        "a pass begins although a reader of an earlier one may still be there",
        ("session:safety",),
    ),
    Mutant(
        "releases-are-compared",
        delete(),
        "leases that end in another order than the floor was computed for are not noticed",
        ("session:safety",),
    ),
    Mutant(
        "releases-are-followed",
        delete(),
        "leases that end in another order than the floor was computed for are not noticed",
        ("session:safety",),
    ),
    Mutant(
        "failed-action-is-undone",
        become("self.actions.clear();"),
        "the policy believes that a weight is on the device whose copy was never issued",
        SAFETY,
    ),
    Mutant(
        "failed-last-copy-is-undone",
        become("self.actions.clear();"),
        "the same for the last copies of a list of actions",
        ("session:mutants",),
    ),
    Mutant(
        "undone-from-the-last-action",
        drop(".rev()"),
        "an eviction is taken back after the load that it made room for, and the books do not add up",
        SAFETY,
    ),
    Mutant(
        "queued-copies-go-first",
        become("let error = error;"),
        "weights before a failed action are marked as absent, but keep their memory",
        (*SAFETY, "session:mutants"),
    ),
    Mutant(
        "failed-pass-starts-afresh",
        delete(),
        "the next pass goes on in the middle of the trace",
        SAFETY,
    ),
    # --- a plan that is made again with the times of kernels
    Mutant(
        "weights-lost-in-a-move-poison",
        delete(),
        "weights that have no memory any more are read",
        ("session:refine",),
    ),
    # --- which weights a fault in a kernel names
    Mutant(
        "lease-end-waits-for-its-kernel",
        become("on.pass.failed = None;"),
        "a fault is found after the next kernel's reads, and named after them",
        ("session:lost_device",),
    ),
    # --- graphs
    Mutant(
        "captured-pass-is-periodic",
        never(),
        "a pass under the LRU is captured, although the next one begins otherwise",
        ("session:graph",),
    ),
    Mutant(
        "replay-finds-the-captured-state",
        replace("self.pass.primed == store.state()", "self.pass.primed != Default::default()"),
        "a graph is replayed although the ring holds other weights",
        ("session:graph",),
    ),
    Mutant(
        "replay-waits-for-the-pass-before",
        replace("store.device.synchronize()", "Ok::<(), Error>(())"),
        "the copies of a replay run beside those that the pass before it issued",
        ("session:graph",),
    ),
    Mutant(
        "pass-waits-for-the-replay-before",
        replace("device.synchronize()", "Ok::<(), Error>(())"),
        "copies of a pass overwrite what kernels of the replay before it still read",
        ("session:graph",),
    ),
    Mutant(
        "capture-forgets-earlier-events",
        delete(),
        "what is captured waits for events that no replay waits for",
        ("session:graph",),
    ),
    Mutant(
        "failed-capture-starts-afresh",
        delete(),
        "copies that were captured and thrown away count as done",
        ("session:graph",),
    ),
    Mutant(
        "captured-activations-lie-in-their-block",
        replace("&self.part", "self.part.as_ref().filter(|_| false)"),
        "the graph writes to memory that others have by then",
        ("session:graph_memory", "session:graphs"),
    ),
    Mutant(
        "graph-is-of-one-session",
        replace("state.map_or(0, State::number)", "state.map_or(0, |_| 0)"),
        "a session's pass is replayed with the buffers of another one",
        ("session:graphs",),
    ),
    Mutant(
        "graph-key-has-the-plan",
        replace("self.store.generation()", "0"),
        "after a change of the plan nothing is replayed any more",
        ("session:graphs",),
    ),
    Mutant(
        "graphs-begin-with-the-ring-full",
        always(),
        "a graph is said to be ready although the ring holds the tails of another pass",
        ("session:graphs",),
    ),
    Mutant(
        "block-grows-in-place",
        become(
            "{\n"
            "    let Some(other) = Growing::open(device)? else { return Ok(()) };\n"
            "    std::mem::replace(growing, other).close(device)?;\n"
            "    growing.grow(device, bytes)?;\n"
            "    self.at = growing.at();\n"
            "}"
        ),
        "graphs of before write where their activations were",
        ("session:graph_memory", "session:graphs"),
    ),
    Mutant(
        "one-replay-at-a-time",
        replace("self.busy", "false"),
        "a replay overwrites what the one before it computed, before anybody has read it",
        ("session:graph_memory", "session:graphs"),
    ),
    Mutant(
        "replaced-block-outdates-its-graphs",
        replace("number != Some(held.number)", "number.is_none()"),
        "a graph is replayed in memory that was given back for a larger block",
        ("session:graph_memory", "session:graphs"),
    ),
]
