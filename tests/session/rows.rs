//! Weights that one method reads by row and another one as a whole: rows that are asked for often come to the device, in the place of
//! others. Every kernel finds the bytes of its rows, and of the whole weights, whatever comes between.

use crate::session_support::case::GRANULE;
use crate::session_support::draw::{Draw, Seeded};
use crate::session_support::{model, Kernels, Model};
use weightstream::aoti::hooks::PassHooks;
use weightstream::config::PolicyKind;
use weightstream::device::sim::Order;
use weightstream::device::{DevicePtr, HostBytes, Sim};
use weightstream::schedule::Event::{self, Kernel, Probe, Release};
use weightstream::schedule::{Trace, WeightKind, WeightSpec};
use weightstream::session::Session;
use weightstream::store::{Methods, RowPlaces, StoreOptions, WeightLayout};
use weightstream::Result;

const ROWS: usize = 32;
const ROW: u64 = 128;
const WEIGHTS: usize = 4;

/// Method 0 reads all of each weight; methods 1 and 2 rows of it, by tables of their own.
struct Program {
    whole: Model,
    rows: [Model; 2],
}

/// The constant by which a method reads rows of a weight.
fn table_of(method: usize, weight: usize) -> usize {
    method * WEIGHTS + weight
}

impl Program {
    fn new() -> Program {
        let sizes = [ROWS as u64 * ROW; WEIGHTS];
        let ids: Vec<u32> = (0..WEIGHTS as u32).collect();
        let events: Vec<Event> = { ids.iter() }
            .flat_map(|&id| [Probe(id), Kernel(id), Release(id)])
            .collect();
        let mut whole = model(&sizes, &[], &ids, &events);
        for at in 0..2 * WEIGHTS {
            let table = vec![0; 8 * (2 * ROWS + 1)];
            whole.constants.specs.push(WeightSpec {
                fqn: format!("places.{at}"),
                bytes: table.len() as u64,
                stored: table.len() as u64,
                kind: WeightKind::Direct,
            });
            whole.bytes.push(table);
            whole.method.layouts.push(WeightLayout::default());
        }
        let count = whole.constants.specs.len();
        whole.method.trace = Trace::new(events, ids.clone(), count).unwrap();
        let rows = [1, 2].map(|method| {
            let mut rows = whole.clone();
            rows.method.gather.clone_from(&ids);
            let places = ids.iter().map(|&probe| RowPlaces {
                probe,
                constant: table_of(method, probe as usize) as u32,
                row_bytes: ROW,
            });
            rows.method.places = places.collect();
            rows
        });
        Program { whole, rows }
    }

    fn methods(&self) -> Methods {
        let all = [&self.whole, &self.rows[0], &self.rows[1]];
        Methods {
            constants: self.whole.constants.clone(),
            all: all.map(|model| model.method.clone()).to_vec(),
        }
    }

    /// With room for this share, in eighths, of what the floor leaves out.
    fn budget(&self, share: u64) -> u64 {
        let (methods, all) = (self.methods(), ROWS as u64 * ROW * WEIGHTS as u64);
        let floor = methods.floor(GRANULE).unwrap();
        floor.bytes() + (all + floor.direct - floor.bytes()) * share / 8
    }

    fn session<D: Kernels>(&self, device: D, share: u64) -> Session<D> {
        let options = StoreOptions {
            budget: Some(self.budget(share)),
            policy: PolicyKind::Planned,
            ..StoreOptions::default()
        };
        Session::new(device, self.methods(), self.whole.host_bytes(), options).unwrap()
    }

    fn row(&self, weight: usize, row: usize) -> HostBytes {
        let bytes = &self.whole.bytes[weight][row * ROW as usize..][..ROW as usize];
        // SAFETY: the tests drop their sessions before their programs, whose bytes never change.
        unsafe { HostBytes::new(bytes.as_ptr(), ROW) }
    }

    /// A pass of method 1 that asks for these rows of each weight, as its kernels do: by the tables. How many were on the device.
    fn ask<D: Kernels>(&self, session: &mut Session<D>, rows: &[usize]) -> Result<usize> {
        self.ask_by(1, session, rows)
    }

