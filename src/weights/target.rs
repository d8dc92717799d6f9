//! Whether this machine can run what was compiled. Asked before the compiled library is opened: a missing
//! instruction would otherwise end the process.
#![deny(unsafe_code)]

use crate::error::{Error, Result};
use crate::format::Target;

/// The torch releases whose compiled code this runtime serves.
const TORCH: [&str; 3] = ["2.11", "2.14", "2.15"];
/// The environment variable that lets code of another release through, as at export.
const ANY_TORCH: &str = "WEIGHTSTREAM_ANY_TORCH";

/// CPU features of each ISA level beyond the level before it. Features that every processor with their
/// neighbours has, and that cannot be asked for here (LAHF, XSAVE's OS part), are left out.
const LEVELS: [(&str, &[&str]); 4] = [
    ("x86-64", &[]),
    (
        "x86-64-v2",
        &["cmpxchg16b", "popcnt", "sse3", "sse4.1", "sse4.2", "ssse3"],
    ),
    (
        "x86-64-v3",
        &[
            "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "lzcnt", "movbe",
        ],
    ),
    (
        "x86-64-v4",
        &["avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"],
    ),
];

/// What the check needs to know about a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Operating system, as Rust names it.
    pub os: String,
    /// Architecture, as Rust names it.
    pub arch: String,
    /// CPU features, of those that the ISA levels are made of.
    pub features: Vec<&'static str>,
}

impl Host {
    /// The machine that this process runs on.
    pub fn current() -> Self {
        Host {
            os: std::env::consts::OS.to_owned(),
            arch: std::env::consts::ARCH.to_owned(),
            features: detected(),
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn detected() -> Vec<&'static str> {
    macro_rules! features {
        ($($name:tt),*) => {
            [$(($name, std::arch::is_x86_feature_detected!($name))),*]
        };
    }
    let all = features![
        "cmpxchg16b",
        "popcnt",
        "sse3",
        "sse4.1",
        "sse4.2",
        "ssse3",
        "avx",
        "avx2",
        "bmi1",
        "bmi2",
        "f16c",
        "fma",
        "lzcnt",
        "movbe",
        "avx512bw",
        "avx512cd",
        "avx512dq",
        "avx512f",
        "avx512vl"
    ];
    all.into_iter()
        .filter(|(_, there)| *there)
        .map(|(name, _)| name)
        .collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn detected() -> Vec<&'static str> {
    Vec::new()
}

/// Refuses code for another system, another architecture, an ISA level that `host` lacks, or another
/// release of torch. `program` is what errors call it.
pub fn check_target(program: &str, target: &Target, host: &Host) -> Result<()> {
    let refuse = |what: String| Err(Error::Unsupported(format!("{program} {what}")));
    if (target.os.as_str(), target.arch.as_str()) != (host.os.as_str(), host.arch.as_str()) {
        return refuse(format!(
            "was compiled for {} on {}, this is {} on {}; export it for this machine",
            target.os, target.arch, host.os, host.arch
        ));
    }
    let Some(level) = LEVELS.iter().position(|level| level.0 == target.isa) else {
        let known: Vec<_> = LEVELS.iter().map(|level| level.0).collect();
        return refuse(format!(
            "was compiled for the unknown ISA level '{}'; known are {}",
            target.isa,
            known.join(", ")
        ));
    };
    let needed = LEVELS[..=level].iter().flat_map(|level| level.1);
    let missing: Vec<_> = needed
        .filter(|name| !host.features.contains(name))
        .copied()
        .collect();
    if !missing.is_empty() {
        return refuse(format!(
            "was compiled for ISA level {}, this processor lacks {}; export it for a lower level",
            target.isa,
            missing.join(", ")
        ));
    }
    if !serves(&target.torch) && std::env::var_os(ANY_TORCH).is_none_or(|value| value != "1") {
        return refuse(format!(
            "was compiled with torch {}, this runtime serves code of torch {}; export it again, or set {ANY_TORCH}=1 to try it",
            target.torch,
            TORCH.join(", ")
        ));
    }
    Ok(())
}

/// Whether `version` is of a release that the runtime knows.
fn serves(version: &str) -> bool {
    let of = |release| {
        version
            .strip_prefix(release)
            .is_some_and(|rest: &str| rest.starts_with('.'))
    };
    TORCH.into_iter().any(of)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(level: usize) -> Host {
        Host {
            os: "linux".to_owned(),
            arch: "x86_64".to_owned(),
            features: LEVELS[..=level]
                .iter()
                .flat_map(|level| level.1)
                .copied()
                .collect(),
        }
    }

    fn target(isa: &str) -> Target {
        let [os, arch, torch] = ["linux", "x86_64", "2.11.0+cpu"].map(str::to_owned);
        Target {
            os,
            arch,
            isa: isa.to_owned(),
            torch,
            sms: Vec::new(),
            tuned: true,
        }
    }

    fn refusal(target: &Target, host: &Host) -> String {
        match check_target("model.pte", target, host) {
            Err(Error::Unsupported(what)) => what,
            other => panic!("expected a refusal, found {other:?}"),
        }
    }

    #[test]
    fn each_level_runs_on_itself_and_above_only() {
        for (have, _) in LEVELS.iter().enumerate() {
            for (need, (isa, _)) in LEVELS.iter().enumerate() {
                let result = check_target("model.pte", &target(isa), &host(have));
                assert_eq!(result.is_ok(), have >= need, "{isa} on level {have}");
            }
        }
    }

    #[test]
    fn one_missing_feature_is_named() {
        let mut host = host(2);
        host.features.retain(|name| *name != "fma");
        let what = refusal(&target("x86-64-v3"), &host);
        assert!(
            what.contains("model.pte") && what.contains("x86-64-v3") && what.contains("lacks fma;"),
            "{what}"
        );
    }

    #[test]
    fn another_system_architecture_level_or_torch_is_refused() {
        let with = |change: fn(&mut Target)| {
            let mut target = target("x86-64");
            change(&mut target);
            refusal(&target, &host(3))
        };
        assert!(with(|target| target.os = "macos".to_owned()).contains("macos on x86_64"));
        assert!(with(|target| target.arch = "aarch64".to_owned()).contains("linux on aarch64"));
        assert!(with(|target| target.isa = "x86-64-v9".to_owned()).contains("'x86-64-v9'"));
        assert!(with(|target| target.torch = "2.110.0".to_owned()).contains("torch 2.110.0"));
        assert!(with(|target| target.torch = "2.10.0".to_owned()).contains("torch 2.10.0"));
        assert!(TORCH
            .into_iter()
            .all(|release| serves(&format!("{release}.1+cu130"))));
    }

    #[test]
    fn this_machine_knows_itself() {
        let host = Host::current();
        assert_eq!(
            (host.os.as_str(), host.arch.as_str()),
            (std::env::consts::OS, std::env::consts::ARCH)
        );
        let known: Vec<_> = LEVELS.iter().flat_map(|level| level.1).collect();
        assert!(host.features.iter().all(|name| known.contains(&name)));
    }
}
