//! Pools under random sequences of calls, each followed by `validate()` and compared with an oracle.

use super::draw::Draw;
use std::collections::BTreeMap;
use weightstream::device::sim::Order;
use weightstream::device::{Device, DevicePtr, PageAccess, Sim};
use weightstream::error::{Error, Result};
use weightstream::memory::{Arena, Pool, StreamOrdered};

const GRANULE: u64 = 64;

type Verdict = std::result::Result<(), String>;

/// Drives a pool on a simulated device whose calls fail at times.
pub fn play_pool(draw: &mut impl Draw, steps: usize) -> Verdict {
    let cap = GRANULE * draw.between(1, 64);
    let mut sim = Sim::new(Order::Random(draw.next()));
    sim.set_budget(cap).map_err(|e| e.to_string())?;
    sim.limit_addresses(cap);
    let mut pool: Box<dyn Pool<Sim>> = match draw.one_in(2) {
        true => Box::new(Arena::open(&mut sim, cap).map_err(|e| e.to_string())?),
        false => Box::new(StreamOrdered::new(cap, PageAccess::Read)),
    };
    let mut live: BTreeMap<u64, u64> = BTreeMap::new();
    let mut peak = 0;
    for _ in 0..steps {
        // Whatever the last step armed and did not meet.
        sim.fail(None);
        if draw.one_in(8) {
            sim.fail_call(
                ["alloc", "free", "discard"][draw.below(3) as usize],
                draw.below(3),
            );
        }
        match draw.below(8) {
            0..4 => {
                let bytes = GRANULE * draw.below(20);
                let used: u64 = live.values().sum();
                judge_take(pool.take(&mut sim, bytes), bytes, cap - used, &mut live)?;
            }
            4..7 => {
                let pick = draw.below(live.len().max(1) as u64) as usize;
                let Some((&at, &bytes)) = live.iter().nth(pick) else {
                    continue;
                };
                match pool.give(&mut sim, DevicePtr(at), bytes) {
                    Ok(()) => {
                        live.remove(&at);
                    }
                    // Still handed out.
                    Err(Error::Device { .. }) => {}
                    Err(error) => return Err(format!("{bytes} bytes back: {error}")),
                }
            }
            _ => {
                pool.forget_peak();
                peak = 0;
            }
        }
        let used = live.values().sum();
        peak = peak.max(used);
        pool.validate()?;
        if (pool.used_bytes(), pool.peak_bytes()) != (used, peak) {
            let found = (pool.used_bytes(), pool.peak_bytes());
            return Err(format!(
                "used and peak: {found:?} instead of {:?}",
                (used, peak)
            ));
        }
    }
    sim.fail(None);
    for (at, bytes) in live {
        let given = pool.give(&mut sim, DevicePtr(at), bytes);
        given.map_err(|error| error.to_string())?;
    }
    if pool.is_one_block() {
        // All of it in one piece again.
        let all = pool
            .take(&mut sim, cap)
            .map_err(|error| error.to_string())?;
        let given = pool.give(&mut sim, all, cap);
        given.map_err(|error| error.to_string())?;
    }
    pool.close(&mut sim).map_err(|error| error.to_string())?;
    match sim.live_bytes() {
        0 => sim.verdict(),
        left => Err(format!("{left} bytes left behind")),
    }
}

/// `room` bytes were free.
fn judge_take(
    taken: Result<DevicePtr>,
    bytes: u64,
    room: u64,
    live: &mut BTreeMap<u64, u64>,
) -> Verdict {
    match taken {
        Ok(_) if bytes > room => Err(format!("{bytes} bytes were had of {room}")),
        Ok(DevicePtr::EMPTY) if bytes == 0 => Ok(()),
        Ok(ptr) => {
            let before = live.range(..ptr.0 + bytes).next_back();
            if before.is_some_and(|(at, len)| at + len > ptr.0) {
                return Err(format!("{bytes} bytes at {:#x} overlap others", ptr.0));
            }
            live.insert(ptr.0, bytes);
            Ok(())
        }
        Err(Error::Internal(_)) if bytes > room => Ok(()),
        Err(Error::OutOfMemory { .. }) if bytes <= room && !live.is_empty() => Ok(()),
        Err(Error::Device { what, .. }) if what == "injected" => Ok(()),
        Err(error) => Err(format!("{bytes} bytes of {room}: {error}")),
    }
}
