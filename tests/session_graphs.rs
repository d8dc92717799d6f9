//! Many graphs over one store: for each method, session, shape and plan its own, in one block of activations. Whatever is mixed
//! in between, each pass gives what the same pass would give call by call: from its input and from the state of its session.

mod session_support;

use proptest::prelude::*;
use session_support::case::GRANULE;
use session_support::code::{other, program, Shape};
use session_support::draw::{Draw, Seeded};
use session_support::{chain, Model};
use std::collections::{HashMap, HashSet};
use weightstream::aoti::hooks::PassHooks;
use weightstream::config::PolicyKind;
use weightstream::device::sim::Order;
use weightstream::device::{Device, DevicePtr, HostBytes, Sim};
use weightstream::figures::Link;
use weightstream::schedule::{Event, WeightKind};
use weightstream::session::{ByGraph, CapturedPass, Ends, GraphKey, Session, State, Stats};
use weightstream::store::{Methods, StoreOptions};
use weightstream::{Error, Result};

/// An input of so many rows of 64 bytes.
type Rows = u64;

/// A program of some methods and sessions. The order of the fields is the order in which they end.
struct Rig {
    session: Session<Sim>,
    /// Of the sessions: the first one's lies with the direct constants.
    states: Vec<Option<State>>,
    /// What their buffers hold, by session and constant.
    expected: Vec<Vec<Vec<u8>>>,
    /// Where each graph leaves its output.
    outputs: HashMap<GraphKey, DevicePtr>,
    methods: Vec<Model>,
    draw: Seeded,
}

/// What a pass is told to do.
#[derive(Debug, Clone, Copy)]
struct Call {
    method: usize,
    session: usize,
    rows: Rows,
}

fn host_bytes(bytes: &[u8]) -> HostBytes {
    // SAFETY: a rig ends its session before its models, and never changes a model's bytes.
    unsafe { HostBytes::new(bytes.as_ptr(), bytes.len() as u64) }
}

/// Some constants that a program loads for good are buffers that it writes.
fn with_buffers(mut model: Model) -> Option<Model> {
    let direct = |kind| kind == WeightKind::Direct;
    let mut specs = model.constants.specs.iter_mut();
    let buffer = specs.find(|spec| direct(spec.kind) && spec.bytes > 0)?;
    buffer.kind = WeightKind::Mutable;
    Some(model)
}

fn drawn(draw: &mut Seeded) -> Vec<Model> {
    let first = loop {
        let shape = Shape::ALL[draw.below(Shape::ALL.len() as u64) as usize];
        if let Some(model) = with_buffers(program(shape, draw)) {
            break model;
        }
    };
    let others: Vec<Model> = (0..draw.below(3)).map(|_| other(&first, draw)).collect();
    std::iter::once(first).chain(others).collect()
}

/// Weights that are read one after the other, and a buffer.
fn with_buffer(weights: &[u64]) -> Model {
    let probes: Vec<u32> = (0..weights.len() as u32).collect();
    let chain = chain(weights);
    let events = chain.method.trace.events();
    let mut model = session_support::model(weights, &[256], &probes, events);
    model.constants.specs[weights.len()].kind = WeightKind::Mutable;
    model
}

/// Methods of twelve weights of several pages each.
fn regular(methods: usize) -> Vec<Model> {
    vec![with_buffer(&[1024; 12]); methods]
}

fn all(methods: &[Model]) -> Methods {
    Methods {
        constants: methods[0].constants.clone(),
        all: methods.iter().map(|model| model.method.clone()).collect(),
    }
}

/// `share` 0 is the floor, 1000 everything.
fn budget(methods: &[Model], share: u64) -> u64 {
    let all = all(methods);
    let least = all.floor(GRANULE).unwrap().bytes();
    least + all.everything(GRANULE).saturating_sub(least) * share / 1000
}

impl Rig {
    fn new(methods: Vec<Model>, page: Option<u64>, share: u64, seed: u64) -> Rig {
        let mut sim = Sim::in_one_block(Order::Random(seed));
        sim.set_page(page);
        Rig::on(sim, methods, share, seed)
    }

