//! Rules that `make mutants` took out without any other test noticing. Each note says what was taken out.

use crate::session_support::{chain, model, Model};
use weightstream::aoti::hooks::PassHooks;
use weightstream::config::PolicyKind;
use weightstream::device::{Device, DevicePtr, HostBytes, Source};
use weightstream::schedule::Event::{self, Kernel, Probe, Release};
use weightstream::schedule::{WeightKind, WeightSpec};
use weightstream::session::Session;
use weightstream::store::StoreOptions;
use weightstream::{Error, Result};

/// Taken out: the question for a poisoned session in `check_running`, and that before looking ahead.
#[test]
fn a_session_that_lost_a_lease_end_stops_at_once() {
    let model = chain(&[640; 8]);
    for lost in 0..7 {
        let (mut session, _) = contiguous(&model, Gapless::new(false), None);
        session.begin_pass().unwrap();
        for id in 0..lost {
            session.probe(id).unwrap();
            session.release(id);
        }
        session.probe(lost).unwrap();
        let (copies, evictions) = (session.device().copies.len(), session.stats().evictions);
        session.device_mut().fail = Some(("record_compute", 0));
        session.release(lost);
        // Without the event nothing may be copied to where the readers of that weight still are.
        assert_eq!(session.stats().evictions, evictions);
        assert_eq!(session.device().copies.len(), copies);
        let next = session.probe(lost + 1);
        assert!(matches!(next, Err(Error::Poisoned(_))), "{next:?}");
    }
}

/// Taken out: the question for a poisoned session in `start_afresh`. The weight's memory must not be given up
/// while kernels may still read it, not even behind the pass.
#[test]
fn a_poisoned_session_keeps_its_memory() {
    let model = chain(&[640; 8]);
    let (mut session, _) = contiguous(&model, Gapless::new(false), None);
    session.begin_pass().unwrap();
    session.probe(0).unwrap();
    session.device_mut().fail = Some(("record_compute", 0));
    session.release(0);
    let (blocks, evictions) = (session.device().blocks.clone(), session.stats().evictions);
    session.end_pass(false).unwrap_err();
    assert_eq!(session.stats().evictions, evictions);
    assert_eq!(session.device().blocks, blocks);
}

/// Device memory that is handed out without a gap, and that nobody reads: copies are only noted.
struct Gapless {
    next: u64,
    one_block: bool,
    /// No copy may cross this place in host memory.
    border: usize,
    blocks: Vec<(u64, u64)>,
    copies: Vec<(u64, HostBytes)>,
    /// A call that fails, after so many that work.
    fail: Option<(&'static str, usize)>,
}

impl Gapless {
    fn new(one_block: bool) -> Self {
        Gapless {
            next: 1 << 20,
            one_block,
            border: 0,
            blocks: Vec::new(),
            copies: Vec::new(),
            fail: None,
        }
    }

