//! The counters, in one table. Every other list of them comes from it.
//!
//! ```text
//! counters! { ... } --+--> Stats            what a session counts, since load
//!                     +--> ws_stats_data    in C and C++ (`scripts/generate` writes the header)
//!                     +--> JSON             of C, C++, Python and the runner
//!                     +--> docs/counters.md (`scripts/generate`)
//! ```
//! - A new counter goes to the end: programs in C know the place of each field.
//! - `Stats` has only fields of 64 bits, in the order of the table, as the structure in C does.
#![deny(unsafe_code)]

/// What a counter is a figure of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The budget and what lies in it.
    Budget,
    /// The sum over all complete passes.
    Passes,
    /// The last complete pass.
    LastPass,
    /// Memory that is not part of the budget.
    Beside,
    /// Everything since load.
    Load,
}

impl Kind {
    /// What documentation calls it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Budget => "budget",
            Kind::Passes => "all passes",
            Kind::LastPass => "last pass",
            Kind::Beside => "not in the budget",
            Kind::Load => "since load",
        }
    }
}

/// One counter.
#[derive(Debug, Clone, Copy)]
pub struct Counter {
    /// Its name in every interface.
    pub name: &'static str,
    /// What it is a figure of.
    pub kind: Kind,
    /// What it counts, in sentences.
    pub meaning: &'static str,
}

