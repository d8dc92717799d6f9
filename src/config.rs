//! Options of one load. Every key is known and checked here; nothing is ignored.
#![deny(unsafe_code)]

use std::path::PathBuf;

use crate::error::{Error, Result};

/// Which residency policy to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PolicyKind {
    /// Least recently used, with lookahead along the access order.
    #[default]
    Lru,
}

/// When weight bytes are compared with their recorded CRC-32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Verify {
    /// Never; headers and tables are checked all the same.
    #[default]
    Off,
    /// Once, at load.
    Load,
}

/// Options of one load, after parsing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Options {
    /// Bytes that weights and direct constants may occupy on the device; `None` means the floor.
    pub budget: Option<u64>,
    /// Residency policy.
    pub policy: PolicyKind,
    /// Checksum policy.
    pub verify: Verify,
    /// Path of the `.ptd`; needed when the caller has no mapped named data.
    pub data: Option<PathBuf>,
}

/// Key of the budget in MB (1,048,576 bytes): an integer.
pub const BUDGET_MB: &str = "weight_offload_budget_mb";
/// Key of the budget in bytes: a decimal string, since ExecuTorch's integers have 32 bits.
pub const BUDGET_BYTES: &str = "weight_offload_budget_bytes";
/// Key of the residency policy: `lru`.
pub const POLICY: &str = "weight_offload_policy";
/// Key of the checksum policy: `off` or `load`.
pub const VERIFY: &str = "weight_offload_verify";
/// Key of the path of the `.ptd`.
pub const DATA: &str = "weight_offload_data";

/// ExecuTorch keeps 255 characters of a string value and drops the rest without a word, so a value of
/// this length may be a cut one.
pub const CUT_LENGTH: usize = 255;

const KEYS: [&str; 5] = [BUDGET_MB, BUDGET_BYTES, POLICY, VERIFY, DATA];
const MB: u64 = 1 << 20;

/// The value of one runtime spec. ExecuTorch knows these three types.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpecValue {
    /// A truth value. No option of ours takes one.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A string.
    Text(String),
}

impl SpecValue {
    fn describe(&self) -> String {
        match self {
            SpecValue::Bool(value) => format!("the bool {value}"),
            SpecValue::Int(value) => format!("the int {value}"),
            SpecValue::Text(value) => format!("the string '{value}'"),
        }
    }
}

/// One runtime spec as the caller gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// The key.
    pub key: String,
    /// The value.
    pub value: SpecValue,
}

impl Options {
    /// Options from runtime specs. An unknown or repeated key, a wrong type or a value that cannot take
    /// effect is an error.
    pub fn parse(specs: &[Spec]) -> Result<Options> {
        let mut options = Options::default();
        for (at, spec) in specs.iter().enumerate() {
            if specs[..at].iter().any(|earlier| earlier.key == spec.key) {
                return Err(refuse(&spec.key, "is given twice".to_owned()));
            }
            options.apply(spec)?;
        }
        Ok(options)
    }

    fn apply(&mut self, spec: &Spec) -> Result<()> {
        refuse_cut(spec)?;
        match spec.key.as_str() {
            BUDGET_MB => self.set_budget(&spec.key, budget_from_mb(spec)?),
            BUDGET_BYTES => self.set_budget(&spec.key, budget_from_bytes(spec)?),
            POLICY => {
                self.policy = choice(spec, &[("lru", PolicyKind::Lru)])?;
                Ok(())
            }
            VERIFY => {
                self.verify = choice(spec, &[("off", Verify::Off), ("load", Verify::Load)])?;
                Ok(())
            }
            DATA => {
                self.data = Some(data_path(spec)?);
                Ok(())
            }
            _ => Err(refuse(
                &spec.key,
                format!("is unknown; the options are {}", KEYS.join(", ")),
            )),
        }
    }

