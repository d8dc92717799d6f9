//! Sessions on a GPU: whatever the budget, each kernel finds its weights' bytes. And what is said where there is
//! no GPU.

mod device_support;
mod session_support;

use device_support::{gate, gpu, Bench, Later, Source};
use gate::Gate;
use session_support::{chain, model, Model, Pass};
use std::time::Duration;
use weightstream::aoti::hooks::PassHooks;
use weightstream::config::PolicyKind;
use weightstream::device::{cuda, CudaDevice, Device, DevicePtr};
use weightstream::schedule::floor;
use weightstream::schedule::Event::{Kernel, Probe, Release};
use weightstream::session::{Session, SessionOptions};
use weightstream::{Error, Result};

const MB: u64 = 1 << 20;
/// The driver's unit for the size of a pool.
const POOL_UNIT: u64 = 32 * MB;

/// Weights of many sizes, also none and odd ones; one read twice; one lease over many kernels; two direct
/// constants.
fn mixed() -> Model {
    let sizes: Vec<u64> = (0..28)
        .map(|i| (1 + i % 4) * MB + i * 513)
        .chain([0, 1, 700])
        .collect();
    let mut probes: Vec<u32> = (0..sizes.len() as u32).collect();
    probes.insert(9, 3);
    let last = probes.len() as u32 - 1;
    let mut events = vec![Probe(0), Kernel(0)];
    for id in 1..last {
        events.extend([Probe(id), Kernel(id), Release(id)]);
        if id == 7 {
            events.push(Release(0));
        }
    }
    events.extend([Probe(last), Kernel(last), Release(last)]);
    model(&sizes, &[100, 70_000], &probes, &events)
}

/// The model's constants in a mapped file, as they are in use.
fn mapped(model: &Model) -> (Source, Vec<u64>) {
    Source::new(model.bytes.iter().map(Vec::as_slice))
}

/// Floor and total at the granule of the device.
fn range_of_budgets(model: &Model, granule: u64) -> (u64, u64) {
    let weights = &model.program.weights;
    let least = floor(&model.program.trace, weights, PolicyKind::Lru, &[], granule).bytes();
    (
        least,
        weights
            .iter()
            .map(|w| w.bytes.next_multiple_of(granule))
            .sum(),
    )
}

fn session(
    model: &Model,
    (source, offsets): &(Source, Vec<u64>),
    mut device: CudaDevice,
    budget: Option<u64>,
) -> Result<Session<CudaDevice>> {
    device.register_host(source.all(), offsets)?;
    let lens = model.bytes.iter().map(|b| b.len() as u64);
    let bytes = offsets
        .iter()
        .zip(lens)
        .map(|(&at, len)| source.host(at..at + len))
        .collect();
    let options = SessionOptions {
        budget,
        ..SessionOptions::default()
    };
    Session::new(device, model.program.clone(), bytes, options)
}

/// Plays one pass. Each kernel reads all open leases and all direct constants when the compute stream gets to
/// it; what it read is compared after the pass. `hold`: the stream starts only after so long, when all copies
/// that could overtake it have had their chance.
fn play(model: &Model, session: &mut Session<CudaDevice>, pass: Pass, hold: Option<Duration>) {
    let events = model.program.trace.events();
    let end = match pass {
        Pass::Complete => events.len(),
        Pass::AbortAt(at) => at,
    };
    let gate = hold.map(|patience| Gate::close(session.device().compute_stream(), patience));
    let mut reads = Vec::new();
    let mut open: Vec<(u32, DevicePtr)> = Vec::new();
    session.begin_pass().unwrap();
    for event in &events[..end] {
        match *event {
            Probe(id) => open.push((id, session.probe(i64::from(id)).unwrap())),
            Kernel(_) => kernel(model, session, &open, &mut reads),
            Release(id) => {
                open.retain(|(other, _)| *other != id);
                session.release(i64::from(id));
            }
        }
        session.validate().unwrap();
    }
    open.iter()
        .rev()
        .for_each(|(id, _)| session.release(i64::from(*id)));
    session.end_pass(pass == Pass::Complete).unwrap();
    session.validate().unwrap();
    if let Some(patience) = hold {
        std::thread::sleep(patience.min(Duration::from_millis(20)));
    }
    drop(gate);
    for (constant, later) in reads {
        let found = session.device_mut().finish(later);
        let fqn = &model.program.weights[constant].fqn;
        assert!(
            found == model.bytes[constant],
            "a kernel read other bytes than those of {fqn}"
        );
    }
}

fn kernel(
    model: &Model,
    session: &mut Session<CudaDevice>,
    open: &[(u32, DevicePtr)],
    reads: &mut Vec<(usize, Later)>,
) {
    let leased = open
        .iter()
        .map(|(id, at)| (model.program.trace.weight(*id) as usize, *at));
    let direct = (0..model.bytes.len()).filter_map(|i| Some((i, session.direct_address(i)?)));
    let all: Vec<_> = leased
        .chain(direct)
        .filter(|(i, _)| !model.bytes[*i].is_empty())
        .collect();
    for (constant, at) in all {
        let later = session
            .device_mut()
            .read_later(at, model.bytes[constant].len() as u64);
        reads.push((constant, later));
    }
}

fn check_memory(session: &Session<CudaDevice>, budget: u64) {
    let counters = session.device().counters().unwrap();
    assert!(session.stats().peak_bytes <= budget);
    assert!(counters.weight_bytes <= budget);
    let reserved = counters.pool_reserved_bytes;
    assert!(
        reserved <= budget.next_multiple_of(POOL_UNIT),
        "{reserved} reserved at a budget of {budget}"
    );
}