    fn on(sim: Sim, methods: Vec<Model>, share: u64, seed: u64) -> Rig {
        let options = StoreOptions {
            budget: Some(budget(&methods, share)),
            policy: PolicyKind::Planned,
            ..StoreOptions::default()
        };
        let bytes = methods[0].host_bytes();
        let session = Session::new(sim, all(&methods), bytes, options).unwrap();
        Rig {
            session,
            states: vec![None],
            expected: vec![methods[0].bytes.clone()],
            outputs: HashMap::new(),
            methods,
            draw: Seeded(seed),
        }
    }

    fn regular(methods: usize, share: u64) -> Rig {
        let mut rig = Rig::new(regular(methods), Some(256), share, 7);
        rig.session.allow_capture().unwrap();
        rig
    }

    fn add_session(&mut self) {
        self.states.push(Some(self.session.new_state().unwrap()));
        self.expected.push(self.methods[0].bytes.clone());
    }

    /// The index and the place of the buffer of a session.
    fn buffer(&self, session: usize) -> (usize, DevicePtr) {
        let mutable = |kind| kind == WeightKind::Mutable;
        let specs = &self.methods[0].constants.specs;
        let index = specs.iter().position(|spec| mutable(spec.kind)).unwrap();
        let at = match &self.states[session] {
            Some(state) => state.address(index),
            None => self.session.store().direct_address(index),
        };
        (index, at.unwrap())
    }

    fn key(&mut self, call: Call) -> GraphKey {
        self.session.turn_to(call.method).unwrap();
        let shapes = vec![(0, vec![call.rows as i64])];
        self.session
            .graph_key(0, self.states[call.session].as_ref(), shapes)
    }

    /// Bytes of a buffer that a pass of so many rows writes.
    fn written(&self, index: usize, rows: Rows) -> u64 {
        self.methods[0].constants.specs[index].bytes.min(rows * 64)
    }

    /// A pass: its output is its input and what the buffer held; then the buffer gets the input's first bytes. It fails before
    /// event `end`, if there is one.
    fn issue(&mut self, call: Call, input: DevicePtr, end: Option<usize>) -> Result<Issued> {
        let mut issued = Issued::new();
        let (index, buffer) = self.buffer(call.session);
        let (bytes, held) = (call.rows * 64, self.written(index, call.rows));
        let output = issued.take(&mut self.session, bytes + held)?;
        issued.output = output;
        self.session.copy_on_device(output, input, bytes)?;
        self.session
            .copy_on_device(output.offset(bytes), buffer, held)?;
        self.session.copy_on_device(buffer, input, held)?;
        issued.wrote = true;
        let events = self.methods[call.method].method.trace.events().to_vec();
        for event in &events[..end.unwrap_or(events.len()).min(events.len())] {
            match *event {
                Event::Probe(id) => issued.open.push((id, self.session.probe(i64::from(id))?)),
                Event::Kernel(number) => {
                    let taken = 64 * (1 + u64::from(number) % 5) * call.rows;
                    let at = issued.take(&mut self.session, taken)?;
                    self.session.zero_on_device(at, taken)?;
                    self.kernel(call.method, number, &issued.open);
                    if issued.live.len() > 3 {
                        let (ptr, bytes) = issued.live.remove(1);
                        self.session.free_activation(ptr, bytes);
                    }
                }
                Event::Release(id) => {
                    issued.open.retain(|(other, _)| *other != id);
                    self.session.release(i64::from(id));
                }
            }
        }
        Ok(issued)
    }

    /// Reads what is leased, and the direct constants that nobody writes.
    fn kernel(&mut self, method: usize, number: u32, open: &[(u32, DevicePtr)]) {
        let model = &self.methods[method];
        let leased = open.iter();
        let leased = leased.map(|(id, ptr)| (*ptr, host_bytes(model.read_by(*id))));
        let direct = (model.constants.specs.iter().zip(&model.bytes).enumerate())
            .filter(|(_, (spec, _))| spec.kind == WeightKind::Direct)
            .filter_map(|(i, (_, b))| {
                Some((self.session.store().direct_address(i)?, host_bytes(b)))
            });
        let reads: Vec<_> = leased.chain(direct).collect();
        self.session.device_mut().kernel(number, &reads).unwrap();
    }

