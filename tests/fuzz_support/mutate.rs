//! Files to damage, and the damage: to single bytes, to numbers and offsets, to whole stretches. Mostly headers and
//! checksums are put right afterwards, so that what lies behind them is reached.

use super::bytes::{Rng, EDGES};
use super::files::{join, split, Target};
use super::{packed, records};
use crate::support::{payload, ptd, pte, Compiled, PteSpec};
use weightstream::format::{Ptd, Record};

/// A file as an export might write it, or one whose content is wrong here and there.
pub fn file(target: Target, rng: &mut Rng) -> Vec<u8> {
    match target {
        Target::Packed => return packed::file(rng),
        Target::PackedTable => return packed::table(rng),
        _ => {}
    }
    let (mut record, mut data) = records::valid(rng);
    if rng.one_in(3) {
        (0..1 + rng.below(2)).for_each(|_| records::damage(rng, &mut record));
    }
    if rng.one_in(4) && !data.segments.is_empty() {
        let segment = rng.below(data.segments.len()) as u32;
        data.share("tied", None, segment);
    }
    data.alignment = rng.pick(&[1, 16, 64, 4096]);
    match target {
        Target::Pte => {
            let library = rng.bytes(16);
            pte(&program(rng, PteSpec::new(&record, &library)))
        }
        Target::Ptd => ptd(&data),
        Target::Record => payload(&record),
        Target::Load => join(&payload(&record), &ptd(&data)),
        Target::Packed | Target::PackedTable => unreachable!("they have no record"),
    }
}

fn program(rng: &mut Rng, mut spec: PteSpec) -> PteSpec {
    if rng.one_in(3) {
        spec.delegates[0].inline = true;
    }
    if rng.one_in(4) {
        spec.delegates.push(Compiled {
            method: rng.pick(&["forward", "other"]).to_owned(),
            ..spec.delegates[0].clone()
        });
    }
    if rng.one_in(6) {
        spec.processed_at = Some((rng.below(3) as u8, rng.below(5) as u32));
    }
    if rng.one_in(6) {
        spec.with_input = vec![rng.pick(&spec.constants).0];
    }
    if rng.one_in(6) {
        spec.named_segment = Some(rng.below(4) as u32);
    }
    spec
}

/// Damages a file in up to four ways, mostly in one: much damage is refused by the first check.
pub fn damage(target: Target, bytes: &mut Vec<u8>, rng: &mut Rng) {
    for _ in 0..rng.pick(&[1, 1, 1, 2, 4]) {
        match target == Target::Packed && !rng.one_in(4) {
            true => packed::damage(bytes, rng),
            false => once(bytes, rng),
        }
    }
    if !rng.one_in(4) {
        repair(target, bytes);
    }
}

/// A place: in the header and root often, in the tables mostly, in the data now and then. Tables come first.
fn place(len: usize, rng: &mut Rng) -> usize {
    match rng.below(8) {
        0 | 1 => rng.below(len.min(64)),
        2 => rng.below(len),
        _ => rng.below(len.min(4096)),
    }
}

