//! One bed for every policy. It does with the actions of a policy what the store does, on a real device, and an oracle knows
//! which byte of which weight lies where.
//!
//! | file | what it is |
//! |---|---|
//! | `programs` | random programs: weights, and the trace of a pass |
//! | `played` | what a bed needs of a device beyond its trait |
//! | `oracle` | which byte of which weight is where |
//! | `bed` | a policy at work: demands, leases, failures |
//! | `actions` | what its actions do: copies, waits, evictions |
//! | `pools` | pools at work |
#![allow(dead_code, missing_docs, reason = "the fuzz targets use a part of it")]

mod actions;
pub mod bed;
#[path = "../session_support/draw.rs"]
pub mod draw;
pub mod oracle;
pub mod played;
pub mod pools;
pub mod programs;

use bed::PolicyBed;
use draw::{Bytes, Draw};
use played::Played;
use weightstream::config::PolicyKind;
use weightstream::device::Sim;

/// Plays a random program under the policy that was asked for, and panics where a rule is broken. Returns the name of the
/// policy that was chosen.
pub fn play<D: Played>(kind: PolicyKind, draw: &mut impl Draw, steps: usize) -> &'static str {
    let mut bed = PolicyBed::<D>::new(kind, draw);
    for _ in 0..steps {
        bed.step(draw);
        bed.check();
    }
    bed.end();
    bed.policy.name()
}

/// Plays any policy by what the bytes choose.
pub fn policy_of_bytes(bytes: &[u8]) {
    let mut draw = Bytes(bytes);
    let kind = draw.below(PolicyKind::ALL.len() as u64) as usize;
    play::<Sim>(PolicyKind::ALL[kind], &mut draw, bytes.len().min(300));
}

/// Plays any pool by what the bytes choose.
pub fn pools_of_bytes(bytes: &[u8]) {
    let played = pools::play_pool(&mut Bytes(bytes), bytes.len() / 3);
    assert_eq!(played, Ok(()));
}
