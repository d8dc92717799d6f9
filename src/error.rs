//! The one error type. Each variant says who can mend it, and carries the names of the things involved.

use std::fmt;

/// Result of everything fallible in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong. `Display` is a full sentence for the user, naming the thing, what was expected and
/// what was found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A file is damaged, truncated, or not of the kind it is used as.
    Malformed {
        /// Path or role of the file.
        file: String,
        /// Byte offset of the damage, as far as it is known.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// The operating system refused a file operation.
    Io {
        /// Path of the file.
        file: String,
        /// The operation and the system's text.
        what: String,
    },
    /// A named entry (weight, method, segment, compiled library) is not there.
    Missing {
        /// The name that was looked up: an FQN, a method, a key.
        name: String,
        /// Where it was looked up.
        place: String,
    },
    /// Two things that must agree do not: dtype, sizes, bytes, build id.
    Mismatch {
        /// The thing (an FQN for weights).
        name: String,
        /// Which fact of it.
        fact: &'static str,
        /// The value that was expected, and by whom.
        expected: String,
        /// The value that was found, and where.
        found: String,
    },
    /// The budget is below the floor. Nothing was allocated.
    BudgetTooSmall {
        /// The budget asked for, bytes.
        budget: u64,
        /// The least budget that is accepted, bytes.
        floor: u64,
        /// The parts of the floor, ready to print.
        parts: String,
        /// What sets the budget: an option in MB, whose name ends in `_mb`, or an argument in bytes.
        option: &'static str,
    },
    /// A cap for several tenants is below what they need at least.
    CapTooSmall {
        /// The cap asked for, bytes.
        cap: u64,
        /// The least cap that is accepted, bytes.
        least: u64,
        /// The tenants with their floors, ready to print.
        floors: String,
    },
    /// A runtime spec is unknown, of the wrong type, or cannot take effect.
    Option {
        /// The key as given.
        key: String,
        /// What is wrong and what is accepted.
        what: String,
    },
    /// The program needs something that this machine or this build does not have.
    Unsupported(String),
    /// The compiled code did not call what the recorded trace says comes next. A bug of the export.
    Divergence {
        /// Index of the event in the recorded trace.
        position: usize,
        /// The event the trace holds there.
        expected: String,
        /// The event that happened.
        found: String,
    },
    /// Inputs or outputs of a call are not what the program was exported for.
    InvalidInput(String),
    /// The handle is executing already.
    Busy,
    /// An earlier failure left the handle in a state that cannot be trusted.
    Poisoned(String),
    /// A function called by the compiled code failed.
    Compiled {
        /// Name of the function.
        function: String,
        /// Why.
        what: String,
    },
    /// Device memory ran out within the budget, or the system's memory ran out.
    OutOfMemory {
        /// What the memory was for.
        what: String,
        /// Bytes asked for.
        bytes: u64,
    },
    /// The device failed for good during a pass.
    Lost {
        /// The first failure.
        cause: Box<Error>,
        /// Names of the weights that kernels may have been using.
        weights: Vec<String>,
    },
    /// A device call failed.
    Device {
        /// The call.
        call: &'static str,
        /// The driver's or system's text.
        what: String,
    },
    /// A rule inside this library was broken; please report it.
    Internal(String),
}

/// Bytes as `123456789 bytes (117.8 MB)`, with the MB rounded up to a tenth. 1 MB = 1,048,576 bytes; of less there are only
/// the bytes.
pub fn bytes_text(bytes: u64) -> String {
    if bytes < 1 << 20 {
        return counted(bytes, "byte");
    }
    let tenths = (bytes as u128 * 10).div_ceil(1 << 20);
    format!("{bytes} bytes ({}.{} MB)", tenths / 10, tenths % 10)
}

/// `1 input`, `2 inputs`.
pub fn counted(number: u64, thing: &str) -> String {
    match number {
        1 => format!("1 {thing}"),
        _ => format!("{number} {thing}s"),
    }
}

/// `0 were given`, `1 was given`.
pub fn given(number: usize) -> String {
    match number {
        1 => "1 was given".to_owned(),
        _ => format!("{number} were given"),
    }
}

/// Whether a fact is of several things: `sizes`, `names of the methods`.
fn is_plural(fact: &str) -> bool {
    let first = fact.split(' ').next();
    first.is_some_and(|word| word.ends_with('s') && word.chars().all(char::is_alphabetic))
}

/// `'a', 'b'`, or `none`.
fn quoted(names: &[String]) -> String {
    match names.is_empty() {
        true => "none".to_owned(),
        false => format!("'{}'", names.join("', '")),
    }
}

impl Error {
    /// The same with what it was for, where a device call failed or memory ran out: the device does not know.
    pub(crate) fn during(self, what: impl FnOnce() -> String) -> Error {
        match self {
            Error::Device { call, what: text } => Error::Device {
                call,
                what: format!("{text} ({})", what()),
            },
            Error::OutOfMemory { what: text, bytes } => Error::OutOfMemory {
                what: format!("{text} ({})", what()),
                bytes,
            },
            other => other,
        }
    }

