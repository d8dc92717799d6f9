//! How weights are held on the host for a GPU's copies: chosen before anything is tried. What was chosen and then
//! fails is an error, and never another way.
#![deny(unsafe_code)]

use super::cuda::{check_ring, RING_DEFAULT, RING_LEAST};
use super::{HostAccess, HostStorage};
use crate::config::{self, HostMemory, Options};
use crate::error::{bytes_text, Error, Result};
use crate::system_memory::Available;

/// Files of fewer bytes are registered as a whole, however little of them is used.
const SMALL: u64 = 64 << 20;

/// What is to be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs<'a> {
    /// The file, or what several are called.
    pub file: &'a str,
    /// Its size, bytes.
    pub file_bytes: u64,
    /// It lies in memory already.
    pub in_memory: bool,
    /// Bytes of it that are weights, equal ones once.
    pub used_bytes: u64,
}

/// Options that cannot have any effect on the CPU are refused, before anything is opened. `whose` says what runs there.
pub fn check_on_cpu(options: &Options, whose: &str) -> Result<()> {
    let refuse = |key: &str, what: &str| {
        Err(Error::Option {
            key: key.to_owned(),
            what: format!("{what}, and {whose}"),
        })
    };
    match options.host {
        HostMemory::Auto | HostMemory::Mapped => {}
        HostMemory::Pinned | HostMemory::Staged => {
            return refuse(
                config::HOST,
                "'pinned' and 'staged' prepare copies to a GPU; on the CPU weights are copied from the mapped file \
                 by a thread, so that they could have no effect",
            );
        }
    }
    match options.staging {
        None => Ok(()),
        Some(_) => refuse(
            config::STAGING_MB,
            "it is the size of a ring for copies to a GPU",
        ),
    }
}

/// How the weights are held for `access`, and why. `memory` says what is available now.
pub fn choose(
    options: &Options,
    needs: &Needs<'_>,
    access: &HostAccess,
    memory: &Available,
) -> Result<(HostStorage, String)> {
    let ring = ring(options, needs);
    let (held, why) = match options.host {
        HostMemory::Auto => auto(needs, access, memory, ring),
        HostMemory::Mapped => (HostStorage::Mapped, asked()),
        HostMemory::Pinned => (HostStorage::Pinned, asked()),
        HostMemory::Staged => (HostStorage::Staged { ring }, asked()),
    };
    match held {
        HostStorage::Staged { ring } => check_ring(ring)?,
        _ if options.staging.is_some() => {
            return Err(Error::Option {
                key: config::STAGING_MB.to_owned(),
                what: format!(
                    "is the size of the ring of 'staged', and '{}' was chosen, since {why}; leave it out, or give {} as \
                     'staged'",
                    held.name(),
                    config::HOST
                ),
            });
        }
        _ => {}
    }
    check_fits(held, needs, memory)?;
    Ok((held, why))
}

fn asked() -> String {
    format!("{} says so", config::HOST)
}

/// The ring's size: what was given, or the default, but no more than there is to copy.
fn ring(options: &Options, needs: &Needs<'_>) -> u64 {
    const MB: u64 = 1 << 20;
    let useful = needs.used_bytes.saturating_add(MB - 1) / MB * MB;
    options
        .staging
        .unwrap_or_else(|| useful.clamp(RING_LEAST, RING_DEFAULT))
}

