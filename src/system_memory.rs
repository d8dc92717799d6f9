//! How much memory this process may still take: what the system has available, less what the limits of its
//! control groups forbid. Both versions of control groups are read, at every level up to the root.
#![deny(unsafe_code)]

use std::fmt;
use std::io::ErrorKind;

use crate::error::{bytes_text, Error, Result};

/// Limits from here up mean "none": version 1 writes the largest page-aligned `i64`.
const NO_LIMIT: u64 = 1 << 60;

/// What is available, as the system tells it. All sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Available {
    /// `MemAvailable` of the whole system: free memory, and what could be reclaimed without swapping.
    pub mem_available: u64,
    /// Limit of the control group that leaves the least; `None` if there is no limit.
    pub cgroup_limit: Option<u64>,
    /// What that control group holds, its page cache included.
    pub cgroup_used: Option<u64>,
    /// Of this, page cache of files, which is given up before the limit is enforced.
    pub cgroup_reclaimable: u64,
}

impl Available {
    /// What can be taken without swapping and without reaching a limit.
    pub fn bytes(&self) -> u64 {
        let (Some(limit), Some(used)) = (self.cgroup_limit, self.cgroup_used) else {
            return self.mem_available;
        };
        let held = used.saturating_sub(self.cgroup_reclaimable);
        self.mem_available.min(limit.saturating_sub(held))
    }

    /// Refuses a method that could not be loaded. ExecuTorch takes `bytes` of memory for it at once and writes
    /// zeros into all of them. A system that promises more memory than it has would end this process.
    pub fn check_plan(&self, method: &str, bytes: u64) -> Result<()> {
        if bytes <= self.bytes() {
            return Ok(());
        }
        Err(Error::OutOfMemory {
            what: format!(
                "the inputs and outputs of method '{method}' at their largest, by ExecuTorch's plan, with {self}; export with lower \
                 upper bounds of its dynamic dimensions (torch.export.Dim(..., max=...))"
            ),
            bytes,
        })
    }
}

impl fmt::Display for Available {
    /// `64 bytes of available memory (MemAvailable)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.bytes();
        write!(f, "{} of available memory (", bytes_text(bytes))?;
        match (self.cgroup_limit, self.cgroup_used) {
            (Some(limit), Some(used)) if bytes < self.mem_available => write!(
                f,
                "a control group's limit of {limit} less {used} used, of which {} can be reclaimed)",
                self.cgroup_reclaimable
            ),
            _ => write!(f, "MemAvailable)"),
        }
    }
}

/// Asks the system now. Errors: a file that every Linux has is missing, unreadable or not understood.
pub fn available() -> Result<Available> {
    gather(&|path| match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        // No control groups, or groups that this namespace does not show.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(Error::Io {
            file: path.to_owned(),
            what: format!("read failed: {error}"),
        }),
    })
}

/// Text of a file; `None` if it is not there.
type Read<'a> = &'a dyn Fn(&str) -> Result<Option<String>>;

fn gather(read: Read<'_>) -> Result<Available> {
    const MEMINFO: &str = "/proc/meminfo";
    let text = read(MEMINFO)?.unwrap_or_default();
    let mem_available = meminfo_available(&text).ok_or_else(|| Error::Io {
        file: MEMINFO.to_owned(),
        what: "has no line 'MemAvailable: N kB'".to_owned(),
    })?;
    let mut tightest = Available {
        mem_available,
        cgroup_limit: None,
        cgroup_used: None,
        cgroup_reclaimable: 0,
    };
    // A kernel without control groups has neither file.
    let groups = read("/proc/self/cgroup")?.unwrap_or_default();
    let mounts = read("/proc/self/mountinfo")?.unwrap_or_default();
    for (version, directory) in memory_groups(&groups, &mounts) {
        let Some(level) = level(version, &directory, mem_available, read)? else {
            continue;
        };
        if tightest.cgroup_limit.is_none() || level.bytes() < tightest.bytes() {
            tightest = level;
        }
    }
    Ok(tightest)
}

