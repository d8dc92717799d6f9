//! Which weights always stay, and which never do: what the patterns of the options name.
#![deny(unsafe_code)]

use crate::config::{matches, nearest, Options, Origin, PIN, STREAM};
use crate::error::{Error, Result};
use crate::format::{ConstantKind, Records, UnionConstants};
use crate::schedule::WeightKind;
use crate::store::Constants;

/// Most names that an error lists.
const NAMES: usize = 3;

/// The patterns of one option.
struct Patterns<'a> {
    key: &'static str,
    patterns: &'a [String],
    kind: WeightKind,
    /// Who gave the option, if that was not the load.
    whose: String,
}

/// Marks the weights that the options name. Direct constants stay anyway, so `pin` may name them and changes nothing.
pub fn mark(
    records: &Records,
    union: &UnionConstants,
    options: &Options,
    constants: &mut Constants,
) -> Result<()> {
    let names = names(records, union);
    let whose = |key| match options.origin(key) {
        None | Some(Origin::Load) => String::new(),
        Some(origin) => format!(" (given by the {})", origin.name()),
    };
    let both = [
        (PIN, &options.pin, WeightKind::Pinned),
        (STREAM, &options.stream, WeightKind::Streamed),
    ];
    for (key, patterns, kind) in both {
        let whose = whose(key);
        let all = Patterns {
            key,
            patterns,
            kind,
            whose,
        };
        all.check(union, &names)?;
        for (names, spec) in names.iter().zip(&mut constants.specs) {
            let Some(pattern) = all.of(names).filter(|_| !is_direct(spec.kind)) else {
                continue;
            };
            if spec.kind == WeightKind::Pinned {
                return Err(all.refuse(format!(
                    "names '{}' ('{pattern}'), and so does {PIN}: a weight either always stays or never does",
                    spec.fqn
                )));
            }
            spec.kind = kind;
        }
    }
    Ok(())
}

fn is_direct(kind: WeightKind) -> bool {
    matches!(kind, WeightKind::Direct | WeightKind::Mutable)
}

/// The FQNs of each constant: methods may call it otherwise.
fn names<'a>(records: &'a Records, union: &UnionConstants) -> Vec<Vec<&'a str>> {
    let mut names: Vec<Vec<&str>> = vec![Vec::new(); union.constants.len()];
    for (record, index) in records.all().iter().zip(&union.index) {
        for (constant, &at) in record.constants.iter().zip(index) {
            names[at as usize].push(&constant.fqn);
        }
    }
    names
}

impl Patterns<'_> {
    /// The first pattern that matches one of these names.
    fn of(&self, names: &[&str]) -> Option<&String> {
        let named = |pattern: &&String| names.iter().any(|name| matches(pattern, name));
        self.patterns.iter().find(named)
    }

    /// Each pattern has to match a constant with which the option can do something.
    fn check(&self, union: &UnionConstants, names: &[Vec<&str>]) -> Result<()> {
        let pin = self.kind == WeightKind::Pinned;
        let named = |can: bool| {
            let all = names.iter().zip(&union.constants);
            let those =
                all.filter(move |(_, one)| can == (pin || one.kind == ConstantKind::Weight));
            those.flat_map(|(names, _)| names.iter().copied())
        };
        let unmatched = |pattern: &&String| !named(true).any(|name| matches(pattern, name));
        let Some(pattern) = self.patterns.iter().find(unmatched) else {
            return Ok(());
        };
        let direct = named(false).find(|name| matches(pattern, name));
        Err(self.refuse(why_not(pattern, direct, &near(pattern, union, names))))
    }

    fn refuse(&self, what: String) -> Error {
        Error::Option {
            key: self.key.to_owned(),
            what: what + &self.whose,
        }
    }
}

/// What may have been meant: no constant that stays anyway.
fn near(pattern: &str, union: &UnionConstants, names: &[Vec<&str>]) -> String {
    let all = names.iter().zip(&union.constants);
    let weights = all.filter(|(_, one)| one.kind == ConstantKind::Weight);
    let weights: Vec<_> = weights.flat_map(|(names, _)| names).copied().collect();
    if weights.is_empty() {
        return "this program has no weight that is streamed".to_owned();
    }
    match &nearest(pattern, weights, NAMES)[..] {
        [] => "`weightstream inspect MODEL.pte` lists the weights".to_owned(),
        near => format!("near names are '{}'", near.join("', '")),
    }
}

/// `direct` is a constant that the pattern matches.
fn why_not(pattern: &str, direct: Option<&str>, near: &str) -> String {
    match direct {
        Some(fqn) => {
            format!("'{pattern}' matches only constants that always stay, such as '{fqn}'; {near}")
        }
        None => format!("'{pattern}' matches no weight; {near}"),
    }
}
