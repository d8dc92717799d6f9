"""Rules of plans, of the policy that carries them out, and of how a method belongs to its delegate."""

from mutant import Mutant

POLICY = "src/residency/planned/policy.rs"
SLOTS = "src/residency/planned/slots.rs"
CONFLICTS = "src/residency/planned/conflicts.rs"
DRAFT = "src/residency/planned/draft.rs"
BY_GAP = "src/residency/planned/by_gap.rs"
GAPS = "src/residency/planned/gaps.rs"
STEADY = "src/residency/planned/steady.rs"
FILLED = "src/residency/planned/filled.rs"
ARCS = "src/residency/planned/arcs.rs"
TAKINGS = "src/residency/planned/takings.rs"
CHOICE = "src/residency/planned/choice.rs"
ENDS = "src/residency/planned/ends.rs"
PAGED = "src/residency/planned/paged.rs"
TIMED = "src/residency/planned/timed.rs"
PRICE = "src/residency/planned/price.rs"
SHOWN = "src/residency/planned/shown.rs"
POOL = "src/residency/pool.rs"
LAYOUT = "src/residency/planned/layout.rs"
TENANCIES = "src/residency/planned/tenancies.rs"
COPIES = "src/session/copies.rs"
BUILD = "src/session/build.rs"
WIRING = "src/format/wiring.rs"
INPUTS = "src/delegate/inputs.rs"

TESTS = ("lib:planned", "session_planned", "session_cases")
KEPT = ("planned_kept",)