/// The two kinds of control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// One level of the hierarchy; `None` if it has no limit, or does not manage memory.
fn level(
    version: Version,
    directory: &str,
    mem_available: u64,
    read: Read<'_>,
) -> Result<Option<Available>> {
    let (limits, usage): (&[&str], _) = match version {
        Version::One => (&["memory.limit_in_bytes"], "memory.usage_in_bytes"),
        // Above memory.high a process is slowed down until it stands still: no less a limit.
        Version::Two => (&["memory.max", "memory.high"], "memory.current"),
    };
    let mut least: Option<u64> = None;
    for name in limits {
        let found = read_number(&format!("{directory}/{name}"), read)?.flatten();
        least = [least, found].into_iter().flatten().min();
    }
    let used = read_number(&format!("{directory}/{usage}"), read)?.flatten();
    let (Some(limit), Some(used)) = (least, used) else {
        return Ok(None);
    };
    let stat = read(&format!("{directory}/memory.stat"))?.unwrap_or_default();
    Ok(Some(Available {
        mem_available,
        cgroup_limit: Some(limit),
        cgroup_used: Some(used),
        cgroup_reclaimable: file_cache(version, &stat),
    }))
}

/// `None`: no such file. `Some(None)`: no limit.
fn read_number(path: &str, read: Read<'_>) -> Result<Option<Option<u64>>> {
    let Some(text) = read(path)? else {
        return Ok(None);
    };
    match limit(&text) {
        Some(number) => Ok(Some(number)),
        None => Err(Error::Io {
            file: path.to_owned(),
            what: format!("holds '{}', expected a number or 'max'", text.trim()),
        }),
    }
}

/// A number of bytes; `Some(None)` for no limit, `None` for something else.
fn limit(text: &str) -> Option<Option<u64>> {
    match text.trim() {
        "max" => Some(None),
        digits => digits
            .parse()
            .ok()
            .map(|bytes| (bytes < NO_LIMIT).then_some(bytes)),
    }
}

fn meminfo_available(text: &str) -> Option<u64> {
    let rest = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kb: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kb.checked_mul(1024)
}

/// Page cache of files, of this group and those below it.
fn file_cache(version: Version, stat: &str) -> u64 {
    let names = match version {
        Version::One => ["total_inactive_file", "total_active_file"],
        Version::Two => ["inactive_file", "active_file"],
    };
    stat.lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| names.contains(name))
        .filter_map(|(_, value)| value.trim().parse::<u64>().ok())
        .fold(0, u64::saturating_add)
}

/// Directories of the groups that account this process's memory, from its own up to the root, or as far up
/// as this namespace shows.
fn memory_groups(groups: &str, mounts: &str) -> Vec<(Version, String)> {
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let version = match controllers {
            "" => Version::Two,
            list if list.split(',').any(|name| name == "memory") => Version::One,
            _ => continue,
        };
        for (root, mount_point) in mounts.lines().filter_map(|line| mount(line, version)) {
            let inside = inside(path, root);
            found.extend(upwards(mount_point, inside).map(|directory| (version, directory)));
        }
    }
    found
}

/// Root and mount point of a line of `mountinfo` that shows the hierarchy asked for.
fn mount(line: &str, version: Version) -> Option<(&str, &str)> {
    let (place, kind) = line.split_once(" - ")?;
    let mut place = place.split(' ').skip(3);
    let (root, mount_point) = (place.next()?, place.next()?);
    let mut kind = kind.split(' ');
    let (name, options) = (kind.next()?, kind.nth(1).unwrap_or_default());
    let shown = match version {
        Version::One => name == "cgroup" && options.split(',').any(|option| option == "memory"),
        Version::Two => name == "cgroup2",
    };
    shown.then_some((root, mount_point))
}

/// The group's path below what is mounted. In a container that shows another part of the hierarchy than the
/// path names, the mount point itself is the process's group, or one above it.
fn inside<'a>(path: &'a str, root: &str) -> &'a str {
    match path.strip_prefix(root.trim_end_matches('/')) {
        Some(rest) if rest.starts_with('/') && !rest.contains("/..") => rest,
        _ => "",
    }
}

/// `mount/a/b`, `mount/a`, `mount`.
fn upwards<'a>(mount_point: &'a str, inside: &'a str) -> impl Iterator<Item = String> + 'a {
    let inside = inside.trim_end_matches('/');
    let cuts = inside.match_indices('/').map(|(at, _)| at).rev();
    std::iter::once(inside.len())
        .chain(cuts)
        .map(move |end| format!("{mount_point}{}", &inside[..end]))
}

#[cfg(test)]
#[path = "system_memory_tests.rs"]
mod tests;
