//! The ring against a stream that is played by a thread. No GPU is needed.

use super::super::stage_shape::{pieces, FEWEST_SLOTS, MB};
use super::super::stage_turns::reached;
use super::*;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Mutex;

const SLOT: u64 = 64;
const SHAPE: Shape = Shape {
    slots: 3,
    slot_bytes: SLOT,
};

/// Memory of a ring, and what plays the stream.
struct Rig {
    area: Area,
    _slots: Vec<u128>,
    marks: Vec<[u64; 8]>,
}

impl Rig {
    /// With all marks at `issued`.
    fn new(issued: u64) -> Rig {
        let mut slots = vec![0_u128; SHAPE.bytes() as usize / 16];
        let mut marks = vec![[0_u64; 8]; SHAPE.marks() as usize];
        // SAFETY: both are kept by the rig, which the tests drop after its readers; marks are as large as a line
        // each, and at multiples of 8, which is all that an atomic of 32 bits needs.
        let area =
            unsafe { Area::new(slots.as_mut_ptr().cast(), marks.as_mut_ptr().cast(), SHAPE) };
        for mark in 0..SHAPE.marks() {
            area.mark(mark).store(issued as u32, Ordering::Release);
        }
        Rig {
            area,
            _slots: slots,
            marks,
        }
    }

    /// A stream that copies what it is sent, in order, to the end of what it returns.
    fn stream(&self) -> (Sender<(StagePiece, usize)>, JoinHandle<Vec<u8>>) {
        assert_eq!(self.marks.len() as u64, SHAPE.marks());
        let (send, pieces): (_, Receiver<(StagePiece, usize)>) = channel();
        let area = self.area;
        let thread = std::thread::spawn(move || {
            let mut out = Vec::new();
            for (piece, len) in pieces {
                while !reached(
                    area.mark(piece.ready_mark()).load(Ordering::Acquire),
                    piece.number,
                ) {
                    std::thread::yield_now();
                }
                // SAFETY: ready, and not yet done: the slot is this side's.
                out.extend_from_slice(unsafe {
                    std::slice::from_raw_parts(area.slot(piece.slot), len)
                });
                area.mark(0).store(piece.number, Ordering::Release);
            }
            out
        });
        (send, thread)
    }
}

fn byte_at(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 | 1
}

fn content(range: Range<u64>) -> Vec<u8> {
    range.map(byte_at).collect()
}

/// What a test source does with a read.
type Rule = Box<dyn Fn(u64) -> Result<()> + Send + Sync>;

struct Source {
    rule: Rule,
    reads: AtomicU32,
}

impl Source {
    fn new(rule: impl Fn(u64) -> Result<()> + Send + Sync + 'static) -> Arc<Source> {
        Arc::new(Source {
            rule: Box::new(rule),
            reads: AtomicU32::new(0),
        })
    }

    fn reads(&self) -> u32 {
        self.reads.load(Ordering::Acquire)
    }
}

impl ReadAt for Source {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.reads.fetch_add(1, Ordering::AcqRel);
        // Something of it is there already when a read fails.
        into[0] = 0xee;
        (self.rule)(offset)?;
        for (at, byte) in (offset..).zip(into) {
            *byte = byte_at(at);
        }
        Ok(())
    }
}

/// Pushes the range in pieces, and tells the stream.
fn copy(readers: &Readers, stream: &Sender<(StagePiece, usize)>, range: Range<u64>) {
    for part in pieces(range.end - range.start, SLOT) {
        let len = part.end - part.start;
        let piece = readers.push(range.start + part.start, len);
        stream.send((piece, len as usize)).unwrap();
    }
}

/// Ends the test with an error if `body` hangs.
fn within_seconds(body: impl FnOnce() + Send + 'static) {
    let (done, ended) = channel();
    let thread = std::thread::spawn(move || {
        body();
        done.send(()).unwrap();
    });
    match ended.recv_timeout(Duration::from_secs(20)) {
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("it hangs"),
        _ => thread.join().unwrap(),
    }
}

#[test]
fn rings_are_divided_into_slots() {
    let shape = |total: u64| Shape::of(total).map(|shape| (shape.slots, shape.slot_bytes));
    assert_eq!(shape(8 * MB).unwrap(), (8, MB));
    assert_eq!(shape(20 * MB).unwrap(), (10, 2 * MB));
    assert_eq!(shape(63 * MB).unwrap(), (9, 7 * MB));
    assert_eq!(shape(256 * MB).unwrap(), (32, 8 * MB));
    assert_eq!(shape(1001 * MB).unwrap(), (125, 8 * MB));
    for total in 8..300 {
        let shape = Shape::of(total * MB).unwrap();
        assert!(shape.bytes() <= total * MB && shape.slots >= FEWEST_SLOTS);
        // What is left over is less than one slot.
        assert!(shape.bytes() + shape.slot_bytes > total * MB);
    }
    let text = Shape::of(7 * MB).unwrap_err().to_string();
    assert!(
        text.contains("weight_offload_staging_mb") && text.contains("at least 8 MB"),
        "{text}"
    );
}

#[test]
fn pieces_cover_a_copy() {
    let cut = |len| pieces(len, 10).collect::<Vec<_>>();
    assert_eq!(cut(0), []);
    assert_eq!(cut(10), [0..10_u64; 1]);
    assert_eq!(cut(25), [0..10, 10..20, 20..25]);
}

