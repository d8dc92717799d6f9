use std::collections::HashMap;

use super::*;

const GIB: u64 = 1 << 30;

const V1_MOUNTS: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:7 - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
const V2_MOUNTS: &str =
    "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

fn asked(files: &[(&str, &str)]) -> Result<Available> {
    let files: HashMap<&str, &str> = files.iter().copied().collect();
    gather(&|path| Ok(files.get(path).map(|text| (*text).to_owned())))
}

fn meminfo(kb: u64) -> String {
    format!("MemTotal:       99999999 kB\nMemFree:  5 kB\nMemAvailable:   {kb} kB\nCached: 7 kB\n")
}

#[test]
fn without_control_groups_the_system_decides() {
    let found = asked(&[("/proc/meminfo", &meminfo(4 << 20))]).unwrap();
    assert_eq!(found.cgroup_limit, None);
    assert_eq!(found.bytes(), 4 * GIB);
}

#[test]
fn a_kernel_that_tells_nothing_is_an_error() {
    for text in [
        "",
        "MemTotal: 1 kB\n",
        "MemAvailable: x kB\n",
        "MemAvailable: 1\n",
    ] {
        let error = asked(&[("/proc/meminfo", text)]).unwrap_err().to_string();
        assert!(error.contains("MemAvailable"), "{error}");
    }
}

#[test]
fn version_two_takes_the_tightest_level_and_adds_its_page_cache() {
    let found = asked(&[
        ("/proc/meminfo", &meminfo(8 << 20)),
        ("/proc/self/cgroup", "0::/user.slice/job.scope\n"),
        ("/proc/self/mountinfo", V2_MOUNTS),
        ("/sys/fs/cgroup/user.slice/job.scope/memory.max", "max\n"),
        (
            "/sys/fs/cgroup/user.slice/job.scope/memory.high",
            "6442450944\n",
        ),
        (
            "/sys/fs/cgroup/user.slice/job.scope/memory.current",
            "1073741824\n",
        ),
        ("/sys/fs/cgroup/user.slice/memory.max", "2147483648\n"),
        ("/sys/fs/cgroup/user.slice/memory.current", "1610612736\n"),
        (
            "/sys/fs/cgroup/user.slice/memory.stat",
            "anon 5\nfile 99\ninactive_file 1000\nactive_file 24\nworkingset_refault_file 3\n",
        ),
    ])
    .unwrap();
    assert_eq!(found.cgroup_limit, Some(2 * GIB));
    assert_eq!(found.cgroup_used, Some(GIB + GIB / 2));
    assert_eq!(found.cgroup_reclaimable, 1024);
    assert_eq!(found.bytes(), GIB / 2 + 1024);
}

#[test]
fn memory_high_is_a_limit_too() {
    let found = asked(&[
        ("/proc/meminfo", &meminfo(8 << 20)),
        ("/proc/self/cgroup", "0::/job\n"),
        ("/proc/self/mountinfo", V2_MOUNTS),
        ("/sys/fs/cgroup/job/memory.max", "4294967296\n"),
        ("/sys/fs/cgroup/job/memory.high", "3221225472\n"),
        ("/sys/fs/cgroup/job/memory.current", "0\n"),
    ])
    .unwrap();
    assert_eq!(found.bytes(), 3 * GIB);
}

#[test]
fn version_one_beside_an_empty_version_two() {
    let stat = "inactive_file 7\nactive_file 7\ntotal_inactive_file 4096\ntotal_active_file 0\n";
    let found = asked(&[
        ("/proc/meminfo", &meminfo(8 << 20)),
        (
            "/proc/self/cgroup",
            "9:name=systemd:/\n4:memory:/box/one\n0::/\n",
        ),
        ("/proc/self/mountinfo", V1_MOUNTS),
        (
            "/sys/fs/cgroup/memory/box/one/memory.limit_in_bytes",
            "1073741824\n",
        ),
        (
            "/sys/fs/cgroup/memory/box/one/memory.usage_in_bytes",
            "536870912\n",
        ),
        ("/sys/fs/cgroup/memory/box/one/memory.stat", stat),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "9223372036854771712\n",
        ),
        (
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
            "7000000000\n",
        ),
    ])
    .unwrap();
    assert_eq!(found.cgroup_limit, Some(GIB));
    assert_eq!(found.bytes(), GIB / 2 + 4096);
}

#[test]
fn a_container_sees_its_group_at_the_mount_point() {
    // With a root that is the group itself, with a path of another namespace, and with neither in common.
    for (path, root) in [
        ("/docker/abc", "/docker/abc"),
        ("/../other", "/"),
        ("/x", "/y"),
    ] {
        let mounts = format!("30 24 0:26 {root} /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
        let found = asked(&[
            ("/proc/meminfo", &meminfo(8 << 20)),
            ("/proc/self/cgroup", &format!("0::{path}\n")),
            ("/proc/self/mountinfo", &mounts),
            ("/sys/fs/cgroup/memory.max", "4096\n"),
            ("/sys/fs/cgroup/memory.current", "96\n"),
        ])
        .unwrap();
        assert_eq!(found.bytes(), 4000, "{path} under {root}");
    }
}

#[test]
fn more_used_than_the_limit_leaves_nothing() {
    let found = Available {
        mem_available: GIB,
        cgroup_limit: Some(100),
        cgroup_used: Some(200),
        cgroup_reclaimable: 50,
    };
    assert_eq!(found.bytes(), 0);
}

#[test]
fn a_limit_that_is_no_number_is_an_error() {
    let error = asked(&[
        ("/proc/meminfo", &meminfo(8 << 20)),
        ("/proc/self/cgroup", "0::/\n"),
        ("/proc/self/mountinfo", V2_MOUNTS),
        ("/sys/fs/cgroup/memory.max", "lots\n"),
        ("/sys/fs/cgroup/memory.current", "96\n"),
    ])
    .unwrap_err();
    assert!(error.to_string().contains("'lots'"), "{error}");
}

#[test]
fn the_groups_go_up_to_the_mount_point() {
    let found: Vec<_> = upwards("/m", "/a/b").collect();
    assert_eq!(found, ["/m/a/b", "/m/a", "/m"]);
    assert_eq!(upwards("/m", "/").collect::<Vec<_>>(), ["/m"]);
    assert_eq!(upwards("/m", "").collect::<Vec<_>>(), ["/m"]);
}

#[test]
fn this_machine_tells() {
    let found = available().unwrap();
    assert!(
        found.bytes() > 0 && found.bytes() <= found.mem_available,
        "{found:?}"
    );
}

#[test]
fn a_plan_is_refused_where_one_byte_is_missing() {
    let held = Available {
        mem_available: 1 << 20,
        cgroup_limit: None,
        cgroup_used: None,
        cgroup_reclaimable: 0,
    };
    assert_eq!(held.check_plan("forward", 1 << 20), Ok(()));
    let error = held.check_plan("forward", (1 << 20) + 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "out of memory: 1048577 bytes (1.1 MB) for the inputs and outputs of method 'forward' at their largest, by \
         ExecuTorch's plan, with 1048576 bytes (1.0 MB) of available memory (MemAvailable); export with lower upper \
         bounds of its dynamic dimensions (torch.export.Dim(..., max=...))"
    );
}
