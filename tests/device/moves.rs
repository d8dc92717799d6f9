//! Memory that is seen in another way, with pages that keep their bytes: on `host`, `sim` and `plain` always, on `cuda` where
//! it was asked for.

use crate::device_support::{gpu, Bench, Mapping, Plain, Source};
use std::ops::Range;
use weightstream::device::{CudaDevice, Device, DevicePtr, HostDevice, Pages, Sim};
use weightstream::figures::{KeptPages, Piece, View};

/// Pages of the largest memory. On a GPU they are several units, the last of them in part.
const MOST: u64 = 60;

contract! {
    kept_pages_have_their_bytes
    a_move_to_the_same_view_keeps_everything
    a_smaller_memory_keeps_all_but_a_unit
}

struct Draw(u64);

impl Draw {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}

/// Memory in its own order, in pieces of random lengths, and some of them once more behind it.
fn view(draw: &mut Draw, pages: u64, page: u64) -> View {
    let mut cuts = vec![0];
    while *cuts.last().unwrap() < pages {
        let last = *cuts.last().unwrap();
        cuts.push((last + 1 + draw.below(25)).min(pages));
    }
    let mut parts: Vec<(u64, u64)> = cuts.windows(2).map(|pair| (pair[0], pair[1])).collect();
    for at in 0..parts.len() {
        if draw.below(3) == 0 {
            parts.push(parts[at]);
        }
    }
    let mut bytes = 0;
    let mut piece = |(start, end): (u64, u64)| {
        let at = bytes;
        bytes += (end - start) * page;
        Piece {
            at,
            memory: start * page,
            bytes: (end - start) * page,
        }
    };
    let pieces = parts.into_iter().map(&mut piece).collect();
    View {
        bytes,
        memory: pages * page,
        pieces,
    }
}

/// The address of a page of the memory: the last one that shows it.
fn address(at: DevicePtr, view: &View, memory: u64) -> DevicePtr {
    let shows = |piece: &&Piece| (piece.memory..piece.memory + piece.bytes).contains(&memory);
    let piece = view.pieces.iter().rfind(shows).unwrap();
    at.offset(piece.at + memory - piece.memory)
}

/// Fills every page, each with other bytes.
fn fill<D: Bench>(device: &mut D, at: DevicePtr, view: &View, source: &Source, page: u64) {
    for number in 0..view.memory / page {
        let to = address(at, view, number * page);
        let bytes = number * page..(number + 1) * page;
        device.bring(to, source.host(bytes)).unwrap();
    }
    device.synchronize().unwrap();
}

fn check<D: Bench>(device: &mut D, at: DevicePtr, expected: &[u8]) {
    let mut found = vec![0; expected.len()];
    device.download(at, &mut found).unwrap();
    assert!(found == expected);
}

/// Up to six runs of pages, by their new place; no page is in two of them.
fn runs(draw: &mut Draw, old: u64, new: u64, page: u64) -> Vec<KeptPages> {
    let (mut all, mut to) = (Vec::new(), draw.below(3));
    let mut taken = vec![false; old as usize];
    while to < new && all.len() < 6 {
        let from = draw.below(old);
        let free = taken[from as usize..].iter().take_while(|taken| !**taken);
        let pages = (1 + draw.below(30)).min(free.count() as u64).min(new - to);
        if pages == 0 {
            break;
        }
        taken[from as usize..][..pages as usize].fill(true);
        all.push(KeptPages {
            from: from * page,
            to: to * page,
            bytes: pages * page,
        });
        to += pages + draw.below(5);
    }
    all
}

fn is_lost(lost: &[Range<u64>], at: u64) -> bool {
    lost.iter().any(|range| range.contains(&at))
}

fn kept_pages_have_their_bytes<D: Bench>() {
    let mut draw = Draw(0x5EED);
    let mut device = Mapping::on(D::open(256 << 20));
    let page = Device::page(&device.device).unwrap();
    let source = Source::noise((MOST * page) as usize);
    for _ in 0..20 {
        let mut pages = 1 + draw.below(MOST);
        let mut seen = view(&mut draw, pages, page);
        let mut at = device.map(&seen).unwrap();
        for _ in 0..3 {
            fill(&mut device.device, at, &seen, &source, page);
            let wanted = 1 + draw.below(MOST);
            let next = view(&mut draw, wanted, page);
            let kept = runs(&mut draw, pages, wanted, page);
            let (moved, lost) = device.remap(at, &next, &kept);
            assert_eq!(device.live(), next.memory);
            for one in &kept {
                for offset in (0..one.bytes).step_by(page as usize) {
                    if !is_lost(&lost, one.to + offset) {
                        let from = one.from + offset;
                        let there = address(moved, &next, one.to + offset);
                        check(&mut device.device, there, source.bytes(from..from + page));
                    }
                }
            }
            (at, seen, pages) = (moved, next, wanted);
        }
        // All of it is writable, and seen wherever it shows.
        fill(&mut device.device, at, &seen, &source, page);
        for piece in &seen.pieces {
            let bytes = source.bytes(piece.memory..piece.memory + piece.bytes);
            check(&mut device.device, at.offset(piece.at), bytes);
        }
        device.unmap(at).unwrap();
        assert_eq!(device.live(), 0);
    }
}

fn a_move_to_the_same_view_keeps_everything<D: Bench>() {
    let mut draw = Draw(7);
    let mut device = Mapping::on(D::open(256 << 20));
    let page = Device::page(&device.device).unwrap();
    let source = Source::noise((MOST * page) as usize);
    let seen = view(&mut draw, MOST, page);
    let at = device.map(&seen).unwrap();
    fill(&mut device.device, at, &seen, &source, page);
    let kept = KeptPages {
        from: 0,
        to: 0,
        bytes: MOST * page,
    };
    let (moved, lost) = device.remap(at, &seen, &[kept]);
    assert_eq!(lost, []);
    for piece in &seen.pieces {
        let bytes = source.bytes(piece.memory..piece.memory + piece.bytes);
        check(&mut device.device, moved.offset(piece.at), bytes);
    }
}

fn a_smaller_memory_keeps_all_but_a_unit<D: Bench>() {
    let mut device = Mapping::on(D::open(256 << 20));
    let page = Device::page(&device.device).unwrap();
    let source = Source::noise((MOST * page) as usize);
    let plain = |pages: u64| View {
        bytes: pages * page,
        memory: pages * page,
        pieces: vec![Piece {
            at: 0,
            memory: 0,
            bytes: pages * page,
        }],
    };
    let unit = device.pages().unwrap().unit();
    let mut at = device.map(&plain(MOST)).unwrap();
    fill(&mut device.device, at, &plain(MOST), &source, page);
    for pages in [MOST - 1, MOST / 2 + 3, 17, 5, 1] {
        let kept = KeptPages {
            from: 0,
            to: 0,
            bytes: pages * page,
        };
        let (moved, gone) = device.remap(at, &plain(pages), &[kept]);
        // What has nothing to free first gives up one unit.
        let lost: u64 = gone.iter().map(|range| range.end - range.start).sum();
        assert!(lost <= unit, "{gone:?}");
        for at in (0..pages * page).step_by(page as usize) {
            if !is_lost(&gone, at) {
                check(
                    &mut device.device,
                    moved.offset(at),
                    source.bytes(at..at + page),
                );
            }
        }
        at = moved;
    }
}
