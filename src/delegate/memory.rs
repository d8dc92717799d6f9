//! How much host memory this process may still take: what the system has, and what its control groups leave of it.
//!
//! The limit on locked memory (`RLIMIT_MEMLOCK`) is no part of it: the NVIDIA driver pins pages by itself and does
//! not count them there.
#![deny(unsafe_code)]

use crate::error::{bytes_text, Error, Result};
use std::path::{Component, Path, PathBuf};

/// Memory that can be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    /// Bytes; the cache of files that can be dropped is among them.
    pub available: u64,
    /// What says so, with its figures.
    pub source: String,
}

/// Reads a file of `/proc` or `/sys`; `None` if it is not there.
type Read<'a> = &'a dyn Fn(&Path) -> Option<String>;

impl Memory {
    /// As of now.
    pub fn now() -> Result<Memory> {
        Memory::read(&|path| std::fs::read_to_string(path).ok())
    }

    /// The least of what the system has and of what each control group of this process leaves.
    fn read(read: Read<'_>) -> Result<Memory> {
        let system =
            read(Path::new("/proc/meminfo")).and_then(|text| field(&text, "MemAvailable:"));
        let Some(kb) = system else {
            return Err(Error::Io {
                file: "/proc/meminfo".to_owned(),
                what: "cannot read MemAvailable, without which nobody knows what fits into memory"
                    .to_owned(),
            });
        };
        let available = kb.saturating_mul(1024);
        let system = Memory {
            available,
            source: "MemAvailable".to_owned(),
        };
        let groups = groups(read).into_iter();
        let left = groups.filter_map(|group| group.left(read));
        Ok(
            left.fold(system, |least, one| match one.available < least.available {
                true => one,
                false => least,
            }),
        )
    }
}

/// A control group that may have a limit.
struct Group {
    folder: PathBuf,
    /// The unified hierarchy, version 2.
    unified: bool,
}

impl Group {
    /// What its limit leaves; `None` if it has none.
    fn left(&self, read: Read<'_>) -> Option<Memory> {
        let number = |name: &str| read(&self.folder.join(name))?.trim().parse::<u64>().ok();
        let (limit, used, cache) = match self.unified {
            true => (
                [number("memory.max"), number("memory.high")]
                    .into_iter()
                    .flatten()
                    .min()?,
                number("memory.current")?,
                ["active_file", "inactive_file"],
            ),
            false => (
                number("memory.limit_in_bytes")?,
                number("memory.usage_in_bytes")?,
                ["total_active_file", "total_inactive_file"],
            ),
        };
        let stat = read(&self.folder.join("memory.stat")).unwrap_or_default();
        // Files' pages count as used, and are dropped when something else needs the room.
        let cache: u64 = cache.iter().filter_map(|name| field(&stat, name)).sum();
        let available = limit.saturating_sub(used.saturating_sub(cache));
        Some(Memory {
            available,
            source: format!(
                "control group {}: its limit of {limit} less {used} used, of which {cache} are files' pages",
                self.folder.display()
            ),
        })
    }
}

/// The number behind a name at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next() == Some(name)).then(|| words.next()?.parse().ok())?
    })
}

/// The control groups that this process is in, with all above them: each may have a limit.
fn groups(read: Read<'_>) -> Vec<Group> {
    let own = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let mounts = read(Path::new("/proc/self/mountinfo")).unwrap_or_default();
    let mut groups = Vec::new();
    for line in own.lines() {
        // `number:controllers:path`; the unified hierarchy has number 0 and no controllers.
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let unified = controllers.is_empty();
        if !unified && !controllers.split(',').any(|name| name == "memory") {
            continue;
        }
        let Some((root, mount)) = mounts.lines().find_map(|line| mount_of(line, unified)) else {
            continue;
        };
        let folders = folders(&mount, &root, Path::new(path));
        groups.extend(folders.into_iter().map(|folder| Group { folder, unified }));
    }
    groups
}

/// Root and mount point, if the line of `mountinfo` is that of the hierarchy that counts memory.
fn mount_of(line: &str, unified: bool) -> Option<(PathBuf, PathBuf)> {
    let (place, kind) = line.split_once(" - ")?;
    let mut kind = kind.split(' ');
    let found = match (kind.next()?, unified) {
        ("cgroup2", true) => true,
        ("cgroup", false) => kind.nth(1)?.split(',').any(|option| option == "memory"),
        _ => false,
    };
    let mut place = place.split(' ').skip(3);
    let (root, mount) = (place.next()?, place.next()?);
    found.then(|| (root.into(), mount.into()))
}