    /// Begins and ends it. What it wrote to the buffer, and `seen` of its output before its memory goes.
    fn pass(
        &mut self,
        call: Call,
        input: DevicePtr,
        end: Option<usize>,
        seen: impl FnOnce(&mut Session<Sim>, DevicePtr),
    ) -> Result<bool> {
        self.session.begin_pass()?;
        let issued = self.issue(call, input, end)?;
        let complete = end.is_none();
        if complete {
            seen(&mut self.session, issued.output);
        }
        let wrote = issued.wrote;
        issued.unwind(&mut self.session);
        self.session.end_pass(complete)?;
        self.session.validate()?;
        Ok(wrote)
    }

    fn input(&mut self, rows: Rows) -> Vec<u8> {
        (0..rows * 64).map(|_| self.draw.next() as u8).collect()
    }

    /// What the pass gives for this input, now; then the buffer holds what it leaves there.
    fn expect(&mut self, call: Call, input: &[u8]) -> Vec<u8> {
        let (index, _) = self.buffer(call.session);
        let held = self.written(index, call.rows) as usize;
        let buffer = &mut self.expected[call.session][index];
        let output = [input, &buffer[..held]].concat();
        buffer[..held].copy_from_slice(&input[..held]);
        output
    }

    /// Call by call, whatever graphs there are. `end`: it fails there.
    fn by_calls(&mut self, call: Call, end: Option<usize>) {
        self.session.turn_to(call.method).unwrap();
        let input = self.input(call.rows);
        let device = self.session.device_mut();
        let at = device.alloc_scratch(input.len() as u64).unwrap();
        device.upload(at, &input).unwrap();
        let mut found = Vec::new();
        let read = |session: &mut Session<Sim>, output: DevicePtr, bytes: usize| {
            let mut read = vec![0; bytes];
            session.read_from_device(output, &mut read).unwrap();
            read
        };
        let bytes = input.len() + self.written(self.buffer(call.session).0, call.rows) as usize;
        let see = |session: &mut Session<Sim>, output| found = read(session, output, bytes);
        if self.pass(call, at, end, see).unwrap() {
            let expected = self.expect(call, &input);
            assert!(end.is_some() || found == expected, "{call:?}: other bits");
        }
        let device = self.session.device_mut();
        device.free_scratch(at, input.len() as u64).unwrap();
        self.session.finish_kernels().unwrap();
    }

    /// As the delegate runs a pass: call by call, captured, or by its graph. `end`: it fails there, if it is captured.
    fn run(&mut self, call: Call, end: Option<usize>) -> ByGraph {
        let key = self.key(call);
        let how = self.session.next_by_graph(&key).unwrap();
        let kept = match how {
            ByGraph::Calls => false,
            ByGraph::Replay => true,
            ByGraph::Capture => match self.capture(&key, call, end) {
                Some((pass, ends)) => self.session.keep_graph(&key, pass, ends).unwrap(),
                None => {
                    self.session.forget_shapes(&key);
                    return how;
                }
            },
        };
        match kept {
            true => self.replay(&key, call),
            false => {
                self.by_calls(call, None);
                self.session.saw(&key).unwrap();
            }
        }
        how
    }

    fn capture(
        &mut self,
        key: &GraphKey,
        call: Call,
        end: Option<usize>,
    ) -> Option<(CapturedPass<Sim>, Ends)> {
        let bytes = call.rows * 64;
        let at = self.session.begin_capture_of(key, bytes).unwrap();
        let mut output = DevicePtr::EMPTY;
        self.pass(call, at, end, |_, found| output = found).unwrap();
        if end.is_some() {
            self.session.abandon_capture().unwrap();
            return None;
        }
        let pass = self.session.end_capture().unwrap();
        self.outputs.insert(key.clone(), output);
        let ends = Ends {
            inputs: vec![Some((at, bytes))],
            outputs: Vec::new(),
        };
        Some((pass, ends))
    }

