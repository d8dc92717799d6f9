//! A program of some methods and sessions on the simulated device, whose passes are captured and replayed. Each pass writes its
//! input to a buffer, so that what it gives depends on the passes before it.
#![allow(dead_code, reason = "each test binary uses a part of it")]

mod up_front;

use crate::session_support::case::GRANULE;
use crate::session_support::code::{other, program, Shape};
use crate::session_support::draw::{Draw, Seeded};
use crate::session_support::{self, chain, Model};
use std::collections::HashMap;
use weightstream::aoti::hooks::PassHooks;
use weightstream::config::PolicyKind;
use weightstream::device::sim::Order;
use weightstream::device::{Device, DevicePtr, HostBytes, Sim};
use weightstream::schedule::{Event, WeightKind};
use weightstream::session::{ByGraph, CapturedPass, Ends, GraphKey, Session, State};
use weightstream::store::{Methods, StoreOptions};
use weightstream::Result;

/// An input of so many rows of 64 bytes.
pub type Rows = u64;

/// A program of some methods and sessions. The order of the fields is the order in which they end.
pub struct Rig {
    pub session: Session<Sim>,
    /// Of the sessions: the first one's lies with the direct constants.
    pub states: Vec<Option<State>>,
    /// What their buffers hold, by session and constant.
    pub expected: Vec<Vec<Vec<u8>>>,
    /// Where each graph leaves its output.
    pub outputs: HashMap<GraphKey, DevicePtr>,
    pub methods: Vec<Model>,
    pub draw: Seeded,
}

/// What a pass is told to do.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    pub method: usize,
    pub session: usize,
    pub rows: Rows,
}

pub fn host_bytes(bytes: &[u8]) -> HostBytes {
    // SAFETY: a rig ends its session before its models, and never changes a model's bytes.
    unsafe { HostBytes::new(bytes.as_ptr(), bytes.len() as u64) }
}

/// Some constants that a program loads for good are buffers that it writes.
pub fn with_buffers(mut model: Model) -> Option<Model> {
    let direct = |kind| kind == WeightKind::Direct;
    let mut specs = model.constants.specs.iter_mut();
    let buffer = specs.find(|spec| direct(spec.kind) && spec.bytes > 0)?;
    buffer.kind = WeightKind::Mutable;
    Some(model)
}