    fn set_budget(&mut self, key: &str, bytes: u64) -> Result<()> {
        if self.budget.is_some() {
            return Err(refuse(
                key,
                format!("give {BUDGET_MB} or {BUDGET_BYTES}, not both"),
            ));
        }
        self.budget = Some(bytes);
        Ok(())
    }
}

fn refuse(key: &str, what: String) -> Error {
    Error::Option {
        key: key.to_owned(),
        what,
    }
}

fn wrong(spec: &Spec, accepted: &str) -> Error {
    refuse(
        &spec.key,
        format!("takes {accepted}, not {}", spec.value.describe()),
    )
}

fn refuse_cut(spec: &Spec) -> Result<()> {
    match &spec.value {
        SpecValue::Text(text) if text.len() >= CUT_LENGTH => Err(refuse(
            &spec.key,
            format!(
                "the value has {} characters or more and may have been cut: ExecuTorch keeps {CUT_LENGTH} \
                 characters of a string; use at most {}",
                text.len(),
                CUT_LENGTH - 1
            ),
        )),
        _ => Ok(()),
    }
}

fn budget_from_mb(spec: &Spec) -> Result<u64> {
    const ACCEPTED: &str = "a positive int, in MB of 1,048,576 bytes";
    let SpecValue::Int(value) = spec.value else {
        return Err(wrong(spec, ACCEPTED));
    };
    let mb = u64::try_from(value)
        .ok()
        .filter(|&mb| mb > 0)
        .ok_or_else(|| wrong(spec, ACCEPTED))?;
    mb.checked_mul(MB)
        .ok_or_else(|| refuse(&spec.key, format!("{mb} MB do not fit in 64 bits of bytes")))
}

fn budget_from_bytes(spec: &Spec) -> Result<u64> {
    const ACCEPTED: &str = "a positive number of bytes, as a string of decimal digits";
    let bytes = match &spec.value {
        SpecValue::Text(text) => decimal(text),
        SpecValue::Int(value) => u64::try_from(*value).ok(),
        SpecValue::Bool(_) => None,
    };
    bytes
        .filter(|&bytes| bytes > 0)
        .ok_or_else(|| wrong(spec, ACCEPTED))
}

/// Digits only: `u64::from_str` would also take a plus sign.
fn decimal(text: &str) -> Option<u64> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())
        .flatten()
}

fn choice<T: Copy>(spec: &Spec, known: &[(&str, T)]) -> Result<T> {
    if let SpecValue::Text(text) = &spec.value {
        if let Some((_, value)) = known.iter().find(|(name, _)| name == text) {
            return Ok(*value);
        }
    }
    let names: Vec<String> = known.iter().map(|(name, _)| format!("'{name}'")).collect();
    Err(wrong(
        spec,
        &format!("a string, one of {}", names.join(", ")),
    ))
}