    fn replay(&mut self, key: &GraphKey, call: Call) {
        let input = self.input(call.rows);
        let ends = self.session.ends_of(key).unwrap();
        let (at, bytes) = ends.inputs[0].unwrap();
        assert_eq!(bytes, input.len() as u64);
        self.session.device_mut().upload(at, &input).unwrap();
        self.session.replay_kept(key).unwrap();
        let expected = self.expect(call, &input);
        let mut found = vec![0; expected.len()];
        let output = self.outputs[key];
        self.session.read_from_device(output, &mut found).unwrap();
        assert!(found == expected, "{call:?}: other bits by a graph");
        self.session.finish_kernels().unwrap();
        self.session.validate().unwrap();
    }

    fn check(&mut self) {
        self.session.device_mut().verdict().unwrap();
    }

    /// Another session in the place of the second one.
    fn end_session(&mut self) {
        let state = self.states[1].take();
        for method in 0..self.methods.len() {
            self.session
                .forget_graphs_of(method, state.as_ref())
                .unwrap();
        }
        self.session.free_state(state.unwrap()).unwrap();
        self.states[1] = Some(self.session.new_state().unwrap());
        self.expected[1].clone_from(&self.methods[0].bytes);
    }
}

/// A pass that was issued, whose handles are there.
struct Issued {
    output: DevicePtr,
    wrote: bool,
    open: Vec<(u32, DevicePtr)>,
    live: Vec<(DevicePtr, u64)>,
}

impl Issued {
    fn new() -> Issued {
        Issued {
            output: DevicePtr::EMPTY,
            wrote: false,
            open: Vec::new(),
            live: Vec::new(),
        }
    }

    fn take(&mut self, session: &mut Session<Sim>, bytes: u64) -> Result<DevicePtr> {
        let ptr = session.alloc_activation(bytes)?;
        self.live.push((ptr, bytes));
        Ok(ptr)
    }

    fn unwind(self, session: &mut Session<Sim>) {
        for (id, _) in self.open.into_iter().rev() {
            session.release(i64::from(id));
        }
        for (ptr, bytes) in self.live {
            session.free_activation(ptr, bytes);
        }
    }
}

