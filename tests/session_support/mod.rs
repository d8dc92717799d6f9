//! Small programs, and a driver that plays passes and checks the bytes behind every lease at every kernel.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod case;
pub mod code;
pub mod draw;
pub mod packed;

use draw::{Draw, Seeded};
use weightstream::aoti::hooks::PassHooks;
use weightstream::config::PolicyKind;
use weightstream::device::sim::Order;
use weightstream::device::{Device, DevicePtr, HostBytes, HostDevice, Sim};
use weightstream::error::{Error, Result};
use weightstream::schedule::Event::{self, Kernel, Probe, Release};
use weightstream::schedule::{Floor, Trace, WeightKind, WeightSpec};
use weightstream::session::Session;
use weightstream::store::{Constants, Method, Methods, StoreOptions, WeightLayout};

/// A program and the bytes of its constants, which differ from constant to constant.
#[derive(Debug, Clone)]
pub struct Model {
    pub constants: Constants,
    pub method: Method,
    pub bytes: Vec<Vec<u8>>,
    /// All of them one behind the other, as in a file; otherwise they lie apart.
    pub file: Option<Vec<u8>>,
}

/// `weights` are read through `probes`; `direct` constants come behind them.
pub fn model(weights: &[u64], direct: &[u64], probes: &[u32], events: &[Event]) -> Model {
    let spec = |kind| {
        move |(i, &bytes): (usize, &u64)| WeightSpec {
            fqn: format!("{kind:?}.{i}"),
            bytes,
            stored: bytes,
            kind,
        }
    };
    let specs = weights.iter().enumerate().map(spec(WeightKind::Weight));
    let specs: Vec<_> = specs
        .chain(direct.iter().enumerate().map(spec(WeightKind::Direct)))
        .collect();
    let trace = Trace::new(events.to_vec(), probes.to_vec(), specs.len()).unwrap();
    let byte = |w: usize, i: u64| (w as u64 * 37 + i * 11 + i / 256 + 1) as u8;
    let bytes = specs
        .iter()
        .enumerate()
        .map(|(w, s)| (0..s.bytes).map(|i| byte(w, i)).collect());
    let bytes = bytes.collect();
    let layout = |s: &WeightSpec| WeightLayout {
        dtype: 0,
        sizes: vec![s.bytes as i64],
        strides: vec![1],
    };
    let layouts = specs.iter().map(layout).collect();
    Model {
        constants: Constants { specs, staging: 0 },
        method: Method {
            layouts,
            trace,
            gather: Vec::new(),
            places: Vec::new(),
            share: 1,
        },
        bytes,
        file: None,
    }
}

/// Each weight read once by its own kernel, in order.
pub fn chain(weights: &[u64]) -> Model {
    let n = weights.len() as u32;
    let events: Vec<_> = (0..n)
        .flat_map(|i| [Probe(i), Kernel(i), Release(i)])
        .collect();
    model(weights, &[], &(0..n).collect::<Vec<_>>(), &events)
}

impl Model {
    pub fn program(&self) -> (Constants, Method) {
        (self.constants.clone(), self.method.clone())
    }

    /// The floor of these constants and this method on the simulator.
    pub fn floor(&self) -> Floor {
        let methods = Methods::from(self.program());
        methods.floor(case::GRANULE).unwrap()
    }

    /// The bytes must outlive the session: keep the model alive.
    pub fn host_bytes(&self) -> Vec<HostBytes> {
        let Some(file) = &self.file else {
            return self.bytes.iter().map(|b| host_bytes(b)).collect();
        };
        let mut rest = file.as_slice();
        let cut = |bytes: &Vec<u8>| {
            let (here, behind) = rest.split_at(bytes.len());
            rest = behind;
            host_bytes(here)
        };
        self.bytes.iter().map(cut).collect()
    }

    pub fn session<D: Device>(&self, device: D, budget: Option<u64>) -> Result<Session<D>> {
        self.session_by(PolicyKind::Lru, device, budget)
    }

    pub fn session_by<D: Device>(
        &self,
        policy: PolicyKind,
        device: D,
        budget: Option<u64>,
    ) -> Result<Session<D>> {
        let options = StoreOptions {
            budget,
            policy,
            times: None,
            ..StoreOptions::default()
        };
        Session::new(device, self.program(), self.host_bytes(), options)
    }

    pub fn sim(&self, order: Order, budget: Option<u64>) -> Session<Sim> {
        self.session(Sim::new(order), budget).unwrap()
    }

    /// On one block that the session divides.
    pub fn sim_in_one_block(&self, order: Order, budget: Option<u64>) -> Session<Sim> {
        self.session(Sim::in_one_block(order), budget).unwrap()
    }

    pub fn host(&self, budget: Option<u64>) -> Session<HostDevice> {
        self.session(HostDevice::new().unwrap(), budget).unwrap()
    }

    /// The weight's bytes behind probe `id`.
    pub fn read_by(&self, id: u32) -> &[u8] {
        &self.bytes[self.method.trace.weight(id) as usize]
    }
}

