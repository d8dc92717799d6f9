//! The table of one topic's functions.

/// Declares the functions of one topic for [`lookup`](super::lookup).
macro_rules! shim_table {
    ($($name:ident),* $(,)?) => {
        /// Names of this topic's functions.
        pub(super) const NAMES: &[&str] = &[$(stringify!($name)),*];

        /// The function called `name`.
        pub(super) fn lookup(name: &str) -> Option<*const std::ffi::c_void> {
            $(if name == stringify!($name) {
                return Some($name as *const std::ffi::c_void);
            })*
            None
        }
    };
}
pub(super) use shim_table;
