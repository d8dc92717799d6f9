//! The GPU as a device, beyond the contract of all devices: what its pool counts, what it refuses, how it ends. And
//! what is said where there is no GPU.

mod device_support;

use device_support::{gpu, Bench, Source};
use weightstream::device::{cuda, CudaDevice, Device, HostDevice};
use weightstream::Error;

const MB: u64 = 1 << 20;

/// Where there is no driver this is an error that says so, each time, and nothing else stops working.
#[test]
fn asking_for_cuda_without_a_driver_names_the_library() {
    for _ in 0..2 {
        let outcomes = [
            cuda::device_count().err(),
            CudaDevice::new(0).err(),
            // SAFETY: null is the default stream.
            unsafe { CudaDevice::with_stream(0, std::ptr::null_mut()) }.err(),
        ];
        for outcome in outcomes {
            match outcome {
                None => println!("skipped: there is a driver here"),
                Some(Error::Missing { name, place }) => {
                    assert_eq!(name, "libcuda.so.1");
                    assert!(place.contains("cannot open shared object file"), "{place}");
                    assert!(place.contains("NVIDIA driver"), "{place}");
                }
                Some(Error::Unsupported(what)) => {
                    println!("skipped: a driver without a GPU: {what}")
                }
                Some(other) => panic!("{other}"),
            }
        }
    }
    assert!(HostDevice::new().is_ok());
}

/// What is counted must be what is taken, or the budget is not kept.
#[test]
fn the_granule_is_the_pools_own() {
    let Some(_gpu) = gpu("the_granule_is_the_pools_own") else {
        return;
    };
    let mut device = CudaDevice::open(64 * MB);
    let granule = device.granule();
    for bytes in [
        granule,
        3 * granule,
        5 * granule,
        MB,
        MB + granule,
        2 * MB + granule,
        9 * MB + 7 * granule,
    ] {
        let before = device.counters().unwrap().pool_used_bytes;
        let at = device.alloc(bytes).unwrap();
        let used = device.counters().unwrap().pool_used_bytes - before;
        println!("{bytes} bytes take {used}, at {:#x}", at.0);
        assert_eq!(used, bytes);
    }
}

#[test]
fn free_memory_in_pieces_is_found_or_reported() {
    let Some(_gpu) = gpu("free_memory_in_pieces_is_found_or_reported") else {
        return;
    };
    let mut device = CudaDevice::open(128 * MB);
    let blocks: Vec<_> = (0..16).map(|_| device.alloc(8 * MB).unwrap()).collect();
    blocks
        .iter()
        .step_by(2)
        .for_each(|b| device.free(*b, 8 * MB).unwrap());
    match device.alloc(32 * MB) {
        Ok(at) => device.free(at, 32 * MB).unwrap(),
        Err(Error::OutOfMemory { what, bytes }) => {
            println!("{what}");
            assert_eq!(bytes, 32 * MB);
            assert!(
                what.contains("67108864 bytes handed out") && what.contains("reserved"),
                "{what}"
            );
        }
        Err(other) => panic!("{other}"),
    }
    blocks
        .iter()
        .skip(1)
        .step_by(2)
        .for_each(|b| device.free(*b, 8 * MB).unwrap());
    // Nothing is left in the way: from here on it has to work.
    device.alloc(128 * MB).unwrap();
    println!("{:?}", device.counters().unwrap());
    assert!(
        matches!(device.alloc(512), Err(Error::OutOfMemory { .. })),
        "over the cap"
    );
}

#[test]
fn what_a_gpu_cannot_do_is_named() {
    let Some(_gpu) = gpu("what_a_gpu_cannot_do_is_named") else {
        return;
    };
    let count = cuda::device_count().unwrap();
    let text = CudaDevice::new(count)
        .err()
        .map(|e| e.to_string())
        .unwrap_or_default();
    assert!(
        text.contains(&format!("'cuda:{count}' is missing")),
        "{text}"
    );

    let mut device = CudaDevice::new(0).unwrap();
    assert!(
        matches!(device.alloc(512), Err(Error::Internal(_))),
        "no budget yet"
    );
    let text = device.set_budget(1 << 50).unwrap_err().to_string();
    assert!(
        text.contains("out of memory: 1125899906842624 bytes") && text.contains("cuda:0"),
        "{text}"
    );
    device.set_budget(MB).unwrap();
    assert!(matches!(device.set_budget(MB), Err(Error::Internal(_))));

    let (source, _) = Source::new([[1; 5000].as_slice()]);
    device.register_host(source.all(), &[]).unwrap();
    let text = device
        .register_host(source.all(), &[])
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("cuMemHostRegister failed") && text.contains("bytes 0..8192"),
        "{text}"
    );
    // And the device goes on.
    let at = device.alloc(512).unwrap();
    device.copy_to_device(at, source.host(0..512)).unwrap();
    let mut found = [0; 512];
    device.synchronize().unwrap();
    device.download(at, &mut found).unwrap();
    assert_eq!(found, [1; 512]);
}

const EXIT_CHILD: &str = "WEIGHTSTREAM_TEST_EXIT_CHILD";

static LEFT: std::sync::Mutex<Vec<CudaDevice>> = std::sync::Mutex::new(Vec::new());

extern "C" fn drop_one_left() {
    drop(LEFT.lock().map(|mut left| left.pop()));
}

/// Only of use to the next test, in a process of its own.
#[test]
fn exit_child() {
    if std::env::var_os(EXIT_CHILD).is_none() {
        return;
    }
    let at_exit = || {
        // SAFETY: the handler takes a lock that nobody holds at exit.
        assert_eq!(unsafe { libc::atexit(drop_one_left) }, 0);
    };
    // The first handler runs after the one of the device, when the driver may be gone; the second before.
    at_exit();
    let mut devices = [CudaDevice::open(MB), CudaDevice::open(MB)];
    at_exit();
    for device in &mut devices {
        device.alloc(512).unwrap();
        device.alloc_scratch(512).unwrap();
    }
    LEFT.lock().unwrap().extend(devices);
}

#[test]
fn devices_left_at_exit_end_quietly() {
    let Some(_gpu) = gpu("devices_left_at_exit_end_quietly") else {
        return;
    };
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    let output = child
        .args(["--exact", "exit_child"])
        .env(EXIT_CHILD, "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("1 passed"),
        "{output:?}"
    );
}