/// One random sequence. What it counted; `None` where nothing can be captured.
fn sequence(seed: u64, share: u64) -> Option<Stats> {
    let mut draw = Seeded(seed);
    let mut methods = drawn(&mut draw);
    for one in &mut methods {
        // Some reads are of tables of which rows are looked up.
        let reads = 0..one.method.trace.probes().len() as u32;
        one.method.gather = reads.filter(|_| draw.one_in(6)).collect();
    }
    let page = [None, Some(64), Some(256), Some(1024)][draw.below(4) as usize];
    let mut rig = Rig::new(methods, page, share, draw.next());
    if rig.session.allow_capture().is_err() {
        assert_eq!(rig.session.policy(), "lru");
        return None;
    }
    rig.add_session();
    let shapes = draw.between(1, 8);
    // Keys that were run to the end once, and methods that were since the plan changed.
    let (mut seen, mut steady) = (HashSet::new(), HashSet::new());
    for _ in 0..draw.between(8, 40) {
        let call = Call {
            method: draw.below(rig.methods.len() as u64) as usize,
            session: draw.below(2) as usize,
            rows: draw.between(1, shapes),
        };
        let name = (call.method, call.session, call.rows);
        let events = rig.methods[call.method].method.trace.events().len() as u64;
        let end = draw.below(events + 1) as usize;
        match draw.below(16) {
            0 => rig.by_calls(call, Some(end)),
            1 => {
                rig.by_calls(call, None);
                steady.insert(call.method);
            }
            2 => {
                let budget = budget(&rig.methods, draw.below(1100));
                let before = rig.session.stats().budget_bytes;
                match rig.session.set_budget(budget) {
                    Ok(()) if budget != before => steady.clear(),
                    Ok(()) | Err(Error::BudgetTooSmall { .. } | Error::Unsupported(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            3 => {
                rig.end_session();
                seen.retain(|(_, session, _)| *session == 0);
            }
            what => {
                let aborts = (what == 4).then_some(end);
                let how = rig.run(call, aborts);
                let may = seen.contains(&name) && steady.contains(&call.method);
                assert_eq!(how != ByGraph::Calls, may, "{call:?}: {how:?}");
                if how == ByGraph::Calls {
                    seen.insert(name);
                    steady.insert(call.method);
                }
                if how == ByGraph::Capture && aborts.is_some() {
                    seen.remove(&name);
                }
            }
        }
    }
    rig.check();
    let counted = rig.session.stats();
    assert!(counted.peak_bytes <= counted.budget_bytes, "{counted:?}");
    for method in 0..rig.methods.len() {
        for state in &rig.states {
            let gone = rig.session.forget_graphs_of(method, state.as_ref());
            gone.unwrap();
        }
    }
    let stats = rig.session.stats();
    assert_eq!((stats.graphs, stats.graph_bytes), (0, 0));
    let state = rig.states.pop().flatten().unwrap();
    rig.session.free_state(state).unwrap();
    assert_eq!(rig.session.device_mut().live_scratch_bytes(), 0);
    rig.check();
    Some(counted)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn graphs_calls_aborts_sessions_and_budgets_in_any_order(seed in any::<u64>(), share in 0..1100u64) {
        sequence(seed, share);
    }
}

/// The sequences above do all that they are meant to do.
#[test]
fn sequences_capture_replay_and_change_plans() {
    let all = (0..60).filter_map(|seed| sequence(seed, seed * 17));
    let all: Vec<Stats> = all.collect();
    let sum = |counter: fn(&Stats) -> u64| all.iter().map(counter).sum::<u64>();
    assert!(all.len() > 20, "{} of 60 plan", all.len());
    assert!(sum(|stats| stats.captures) > 100);
    assert!(sum(|stats| stats.replays) > 200);
    assert!(sum(|stats| stats.graphs_evicted) > 20);
    assert!(sum(|stats| stats.budget_changes) > 20);
}

#[test]
fn sixty_four_shapes_in_random_order_are_replayed() {
    let mut rig = Rig::regular(1, 500);
    let (mut calls, mut replays) = (HashMap::new(), (0, 0));
    let mut draw = Seeded(64);
    for _ in 0..1000 {
        let call = Call {
            method: 0,
            session: 0,
            rows: draw.between(1, 64),
        };
        let how = rig.run(call, None);
        let before = calls.entry(call.rows).or_insert(0);
        *before += 1;
        if *before > 2 {
            replays.0 += u64::from(how == ByGraph::Replay);
            replays.1 += 1;
        }
    }
    rig.check();
    assert!(
        replays.1 > 800 && replays.0 * 100 >= replays.1 * 99,
        "{replays:?}"
    );
    let stats = rig.session.stats();
    assert_eq!((stats.graphs, stats.captures), (64, 64));
    assert_eq!((stats.replays, stats.graphs_evicted), (1000 - 64, 0));
}

/// Runs each of these shapes twice, and the second time by a graph.
fn capture_all(rig: &mut Rig, rows: impl Iterator<Item = Rows>) {
    for rows in rows {
        for how in [ByGraph::Calls, ByGraph::Capture] {
            let call = Call {
                method: 0,
                session: 0,
                rows,
            };
            assert_eq!(rig.run(call, None), how, "{rows} rows");
        }
    }
}

#[test]
fn all_shapes_take_the_memory_of_the_largest() {
    let mut alone = Rig::regular(1, 500);
    capture_all(&mut alone, 100..101);
    let largest = alone.session.device_mut().live_scratch_bytes();
    assert!(largest > 100 * 64);
    for descending in [false, true] {
        let mut rig = Rig::regular(1, 500);
        match descending {
            true => capture_all(&mut rig, (1..101).rev()),
            false => capture_all(&mut rig, 1..101),
        }
        assert_eq!(rig.session.stats().graphs, 100);
        assert_eq!(rig.session.device_mut().live_scratch_bytes(), largest);
        assert_eq!(
            rig.session.activation_peak_bytes(),
            alone.session.activation_peak_bytes()
        );
        rig.check();
    }
}

/// Graphs that were captured before the block grew lie where they lay.
#[test]
fn a_block_grows_under_its_graphs() {
    let mut rig = Rig::regular(2, 500);
    rig.add_session();
    capture_all(&mut rig, [3, 1, 50, 7, 90].into_iter());
    for rows in [1, 90, 3, 50, 7, 1] {
        let call = Call {
            method: 0,
            session: 0,
            rows,
        };
        assert_eq!(rig.run(call, None), ByGraph::Replay);
    }
    assert_eq!(rig.session.stats().graphs_evicted, 0);
    rig.check();
}

/// Where memory cannot be mapped a larger block takes the place of a smaller one, and the graphs of that are captured again.
#[test]
fn without_pages_a_larger_shape_outdates_the_others() {
    let mut rig = Rig::new(regular(1), None, 1000, 3);
    rig.session.allow_capture().unwrap();
    capture_all(&mut rig, [2, 1, 5].into_iter());
    let shape = |rows| Call {
        method: 0,
        session: 0,
        rows,
    };
    assert_eq!(rig.session.stats().graphs, 3);
    for (rows, how) in [
        (5, ByGraph::Replay),
        (2, ByGraph::Capture),
        (1, ByGraph::Capture),
        (2, ByGraph::Replay),
        (5, ByGraph::Replay),
    ] {
        assert_eq!(rig.run(shape(rows), None), how, "{rows} rows");
    }
    assert_eq!(rig.session.stats().graphs_evicted, 2);
    rig.check();
}

/// A second replay would write to what the first one computed, before anybody has read it.
#[test]
fn two_replays_on_one_block_are_an_error() {
    let mut rig = Rig::regular(1, 500);
    capture_all(&mut rig, 1..3);
    let call = |rows| Call {
        method: 0,
        session: 0,
        rows,
    };
    let (first, second) = (rig.key(call(1)), rig.key(call(2)));
    let ends = rig.session.ends_of(&first).unwrap();
    let input = rig.input(1);
    let device = rig.session.device_mut();
    device.upload(ends.inputs[0].unwrap().0, &input).unwrap();
    rig.session.replay_kept(&first).unwrap();
    for key in [&first, &second] {
        let error = rig.session.replay_kept(key).unwrap_err().to_string();
        assert!(error.contains("another replay has the block"), "{error}");
        assert!(rig.session.ends_of(key).is_err());
    }
    rig.expect(call(1), &input);
    rig.session.finish_kernels().unwrap();
    rig.replay(&second, call(2));
    rig.replay(&first, call(1));
    assert_eq!(rig.session.stats().replays, 5);
    rig.check();
}

#[test]
fn graphs_keep_to_their_cap_and_the_oldest_go() {
    let mut rig = Rig::regular(1, 500);
    let shape = |rows| Call {
        method: 0,
        session: 0,
        rows,
    };
    capture_all(&mut rig, 1..2);
    let one = rig.session.stats().graph_bytes;
    assert!(one > 0);
    rig.session.raise_graph_cap(Some(3 * one)).unwrap();
    capture_all(&mut rig, 2..4);
    assert_eq!(rig.run(shape(1), None), ByGraph::Replay);
    capture_all(&mut rig, 4..5);
    let stats = rig.session.stats();
    assert_eq!((stats.graphs, stats.graphs_evicted), (3, 1));
    assert_eq!(stats.graph_bytes, 3 * one);
    for rows in [1, 3, 4] {
        assert_eq!(rig.run(shape(rows), None), ByGraph::Replay, "{rows} rows");
    }
    // The second one went: its shape has to come twice again.
    assert_eq!(rig.run(shape(2), None), ByGraph::Calls);
    assert_eq!(rig.run(shape(2), None), ByGraph::Capture);
    assert_eq!(rig.session.stats().graph_bytes, 3 * one);
    rig.check();
}

#[test]
fn a_graph_above_the_cap_is_not_kept() {
    let mut rig = Rig::regular(1, 500);
    rig.session.raise_graph_cap(Some(100)).unwrap();
    let call = Call {
        method: 0,
        session: 0,
        rows: 2,
    };
    let how: Vec<ByGraph> = (0..4).map(|_| rig.run(call, None)).collect();
    let calls = ByGraph::Calls;
    assert_eq!(how, [calls, ByGraph::Capture, calls, calls]);
    assert_eq!(rig.session.stats().graphs, 0);
    assert_eq!(rig.session.device_mut().live_scratch_bytes(), 0);
    rig.check();
}

/// A block that cannot grow is an error of that pass. Graphs of before stay, and the next pass over these shapes is right.
#[test]
fn a_block_that_cannot_grow_costs_one_pass() {
    let mut rig = Rig::regular(1, 500);
    let shape = |rows| Call {
        method: 0,
        session: 0,
        rows,
    };
    capture_all(&mut rig, 2..3);
    assert_eq!(rig.run(shape(9), None), ByGraph::Calls);
    let key = rig.key(shape(9));
    assert_eq!(rig.session.next_by_graph(&key), Ok(ByGraph::Capture));
    rig.session.device_mut().fail_call("grow_block", 0);
    assert!(rig.session.begin_capture_of(&key, 9 * 64).is_err());
    rig.session.forget_shapes(&key);
    assert_eq!(rig.run(shape(2), None), ByGraph::Replay);
    for how in [ByGraph::Calls, ByGraph::Capture, ByGraph::Replay] {
        assert_eq!(rig.run(shape(9), None), how);
    }
    assert_eq!(rig.run(shape(2), None), ByGraph::Replay);
    rig.check();
}

/// Each session's graphs write to its own buffers, and go with it.
#[test]
fn sessions_and_methods_have_graphs_of_their_own() {
    let mut rig = Rig::regular(2, 500);
    rig.add_session();
    let call = |method, session| Call {
        method,
        session,
        rows: 3,
    };
    let all = [(0, 0), (0, 1), (1, 0), (1, 1)];
    for how in [ByGraph::Calls, ByGraph::Capture, ByGraph::Replay] {
        for (method, session) in all {
            assert_eq!(rig.run(call(method, session), None), how);
        }
    }
    assert_eq!(rig.session.stats().graphs, 4);
    rig.end_session();
    assert_eq!(rig.session.stats().graphs, 2);
    assert_eq!(rig.session.stats().graphs_evicted, 0);
    assert_eq!(rig.run(call(0, 1), None), ByGraph::Calls);
    assert_eq!(rig.run(call(0, 0), None), ByGraph::Replay);
    rig.check();
}

/// After a change of the budget no graph of before is replayed, and the memory of all of them is given back.
#[test]
fn another_plan_has_other_graphs() {
    let mut rig = Rig::regular(1, 500);
    capture_all(&mut rig, 1..5);
    let more = budget(&rig.methods, 700);
    rig.session.set_budget(more).unwrap();
    let call = Call {
        method: 0,
        session: 0,
        rows: 2,
    };
    assert_eq!(rig.run(call, None), ByGraph::Calls);
    let stats = rig.session.stats();
    assert_eq!((stats.graphs, stats.graphs_evicted), (0, 4));
    assert_eq!(rig.session.device_mut().live_scratch_bytes(), 0);
    assert_eq!(rig.run(call, None), ByGraph::Capture);
    assert_eq!(rig.run(call, None), ByGraph::Replay);
    rig.check();
}

/// A plan that is replaced once kernels were timed outdates the ring: the pass after it fills the new one, and none is captured
/// before.
#[test]
fn nothing_is_captured_before_the_plan_is_the_last_one() {
    const SIZE: u64 = 128 << 10;
    let read = |at: u64| [0, 100, if at.is_multiple_of(4) { 2 * SIZE } else { 0 }];
    let mut sim = Sim::new(Order::Random(5));
    sim.set_link(Link {
        bytes_per_second: 1_000_000_000,
        ns_per_copy: 10,
    });
    sim.set_times((0..24).flat_map(read).collect());
    let mut rig = Rig::on(sim, vec![with_buffer(&[SIZE; 24])], 450, 5);
    rig.session.allow_capture().unwrap();
    let call = Call {
        method: 0,
        session: 0,
        rows: 2,
    };
    let (calls, replay) = (ByGraph::Calls, ByGraph::Replay);
    for how in [calls, calls, calls, ByGraph::Capture, replay, replay] {
        assert_eq!(rig.run(call, None), how);
    }
    assert_eq!(rig.session.stats().replans, 1);
    rig.check();
}