macro_rules! counters {
    ($($name:ident: $kind:ident, $meaning:literal;)+) => {
        /// Counters since load. All sizes in bytes.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[repr(C)]
        pub struct Stats {
            $(#[doc = $meaning] pub $name: u64,)+
        }

        /// All counters, in the order of documentation.
        pub const COUNTERS: &[Counter] = &[
            $(Counter { name: stringify!($name), kind: Kind::$kind, meaning: $meaning },)+
        ];

        impl Stats {
            /// The values, in the order of [`COUNTERS`].
            pub fn values(&self) -> [u64; COUNTERS.len()] {
                [$(self.$name),+]
            }

            /// `merge(kind, own, other)` for each counter.
            fn merged(&self, other: &Stats, merge: impl Fn(Kind, u64, u64) -> u64) -> Stats {
                Stats {
                    $($name: merge(Kind::$kind, self.$name, other.$name),)+
                }
            }
        }
    };
}

counters! {
    budget_bytes: Budget, "Device bytes that weights and direct constants may occupy.";
    floor_bytes: Budget, "The least budget that load accepts.";
    hard_minimum_bytes: Budget, "Below this, some probe could not be served at all.";
    direct_bytes: Budget,
        "Device bytes of direct constants and of pinned weights, which always stay.";
    total_weight_bytes: Budget,
        "Device bytes that all weights would occupy together. Weights that are pinned or only \
         read in place do not count.";
    peak_bytes: Budget,
        "The most that weights and direct constants occupied at one time under the present budget; \
         never above it.";
    passes: Passes, "Complete passes.";
    hits: Passes, "Probes that found their weight on the device, or its copy issued.";
    misses: Passes, "Probes that had to wait for a copy issued on demand.";
    evictions: Passes, "Weights that gave up their device memory.";
    prefetches: Passes, "Copies issued before their probe.";
    bytes_copied: Passes, "Bytes copied to the device; what load copied counts too.";
    bytes_copied_last_pass: LastPass, "Bytes copied to the device.";
    activation_peak_bytes: Beside,
        "The most bytes of activations at one time, outputs included. What an operator allocates \
         within one call does not count.";
    io_bytes: Beside,
        "The most device memory that one call took for its inputs. 0 on the CPU, which reads them \
         in place.";
    host_pinned_bytes: Beside,
        "Pinned host memory: a copy of the weights or the staging ring, and 1 MiB for outputs.";
    host_mapped_bytes: Beside,
        "Pages of the mapped file that are registered with the device, and so stay in memory.";
    gathered_bytes: Beside, "Tables in host memory that kernels read in place, row by row.";
    replans: Load, "How often the plan was replaced by a better one: after kernels of a method were timed, and in eager \
         code after entries ran more or less often than before.";
    inputs_copied: Load, "Inputs that were not row-major, and were copied so that they are.";
    session_bytes: Beside,
        "Device bytes of the mutable buffers of sessions beyond the first, whose state is in the budget.";
    budget_changes: Load, "How often the budget was changed after load.";
    pinned_bytes: Budget,
        "Device bytes of the weights that weight_offload_pin keeps. A part of direct_bytes.";
    graphs: Beside, "Captured graphs that are kept now.";
    graph_bytes: Beside,
        "Device bytes of these graphs: what the driver took for them, in steps of 2 MiB or more, or by \
         the number of their nodes where that is more. The driver may keep those of graphs that went, \
         for later ones. Activations are not in it.";
    captures: Load, "Passes that were captured as graphs.";
    replays: Load, "Passes that were replayed.";
    graphs_evicted: Load,
        "Graphs that were given up: for others under weight_offload_graph_mb, after a change of the \
         plan, or for a larger block of activations.";
    graph_block_bytes: Beside,
        "Device bytes of the block in which inputs and activations of graphs lie. The driver gives it \
         in pages of 2 MiB.";
    row_hits: Load,
        "Reads of experts' weights that found their row on the device. Counted after 4, 8 and 16 passes that read rows, and then \
         after each 16.";
    row_misses: Load, "Those that read it in host memory, counted with row_hits.";
    rows_moved: Load,
        "Rows of experts' weights that were copied to the device since they were asked for often, or back for methods that \
         read all of them.";
}

impl Stats {
    /// What passes counted since `before`.
    pub(crate) fn since(&self, before: &Stats) -> Stats {
        self.merged(before, |kind, now, before| match kind {
            Kind::Passes => now - before,
            _ => 0,
        })
    }

    /// Adds what one pass counted.
    pub(crate) fn add(&mut self, pass: &Stats) {
        *self = self.merged(pass, |kind, own, more| match kind {
            Kind::Passes => own + more,
            _ => own,
        });
        self.bytes_copied_last_pass = pass.bytes_copied;
    }

    /// All counters by name.
    pub fn entries(&self) -> impl Iterator<Item = (&'static str, u64)> {
        COUNTERS
            .iter()
            .map(|counter| counter.name)
            .zip(self.values())
    }

    /// The counters as a JSON object, with the options of the load, an object too, under `options`.
    pub fn to_json(&self, options: &str) -> String {
        let counters = self
            .entries()
            .map(|(name, value)| format!("\"{name}\": {value}, "));
        format!("{{{}\"options\": {options}}}", counters.collect::<String>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counters of which each has another value.
    fn counted(first: u64) -> Stats {
        let next = std::cell::Cell::new(first);
        let zero = Stats::default();
        zero.merged(&zero, |_, _, _| next.replace(next.get() + 1))
    }

    #[test]
    fn the_values_lie_in_memory_as_in_the_table() {
        assert_eq!(size_of::<Stats>(), COUNTERS.len() * size_of::<u64>());
        let expected: Vec<u64> = (5..).take(COUNTERS.len()).collect();
        assert_eq!(counted(5).values()[..], expected);
        assert_eq!(std::mem::offset_of!(Stats, passes), 6 * size_of::<u64>());
    }

    #[test]
    fn a_pass_adds_what_it_counted_and_nothing_else() {
        let before = counted(100);
        let mut after = before;
        after.add(&Stats {
            passes: 1,
            hits: 7,
            bytes_copied: 30,
            budget_bytes: 9,
            ..Stats::default()
        });
        let expected = Stats {
            passes: before.passes + 1,
            hits: before.hits + 7,
            bytes_copied: before.bytes_copied + 30,
            bytes_copied_last_pass: 30,
            ..before
        };
        assert_eq!(after, expected);
        let pass = Stats {
            passes: 1,
            hits: 7,
            bytes_copied: 30,
            ..Stats::default()
        };
        assert_eq!(after.since(&before), pass);
    }

    #[test]
    fn json_has_every_counter_once() {
        let json = counted(1).to_json("{}");
        for (name, value) in counted(1).entries() {
            assert_eq!(
                json.matches(&format!("\"{name}\": {value}, ")).count(),
                1,
                "{json}"
            );
        }
        assert!(json.starts_with("{\"budget_bytes\": 1, ") && json.ends_with(", \"options\": {}}"));
    }
}