MUTANTS = [
    # --- what a plan may take
    Mutant(
        "timed-plan-takes-a-page-more",
        TIMED,
        "all as i64 - beside.map_or(-1, |pages| pages as i64)",
        "all as i64 - beside.map_or(-1, |pages| pages as i64) - 1",
        "a plan that is made anew takes more memory than the budget",
        TESTS,
    ),
    Mutant(
        "pages-beside-half-a-page",
        CHOICE,
        "let pages = self.capacity.checked_sub(packed)? / page;",
        "let pages = self.capacity.checked_sub(packed)?.div_ceil(page);",
        "a plan takes the page that what stays as a whole has begun once more",
        TESTS,
    ),
    Mutant(
        "pages-beside-forget-what-lies-apart",
        CHOICE,
        "let taken = self.apart.div_ceil(page) + packed.div_ceil(page);",
        "let taken = packed.div_ceil(page);",
        "beside direct constants a plan takes a page more than the budget",
        TESTS,
    ),
    # --- who shares memory with whom
    Mutant(
        "ends-meet",
        ENDS,
        ".min(half(at)))",
        ".min(half(at) + 1))",
        "a tail lies over the one that is read before it",
        TESTS,
    ),
    Mutant(
        "ends-of-what-is-no-chain",
        ENDS,
        "&& (0..count).all(|at| conflicts.of(at).iter().all(|&other| beside(at, other)))",
        "&& conflicts.of(0).len() < usize::MAX",
        "tails that are wanted at one time, but not in turn, lie over each other",
        TESTS,
    ),
    # --- what stays from one read to the next
    Mutant(
        "gap-view-of-many-pieces",
        BY_GAP,
        "if pieces(&self.gaps, &arcs, &placed) <= PIECES {",
        "if pieces(&self.gaps, &arcs, &placed) <= usize::MAX {",
        "a view has more pieces than a process may have mappings",
        ("lib:by_gap",),
    ),
    Mutant(
        "use-goes-on-behind-the-next",
        GAPS,
        "uses[number].to = uses[number].to.min(next);",
        "let _ = next;",
        "around the end of a pass a weight's gap has a length below zero",
        TESTS,
    ),
    Mutant(
        "arc-outlasts-its-place",
        TAKINGS,
        "let (until, part) = match self.free.range_mut(to..).next() {",
        "let (until, part) = match self.free.range_mut(0..).next() {",
        "bytes lie where others are wanted back before their last read",
        TESTS,
    ),
    Mutant(
        "arc-ends-before-its-last-use",
        ARCS,
        "to: uses[last % uses.len()].to + around,",
        "to: uses[first].to.max(uses[last % uses.len()].from + around),",
        "bytes that stay up to a read are given away while it goes on",
        TESTS,
    ),
    Mutant(
        "arc-does-not-get-its-place-back",
        TAKINGS,
        "self.free.remove(&now);",
        "let _ = now;",
        "bytes that come back around the end of a pass lie where others were put",
        TESTS,
    ),
    Mutant(
        "steady-passes-keep-more-than-fits",
        STEADY,
        "self.yield_down_to(self.room.saturating_sub(self.gaps.wanted[moment]));",
        "self.yield_down_to(self.room);",
        "more is kept from one read to the next than there is room for",
        ("lib:steady",),
    ),
    Mutant(
        "ring-that-seems-to-cost-too-much",
        FILLED,
        "least.saturating_sub(last_pages)",
        "least.saturating_add(last_pages)",
        "the cheapest plan is not looked for, and with more memory another one may cost more",
        ("lib:paged",),
    ),
    # --- who may be copied over
    Mutant(
        "planned-leased-may-go",
        SLOTS,
        "self.has_some() && self.unread == 0 && self.leases == 0",
        "self.has_some() && self.unread == 0",
        "a weight is copied over while it is read",
        TESTS,
    ),
    Mutant(
        "planned-unread-may-go",
        SLOTS,
        "self.has_some() && self.unread == 0 && self.leases == 0",
        "self.has_some() && self.leases == 0",
        "a weight that was copied for a coming read is copied over before it",
        TESTS,
    ),
    Mutant(
        "planned-place-in-use-is-taken",
        POLICY,
        "|| !all.all(|victim| self.slots[victim as usize].idle())",
        "|| !all.all(|_| true)",
        "a copy goes to bytes whose tenant is being read",
        TESTS,
    ),
    Mutant(
        "planned-early-lease-end-is-forgotten",
        POLICY,
        "over.then_some(slot.weight)",
        "(over && slot.unread == 0).then_some(slot.weight)",
        "behind a pass that ended early, a copy does not wait for the last kernel that read its bytes",
        TESTS,
    ),
    Mutant(
        "planned-weight-in-two-places",
        POLICY,
        "if from < holds.there {",
        "if from < holds.there && false {",
        "a weight has two places, and nobody remembers who read the first one",
        TESTS,
    ),
    # --- bytes that a copy takes over
    Mutant(
        "kept-from-any-copy",
        POLICY,
        "_ if held == slot.before => slot.kept,",
        "_ if held != at => slot.kept,",
        "bytes are taken over from a copy that lies elsewhere",
        KEPT,
    ),
    Mutant(
        "kept-from-a-weight-in-use",
        POLICY,
        "if held != NONE && !self.slots[held as usize].idle()\n            || ",
        "if ",
        "the rest of a weight is given up while it is read at its place before",
        KEPT,
    ),
    Mutant(
        "kept-part-is-read",
        SLOTS,
        "self.there == self.range.end\n    }",
        "self.has_some()\n    }",
        "a weight of which a part was given up is read as a whole",
        KEPT,
    ),
    Mutant(
        "kept-rest-is-longer",
        POLICY,
        "_ if held == at => holds.there,",
        "_ if held == at => holds.range.end,",
        "what others left of a copy counts as all of it",
        KEPT,
    ),
    Mutant(
        "kept-eviction-behind-a-lost-load",
        POLICY,
        "        self.evicted[weight as usize] = NONE;\n",
        "",
        "bytes that a failed load has lost count as there",
        KEPT,
    ),
    Mutant(
        "kept-eviction-taken-back-is-whole",
        POLICY,
        "self.set(at, range.end);",
        "self.set(at, self.slots[at as usize].range.end);",
        "an eviction that failed brings back what an earlier one gave up",
        KEPT,
    ),
    Mutant(
        "kept-memory-is-given-away",
        SLOTS,
        "true => self.range.start,\n            false => self.stays,",
        "true => self.range.start,\n            false => self.range.start,",
        "what the next copy would take over is given up, and copied again",
        KEPT,
    ),
    # --- weights on pages
    Mutant(
        "paged-slots-in-conflict",
        PAGED,
        "conflicts.of(at).iter().map(|&o| slot_of[o]).collect();",
        "conflicts.of(at).iter().skip(1).map(|&o| slot_of[o]).collect();",
        "two weights that are wanted at one time have one slot",
        TESTS,
    ),
    Mutant(
        "paged-memory-of-a-tail",
        SHOWN,
        "                    memory,\n",
        "                    memory: memory.into_iter().take(1).map(|m| m.start..m.start + self.page).collect(),\n",
        "a copy goes over the rest of a tail that is being read",
        TESTS,
    ),
    Mutant(
        "paged-head-is-short",
        SHOWN,
        "let range = 0..head.min(bytes);",
        "let range = 0..head.min(bytes) - 1;",
        "a byte of a weight is never copied",
        TESTS,
    ),
    Mutant(
        "paged-heads-overlap",
        SHOWN,
        ".next_multiple_of(self.page)\n                - tail * self.page;",
        ".next_multiple_of(self.page)\n                - tail * self.page.min(tail + 1);",
        "heads of two weights have the same memory",
        TESTS,
    ),
    Mutant(
        "paged-slot-is-short",
        PAGED,
        "ring += pages.min(longest - u64::from(slot < short));",
        "ring += pages.min(longest - u64::from(slot < short)).div_ceil(2);",
        "two slots have the same memory",
        TESTS,
    ),
    Mutant(
        "filled-ring-is-short",
        "src/residency/planned/filled.rs",
        "pages: ring,",
        "pages: ring.div_ceil(2),",
        "tails of different lengths reach beyond the memory that they share",
        TESTS,
    ),
    Mutant(
        "scattered-pieces-overlap",
        "src/residency/planned/scatter.rs",
        "at = at.max(used.end);",
        "at = at.max(used.start);",
        "two tails that are wanted at one time share memory",
        TESTS,
    ),
    Mutant(
        "other-pieces-stay-present",
        POLICY,
        "while let Some(victim) = self.first_overlapping(at) {",
        "if let Some(victim) = self.first_overlapping(at) {",
        "a copy goes over what is still there by the policy's count",
        TESTS,
    ),
    Mutant(
        "merged-read-is-forgotten",
        "src/residency/planned/choice.rs",
        "before.last = before.last.max(next.last);",
        "",
        "a copy that serves two reads is overwritten behind the first",
        TESTS,
    ),
    Mutant(
        "paged-block-is-not-mapped",
        BUILD,
        "match self.policy.view() {",
        "match self.policy.view().filter(|_| false) {",
        "addresses of a view lead nowhere",
        TESTS,
    ),
    Mutant(
        "paged-memory-is-not-counted",
        POOL,
        "self.count(view.memory);",
        "self.count(0);",
        "the pool holds more than it says",
        TESTS,
    ),
    # --- which bytes are shared
    Mutant(
        "plan-shares-what-is-read-together",
        CONFLICTS,
        "pairs.extend(active.iter().map(|&(_, other)| (index, other)));",
        "let _ = &pairs;",
        "two weights that one kernel reads get the same bytes",
        TESTS,
    ),
    Mutant(
        "plan-forgets-the-pass-before",
        CONFLICTS,
        "if tenancy.wanted < 0 {",
        "if tenancy.wanted < i64::MIN / 2 {",
        "what is copied for the next pass shares bytes with the last reads of this one",
        TESTS,
    ),
    Mutant(
        "plan-neighbours-share",
        CONFLICTS,
        "pairs.extend((0..count).flat_map(next));",
        "let _ = next;",
        "a copy cannot go on beside the kernel that reads what streamed before it",
        TESTS,
    ),
    Mutant(
        "plan-overlaps-by-layout",
        LAYOUT,
        "at = at.max(end);",
        "at = at.max(end.saturating_sub(64));",
        "places of weights that are read together overlap",
        TESTS,
    ),
    Mutant(
        "plan-kept-end-does-not-move",
        DRAFT,
        "(self.draft.layout.offsets[at] + below + last - first, copied)",
        "(self.draft.layout.offsets[at] + below - first, copied)",
        "the part of a weight that stays lies in bytes that others stream through",
        TESTS,
    ),
    Mutant(
        "plan-lease-ends-at-its-start",
        TENANCIES,
        "before.last = before.last.max(read.last);",
        "before.last = before.last.min(read.last);",
        "a weight's place is given away before its last read",
        TESTS,
    ),
    Mutant(
        "part-goes-to-the-start",
        COPIES,
        "let at = self.tenants[weight as usize].at.offset(start);",
        "let at = self.tenants[weight as usize].at.offset(0 * start);",
        "the streamed part of a weight is copied over the part that stays",
        TESTS,
    ),
    Mutant(
        "plan-dearer-than-lru-is-taken",
        PRICE,
        ".filter(|lru| lru.bytes < plan.price.bytes)",
        ".filter(|_| false)",
        "a plan copies more than the LRU would",
        ("session_planned",),
    ),
    Mutant(
        "lru-copies-less-than-its-bound",
        "src/residency/planned/reuse.rs",
        "if distance > capacity {",
        "if distance >= capacity {",
        "an LRU that copies less is not asked, and the plan copies more",
        ("lib:reuse", "session_planned"),
    ),
    Mutant(
        "eviction-taken-back-is-a-use",
        "src/residency/lru.rs",
        "            self.idle.push_front(weight);",
        "            self.idle.push(weight);",
        "what was to go next goes last, and the bound of what the LRU copies is none",
        ("lib:lru",),
    ),
    Mutant(
        "tails-longer-than-the-ring",
        "src/residency/planned/tails.rs",
        "let less = over.div_ceil(same).min(tails[at]);",
        "let less = over.div_ceil(same).min(tails[at]).saturating_sub(1);",
        "tails of one moment do not fit into the ring that they are for",
        ("lib:tails",),
    ),
    # --- a method and its delegate
    Mutant(
        "part-of-a-method-is-run",
        WIRING,
        "([call], 1) =>",
        "([call], _) =>",
        "a method that computes something outside of its delegate is run without it",
        ("format_wiring",),
    ),
    Mutant(
        "outputs-in-the-delegates-order",
        WIRING,
        "let output = outputs_at.get(&value).copied().map(Source::Output);",
        "let output = outputs_at.get(&value).map(|_| Source::Output(index));",
        "outputs come in the order of the compiled code, which is not the exported one",
        ("format_wiring",),
    ),
    Mutant(
        "inputs-in-the-delegates-order",
        INPUTS,
        "let own = self.wiring.delegates_input(index)?;",
        "let own = index.min(self.inputs.len() - 1);",
        "an input is checked as another one",
        ("lib:inputs",),
    ),
]