    fn ask_by<D: Kernels>(
        &self,
        method: usize,
        session: &mut Session<D>,
        rows: &[usize],
    ) -> Result<usize> {
        session.turn_to(method)?;
        session.begin_pass()?;
        let found = self.ask_each(method, session, rows);
        let ended = session.end_pass(found.is_ok());
        found.and_then(|found| ended.map(|()| found))
    }

    fn ask_each<D: Kernels>(
        &self,
        method: usize,
        session: &mut Session<D>,
        rows: &[usize],
    ) -> Result<usize> {
        let mut there = 0;
        for weight in 0..WEIGHTS {
            let read = session.probe(weight as i64)?;
            let table = session.store().direct_address(table_of(method, weight));
            let table = table.unwrap();
            let mut words = [0; 8 * (2 * ROWS + 1)];
            let device = session.device_mut();
            device.download(table, &mut words)?;
            let word = |at: usize| u64::from_le_bytes(words[8 * at..][..8].try_into().unwrap());
            assert_eq!(word(ROWS), table.0 + 8 * (ROWS as u64 + 1));
            for &row in rows {
                let at = DevicePtr(read.0.wrapping_add(word(row)));
                there += usize::from(word(row) != row as u64 * ROW);
                device.kernel(weight as u32, &[(at, self.row(weight, row))]);
                let count = (word(ROWS + 1 + row) + 1).to_le_bytes();
                device.upload(table.offset(8 * (ROWS + 1 + row) as u64), &count)?;
            }
            session.release(weight as i64);
        }
        Ok(there)
    }

    /// A pass of method 0.
    fn read<D: Kernels>(&self, session: &mut Session<D>) -> Result<()> {
        session.turn_to(0)?;
        session.begin_pass()?;
        let read = (0..WEIGHTS).try_for_each(|weight| {
            let at = session.probe(weight as i64)?;
            let row = |row| (at.offset(row as u64 * ROW), self.row(weight, row));
            let rows: Vec<_> = (0..ROWS).map(row).collect();
            session.device_mut().kernel(weight as u32, &rows);
            session.release(weight as i64);
            Ok(())
        });
        let ended = session.end_pass(read.is_ok());
        read.and(ended)
    }
}

/// Three different rows; some of the last ones are drawn most.
fn drawn(draw: &mut Seeded) -> Vec<usize> {
    let mut rows = Vec::new();
    while rows.len() < 3 {
        let row = match draw.one_in(4) {
            true => draw.below(ROWS as u64) as usize,
            false => ROWS - 1 - draw.below(5) as usize,
        };
        if !rows.contains(&row) {
            rows.push(row);
        }
    }
    rows
}

/// Requests of the last of `passes` passes that were served on the device, of all in those.
fn ask_often<D: Kernels>(
    program: &Program,
    session: &mut Session<D>,
    draw: &mut Seeded,
    passes: usize,
) -> f64 {
    let mut found = Vec::new();
    for _ in 0..passes {
        found.push(program.ask(session, &drawn(draw)).unwrap());
    }
    let last = &found[passes - passes / 4..];
    last.iter().sum::<usize>() as f64 / (last.len() * 3 * WEIGHTS) as f64
}

#[test]
fn rows_that_are_asked_for_come_to_the_device() {
    for seed in 0..8 {
        let (program, draw) = (Program::new(), &mut Seeded(seed));
        let mut session = program.session(Sim::new(Order::Random(seed)), 4);
        // Each weight has some rows at its head, and the last three are not among them.
        let there = |session: &mut Session<Sim>| {
            let first = program.ask(session, &[0, 1, 2]).unwrap();
            (first, program.ask(session, &[31, 30, 29]).unwrap())
        };
        assert_eq!(there(&mut session), (3 * WEIGHTS, 0));
        let hit = ask_often(&program, &mut session, draw, 198);
        assert!(hit > 0.7, "{hit}");
        // 200 passes began, and those before the last round are counted.
        let stats = session.stats();
        let counted = stats.row_hits + stats.row_misses;
        assert_eq!(counted, 192 * 3 * WEIGHTS as u64);
        assert!(stats.rows_moved >= 5 * WEIGHTS as u64, "{stats:?}");
        // The whole weight has its own rows again, and afterwards kernels are told so.
        program.read(&mut session).unwrap();
        assert_eq!(there(&mut session), (3 * WEIGHTS, 0));
        // What was asked for before comes sooner this time.
        let hit = ask_often(&program, &mut session, draw, 24);
        assert!(hit > 0.6, "{hit}");
        session.device_mut().check();
    }
}

