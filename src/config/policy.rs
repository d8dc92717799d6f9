//! The residency policies by name. What each does says `residency::policies`.

/// One row for each policy: its kind, its name, whether it plans by what copies and kernels take, and what `weightstream
/// options` and the documentation say of it.
macro_rules! policies {
    ($($(#[$if:meta])* $kind:ident, $name:literal, $plans:literal, $description:literal;)+) => {
        /// Which residency policy to use.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum PolicyKind {
            $($(#[$if])* #[doc = $description] $kind,)+
        }

        impl PolicyKind {
            /// All of them, in the order of the documentation.
            pub const ALL: &'static [PolicyKind] = &[$($(#[$if])* PolicyKind::$kind),+];

            /// The name of each, the value of the option.
            pub const NAMES: &'static [(&'static str, PolicyKind)] =
                &[$($(#[$if])* ($name, PolicyKind::$kind)),+];

            /// Its name, the value of the option.
            pub fn name(self) -> &'static str {
                match self {
                    $($(#[$if])* PolicyKind::$kind => $name,)+
                }
            }

            /// Whether it asks what copies and kernels take.
            pub fn plans(self) -> bool {
                match self {
                    $($(#[$if])* PolicyKind::$kind => $plans,)+
                }
            }

            /// What it does, in a line.
            pub fn description(self) -> &'static str {
                match self {
                    $($(#[$if])* PolicyKind::$kind => $description,)+
                }
            }
        }
    };
}

policies! {
    Planned, "planned", true,
        "A plan made at load: heads of weights stay, and tails stream through a ring. The LRU where it copies less.";
    Lru, "lru", false,
        "Evicts what was read least recently, and loads ahead along the trace.";
    #[cfg(feature = "sim")]
    MostRecent, "most_recent", false,
        "Evicts what was read most recently. For tests: the example of an eviction policy.";
}

/// Policies for tests, which no documentation and no error text names.
pub(super) const FOR_TESTS: &[&str] = &["most_recent"];

#[allow(
    clippy::derivable_impls,
    reason = "the rows above are all that is said of a policy"
)]
impl Default for PolicyKind {
    fn default() -> Self {
        PolicyKind::Planned
    }
}