fn once(bytes: &mut Vec<u8>, rng: &mut Rng) {
    let len = bytes.len();
    if len < 8 {
        bytes.push(rng.next() as u8);
        return;
    }
    let at = place(len, rng);
    let aligned = (at & !3).min(len - 4);
    match rng.below(12) {
        0 => bytes[at] ^= 1 << rng.below(8),
        1 => bytes[at] = rng.next() as u8,
        2 => put(bytes, aligned, (rng.pick(&EDGES) as u32).to_le_bytes()),
        3 => put(
            bytes,
            aligned,
            (len as u32 ^ rng.below(8) as u32).to_le_bytes(),
        ),
        // Offsets that lead a little aside, or to where another one leads.
        4 | 5 => {
            let there = u32_at(bytes, aligned);
            let moved = there.wrapping_add(4 * rng.below(9) as u32).wrapping_sub(16);
            put(bytes, aligned, moved.to_le_bytes());
        }
        6 => {
            let from = (place(len, rng) & !3).min(len - 4);
            let led = u32_at(bytes, from).wrapping_add((from as u32).wrapping_sub(aligned as u32));
            put(bytes, aligned, led.to_le_bytes());
        }
        7 => put(
            bytes,
            (at & !7).min(len - 8),
            rng.pick(&EDGES).to_le_bytes(),
        ),
        // Two entries of a vtable.
        8 => {
            let other = (place(len, rng) & !1).min(len - 2);
            let first = (at & !1).min(len - 2);
            for i in 0..2 {
                bytes.swap(first + i, other + i);
            }
        }
        9 => {
            let count = 1 + rng.below(64.min(len - 1));
            let from = rng.below(len - count + 1);
            let piece = bytes[from..from + count].to_vec();
            let to = rng.below(len - count + 1);
            bytes[to..to + count].copy_from_slice(&piece);
        }
        10 => {
            let count = 4 * rng.below(17);
            let fresh = rng.bytes(count);
            bytes.splice(at..at, fresh);
        }
        _ => {
            let count = (4 * rng.below(17)).min(len - at);
            bytes.drain(at..at + count);
        }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..]
        .first_chunk()
        .map_or(0, |four| u32::from_le_bytes(*four))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    if let Some(place) = bytes.get_mut(at..at + N) {
        place.copy_from_slice(&value);
    }
}

/// Puts right what a check before the tables would refuse: identifiers, lengths in headers, checksums.
pub fn repair(target: Target, bytes: &mut Vec<u8>) {
    match target {
        Target::Pte => repair_pte(bytes),
        Target::Ptd => repair_ptd(bytes),
        Target::Record => put(bytes, 4, *b"WSR1"),
        Target::Load => repair_load(bytes),
        Target::Packed => packed::repair(bytes),
        Target::PackedTable => put(bytes, 0, *b"WSPACKED"),
    }
}

/// The segments end where the file does.
fn repair_pte(bytes: &mut [u8]) {
    put(bytes, 4, *b"ET12");
    if bytes.get(8..12) != Some(b"eh00") {
        return;
    }
    put(bytes, 12, 32_u32.to_le_bytes());
    let len = bytes.len() as u64;
    let end = u64_at(bytes, 16).unwrap_or(0).clamp(40, len.max(40));
    let base = u64_at(bytes, 24).unwrap_or(0).clamp(end, len.max(end));
    put(bytes, 16, end.to_le_bytes());
    put(bytes, 24, base.to_le_bytes());
    put(bytes, 32, len.saturating_sub(base).to_le_bytes());
}

fn repair_ptd(bytes: &mut [u8]) {
    put(bytes, 4, *b"FT01");
    put(bytes, 8, *b"FH01");
    put(bytes, 12, 40_u32.to_le_bytes());
    let len = bytes.len() as u64;
    let start = u64_at(bytes, 16).unwrap_or(0).clamp(40, len.max(40));
    let size = u64_at(bytes, 24)
        .unwrap_or(0)
        .min(len.saturating_sub(start));
    let base = u64_at(bytes, 32)
        .unwrap_or(0)
        .clamp(start + size, len.max(start + size));
    for (at, value) in [
        (16, start),
        (24, size),
        (32, base),
        (40, len.saturating_sub(base)),
    ] {
        put(bytes, at, value.to_le_bytes());
    }
}

/// Both parts, and the record's checksums of the data that is there now.
fn repair_load(bytes: &mut Vec<u8>) {
    let Some((record, data)) = split(bytes) else {
        return;
    };
    let (mut record, mut data) = (record.to_vec(), data.to_vec());
    repair(Target::Record, &mut record);
    repair_ptd(&mut data);
    if let (Ok(parsed), Ok(ptd)) = (
        Record::from_payload("payload", &record),
        Ptd::parse("w.ptd", &data),
    ) {
        for constant in &parsed.constants {
            let Some(entry) = ptd.entry(&constant.fqn) else {
                continue;
            };
            let right = i64::from(crc32fast::hash(&data[entry.range.clone()]));
            let recorded = i64::from(constant.crc32).to_le_bytes();
            if let Some(at) = record.windows(8).position(|eight| eight == recorded) {
                put(&mut record, at, right.to_le_bytes());
            }
        }
    }
    *bytes = join(&record, &data);
}
