//! Sessions on a GPU: whatever the budget, each kernel finds its weights' bytes.

use crate::device_support::{gate, gpu, Bench, Later, Source};
use crate::session_support::{chain, model, Model, Pass};
use gate::Gate;
use std::time::Duration;
use weightstream::aoti::hooks::PassHooks;
use weightstream::config::PolicyKind;
use weightstream::device::{CudaDevice, Device, DevicePtr};
use weightstream::schedule::Event::{Kernel, Probe, Release};
use weightstream::session::Session;
use weightstream::store::{Methods, StoreOptions};
use weightstream::Result;

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
    let weights = &model.constants.specs;
    let floor = Methods::from(model.program()).floor(granule);
    let least = floor.unwrap().bytes();
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
    file: &(Source, Vec<u64>),
    device: CudaDevice,
    budget: Option<u64>,
) -> Result<Session<CudaDevice>> {
    session_by(PolicyKind::Lru, model, file, device, budget)
}

fn session_by(
    policy: PolicyKind,
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
    let options = StoreOptions {
        budget,
        policy,
        ..StoreOptions::default()
    };
    Session::new(device, model.program(), bytes, options)
}

/// Plays one pass. Each kernel reads all open leases and all direct constants when the compute stream gets to
/// it; what it read is compared after the pass, also after one that failed. `hold`: the stream starts only
/// after so long, when all copies that could overtake it have had their chance.
pub fn play(
    model: &Model,
    session: &mut Session<CudaDevice>,
    pass: Pass,
    hold: Option<Duration>,
) -> Result<()> {
    let gate = hold.map(|patience| Gate::close(session.device().compute_stream(), patience));
    let mut reads = Vec::new();
    session.begin_pass()?;
    let issued = issue(model, session, pass, &mut reads);
    let ended = session.end_pass(pass == Pass::Complete && issued.is_ok());
    session.validate()?;
    if let Some(patience) = hold {
        std::thread::sleep(patience.min(Duration::from_millis(20)));
    }
    drop(gate);
    for (constant, later) in reads {
        let found = session.device_mut().finish(later);
        let fqn = &model.constants.specs[constant].fqn;
        assert!(
            found == model.bytes[constant],
            "a kernel read other bytes than those of {fqn}"
        );
    }
    issued.and(ended)
}

fn issue(
    model: &Model,
    session: &mut Session<CudaDevice>,
    pass: Pass,
    reads: &mut Vec<(usize, Later)>,
) -> Result<()> {
    let events = model.method.trace.events();
    let end = match pass {
        Pass::AbortAt(at) => at,
        _ => events.len(),
    };
    let mut open: Vec<(u32, DevicePtr)> = Vec::new();
    let mut outcome = Ok(());
    for event in &events[..end] {
        match *event {
            Probe(id) => match session.probe(i64::from(id)) {
                Ok(at) => open.push((id, at)),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            },
            Kernel(_) => kernel(model, session, &open, reads),
            Release(id) => {
                open.retain(|(other, _)| *other != id);
                session.release(i64::from(id));
            }
        }
        session.validate()?;
    }
    open.iter()
        .rev()
        .for_each(|(id, _)| session.release(i64::from(*id)));
    outcome
}

fn kernel(
    model: &Model,
    session: &mut Session<CudaDevice>,
    open: &[(u32, DevicePtr)],
    reads: &mut Vec<(usize, Later)>,
) {
    let leased = open
        .iter()
        .map(|(id, at)| (model.method.trace.weight(*id) as usize, *at));
    let direct =
        (0..model.bytes.len()).filter_map(|i| Some((i, session.store().direct_address(i)?)));
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
    let page = session.device().page().unwrap_or(1);
    let reserved = counters.pool_reserved_bytes
        + counters.mapped_bytes
        + counters.lasting_bytes.next_multiple_of(page);
    assert!(
        reserved <= budget.next_multiple_of(POOL_UNIT),
        "{reserved} reserved at a budget of {budget}"
    );
}