pub fn drawn(draw: &mut Seeded) -> Vec<Model> {
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
pub fn with_buffer(weights: &[u64]) -> Model {
    let probes: Vec<u32> = (0..weights.len() as u32).collect();
    let chain = chain(weights);
    let events = chain.method.trace.events();
    let mut model = session_support::model(weights, &[256], &probes, events);
    model.constants.specs[weights.len()].kind = WeightKind::Mutable;
    model
}

/// Methods of twelve weights of several pages each.
pub fn regular(methods: usize) -> Vec<Model> {
    vec![with_buffer(&[1024; 12]); methods]
}

pub fn all(methods: &[Model]) -> Methods {
    Methods {
        constants: methods[0].constants.clone(),
        all: methods.iter().map(|model| model.method.clone()).collect(),
    }
}

/// `share` 0 is the floor, 1000 everything.
pub fn budget(methods: &[Model], share: u64) -> u64 {
    let all = all(methods);
    let least = all.floor(GRANULE).unwrap().bytes();
    least + all.everything(GRANULE).saturating_sub(least) * share / 1000
}

impl Rig {
    pub fn new(methods: Vec<Model>, page: Option<u64>, share: u64, seed: u64) -> Rig {
        let mut sim = Sim::in_one_block(Order::Random(seed));
        sim.set_page(page);
        Rig::on(sim, methods, share, seed)
    }

    pub fn on(sim: Sim, methods: Vec<Model>, share: u64, seed: u64) -> Rig {
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

    pub fn regular(methods: usize, share: u64) -> Rig {
        let mut rig = Rig::new(regular(methods), Some(256), share, 7);
        rig.session.allow_capture().unwrap();
        rig
    }

    pub fn add_session(&mut self) {
        self.states.push(Some(self.session.new_state().unwrap()));
        self.expected.push(self.methods[0].bytes.clone());
    }

    /// The index and the place of the buffer of a session.
    pub fn buffer(&self, session: usize) -> (usize, DevicePtr) {
        let mutable = |kind| kind == WeightKind::Mutable;
        let specs = &self.methods[0].constants.specs;
        let index = specs.iter().position(|spec| mutable(spec.kind)).unwrap();
        let at = match &self.states[session] {
            Some(state) => state.address(index),
            None => self.session.store().direct_address(index),
        };
        (index, at.unwrap())
    }

    pub fn key(&mut self, call: Call) -> GraphKey {
        self.session.turn_to(call.method).unwrap();
        let shapes = vec![(0, vec![call.rows as i64])];
        self.session
            .graph_key(0, self.states[call.session].as_ref(), shapes)
    }

    /// Bytes of a buffer that a pass of so many rows writes.
    pub fn written(&self, index: usize, rows: Rows) -> u64 {
        self.methods[0].constants.specs[index].bytes.min(rows * 64)
    }

    /// A pass: its output is its input and what the buffer held; then the buffer gets the input's first bytes. It fails before
    /// event `end`, if there is one.
    pub fn issue(&mut self, call: Call, input: DevicePtr, end: Option<usize>) -> Result<Issued> {
        let mut issued = Issued::new();
        let (index, buffer) = self.buffer(call.session);
        let (bytes, held) = (call.rows * 64, self.written(index, call.rows));
        // Where it lay in the memory of the input, the output would be another one.
        let first = issued.take(&mut self.session, 64)?;
        self.session.zero_on_device(first, 64)?;
        let output = issued.take(&mut self.session, bytes + held)?;
        issued.output = output;
        self.session.copy_on_device(output, input, bytes)?;
        self.session
            .copy_on_device(output.offset(bytes), buffer, held)?;
        self.session.copy_on_device(buffer, input, held)?;
        issued.wrote = true;
        issued.live.remove(0);
        self.session.free_activation(first, 64);
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
    pub fn kernel(&mut self, method: usize, number: u32, open: &[(u32, DevicePtr)]) {
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
    pub fn pass(
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

    pub fn input(&mut self, rows: Rows) -> Vec<u8> {
        (0..rows * 64).map(|_| self.draw.next() as u8).collect()
    }

    /// What the pass gives for this input, now; then the buffer holds what it leaves there.
    pub fn expect(&mut self, call: Call, input: &[u8]) -> Vec<u8> {
        let (index, _) = self.buffer(call.session);
        let held = self.written(index, call.rows) as usize;
        let buffer = &mut self.expected[call.session][index];
        let output = [input, &buffer[..held]].concat();
        buffer[..held].copy_from_slice(&input[..held]);
        output
    }

    /// Call by call, whatever graphs there are. `end`: it fails there.
    pub fn by_calls(&mut self, call: Call, end: Option<usize>) {
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
    pub fn run(&mut self, call: Call, end: Option<usize>) -> ByGraph {
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

    pub fn capture(
        &mut self,
        key: &GraphKey,
        call: Call,
        end: Option<usize>,
    ) -> Option<(CapturedPass<Sim>, Ends)> {
        self.try_capture(key, call, end).unwrap()
    }

    /// `None`: it was abandoned before the event `end`.
    pub fn try_capture(
        &mut self,
        key: &GraphKey,
        call: Call,
        end: Option<usize>,
    ) -> Result<Option<(CapturedPass<Sim>, Ends)>> {
        let bytes = call.rows * 64;
        let at = self.session.begin_capture_of(key, bytes)?;
        let mut output = DevicePtr::EMPTY;
        self.pass(call, at, end, |_, found| output = found)?;
        if end.is_some() {
            self.session.abandon_capture()?;
            return Ok(None);
        }
        let pass = self.session.end_capture()?;
        self.outputs.insert(key.clone(), output);
        let ends = Ends {
            inputs: vec![Some((at, bytes))],
            outputs: Vec::new(),
        };
        Ok(Some((pass, ends)))
    }

    pub fn replay(&mut self, key: &GraphKey, call: Call) {
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

    pub fn check(&mut self) {
        self.session.device_mut().verdict().unwrap();
    }

    /// Another session in the place of the second one.
    pub fn end_session(&mut self) {
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
pub struct Issued {
    pub output: DevicePtr,
    pub wrote: bool,
    pub open: Vec<(u32, DevicePtr)>,
    pub live: Vec<(DevicePtr, u64)>,
}

impl Issued {
    pub fn new() -> Issued {
        Issued {
            output: DevicePtr::EMPTY,
            wrote: false,
            open: Vec::new(),
            live: Vec::new(),
        }
    }

    pub fn take(&mut self, session: &mut Session<Sim>, bytes: u64) -> Result<DevicePtr> {
        let ptr = session.alloc_activation(bytes)?;
        self.live.push((ptr, bytes));
        Ok(ptr)
    }

    pub fn unwind(self, session: &mut Session<Sim>) {
        for (id, _) in self.open.into_iter().rev() {
            session.release(i64::from(id));
        }
        for (ptr, bytes) in self.live {
            session.free_activation(ptr, bytes);
        }
    }
}

/// Runs each of these shapes twice, and the second time by a graph.
pub fn capture_all(rig: &mut Rig, rows: impl Iterator<Item = Rows>) {
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