    fn call(&mut self, call: &'static str) -> Result<()> {
        match &mut self.fail {
            Some((name, 0)) if *name == call => {
                let what = "injected".to_owned();
                Err(Error::Device { call, what })
            }
            Some((name, left)) if *name == call => {
                *left -= 1;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl Device for Gapless {
    type Event = ();
    type Graph = ();
    type Pages = std::convert::Infallible;

    fn name(&self) -> &'static str {
        "gapless"
    }

    fn granule(&self) -> u64 {
        64
    }

    fn prefers_one_block(&self) -> bool {
        self.one_block
    }

    fn copies_across(&self, src: HostBytes) -> bool {
        src.as_ptr().addr() != self.border
    }

    fn alloc(&mut self, bytes: u64) -> Result<DevicePtr> {
        let at = self.next;
        self.next += bytes;
        self.blocks.push((at, bytes));
        Ok(DevicePtr(at))
    }

    fn free(&mut self, ptr: DevicePtr, bytes: u64) -> Result<()> {
        self.blocks.retain(|block| *block != (ptr.0, bytes));
        Ok(())
    }

    fn alloc_scratch(&mut self, _bytes: u64) -> Result<DevicePtr> {
        unimplemented!("no activations here")
    }

    fn free_scratch(&mut self, _ptr: DevicePtr, _bytes: u64) -> Result<()> {
        unimplemented!("no activations here")
    }

    fn upload(&mut self, _dst: DevicePtr, _src: &[u8]) -> Result<()> {
        unimplemented!("no inputs here")
    }

    fn download(&mut self, _src: DevicePtr, _dst: &mut [u8]) -> Result<()> {
        unimplemented!("no outputs here")
    }

    fn bring(&mut self, dst: DevicePtr, src: impl Into<Source>) -> Result<()> {
        let src = src.into();
        self.call("bring")?;
        let inside = |&&(at, bytes): &&(u64, u64)| at <= dst.0 && dst.0 + src.len() <= at + bytes;
        assert!(
            self.blocks.iter().any(|block| inside(&block)),
            "{} bytes are copied to {}, beyond their allocation",
            src.len(),
            dst.0
        );
        self.copies.push((dst.0, src.stored()));
        Ok(())
    }

    fn record_compute(&mut self) -> Result<()> {
        self.call("record_compute")
    }

    fn copy_wait(&mut self, _event: &()) -> Result<()> {
        Ok(())
    }

    fn record_copy(&mut self) -> Result<()> {
        self.call("record_copy")
    }

    fn compute_wait(&mut self, _event: &()) -> Result<()> {
        Ok(())
    }

    fn is_done(&self, _event: &()) -> Result<bool> {
        Ok(true)
    }

    fn synchronize(&mut self) -> Result<()> {
        Ok(())
    }
}

/// A session over weights that lie one behind the other in host memory.
fn contiguous(
    model: &Model,
    device: Gapless,
    budget: Option<u64>,
) -> (Session<Gapless>, &'static [u8]) {
    let file: &'static [u8] = Vec::leak(model.bytes.concat());
    let file_bytes = HostBytes::from_static(file);
    let mut at = 0;
    let parts = model.bytes.iter().map(|bytes| {
        let start = at;
        at += bytes.len() as u64;
        file_bytes.slice(start..at)
    });
    let options = StoreOptions {
        budget,
        policy: PolicyKind::Lru,
        ..StoreOptions::default()
    };
    let session = Session::new(device, model.program(), parts.collect(), options);
    (session.unwrap(), file)
}

fn run_passes(model: &Model, session: &mut Session<Gapless>, passes: usize) {
    for _ in 0..passes {
        session.begin_pass().unwrap();
        for event in model.method.trace.events() {
            match *event {
                Probe(id) => drop(session.probe(i64::from(id)).unwrap()),
                Release(id) => session.release(i64::from(id)),
                Kernel(_) => {}
            }
        }
        session.end_pass(true).unwrap();
    }
}

/// Taken out: `is_one_block` in `queue_copy`. Neighbours in two allocations are none: a driver gives each its own
/// order, and may refuse a copy into both.
#[test]
fn a_copy_stays_in_its_allocation() {
    let model = chain(&[640; 8]);
    let (mut session, _) = contiguous(&model, Gapless::new(false), None);
    run_passes(&model, &mut session, 3);
    let copies = &session.device().copies;
    assert!(
        copies.windows(2).any(|two| two[0].0 + 640 == two[1].0),
        "no two copies were neighbours: the test shows nothing"
    );
}

/// Taken out: `copies_across` in `Run::joined`.
#[test]
fn a_copy_stays_on_its_side_of_a_border_in_host_memory() {
    let model = chain(&[640; 8]);
    let everything = Some(1 << 20);
    let (session, _) = contiguous(&model, Gapless::new(true), everything);
    assert_eq!(session.device().copies.len(), 1, "one run without a border");

    let file: &'static [u8] = Vec::leak(model.bytes.concat());
    let mut device = Gapless::new(true);
    device.border = file.as_ptr().addr() + 3 * 640;
    let all = HostBytes::from_static(file);
    let parts = (0..8).map(|i| all.slice(i * 640..(i + 1) * 640)).collect();
    let options = StoreOptions {
        budget: everything,
        policy: PolicyKind::Lru,
        ..StoreOptions::default()
    };
    let session = Session::new(device, model.program(), parts, options).unwrap();
    let lengths: Vec<_> = session.device().copies.iter().map(|c| c.1.len()).collect();
    assert_eq!(lengths, [3 * 640, 5 * 640]);
}

/// Taken out: the comparison of device addresses in `Run::joined`. Every weight is read from where it was put,
/// also when neighbours in the file have found places apart.
#[test]
fn a_joined_copy_puts_each_weight_where_its_probe_says() {
    // The small ones are wanted in turn with a large one, so that they come back to places of each other.
    let events: Vec<Event> = (0..8)
        .flat_map(|i| [Probe(i), Kernel(i), Release(i)])
        .collect();
    let sizes = [64, 192, 64, 640, 64, 128, 64, 640];
    let model = model(&sizes, &[], &[0, 1, 2, 3, 4, 5, 6, 7], &events);
    for budget in (1408..1856).step_by(64) {
        let (mut session, file) = contiguous(&model, Gapless::new(true), Some(budget));
        for _ in 0..4 {
            session.begin_pass().unwrap();
            for id in 0..8_i64 {
                let at = session.probe(id).unwrap().0;
                let start: u64 = sizes[..id as usize].iter().sum();
                assert_eq!(
                    source_of(&session.device().copies, at),
                    Some(file.as_ptr().addr() as u64 + start),
                    "probe {id} at a budget of {budget}"
                );
                session.release(id);
            }
            session.end_pass(true).unwrap();
        }
    }
}

/// Which host address the byte at `at` was last copied from.
fn source_of(copies: &[(u64, HostBytes)], at: u64) -> Option<u64> {
    let covers = |(dst, src): &&(u64, HostBytes)| *dst <= at && at < dst + src.len();
    let (dst, src) = copies.iter().rev().find(covers)?;
    Some(src.as_ptr().addr() as u64 + (at - dst))
}

/// Taken out: the comparison of host addresses in `HostBytes::followed_by`. Neighbours on the device that lie apart
/// in the file are two copies.
#[test]
fn a_gap_in_the_file_keeps_copies_apart() {
    let model = chain(&[640; 8]);
    let file: &'static [u8] = Vec::leak(vec![7; 8 * 704]);
    let all = HostBytes::from_static(file);
    let parts = (0..8).map(|i| all.slice(i * 704..i * 704 + 640)).collect();
    let options = StoreOptions {
        budget: Some(1 << 20),
        policy: PolicyKind::Lru,
        ..StoreOptions::default()
    };
    let device = Gapless::new(true);
    let session = Session::new(device, model.program(), parts, options).unwrap();
    let copies = &session.device().copies;
    assert_eq!(copies.len(), 8);
    assert!(copies.windows(2).all(|two| two[0].0 + 640 == two[1].0));
}

/// Taken out: undoing the plan whose last copy failed. The books must add up at once, and not only behind the pass,
/// which gives everything up.
#[test]
fn a_failed_last_copy_is_taken_back_at_once() {
    let model = chain(&[640; 8]);
    for call in ["bring", "record_copy"] {
        for after in 0..10 {
            for one_block in [false, true] {
                let (mut session, _) = contiguous(&model, Gapless::new(one_block), None);
                session.device_mut().fail = Some((call, after));
                session.begin_pass().unwrap();
                for id in 0..8 {
                    let served = session.probe(id);
                    session.validate().unwrap();
                    if served.is_err() {
                        break;
                    }
                    session.release(id);
                    session.validate().unwrap();
                }
            }
        }
    }
}

/// Taken out: emptying the memory when it is due. The places of these weights do not come back within the sixteen
/// passes that are rehearsed at load, so the seventeenth is the first one again.
#[test]
fn only_passes_that_were_rehearsed_are_run() {
    let model = chain(&[
        768, 320, 192, 192, 256, 448, 512, 192, 256, 128, 64, 1152, 256, 64, 64, 192,
    ]);
    let (mut session, _) = contiguous(&model, Gapless::new(true), Some(4928));
    let mut copied = Vec::new();
    for _ in 0..48 {
        run_passes(&model, &mut session, 1);
        copied.push(session.stats().bytes_copied_last_pass);
    }
    assert_eq!(copied[..16], copied[16..32]);
    assert_eq!(copied[..16], copied[32..]);
    assert_ne!(
        copied[0], copied[1],
        "an empty memory shows: the test could fail"
    );
}

/// Taken out: the saturation of sizes. They come from files.
#[test]
fn a_size_that_cannot_be_rounded_up_is_no_small_one() {
    let spec = WeightSpec {
        fqn: "w".to_owned(),
        bytes: u64::MAX - 1,
        stored: u64::MAX - 1,
        kind: WeightKind::Weight,
    };
    assert_eq!(spec.occupied(64), u64::MAX);
    let model = chain(&[64]);
    let mut program = model.program();
    program.0.specs[0].bytes = u64::MAX - 1;
    let options = StoreOptions {
        budget: Some(1 << 40),
        policy: PolicyKind::Lru,
        ..StoreOptions::default()
    };
    let refused = Session::new(
        Gapless::new(true),
        program,
        Vec::<HostBytes>::new(),
        options,
    )
    .err();
    assert!(
        matches!(refused, Some(Error::BudgetTooSmall { .. })),
        "{refused:?}"
    );
}