/// The folder of a group and those above it. In a container the path may be one of the host's, of which only the
/// part below the mount's root is there; then at least the mount itself is.
fn folders(mount: &Path, root: &Path, path: &Path) -> Vec<PathBuf> {
    let below = path
        .strip_prefix(root)
        .or_else(|_| path.strip_prefix("/"))
        .unwrap_or(path);
    let plain = below
        .components()
        .all(|c| matches!(c, Component::Normal(_)));
    let below = if plain { below } else { Path::new("") };
    let all = below.ancestors().map(|part| match part == Path::new("") {
        true => mount.to_path_buf(),
        false => mount.join(part),
    });
    all.collect()
}

impl std::fmt::Display for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} of memory available ({})",
            bytes_text(self.available),
            self.source
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: (&str, &str) = (
        "/proc/meminfo",
        "MemTotal:  1000 kB\nMemFree: 10 kB\nMemAvailable:     500 kB\n",
    );
    const V2: [(&str, &str); 2] = [
        ("/proc/self/cgroup", "0::/a/b\n"),
        (
            "/proc/self/mountinfo",
            "31 23 0:28 / /proc rw - proc proc rw\n\
             35 31 0:32 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
        ),
    ];
    const V1: [(&str, &str); 2] = [
        (
            "/proc/self/cgroup",
            "9:cpu,cpuacct:/x\n4:memory:/docker/7f\n0::/\n",
        ),
        (
            "/proc/self/mountinfo",
            "34 31 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
             35 31 0:32 /docker/7f /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
        ),
    ];

    fn memory(files: &[&[(&str, &str)]]) -> Result<Memory> {
        let files = files.concat();
        Memory::read(&|path| {
            let found = files.iter().find(|(name, _)| Path::new(name) == path);
            found.map(|(_, text)| (*text).to_owned())
        })
    }

    #[test]
    fn the_system_says_what_is_available() {
        let found = memory(&[&[MEMINFO]]).unwrap();
        assert_eq!(
            (found.available, found.source.as_str()),
            (512_000, "MemAvailable")
        );
        let text = memory(&[&V2]).unwrap_err().to_string();
        assert!(
            text.contains("/proc/meminfo: cannot read MemAvailable"),
            "{text}"
        );
    }

    #[test]
    fn the_least_limit_on_the_way_up_counts() {
        let limits = [
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/a/b/memory.current", "1000\n"),
            ("/sys/fs/cgroup/a/memory.max", "400000\n"),
            ("/sys/fs/cgroup/a/memory.high", "max\n"),
            ("/sys/fs/cgroup/a/memory.current", "300000\n"),
            (
                "/sys/fs/cgroup/a/memory.stat",
                "anon 100\nfile 90\ninactive_file 20000\nactive_file 5000\n",
            ),
        ];
        let found = memory(&[&[MEMINFO], &V2, &limits]).unwrap();
        assert_eq!(found.available, 400_000 - 300_000 + 25_000);
        assert!(found.source.contains("/sys/fs/cgroup/a:"), "{found}");
        assert!(
            found.source.contains("limit of 400000 less 300000 used"),
            "{found}"
        );
    }

    #[test]
    fn a_limit_above_what_there_is_does_not_count() {
        let limits = [
            ("/sys/fs/cgroup/a/b/memory.max", "9223372036854771712\n"),
            ("/sys/fs/cgroup/a/b/memory.current", "1000\n"),
        ];
        let found = memory(&[&[MEMINFO], &V2, &limits]).unwrap();
        assert_eq!(found.available, 512_000);
    }

    #[test]
    fn a_group_over_its_limit_leaves_nothing() {
        let limits = [
            ("/sys/fs/cgroup/a/b/memory.max", "900\n"),
            ("/sys/fs/cgroup/a/b/memory.current", "1000\n"),
        ];
        assert_eq!(memory(&[&[MEMINFO], &V2, &limits]).unwrap().available, 0);
    }

    #[test]
    fn the_old_hierarchy_is_found_in_a_container() {
        let limits = [
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "300000\n"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "100000\n"),
            (
                "/sys/fs/cgroup/memory/memory.stat",
                "inactive_file 1\ntotal_inactive_file 3000\ntotal_active_file 400\n",
            ),
        ];
        let found = memory(&[&[MEMINFO], &V1, &limits]).unwrap();
        assert_eq!(found.available, 203_400);
    }

    #[test]
    fn folders_stay_below_the_mount() {
        let all = |root, path| folders(Path::new("/m"), Path::new(root), Path::new(path));
        assert_eq!(
            all("/", "/a/b"),
            ["/m/a/b", "/m/a", "/m"].map(PathBuf::from)
        );
        assert_eq!(all("/a", "/a/b"), ["/m/b", "/m"].map(PathBuf::from));
        assert_eq!(all("/", "/"), ["/m"].map(PathBuf::from));
        assert_eq!(all("/", "/../x"), ["/m"].map(PathBuf::from));
    }

    #[test]
    fn this_machine_says_something() {
        let found = Memory::now().unwrap();
        println!("{found}");
        assert!(found.available > 0);
    }
}