fn auto(
    needs: &Needs<'_>,
    access: &HostAccess,
    memory: &Available,
    ring: u64,
) -> (HostStorage, String) {
    let device = &access.device;
    let can = if access.maps { "can" } else { "cannot" };
    // A mapping that is registered stays in memory as a whole.
    let is_used = needs.used_bytes >= needs.file_bytes / 2 || needs.file_bytes < SMALL;
    let is_used = is_used || needs.in_memory;
    let wanted = match access.maps && is_used {
        true => HostStorage::Mapped,
        false => HostStorage::Pinned,
    };
    let need = bytes_of(wanted, needs);
    // Not to the last byte: other memory is needed beside it, and programs beside this one.
    let fits = need <= memory.bytes() - memory.bytes() / 8;
    let what = match (wanted, needs.in_memory) {
        (HostStorage::Mapped, true) => "which lies in memory already".to_owned(),
        (HostStorage::Mapped, false) => format!("which has {}", bytes_text(need)),
        _ if access.maps => format!(
            "and a copy of what is used of it takes {}, less than half",
            bytes_text(need)
        ),
        _ => format!("and a copy takes {}", bytes_text(need)),
    };
    let fit = if fits { "fits" } else { "does not fit" };
    let why = format!(
        "{device} {can} register a read-only mapping of {}, {what}; that {fit}, with an eighth to spare, \
         into {memory}",
        needs.file
    );
    match fits {
        true => (wanted, why),
        false => (HostStorage::Staged { ring }, why),
    }
}

/// What would only be found out by running out of memory is refused.
fn check_fits(held: HostStorage, needs: &Needs<'_>, memory: &Available) -> Result<()> {
    let bytes = bytes_of(held, needs);
    if bytes <= memory.bytes() {
        return Ok(());
    }
    let instead = match held {
        HostStorage::Staged { .. } => format!("give a smaller {}", config::STAGING_MB),
        _ => format!("choose {}='staged', whose ring takes less", config::HOST),
    };
    Err(Error::OutOfMemory {
        what: format!(
            "weights of {} in host memory, '{}': there are {memory}; {instead}",
            needs.file,
            held.name()
        ),
        bytes,
    })
}