fn host_bytes(bytes: &[u8]) -> HostBytes {
    // SAFETY: the tests drop their sessions before their models, and never change a model's bytes.
    unsafe { HostBytes::new(bytes.as_ptr(), bytes.len() as u64) }
}

/// Devices on which a kernel can be issued that compares bytes when it runs.
pub trait Kernels: Device {
    /// Kernel `number` reads these bytes at these addresses. They outlive the device.
    fn kernel(&mut self, number: u32, reads: &[(DevicePtr, HostBytes)]);
    /// Runs what was issued; panics if anything was wrong: a kernel that read other bytes, or a race.
    fn check(&mut self);
}

impl Kernels for HostDevice {
    fn kernel(&mut self, number: u32, reads: &[(DevicePtr, HostBytes)]) {
        for (ptr, expected) in reads.iter().filter(|(_, e)| !e.is_empty()) {
            let len = expected.len() as usize;
            // SAFETY: the address comes from a probe whose lease is open, or is a direct constant's.
            let found = unsafe { std::slice::from_raw_parts(ptr.0 as *const u8, len) };
            // SAFETY: the bytes of a model, which outlives its sessions.
            let expected = unsafe { std::slice::from_raw_parts(expected.as_ptr(), len) };
            assert!(
                found == expected,
                "kernel {number} read other bytes than its weight's"
            );
        }
    }

    fn check(&mut self) {}
}

impl Kernels for Sim {
    fn kernel(&mut self, number: u32, reads: &[(DevicePtr, HostBytes)]) {
        Sim::kernel(self, number, reads).unwrap();
    }

    fn check(&mut self) {
        self.verdict()
            .unwrap_or_else(|problems| panic!("{problems}"));
    }
}

/// How a pass goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    Complete,
    /// Complete; what is still leased behind the last kernel ends in an order by this seed. The compiler does not fix
    /// it, and whoever holds a returned weight lets it go when it likes.
    CompleteIn(u64),
    /// An error before this event: open leases end in reverse, then the pass is ended.
    AbortAt(usize),
    /// The same, with a probe that is not the next one as the error.
    DivergeAt(usize),
    /// The same, once the memory of all that is not leased was taken before this event: one more kernel runs.
    GiveWayAt(usize),
}

impl Pass {
    /// Whether it ends without an error.
    pub fn is_complete(&self) -> bool {
        matches!(self, Pass::Complete | Pass::CompleteIn(_))
    }

    /// How many of `events` events happen.
    pub fn end(&self, events: usize) -> usize {
        match self {
            Pass::Complete | Pass::CompleteIn(_) => events,
            Pass::AbortAt(at) | Pass::DivergeAt(at) | Pass::GiveWayAt(at) => *at.min(&events),
        }
    }
}

/// Plays one pass. At each kernel the bytes behind all open leases, and all direct constants, are read.
pub fn play<D: Kernels>(model: &Model, session: &mut Session<D>, pass: Pass) -> Result<()> {
    let trace = &model.method.trace;
    let events = trace.events();
    let end = match pass {
        // The rest are leases that end.
        Pass::CompleteIn(_) => trace.tail(),
        _ => pass.end(events.len()),
    };
    session.begin_pass()?;
    let mut open: Vec<(u32, DevicePtr)> = Vec::new();
    for event in &events[..end] {
        match *event {
            Probe(id) => open.push((id, session.probe(i64::from(id))?)),
            Kernel(number) => kernel(model, session, number, &open),
            Release(id) => {
                open.retain(|(other, _)| *other != id);
                session.release(i64::from(id));
            }
        }
        session.validate()?;
    }
    match pass {
        Pass::DivergeAt(_) => wrong_probe(session)?,
        Pass::CompleteIn(seed) => Seeded(seed).shuffle(&mut open),
        Pass::GiveWayAt(_) => {
            session.give_way()?;
            kernel(model, session, u32::MAX, &open);
            assert!(
                session.probe(0).is_err(),
                "a read after the weights gave way"
            );
        }
        _ => {}
    }
    for (id, _) in open.into_iter().rev() {
        session.release(i64::from(id));
        session.validate()?;
    }
    session.end_pass(pass.is_complete())?;
    session.validate()
}

/// A probe that does not exist must be refused, whatever came before.
fn wrong_probe<D: Device>(session: &mut Session<D>) -> Result<()> {
    match session.probe(-1) {
        Err(Error::Divergence { .. }) => Ok(()),
        other => Err(Error::Internal(format!(
            "a wrong probe was answered with {other:?}"
        ))),
    }
}

/// The bytes behind all open leases and all direct constants are read.
pub fn kernel<D: Kernels>(
    model: &Model,
    session: &mut Session<D>,
    number: u32,
    open: &[(u32, DevicePtr)],
) {
    let leased = open.iter();
    let leased = leased.map(|(id, ptr)| (*ptr, host_bytes(model.read_by(*id))));
    let constants = model.bytes.iter().enumerate();
    let direct =
        constants.filter_map(|(i, b)| Some((session.store().direct_address(i)?, host_bytes(b))));
    let reads: Vec<_> = leased.chain(direct).collect();
    session.device_mut().kernel(number, &reads);
}