/// One of the calls that may come between passes.
fn anything<D: Kernels>(
    program: &Program,
    session: &mut Session<D>,
    draw: &mut Seeded,
) -> Result<()> {
    match draw.below(20) {
        0..3 => program.read(session),
        3 => session.set_budget(program.budget(draw.below(9))),
        4 => session.copy_again(&[draw.below(WEIGHTS as u64) as u32]),
        5 => {
            session.turn_to(1)?;
            session.begin_pass()?;
            session.probe(0)?;
            session.release(0);
            session.end_pass(false)
        }
        _ => {
            for _ in 0..draw.between(1, 20) {
                let method = 1 + usize::from(draw.one_in(3));
                program.ask_by(method, session, &drawn(draw))?;
            }
            Ok(())
        }
    }
}

#[test]
fn every_kernel_finds_its_rows_whatever_comes_between() {
    let (program, mut moved) = (Program::new(), 0);
    for seed in 0..60 {
        let draw = &mut Seeded(seed);
        let order = match seed % 3 {
            0 => Order::KernelsFirst,
            1 => Order::CopiesFirst,
            _ => Order::Random(seed),
        };
        let mut session = program.session(Sim::new(order), draw.below(9));
        for _ in 0..40 {
            anything(&program, &mut session, draw).unwrap();
        }
        session.device_mut().check();
        moved += session.stats().rows_moved;
    }
    assert!(moved > 5_000, "{moved}");
}

/// A row that is on its way to its own place in the head is not there yet.
#[test]
fn a_whole_weight_waits_for_a_row_that_comes_home() {
    let program = Program::new();
    let mut session = program.session(Sim::new(Order::KernelsFirst), 4);
    // The tails of the first weights are copied for the next such pass: nothing else has to be waited for then.
    program.read(&mut session).unwrap();
    let others: Vec<usize> = (1..24).collect();
    let mut ask_until_rows_move = |row| {
        let moved = session.stats().rows_moved;
        let rows: Vec<usize> = others.iter().copied().chain([row]).collect();
        while session.stats().rows_moved == moved {
            program.ask(&mut session, &rows).unwrap();
        }
        assert_eq!(session.stats().rows_moved, moved + WEIGHTS as u64);
    };
    // It takes the place of the only row that nobody asks for, and that one its own place again.
    ask_until_rows_move(31);
    ask_until_rows_move(0);
    program.read(&mut session).unwrap();
    session.device_mut().check();
}

/// After a failure either nothing runs any more, or everything is right.
#[test]
fn no_failure_leaves_other_rows_behind() {
    let (program, mut poisoned) = (Program::new(), 0);
    for seed in 0..150 {
        let draw = &mut Seeded(seed);
        let mut session = program.session(Sim::new(Order::Random(seed)), 4);
        for _ in 0..30 {
            if draw.one_in(4) {
                let call = [
                    "bring",
                    "upload",
                    "download",
                    "record_copy",
                    "record_compute",
                ];
                let call = call[draw.below(5) as usize];
                session.device_mut().fail_call(call, draw.below(30));
            }
            // An error is one that was asked for.
            let _ = anything(&program, &mut session, draw);
            session.device_mut().fail(None);
        }
        poisoned += u64::from(session.store().check_usable().is_err());
        session.device_mut().check();
    }
    assert!((8..140).contains(&poisoned), "{poisoned}");
}