/// Bytes of memory that it takes.
fn bytes_of(held: HostStorage, needs: &Needs<'_>) -> u64 {
    match held {
        HostStorage::Mapped if needs.in_memory => 0,
        HostStorage::Mapped => needs.file_bytes,
        HostStorage::Pinned => needs.used_bytes,
        HostStorage::Staged { ring } => ring,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;
    const STAGED: HostStorage = HostStorage::Staged { ring: 256 * MB };

    fn needs() -> Needs<'static> {
        Needs {
            file: "model.ptd",
            file_bytes: 7000 * MB,
            in_memory: false,
            used_bytes: 3500 * MB,
        }
    }

    fn memory(mb: u64) -> Available {
        Available {
            mem_available: mb * MB,
            cgroup_limit: None,
            cgroup_used: None,
            cgroup_reclaimable: 0,
        }
    }

    fn access(maps: bool) -> HostAccess {
        HostAccess {
            device: "cuda:0 (A GPU)".to_owned(),
            maps,
        }
    }

    fn options(host: HostMemory, staging_mb: Option<u64>) -> Options {
        Options {
            host,
            staging: staging_mb.map(|mb| mb * MB),
            ..Options::default()
        }
    }

    #[test]
    fn auto_decides_by_device_and_memory() {
        let table = [
            // maps, in memory, MB available, chosen
            (true, false, 8000, HostStorage::Mapped),
            (true, false, 7999, STAGED),
            (true, false, 100, STAGED),
            (true, true, 300, HostStorage::Mapped),
            (false, false, 4000, HostStorage::Pinned),
            (false, false, 3999, STAGED),
            (false, true, 4000, HostStorage::Pinned),
            (false, true, 3999, STAGED),
        ];
        for (maps, in_memory, available, expected) in table {
            let needs = Needs {
                in_memory,
                ..needs()
            };
            let memory = memory(available);
            let chosen = choose(
                &options(HostMemory::Auto, None),
                &needs,
                &access(maps),
                &memory,
            );
            let row = format!("{maps} {in_memory} {available}");
            if expected == STAGED && available < 256 {
                assert!(matches!(chosen, Err(Error::OutOfMemory { .. })), "{row}");
                continue;
            }
            let (held, why) = chosen.unwrap();
            println!("{}: {why}", held.name());
            assert_eq!(held, expected, "{row}: {why}");
            assert!(
                why.contains("cuda:0 (A GPU)") && why.contains("model.ptd"),
                "{why}"
            );
            assert!(why.contains(&(available * MB).to_string()), "{why}");
        }
    }

    /// As where most weights are packed beside their files.
    #[test]
    fn auto_keeps_no_file_in_memory_that_is_hardly_used() {
        let ask = |used_bytes, in_memory| {
            let needs = Needs {
                used_bytes,
                in_memory,
                ..needs()
            };
            let auto = options(HostMemory::Auto, None);
            choose(&auto, &needs, &access(true), &memory(90_000)).unwrap()
        };
        assert_eq!(ask(3500 * MB, false).0, HostStorage::Mapped);
        let (held, why) = ask(3499 * MB, false);
        assert_eq!(held, HostStorage::Pinned);
        assert!(why.contains("less than half"), "{why}");
        assert_eq!(ask(1, true).0, HostStorage::Mapped);
    }

    #[test]
    fn what_was_asked_for_is_never_replaced() {
        let ask = |host, mb| choose(&options(host, None), &needs(), &access(false), &memory(mb));
        // That the device cannot is said by the registration.
        assert_eq!(
            ask(HostMemory::Mapped, 9000).unwrap().0,
            HostStorage::Mapped
        );
        assert_eq!(
            ask(HostMemory::Pinned, 3500).unwrap().0,
            HostStorage::Pinned
        );
        assert_eq!(ask(HostMemory::Staged, 90_000).unwrap().0, STAGED);
        for (host, mb, bytes, advice) in [
            (HostMemory::Mapped, 6999, 7000 * MB, "'staged'"),
            (HostMemory::Pinned, 3499, 3500 * MB, "'staged'"),
            (
                HostMemory::Staged,
                255,
                256 * MB,
                "smaller weight_offload_staging_mb",
            ),
        ] {
            let error = ask(host, mb).unwrap_err();
            let text = error.to_string();
            assert!(
                text.contains(advice) && text.contains("MemAvailable"),
                "{text}"
            );
            assert!(text.contains(&bytes.to_string()), "{text}");
            assert!(matches!(error, Error::OutOfMemory { bytes: found, .. } if found == bytes));
        }
    }

    #[test]
    fn the_ring_is_as_large_as_it_was_given_or_as_it_is_of_use() {
        let ring = |staging, used_bytes| {
            let needs = Needs {
                used_bytes,
                ..needs()
            };
            let options = options(HostMemory::Staged, staging);
            choose(&options, &needs, &access(true), &memory(90_000)).map(|(held, _)| held)
        };
        assert_eq!(ring(None, 3500 * MB).unwrap(), STAGED);
        assert_eq!(
            ring(None, 40 * MB + 1).unwrap(),
            HostStorage::Staged { ring: 41 * MB }
        );
        assert_eq!(ring(None, 0).unwrap(), HostStorage::Staged { ring: 8 * MB });
        assert_eq!(
            ring(Some(1000), 0).unwrap(),
            HostStorage::Staged { ring: 1000 * MB }
        );
        let text = ring(Some(7), 0).unwrap_err().to_string();
        assert!(
            text.contains("weight_offload_staging_mb") && text.contains("at least 8 MB"),
            "{text}"
        );
    }

    #[test]
    fn a_ring_that_is_not_used_is_refused_with_the_reason() {
        let ask = |mb| {
            choose(
                &options(HostMemory::Auto, Some(64)),
                &needs(),
                &access(true),
                &memory(mb),
            )
        };
        let text = ask(80_000).unwrap_err().to_string();
        assert!(
            text.contains("weight_offload_staging_mb")
                && text.contains("'mapped' was chosen, since cuda:0 (A GPU) can register"),
            "{text}"
        );
        assert_eq!(ask(1000).unwrap().0, HostStorage::Staged { ring: 64 * MB });
    }
}