#[test]
fn every_read_is_right_at_every_budget() {
    let Some(_gpu) = gpu("every_read_is_right_at_every_budget") else {
        return;
    };
    let model = mixed();
    let file = mapped(&model);
    for share in [0, 1, 10, 25, 50, 75, 90, 99, 100] {
        let device = CudaDevice::new(0).unwrap();
        let (least, all) = range_of_budgets(&model, device.granule());
        let budget = least + (all - least) * share / 100;
        let mut session = session(&model, &file, device, Some(budget)).unwrap();
        for round in 0..6 {
            let hold = (round % 2 == 1).then_some(Duration::from_millis(300));
            play(&model, &mut session, Pass::Complete, hold);
            check_memory(&session, budget);
        }
        let stats = session.stats();
        assert_eq!(stats.evictions > 0, share < 100);
        let rescues = session.device().counters().unwrap().pool_rescues;
        println!(
            "{share} %: {} bytes per pass, {rescues} rescues",
            stats.bytes_copied_last_pass
        );
    }
}

#[test]
fn passes_behind_an_aborted_one_are_right() {
    let Some(_gpu) = gpu("passes_behind_an_aborted_one_are_right") else {
        return;
    };
    let model = mixed();
    let file = mapped(&model);
    let device = CudaDevice::new(0).unwrap();
    let mut session = session(&model, &file, device, None).unwrap();
    let events = model.program.trace.events().len();
    for at in (0..events).step_by(5) {
        let hold = Some(Duration::from_millis(100)).filter(|_| at % 2 == 0);
        play(&model, &mut session, Pass::AbortAt(at), hold);
        play(&model, &mut session, Pass::Complete, None);
        check_memory(&session, session.stats().budget_bytes);
    }
}

/// Weights that were never registered are copied more slowly, and as right.
#[test]
fn pageable_weights_are_right_too() {
    let Some(_gpu) = gpu("pageable_weights_are_right_too") else {
        return;
    };
    let model = mixed();
    let mut session = model.session(CudaDevice::new(0).unwrap(), None).unwrap();
    for _ in 0..3 {
        play(&model, &mut session, Pass::Complete, None);
    }
}

#[test]
fn steady_passes_create_no_events() {
    let Some(_gpu) = gpu("steady_passes_create_no_events") else {
        return;
    };
    let model = chain(&[MB; 40]);
    let file = mapped(&model);
    let mut session = session(&model, &file, CudaDevice::new(0).unwrap(), Some(20 * MB)).unwrap();
    let mut created = Vec::new();
    for _ in 0..6 {
        play(&model, &mut session, Pass::Complete, None);
        created.push(session.device().counters().unwrap().events_created);
    }
    assert_eq!(created[1], created[5], "{created:?}");
    // One for each weight's copy and one for its last reader, at the very most.
    assert!(created[5] <= 80 + 2, "{created:?}");
}

#[test]
fn the_callers_stream_and_context_stay_as_they_are() {
    let Some(_gpu) = gpu("the_callers_stream_and_context_stay_as_they_are") else {
        return;
    };
    let model = chain(&[MB; 12]);
    let file = mapped(&model);
    let own = CudaDevice::new(0).unwrap();
    let stream = gate::stream_like(own.compute_stream());
    // As a number, since pointers do not cross threads.
    let number = stream.expose_provenance();
    let work = || {
        let stream = std::ptr::with_exposed_provenance_mut(number);
        assert!(!gate::a_context_is_current());
        // SAFETY: the stream is never destroyed.
        let device = unsafe { CudaDevice::with_stream(0, stream) }.unwrap();
        assert_eq!(device.compute_stream(), stream);
        let mut session = session(&model, &file, device, Some(6 * MB)).unwrap();
        play(&model, &mut session, Pass::Complete, None);
        assert!(!gate::a_context_is_current());
        drop(session);
        assert!(!gate::a_context_is_current());
        assert!(gate::is_idle(stream));
    };
    // A thread of its own has no context, whatever other tests did on theirs.
    std::thread::scope(|scope| scope.spawn(work).join().unwrap());
    gate::in_context_of(stream.cast(), || {
        let mut device = CudaDevice::open(MB);
        device.alloc(512).unwrap();
        drop(device);
        assert!(gate::a_context_is_current());
    });
}

#[test]
fn the_default_stream_can_be_the_compute_stream() {
    let Some(_gpu) = gpu("the_default_stream_can_be_the_compute_stream") else {
        return;
    };
    let model = mixed();
    let file = mapped(&model);
    // SAFETY: null is the default stream.
    let device = unsafe { CudaDevice::with_stream(0, std::ptr::null_mut()) }.unwrap();
    let mut session = session(&model, &file, device, None).unwrap();
    (0..3).for_each(|_| play(&model, &mut session, Pass::Complete, None));
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

#[test]
fn memory_comes_back() {
    let Some(_gpu) = gpu("memory_comes_back") else {
        return;
    };
    // Keeps the primary context alive.
    let keeper = CudaDevice::new(0).unwrap();
    let model = mixed();
    let file = mapped(&model);
    let mut free = Vec::new();
    for _ in 0..10 {
        let mut session = session(&model, &file, CudaDevice::new(0).unwrap(), None).unwrap();
        play(&model, &mut session, Pass::Complete, None);
        // Not on the thread that made it.
        std::thread::spawn(move || drop(session)).join().unwrap();
        free.push(keeper.free_bytes().unwrap());
    }
    println!("free after each session: {free:?}");
    assert!(free[9] + 4 * MB >= free[1], "{free:?}");
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
    let model = chain(&[64; 4]);
    let mut session = model.host(None);
    session_support::play(&model, &mut session, Pass::Complete).unwrap();
}