/// What is free on the GPU, asked of the driver: a budget that is a multiple of its units is all that is taken, direct
/// constants included.
#[test]
fn pages_and_direct_constants_take_no_more_than_the_budget() {
    let Some(_gpu) = gpu("pages_and_direct_constants_take_no_more_than_the_budget") else {
        return;
    };
    const BUDGET: u64 = 128 * MB;
    let sizes = [8 * MB; 24];
    let probes: Vec<u32> = (0..24).collect();
    let each = |id| [Probe(id), Kernel(id), Release(id)];
    let events: Vec<_> = probes.iter().flat_map(|&id| each(id)).collect();
    let model = model(&sizes, &[100, 70_000], &probes, &events);
    let file = mapped(&model);
    let watch = CudaDevice::open(MB);
    // The first round lets the driver make what it keeps for itself.
    for round in 0..2 {
        let device = CudaDevice::new(0).unwrap();
        let before = watch.free_bytes().unwrap();
        let mut session =
            session_by(PolicyKind::Planned, &model, &file, device, Some(BUDGET)).unwrap();
        for _ in 0..3 {
            play(&model, &mut session, Pass::Complete, None).unwrap();
            check_memory(&session, BUDGET);
        }
        let counters = session.device().counters().unwrap();
        assert!(counters.mapped_bytes > 0 && counters.lasting_bytes > 70_000);
        // What the test's own kernels read into is no weight's.
        let taken = before - watch.free_bytes().unwrap() - counters.activation_reserved_bytes;
        println!("round {round}: {taken} bytes taken at a budget of {BUDGET}; {counters:?}");
        if round > 0 {
            assert!(taken <= BUDGET, "{taken}");
        }
    }
}

/// All budgets are tried before any failure is reported, so that one run shows which.
#[test]
fn every_read_is_right_at_every_budget() {
    let Some(_gpu) = gpu("every_read_is_right_at_every_budget") else {
        return;
    };
    let model = mixed();
    let file = mapped(&model);
    let mut failures = Vec::new();
    let policies = [PolicyKind::Lru, PolicyKind::Planned];
    let shares = [0, 1, 10, 25, 50, 75, 90, 99, 100];
    for (policy, share) in policies.into_iter().flat_map(|p| shares.map(|s| (p, s))) {
        let device = CudaDevice::new(0).unwrap();
        let (least, all) = range_of_budgets(&model, device.granule());
        let budget = least + (all - least) * share / 100;
        let mut session = match session_by(policy, &model, &file, device, Some(budget)) {
            Ok(session) => session,
            Err(error) => {
                failures.push(format!("{policy:?}, {share} %, load: {error}"));
                continue;
            }
        };
        for round in 0..6 {
            let hold = (round % 2 == 1).then_some(Duration::from_millis(300));
            if let Err(error) = play(&model, &mut session, Pass::Complete, hold) {
                failures.push(format!("{policy:?}, {share} %, pass {round}: {error}"));
            }
            check_memory(&session, budget);
        }
        let stats = session.stats();
        assert_eq!(stats.evictions > 0, share < 100);
        let compactions = session.device().counters().unwrap().compactions;
        println!(
            "{policy:?} ({}), {share} %: {} bytes per pass, {compactions} compactions",
            session.policy(),
            stats.bytes_copied_last_pass
        );
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn passes_behind_an_aborted_one_are_right() {
    let Some(_gpu) = gpu("passes_behind_an_aborted_one_are_right") else {
        return;
    };
    let model = mixed();
    let file = mapped(&model);
    for policy in [PolicyKind::Lru, PolicyKind::Planned] {
        let device = CudaDevice::new(0).unwrap();
        let mut session = session_by(policy, &model, &file, device, None).unwrap();
        let events = model.method.trace.events().len();
        for at in (0..events).step_by(5) {
            let hold = Some(Duration::from_millis(100)).filter(|_| at % 2 == 0);
            play(&model, &mut session, Pass::AbortAt(at), hold).unwrap();
            play(&model, &mut session, Pass::Complete, None).unwrap();
            check_memory(&session, session.stats().budget_bytes);
        }
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
        play(&model, &mut session, Pass::Complete, None).unwrap();
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
        play(&model, &mut session, Pass::Complete, None).unwrap();
        created.push(session.device().counters().unwrap().events_created);
    }
    assert_eq!(created[2], created[5], "{created:?}");
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
        play(&model, &mut session, Pass::Complete, None).unwrap();
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
    (0..3).for_each(|_| play(&model, &mut session, Pass::Complete, None).unwrap());
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
        play(&model, &mut session, Pass::Complete, None).unwrap();
        // Not on the thread that made it.
        std::thread::spawn(move || drop(session)).join().unwrap();
        free.push(keeper.free_bytes().unwrap());
    }
    println!("free after each session: {free:?}");
    assert!(free[9] + 4 * MB >= free[1], "{free:?}");
}