#[test]
fn copies_of_all_sizes_arrive_in_order() {
    within_seconds(|| {
        // The numbers of the pieces pass the end of 32 bits on the way.
        for issued in [0, u64::from(u32::MAX) - 40] {
            let rig = Rig::new(issued);
            let source = Source::new(|offset| {
                if byte_at(offset + 77) < 40 {
                    std::thread::sleep(Duration::from_micros(300));
                }
                Ok(())
            });
            let readers = Readers::start_behind(rig.area, source, 4, issued).unwrap();
            let (stream, copied) = rig.stream();
            let mut expected = Vec::new();
            let mut at = 0;
            for len in (0..400).map(|i| i * 37 % 300) {
                copy(&readers, &stream, at..at + len);
                expected.extend(content(at..at + len));
                at += len;
            }
            drop(stream);
            assert!(copied.join().unwrap() == expected, "from {issued}");
            readers.check().unwrap();
        }
    });
}

#[test]
fn a_slot_is_filled_again_only_after_it_was_copied() {
    within_seconds(|| {
        let rig = Rig::new(0);
        let source = Source::new(|_| Ok(()));
        let readers = Readers::start(rig.area, source.clone(), 4).unwrap();
        for n in 0..10 {
            readers.push(n * SLOT, SLOT);
        }
        // Three slots, and nobody copies anything away.
        settles_at(&source, 3);
        rig.area.mark(0).store(2, Ordering::Release);
        settles_at(&source, 5);
    });
}

/// However long it takes until there were so many reads, there are no more.
fn settles_at(source: &Source, reads: u32) {
    while source.reads() < reads {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(source.reads(), reads);
}

#[test]
fn pushing_does_not_wait_for_reads() {
    within_seconds(|| {
        let rig = Rig::new(0);
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock().unwrap();
        let held = Arc::clone(&gate);
        let source = Source::new(move |_| {
            drop(held.lock());
            Ok(())
        });
        let readers = Readers::start(rig.area, source, 2).unwrap();
        let (stream, copied) = rig.stream();
        copy(&readers, &stream, 0..100 * SLOT);
        drop(closed);
        drop(stream);
        assert!(copied.join().unwrap() == content(0..100 * SLOT));
    });
}

#[test]
fn a_failure_is_there_before_the_bytes_are_and_leaves_zeros() {
    within_seconds(|| {
        let rig = Rig::new(0);
        let source = Source::new(|offset| match offset / SLOT {
            5 | 7 => Err(Error::Io {
                file: "model.ptd".to_owned(),
                what: format!("piece {}", offset / SLOT),
            }),
            _ => Ok(()),
        });
        let readers = Readers::start(rig.area, source, 1).unwrap();
        let (stream, copied) = rig.stream();
        copy(&readers, &stream, 0..10 * SLOT);
        let piece = StagePiece { number: 6, slot: 2 };
        while !reached(rig.area.mark(piece.ready_mark()).load(Ordering::Acquire), 6) {
            std::hint::spin_loop();
        }
        let text = readers.check().unwrap_err().to_string();
        assert_eq!(text, "model.ptd: piece 5");
        drop(stream);
        let found = copied.join().unwrap();
        let mut expected = content(0..10 * SLOT);
        expected[5 * 64..6 * 64].fill(0);
        expected[7 * 64..8 * 64].fill(0);
        assert!(found == expected);
        // The first one stays.
        assert_eq!(readers.check().unwrap_err().to_string(), text);
    });
}

#[test]
fn a_reader_that_panics_is_a_failure_and_no_hang() {
    within_seconds(|| {
        let rig = Rig::new(0);
        let source = Source::new(|offset| {
            assert!(offset != 2 * SLOT, "a test's panic");
            Ok(())
        });
        let readers = Readers::start(rig.area, source, 2).unwrap();
        let (stream, copied) = rig.stream();
        copy(&readers, &stream, 0..6 * SLOT);
        drop(stream);
        copied.join().unwrap();
        assert!(matches!(readers.check(), Err(Error::Internal(_))));
    });
}

#[test]
fn the_end_lets_everybody_through() {
    within_seconds(|| {
        for queued in [0, 1, 3, 50] {
            let rig = Rig::new(0);
            let stopping = Arc::new(AtomicBool::new(false));
            let told = Arc::clone(&stopping);
            let source = Source::new(move |_| {
                while !told.load(Ordering::Acquire) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(())
            });
            let readers = Readers::start(rig.area, source.clone(), 2).unwrap();
            let (stream, copied) = rig.stream();
            copy(&readers, &stream, 0..queued * SLOT);
            drop(stream);
            let shared = Arc::clone(&readers.shared);
            let watcher = std::thread::spawn(move || {
                while !shared.turns.is_stopped() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                stopping.store(true, Ordering::Release);
            });
            drop(readers);
            watcher.join().unwrap();
            let copied = copied.join().unwrap();
            assert_eq!(copied.len() as u64, queued * SLOT);
            assert!(source.reads() <= 2, "only the reads that had begun");
        }
    });
}

/// A reader that is slow with an old piece must not take back what the end has let through.
#[test]
fn the_end_waits_for_reads_that_have_begun() {
    within_seconds(|| {
        let rig = Rig::new(0);
        let source = Source::new(|_| {
            std::thread::sleep(Duration::from_millis(100));
            Ok(())
        });
        let mut readers = Readers::start(rig.area, source, 3).unwrap();
        for n in 0..9 {
            readers.push(n * SLOT, SLOT);
        }
        std::thread::sleep(Duration::from_millis(20));
        readers.stop();
        for slot in 0..3 {
            assert_eq!(rig.area.mark(2 + slot).load(Ordering::Acquire), 9);
        }
    });
}
