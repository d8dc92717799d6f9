//! Graphs captured before anybody asks for them.
//!
//! ```text
//!  1. a pass over each shape, call by call     loads kernels, measures activations
//!  2. a capture over each shape                the largest first: the block grows once
//! ```
//! Where kernels are timed, nothing is captured before they were: more passes come first.
//!
//! The passes are over made-up inputs, so what they write to mutable buffers is undone: their bytes are read before the first pass
//! and written back after the last capture, also where one fails. A capture itself runs nothing.

use super::{ByGraph, GraphKey, PassGraphs};
use crate::config::{GRAPH_MB, GRAPH_SHAPES};
use crate::device::{Device, DevicePtr};
use crate::error::{bytes_text, Error, Result};
use crate::session::{Session, State};

/// Turns until the graph of a shape is there: kernels are timed in one more pass, and after a new plan another one fills the ring.
const MOST_PASSES: usize = 4;

/// A line of the log for each so many graphs.
const PER_LINE: usize = 16;

/// Passes over some shapes of one method, by number.
pub trait UpFront<D: Device> {
    /// What they run in.
    fn session(&mut self) -> &mut Session<D>;

    /// What messages call a shape.
    fn name(&self, shape: usize) -> String;

    /// What its graph is for, under the present plan.
    fn key(&mut self, shape: usize) -> GraphKey;

    /// Bytes of its inputs in the block.
    fn input_bytes(&self, shape: usize) -> u64;

    /// One complete pass, issued call by call.
    fn by_calls(&mut self, shape: usize) -> Result<()>;

    /// Captures a pass; whether its graph was kept.
    fn capture(&mut self, shape: usize) -> Result<bool>;
}

/// Captures the graph of each of `count` shapes. `buffers` are those that the passes may write; they hold afterwards what they
/// held before.
pub fn capture_up_front<D: Device>(
    passes: &mut impl UpFront<D>,
    count: usize,
    buffers: &[(DevicePtr, u64)],
) -> Result<()> {
    let kept = passes.session().read_buffers(buffers)?;
    let captured = capture_all(passes, count);
    let restored = passes.session().write_buffers(buffers, &kept);
    captured.and(restored)
}

fn capture_all<D: Device>(passes: &mut impl UpFront<D>, count: usize) -> Result<()> {
    for shape in 0..count {
        warm_up(passes, shape).map_err(|error| {
            error.at(|| format!("a pass over zeros, for the graph of {}", passes.name(shape)))
        })?;
    }
    let mut order: Vec<(u64, usize)> = Vec::with_capacity(count);
    for shape in 0..count {
        let key = passes.key(shape);
        let reach = passes.session().reach_of(&key)?;
        order.push((reach.saturating_add(passes.input_bytes(shape)), shape));
    }
    order.sort_by(|one, other| other.cmp(one));
    for (at, (_, shape)) in order.into_iter().enumerate() {
        let captured = capture_one(passes, shape, at);
        captured.map_err(|error| {
            error.at(|| format!("capturing the graph of {}", passes.name(shape)))
        })?;
        if (at + 1) % PER_LINE == 0 && at + 1 < count {
            log::info!("captured {} of {count} graphs", at + 1);
        }
    }
    Ok(())
}

fn warm_up<D: Device>(passes: &mut impl UpFront<D>, shape: usize) -> Result<()> {
    passes.by_calls(shape)?;
    let key = passes.key(shape);
    passes.session().saw(&key)
}

/// `before`: graphs that were captured up front so far.
fn capture_one<D: Device>(passes: &mut impl UpFront<D>, shape: usize, before: usize) -> Result<()> {
    for _ in 0..MOST_PASSES {
        let key = passes.key(shape);
        match passes.session().next_by_graph(&key)? {
            ByGraph::Replay => return Ok(()),
            ByGraph::Calls => warm_up(passes, shape)?,
            ByGraph::Capture => {
                let before_it = passes.session().count_graphs();
                // A graph that took another one's place is one too many.
                if passes.capture(shape)? && passes.session().count_graphs() > before_it {
                    return Ok(());
                }
                return Err(passes.session().too_many_graphs(before));
            }
        }
    }
    Err(Error::Internal(
        "passes over one shape do not leave the ring as the next one finds it".to_owned(),
    ))
}

impl<D: Device> Session<D> {
    /// Address and bytes of each mutable buffer of a state, or of the first one.
    pub fn buffers_of(&self, state: Option<&State>) -> Result<Vec<(DevicePtr, u64)>> {
        let specs = &self.store.constants().specs;
        let buffers = self.buffers().into_iter();
        let buffers = buffers.map(|index| (index, specs[index as usize].bytes));
        let buffers = buffers.filter(|(_, bytes)| *bytes > 0);
        let places = buffers.map(|(index, bytes)| Ok((self.buffer_at(state, index)?, bytes)));
        places.collect()
    }

    fn read_buffers(&mut self, buffers: &[(DevicePtr, u64)]) -> Result<Vec<Vec<u8>>> {
        self.finish_replays()?;
        let read = buffers.iter().map(|&(at, bytes)| {
            let mut kept = Vec::new();
            let reserved = kept.try_reserve_exact(bytes as usize);
            reserved.map_err(|_| Error::OutOfMemory {
                what: "a copy of the state while graphs are captured up front".to_owned(),
                bytes,
            })?;
            kept.resize(bytes as usize, 0);
            self.store.device.download(at, &mut kept).map(|()| kept)
        });
        read.collect()
    }

    fn write_buffers(&mut self, buffers: &[(DevicePtr, u64)], kept: &[Vec<u8>]) -> Result<()> {
        self.finish_replays()?;
        for (&(at, _), bytes) in buffers.iter().zip(kept) {
            self.store.device.upload(at, bytes)?;
        }
        self.store.device.finish_compute()
    }

    fn count_graphs(&self) -> usize {
        self.graphs
            .as_ref()
            .map_or(0, |graphs| graphs.kept().count())
    }

    fn too_many_graphs(&mut self, before: usize) -> Error {
        let cap = self.graphs.as_ref().map_or(0, PassGraphs::cap);
        Error::Option {
            key: GRAPH_SHAPES.to_owned(),
            what: format!(
                "asks for more graphs than may be kept: {before} of them fit into the {} of {GRAPH_MB}",
                bytes_text(cap)
            ),
        }
    }
}