    /// The same with where it happened, in every error that is a sentence.
    pub(crate) fn at(self, place: impl FnOnce() -> String) -> Error {
        match self {
            Error::Unsupported(what) => Error::Unsupported(format!("{}: {what}", place())),
            Error::InvalidInput(what) => Error::InvalidInput(format!("{}: {what}", place())),
            Error::Internal(what) => Error::Internal(format!("{}: {what}", place())),
            Error::Option { key, what } => Error::Option {
                key,
                what: format!("{} ({})", what, place()),
            },
            Error::Compiled { function, what } => Error::Compiled {
                function,
                what: format!("{what} ({})", place()),
            },
            other => other.during(place),
        }
    }

    /// The same from a device that failed for good while kernels used `weights`.
    pub(crate) fn lost(self, weights: Vec<String>) -> Error {
        Error::Lost {
            cause: Box::new(self),
            weights,
        }
    }

    /// The same with the name of what it is about, where it is an input or output that was refused.
    pub(crate) fn about(self, name: &str) -> Error {
        match self {
            Error::InvalidInput(what) => Error::InvalidInput(format!("{name}: {what}")),
            other => other,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Malformed { file, offset, what } => {
                write!(f, "{file}: malformed at byte {offset}: {what}")
            }
            Error::Io { file, what } => write!(f, "{file}: {what}"),
            Error::Missing { name, place } => write!(f, "'{name}' is missing in {place}"),
            Error::Mismatch { name, fact, expected, found } => {
                let differ = if is_plural(fact) { "differ" } else { "differs" };
                write!(f, "'{name}': {fact} {differ}: expected {expected}, found {found}")
            }
            Error::BudgetTooSmall { budget, floor, parts, option } => {
                let least = match option.ends_with("_mb") {
                    true => format!("{option} = {}", floor.div_ceil(1 << 20)),
                    false => format!("{option}={floor}"),
                };
                write!(
                    f,
                    "weight budget of {} is too small: this program needs at least {floor} bytes ({least}): {parts}",
                    bytes_text(*budget)
                )
            }
            Error::CapTooSmall { cap, least, floors } => write!(
                f,
                "a cap of {} is too small: the tenants need at least {}: {floors}",
                bytes_text(*cap),
                bytes_text(*least)
            ),
            Error::Option { key, what } => write!(f, "option '{key}': {what}"),
            Error::Unsupported(what) => write!(f, "unsupported: {what}"),
            Error::Divergence { position, expected, found } => write!(
                f,
                "the compiled code left its recorded trace at event {position}: expected {expected}, \
                 found {found}; the program was exported wrongly, export it again"
            ),
            Error::InvalidInput(what) => write!(f, "invalid input: {what}"),
            Error::Busy => write!(
                f,
                "this model is executing already: one call at a time; load it a second time for a second thread"
            ),
            Error::Poisoned(why) => {
                write!(f, "this model cannot be used any more: {why}; end it and load it again")
            }
            Error::Compiled { function, what } => write!(f, "{function} failed: {what}"),
            Error::OutOfMemory { what, bytes } => {
                write!(f, "out of memory: {} for {what}", bytes_text(*bytes))
            }
            Error::Device { call, what } => write!(f, "{call} failed: {what}"),
            Error::Lost { cause, weights } => write!(
                f,
                "{cause}; the device's context is lost, and this process cannot use it any more. Weights leased since the \
                 last kernel that is known to have ended: {}",
                quoted(weights)
            ),
            Error::Internal(what) => write!(f, "internal error, please report it: {what}"),
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::{bytes_text, counted, given, Error};

    #[test]
    fn one_thing_is_not_several() {
        let words = [0, 1, 2].map(|number| counted(number, "input"));
        assert_eq!(words, ["0 inputs", "1 input", "2 inputs"]);
        let words = [0, 1, 2].map(given);
        assert_eq!(words, ["0 were given", "1 was given", "2 were given"]);
        let text = |fact| {
            let [expected, found] = ["[2, 3]", "[3, 2]"].map(str::to_owned);
            let name = "w".to_owned();
            Error::Mismatch {
                name,
                fact,
                expected,
                found,
            }
            .to_string()
        };
        assert_eq!(
            text("sizes"),
            "'w': sizes differ: expected [2, 3], found [3, 2]"
        );
        for (fact, words) in [
            ("names of the methods", "names of the methods differ:"),
            ("dtype", "dtype differs:"),
            ("number of bytes", "number of bytes differs:"),
            ("CRC-32 of its bytes", "CRC-32 of its bytes differs:"),
        ] {
            assert!(text(fact).contains(words), "{}", text(fact));
        }
    }

    #[test]
    fn few_bytes_are_not_rounded_up_to_a_tenth_of_a_megabyte() {
        assert_eq!(bytes_text(0), "0 bytes");
        assert_eq!(bytes_text(1), "1 byte");
        assert_eq!(bytes_text(1600), "1600 bytes");
        assert_eq!(bytes_text((1 << 20) - 1), "1048575 bytes");
        assert_eq!(bytes_text(1 << 20), "1048576 bytes (1.0 MB)");
        assert_eq!(bytes_text((1 << 20) + 1), "1048577 bytes (1.1 MB)");
    }
}
