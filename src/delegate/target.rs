//! What the compiled library was built for, against what this machine is. Checked before the library is
//! opened: an instruction that the processor lacks would end the process.
#![deny(unsafe_code)]

use crate::error::{Error, Result};

/// The torch releases whose compiled code calls the functions that this build provides.
const TORCH: &str = "2.11.";

/// What a program was compiled for, from its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target<'a> {
    /// Operating system.
    pub os: &'a str,
    /// Architecture.
    pub arch: &'a str,
    /// Instruction-set level: `x86-64` to `x86-64-v4`.
    pub isa: &'a str,
    /// Version of torch that compiled it.
    pub torch: &'a str,
}

impl Target<'_> {
    /// Refuses a program that cannot run here.
    pub fn check(&self) -> Result<()> {
        same("operating system", self.os, std::env::consts::OS)?;
        same("architecture", self.arch, std::env::consts::ARCH)?;
        if !self.torch.starts_with(TORCH) {
            return Err(refuse(format!(
                "the program was compiled by torch {}, this build runs code of torch {TORCH}x",
                self.torch
            )));
        }
        check_isa(self.isa)
    }
}

fn same(what: &str, program: &str, machine: &str) -> Result<()> {
    if program == machine {
        return Ok(());
    }
    Err(refuse(format!(
        "the program was compiled for the {what} '{program}', this machine has '{machine}'; export it for this machine"
    )))
}

fn refuse(what: String) -> Error {
    Error::Unsupported(what)
}

fn check_isa(isa: &str) -> Result<()> {
    let Some(needed) = features(isa) else {
        return Err(refuse(format!(
            "the program was compiled for the instruction set '{isa}', which this build does not know"
        )));
    };
    let missing: Vec<&str> = needed.iter().filter(|(_, has)| !has).map(|(name, _)| *name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(refuse(format!(
        "the program was compiled for {isa}, and this processor lacks {}; export it for a lower level",
        missing.join(", ")
    )))
}

/// The features of a level of the x86-64 psABI, and whether this processor has them. A level contains
/// the ones below it.
#[cfg(target_arch = "x86_64")]
fn features(isa: &str) -> Option<Vec<(&'static str, bool)>> {
    macro_rules! has {
        ($($name:tt),*) => { vec![$(($name, std::arch::is_x86_feature_detected!($name))),*] };
    }
    let level = ["x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"].iter().position(|&name| name == isa)?;
    let mut needed = has!("sse2");
    if level >= 1 {
        needed.extend(has!("cmpxchg16b", "popcnt", "sse3", "sse4.1", "sse4.2", "ssse3"));
    }
    if level >= 2 {
        needed.extend(has!("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "lzcnt", "movbe"));
    }
    if level >= 3 {
        needed.extend(has!("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"));
    }
    Some(needed)
}

#[cfg(not(target_arch = "x86_64"))]
fn features(_isa: &str) -> Option<Vec<(&'static str, bool)>> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Target<'static> =
        Target { os: std::env::consts::OS, arch: "x86_64", isa: "x86-64", torch: "2.11.0" };

    fn refusal(target: Target<'_>) -> String {
        match target.check() {
            Err(Error::Unsupported(what)) => what,
            other => panic!("not refused: {other:?}"),
        }
    }

    #[test]
    fn the_baseline_runs_here() {
        assert_eq!(HERE.check(), Ok(()));
    }

    #[test]
    fn another_system_is_named_with_both_sides() {
        let what = refusal(Target { os: "macos", ..HERE });
        assert!(what.contains("'macos'") && what.contains("'linux'"), "{what}");
        let what = refusal(Target { arch: "aarch64", ..HERE });
        assert!(what.contains("'aarch64'") && what.contains("'x86_64'"), "{what}");
    }

    #[test]
    fn an_unknown_level_and_another_torch_are_refused() {
        assert!(refusal(Target { isa: "x86-64-v9", ..HERE }).contains("x86-64-v9"));
        assert!(refusal(Target { torch: "2.10.1", ..HERE }).contains("2.10.1"));
        assert!(refusal(Target { torch: "2.110.0", ..HERE }).contains("2.110.0"));
    }

    #[test]
    fn a_level_is_accepted_exactly_if_its_features_are_here() {
        for isa in ["x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"] {
            let needed = features(isa).unwrap();
            let complete = needed.iter().all(|(_, has)| *has);
            assert_eq!(Target { isa, ..HERE }.check().is_ok(), complete, "{isa}");
        }
    }
}