fn data_path(spec: &Spec) -> Result<PathBuf> {
    match &spec.value {
        SpecValue::Text(text) if !text.is_empty() => Ok(PathBuf::from(text)),
        _ => Err(wrong(spec, "the path of the .ptd, as a string")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn int(key: &str, value: i64) -> Spec {
        Spec {
            key: key.to_owned(),
            value: SpecValue::Int(value),
        }
    }

    fn text(key: &str, value: &str) -> Spec {
        Spec {
            key: key.to_owned(),
            value: SpecValue::Text(value.to_owned()),
        }
    }

    /// The message of the `Error::Option` that these specs end in, after checking its key.
    fn refusal(specs: &[Spec]) -> String {
        let error = Options::parse(specs).expect_err("the specs are wrong");
        let Error::Option { key, what } = error else {
            panic!("not an option error: {error}")
        };
        assert_eq!(key, specs[specs.len() - 1].key);
        what
    }

    #[test]
    fn no_specs_are_the_defaults() {
        assert_eq!(Options::parse(&[]).unwrap(), Options::default());
    }

    #[test]
    fn every_key_takes_effect() {
        let options = Options::parse(&[
            int(BUDGET_MB, 3),
            text(POLICY, "lru"),
            text(VERIFY, "load"),
            text(DATA, "/models/w.ptd"),
        ])
        .unwrap();
        assert_eq!(options.budget, Some(3 << 20));
        assert_eq!(options.policy, PolicyKind::Lru);
        assert_eq!(options.verify, Verify::Load);
        assert_eq!(options.data, Some(PathBuf::from("/models/w.ptd")));
    }

    #[test]
    fn bytes_are_a_decimal_string_or_an_int() {
        let parse = |spec| Options::parse(&[spec]).unwrap().budget;
        assert_eq!(
            parse(text(BUDGET_BYTES, "18446744073709551615")),
            Some(u64::MAX)
        );
        assert_eq!(parse(int(BUDGET_BYTES, 4096)), Some(4096));
    }

    #[test]
    fn bytes_refuse_what_is_no_positive_decimal() {
        for bad in [
            "",
            "0",
            "-1",
            "+1",
            " 1",
            "1 ",
            "0x10",
            "1e6",
            "1_000",
            "18446744073709551616",
            "512MB",
        ] {
            assert!(
                refusal(&[text(BUDGET_BYTES, bad)]).contains("decimal digits"),
                "{bad:?}"
            );
        }
        for bad in [0, -1, i64::MIN] {
            assert!(
                refusal(&[int(BUDGET_BYTES, bad)]).contains("positive"),
                "{bad}"
            );
        }
    }

    #[test]
    fn megabytes_refuse_zero_negative_overflow_and_other_types() {
        for bad in [0, -1, i64::MIN] {
            assert!(
                refusal(&[int(BUDGET_MB, bad)]).contains("positive int"),
                "{bad}"
            );
        }
        assert!(refusal(&[int(BUDGET_MB, i64::MAX)]).contains("64 bits"));
        assert!(refusal(&[text(BUDGET_MB, "512")]).contains("the string '512'"));
        let flag = Spec {
            key: BUDGET_MB.to_owned(),
            value: SpecValue::Bool(true),
        };
        assert!(refusal(&[flag]).contains("the bool true"));
    }

    #[test]
    fn both_budgets_are_refused_in_either_order() {
        let (mb, bytes) = (int(BUDGET_MB, 1), text(BUDGET_BYTES, "1048576"));
        assert!(refusal(&[mb.clone(), bytes.clone()]).contains("not both"));
        assert!(refusal(&[bytes, mb]).contains("not both"));
    }

    #[test]
    fn unknown_keys_are_refused_with_the_list() {
        for key in [
            "weight_offload_budget",
            "weight_offload_Policy",
            "num_threads",
            "",
        ] {
            let what = refusal(&[int(key, 1)]);
            assert!(KEYS.iter().all(|known| what.contains(known)), "{what}");
        }
    }

    #[test]
    fn choices_name_what_is_accepted() {
        assert!(refusal(&[text(POLICY, "LRU")]).contains("'lru'"));
        assert!(refusal(&[int(POLICY, 1)]).contains("the int 1"));
        assert!(refusal(&[text(VERIFY, "on")]).contains("'off', 'load'"));
        assert!(refusal(&[text(DATA, "")]).contains("path"));
        assert!(refusal(&[int(DATA, 1)]).contains("path"));
    }

    #[test]
    fn a_key_given_twice_is_refused() {
        assert!(refusal(&[text(VERIFY, "off"), text(VERIFY, "off")]).contains("twice"));
    }

    #[test]
    fn a_string_of_255_characters_may_be_cut() {
        let path = "p".repeat(CUT_LENGTH);
        for key in [DATA, POLICY, VERIFY, BUDGET_BYTES] {
            assert!(
                refusal(&[text(key, &path)]).contains("may have been cut"),
                "{key}"
            );
        }
        assert!(Options::parse(&[text(DATA, &path[1..])]).is_ok());
    }
}
