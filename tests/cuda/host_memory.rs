//! The ways in which weights are held on the host for a GPU: whatever the way, the right bytes arrive; what
//! cannot be read is an error before anything is believed; and nothing hangs.

use crate::device_support::{gpu, Bench, Source};
use crate::session_support::{chain, Model};
use std::ops::Range;
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weightstream::aoti::hooks::PassHooks;
use weightstream::config::PolicyKind;
use weightstream::device::cuda::{RING_DEFAULT, RING_LEAST};
use weightstream::device::{
    CudaDevice, Device, HostBytes, HostFile, HostSource, HostStorage, WeightDevice,
};
use weightstream::session::Session;
use weightstream::store::StoreOptions;
use weightstream::{Error, Result};

const MB: u64 = 1 << 20;

/// The ring's marks take this much beside its slots.
const PAGE: u64 = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Mapped,
    Pinned,
    Staged,
}

const MODES: [Mode; 3] = [Mode::Mapped, Mode::Pinned, Mode::Staged];

impl Mode {
    /// Tells the device, and returns what the ranges are to be copied from.
    fn prepare(
        self,
        device: &mut CudaDevice,
        source: &Source,
        ranges: &[Range<u64>],
    ) -> Result<Vec<HostBytes>> {
        let mapped = ranges.iter().map(|range| source.host(range.clone()));
        let mapped = mapped.collect();
        match self {
            Mode::Mapped => {
                let cuts: Vec<u64> = ranges.iter().map(|range| range.start).collect();
                device.register_host(source.all(), &cuts)?;
                Ok(mapped)
            }
            Mode::Pinned => device.pin_host(&source.host_file(), ranges),
            Mode::Staged => device
                .stage_host(vec![source.host_file()], RING_LEAST)
                .map(|()| mapped),
        }
    }
}

/// Fails the test if `body` takes longer: a stream that waits for ever cannot be ended from here.
fn within(seconds: u64, body: impl FnOnce() + Send + 'static) {
    let (done, ended) = channel();
    let thread = std::thread::spawn(move || {
        body();
        done.send(()).unwrap();
    });
    match ended.recv_timeout(Duration::from_secs(seconds)) {
        Err(RecvTimeoutError::Timeout) => panic!("it hangs: more than {seconds} s"),
        _ => thread.join().unwrap(),
    }
}

fn copied(device: &mut CudaDevice, bytes: HostBytes) -> Result<Vec<u8>> {
    let size = bytes.len().next_multiple_of(device.granule());
    let at = device.alloc(size)?;
    let copied = device.bring(at, bytes).and_then(|()| {
        let event = device.record_copy()?;
        device.compute_wait(&event)?;
        let mut found = vec![0; bytes.len() as usize];
        device.download(at, &mut found)?;
        Ok(found)
    });
    device.free(at, size)?;
    copied
}

/// Ranges of many sizes, one after the other at pages, with their end.
fn ranges() -> (Vec<Range<u64>>, u64) {
    let sizes = [
        1,
        511,
        4096,
        MB - 1,
        MB,
        MB + 1,
        9 * MB + 7,
        3,
        30 * MB,
        0,
        2 * MB,
        17 * MB + 4095,
    ];
    let mut at = 0;
    let mut ranges = Vec::new();
    for size in sizes {
        ranges.push(at..at + size);
        at += size.next_multiple_of(PAGE);
    }
    (ranges, at)
}

/// Every size alone, and all at once: the ring is much smaller than the whole, and is gone round many times.
#[test]
fn the_right_bytes_arrive_however_they_are_held() {
    let Some(_gpu) = gpu("the_right_bytes_arrive_however_they_are_held") else {
        return;
    };
    let (ranges, end) = ranges();
    let source = Source::noise(end as usize);
    for mode in MODES {
        let mut device = CudaDevice::open(128 * MB);
        let held = mode.prepare(&mut device, &source, &ranges).unwrap();
        for (range, bytes) in ranges.iter().zip(&held) {
            let found = copied(&mut device, *bytes).unwrap();
            assert!(found == source.bytes(range.clone()), "{mode:?} {range:?}");
        }
        for pass in 0..8 {
            let began = Instant::now();
            let places: Vec<_> = held
                .iter()
                .map(|bytes| {
                    let at = device.alloc(bytes.len().next_multiple_of(512)).unwrap();
                    device.bring(at, *bytes).unwrap();
                    at
                })
                .collect();
            let issued = began.elapsed();
            let event = device.record_copy().unwrap();
            device.compute_wait(&event).unwrap();
            device.finish_compute().unwrap();
            println!(
                "{mode:?}, pass {pass}: issued in {issued:?}, there in {:?}",
                began.elapsed()
            );
            for ((range, bytes), at) in ranges.iter().zip(&held).zip(&places) {
                let mut found = vec![0; bytes.len() as usize];
                device.download(*at, &mut found).unwrap();
                assert!(found == source.bytes(range.clone()), "{mode:?} {range:?}");
                let size = bytes.len().next_multiple_of(512);
                device.free(*at, size).unwrap();
            }
        }
    }
}

/// Weights of two loads, and between them what the caller uploads, end to end in one piece of the heap.
#[test]
fn weights_in_the_heap_share_pages_with_others() {
    let Some(_gpu) = gpu("weights_in_the_heap_share_pages_with_others") else {
        return;
    };
    let sizes = [
        300_001, 200_000, 5000, 17, 65_537, 3, 700_003, 90_000, 20_000,
    ];
    let mut end = 0;
    let ranges = sizes.map(|size| {
        end += size;
        end - size..end
    });
    let bytes = Source::noise(end).bytes(0..end as u64).to_vec();
    let part = |range: &Range<usize>| {
        let part = &bytes[range.clone()];
        // SAFETY: the bytes are not written, and outlive the devices.
        unsafe { HostBytes::new(part.as_ptr(), part.len() as u64) }
    };
    let of = |turn: usize| ranges.iter().skip(turn).step_by(3).cloned();
    let mut devices = [CudaDevice::open(16 * MB), CudaDevice::open(16 * MB)];
    let mut held = Vec::new();
    for (turn, device) in devices.iter_mut().enumerate() {
        let parts: Vec<_> = of(turn).map(|range| part(&range)).collect();
        held.push(device.keep_parts(&parts).unwrap());
        assert!(device.host_mapped_bytes() > 0 && device.host_mapped_bytes() < end as u64);
    }
    let check = |turn: usize, device: &mut CudaDevice| {
        for (range, kept) in of(turn).zip(&held[turn]) {
            assert!(copied(device, *kept).unwrap() == bytes[range.clone()]);
            let inner = kept.slice(1..kept.len() - 1);
            assert!(copied(device, inner).unwrap() == bytes[range.start + 1..range.end - 1]);
        }
        for range in of(2) {
            let at = device.alloc_scratch(range.len() as u64).unwrap();
            device.upload(at, &bytes[range.clone()]).unwrap();
            let mut found = vec![0; range.len()];
            device.download(at, &mut found).unwrap();
            assert!(found == bytes[range]);
            device.free_scratch(at, found.len() as u64).unwrap();
        }
        let (range, table) = (of(turn).next().unwrap(), held[turn][0]);
        let at = device.in_place(table).unwrap().expect("a copy of it");
        let mut found = vec![0; range.len()];
        device.download(at, &mut found).unwrap();
        assert!(found == bytes[range]);
    };
    for (turn, device) in devices.iter_mut().enumerate() {
        check(turn, device);
    }
    let [first, mut second] = devices;
    drop(first);
    check(1, &mut second);
}

#[test]
fn what_is_held_is_counted() {
    let Some(_gpu) = gpu("what_is_held_is_counted") else {
        return;
    };
    let (ranges, end) = ranges();
    let source = Source::noise(end as usize);
    let counted = |mode: Mode| {
        let mut device = CudaDevice::open(MB);
        mode.prepare(&mut device, &source, &ranges).unwrap();
        let counters = device.counters().unwrap();
        (counters.host_mapped_bytes, counters.host_pinned_bytes)
    };
    assert_eq!(counted(Mode::Mapped), (end, 0));
    // The ranges lie behind each other, at pages, as they do in the copy.
    assert_eq!(counted(Mode::Pinned), (0, end));
    assert_eq!(counted(Mode::Staged), (0, RING_LEAST + PAGE));
    let mut device = CudaDevice::open(MB);
    device
        .stage_host(vec![source.host_file()], RING_DEFAULT)
        .unwrap();
    assert_eq!(device.host_pinned_bytes(), RING_DEFAULT + PAGE);
}

/// As modules of eager code have them: tensors of several files that begin anywhere, and memory beside them. Another device of
/// the process takes the same files meanwhile.
#[test]
fn several_files_and_memory_arrive_together() {
    let Some(_gpu) = gpu("several_files_and_memory_arrive_together") else {
        return;
    };
    within(120, || {
        let files = [
            Source::noise(20 * MB as usize + 5),
            Source::noise(3 * MB as usize),
        ];
        let memory: &'static [u8] = Vec::leak(files[0].bytes(0..5 * MB).to_vec());
        let memory = [&memory[17..], &memory[..1000]];
        let of_files = [
            (0, 8..9 * MB + 3),
            (1, 100..2 * MB),
            (0, 9 * MB + 3..20 * MB + 5),
            (1, 2 * MB..2 * MB + 1),
        ];
        let mut expected: Vec<&[u8]> = memory.to_vec();
        let mut parts = memory.map(HostBytes::from_static).to_vec();
        for (file, range) in of_files {
            expected.push(files[file].bytes(range.clone()));
            parts.push(files[file].host(range));
        }
        for held in [
            HostStorage::Mapped,
            HostStorage::Pinned,
            HostStorage::Staged { ring: RING_LEAST },
        ] {
            let open = || {
                let mut device = CudaDevice::open(128 * MB);
                let source = HostSource {
                    files: files.iter().map(Source::host_file).collect(),
                    parts: parts.clone(),
                };
                let places = device.prepare_source(source, held).unwrap();
                (device, places)
            };
            let (mut one, mut other) = (open(), open());
            for _ in 0..2 {
                for (device, places) in [&mut one, &mut other] {
                    for (at, (place, expected)) in places.iter().zip(&expected).enumerate() {
                        let found = copied(device, *place).unwrap();
                        assert!(found == *expected, "{held:?}, part {at}");
                    }
                }
            }
            drop(one);
            let (device, places) = &mut other;
            assert!(
                copied(device, places[2]).unwrap() == expected[2],
                "{held:?}"
            );
        }
    });
}

/// How much of the mapping at this address this process has touched, in kB.
fn touched(address: usize) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = maps.lines();
    lines
        .find(|line| line.starts_with(&format!("{address:x}-")))
        .expect("the mapping is there");
    let rss = lines.find(|line| line.starts_with("Rss:")).unwrap();
    rss.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Neither touches the mapping, and a pinned copy not even the file.
#[test]
fn copies_leave_the_mapping_alone() {
    let Some(_gpu) = gpu("copies_leave_the_mapping_alone") else {
        return;
    };
    let content: Vec<u8> = (0..40 * MB).map(|i| (i * 7 / 3) as u8).collect();
    for mode in [Mode::Pinned, Mode::Staged] {
        let (source, _) = Source::new([content.as_slice()]);
        let all = vec![0..40 * MB; 3];
        let mut device = CudaDevice::open(64 * MB);
        let held = mode.prepare(&mut device, &source, &all).unwrap();
        if mode == Mode::Pinned {
            assert_eq!(
                device.host_pinned_bytes(),
                40 * MB,
                "equal ranges are copied once"
            );
            source.truncate(0);
        }
        for bytes in &held {
            assert!(copied(&mut device, *bytes).unwrap() == content, "{mode:?}");
        }
        assert_eq!(touched(source.all().as_ptr().addr()), 0, "{mode:?}");
    }
}

#[test]
fn sessions_are_right_however_weights_are_held() {
    let Some(_gpu) = gpu("sessions_are_right_however_weights_are_held") else {
        return;
    };
    let model = chain(&(0..30).map(|i| 1 + i * 173_123).collect::<Vec<u64>>());
    let (source, offsets) = Source::new(model.bytes.iter().map(Vec::as_slice));
    let lens = model.bytes.iter().map(|bytes| bytes.len() as u64);
    let ranges: Vec<_> = offsets
        .iter()
        .zip(lens)
        .map(|(&at, len)| at..at + len)
        .collect();
    for mode in MODES {
        for budget in [None, Some(30 * MB), Some(200 * MB)] {
            let options = StoreOptions {
                budget,
                policy: PolicyKind::Lru,
                ..StoreOptions::default()
            };
            let mut session = Session::with_source(
                CudaDevice::new(0).unwrap(),
                model.program(),
                |device| {
                    let parts = mode.prepare(device, &source, &ranges)?;
                    Ok(parts.into_iter().map(Into::into).collect())
                },
                options,
            )
            .unwrap();
            for _ in 0..5 {
                pass(&model, &mut session);
            }
            println!("{mode:?}, {budget:?}: {:?}", session.stats());
        }
    }
}

/// Each weight is read as the stream gets there, and compared after the pass.
fn pass(model: &Model, session: &mut Session<CudaDevice>) {
    session.begin_pass().unwrap();
    let mut reads = Vec::new();
    for id in 0..model.bytes.len() as u32 {
        let at = session.probe(i64::from(id)).unwrap();
        let len = model.read_by(id).len() as u64;
        reads.push((id, session.device_mut().read_later(at, len)));
        session.release(i64::from(id));
    }
    session.end_pass(true).unwrap();
    for (id, later) in reads {
        let found = session.device_mut().finish(later);
        assert!(found == model.read_by(id), "weight {id}");
    }
}

/// The bytes of a file that was cut after it was opened: whoever waits for them gets the error, whoever comes later
/// too, and the device ends.
#[test]
fn a_file_that_was_cut_is_an_error_and_no_hang() {
    let Some(_gpu) = gpu("a_file_that_was_cut_is_an_error_and_no_hang") else {
        return;
    };
    within(60, || {
        let source = Source::noise(64 * MB as usize);
        source.truncate(33 * MB + 5);
        let mut device = CudaDevice::open(256 * MB);
        device
            .stage_host(vec![source.host_file()], RING_LEAST)
            .unwrap();
        let expected = |error: &Error| {
            let text = error.to_string();
            assert!(
                text.contains("weights.ptd: cannot read bytes ")
                    && text.contains(&format!("ends at byte {}", 33 * MB + 5)),
                "{text}"
            );
            assert!(matches!(error, Error::Io { .. }));
        };
        let at = device.alloc(64 * MB).unwrap();
        device.bring(at, source.host(0..64 * MB)).unwrap();
        let event = device.record_copy().unwrap();
        device.compute_wait(&event).unwrap();
        expected(&device.finish_compute().unwrap_err());
        expected(&device.download(at, &mut [0; 16]).unwrap_err());
        expected(&device.synchronize().unwrap_err());
        let again = device.bring(at, source.host(0..512));
        expected(&again.unwrap_err());
    });
}

#[test]
fn what_the_system_says_of_a_read_is_in_the_error() {
    let Some(_gpu) = gpu("what_the_system_says_of_a_read_is_in_the_error") else {
        return;
    };
    within(60, || {
        let source = Source::noise(20 * MB as usize);
        let unreadable = std::fs::OpenOptions::new().write(true).open(source.path());
        let file = HostFile::new("weights.ptd", Arc::new(unreadable.unwrap()), source.all());
        let mut device = CudaDevice::open(64 * MB);
        let pinned = device.pin_host(&file, &[0..MB, MB..20 * MB]).err().unwrap();
        device.stage_host(vec![file], RING_LEAST).unwrap();
        let staged = copied(&mut device, source.host(0..20 * MB)).unwrap_err();
        for error in [pinned, staged] {
            let text = error.to_string();
            assert!(
                text.contains("weights.ptd: cannot read bytes") && text.contains("os error 9"),
                "{text}"
            );
        }
    });
}

/// A session over such a file fails at load, or in the pass, and its handle says no word of a result.
#[test]
fn a_pass_over_bytes_that_cannot_be_read_fails() {
    let Some(_gpu) = gpu("a_pass_over_bytes_that_cannot_be_read_fails") else {
        return;
    };
    within(60, || {
        let model = chain(&[4 * MB; 12]);
        let (source, offsets) = Source::new(model.bytes.iter().map(Vec::as_slice));
        let ranges: Vec<_> = offsets.iter().map(|&at| at..at + 4 * MB).collect();
        let options = StoreOptions {
            budget: None,
            policy: PolicyKind::Lru,
            ..StoreOptions::default()
        };
        let load = || {
            Session::with_source(
                CudaDevice::new(0).unwrap(),
                model.program(),
                |device| {
                    let parts = Mode::Staged.prepare(device, &source, &ranges)?;
                    Ok(parts.into_iter().map(Into::into).collect())
                },
                options,
            )
        };
        let mut session = load().unwrap();
        pass(&model, &mut session);
        source.truncate(30 * MB);
        session.begin_pass().unwrap();
        let mut failed = None;
        for id in 0..12 {
            match session.probe(id) {
                Ok(_) => session.release(id),
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        let ended = session.end_pass(failed.is_none());
        let settled = session.device_mut().finish_compute();
        let error = failed.or(ended.err()).or(settled.err()).expect("an error");
        assert!(
            error.to_string().contains("ends at byte 31457280"),
            "{error}"
        );
        assert!(session.device_mut().finish_compute().is_err(), "it stays");
    });
}

#[test]
fn a_device_that_is_dropped_with_queued_copies_ends() {
    let Some(_gpu) = gpu("a_device_that_is_dropped_with_queued_copies_ends") else {
        return;
    };
    within(60, || {
        let source = Source::noise(64 * MB as usize);
        for copies in [0, 1, 40] {
            let mut device = CudaDevice::open(64 * MB);
            device
                .stage_host(vec![source.host_file()], RING_LEAST)
                .unwrap();
            let at = device.alloc(64 * MB).unwrap();
            for _ in 0..copies {
                device.bring(at, source.all()).unwrap();
            }
            let event = device.record_copy().unwrap();
            device.compute_wait(&event).unwrap();
            drop(event);
            let began = Instant::now();
            drop(device);
            println!(
                "{copies} copies of 64 MB queued: dropped in {:?}",
                began.elapsed()
            );
        }
        // And while the copy stream is held by somebody else.
        let mut device = CudaDevice::open(64 * MB);
        device
            .stage_host(vec![source.host_file()], RING_LEAST)
            .unwrap();
        let at = device.alloc(64 * MB).unwrap();
        let gate = device.hold_copies();
        device.bring(at, source.all()).unwrap();
        let dropper = std::thread::spawn(move || drop(device));
        std::thread::sleep(Duration::from_millis(100));
        drop(gate);
        dropper.join().unwrap();
    });
}

/// The calling thread goes on at once, also while nothing can be copied.
#[test]
fn issuing_copies_waits_for_nothing() {
    let Some(_gpu) = gpu("issuing_copies_waits_for_nothing") else {
        return;
    };
    let source = Source::noise(64 * MB as usize);
    let mut device = CudaDevice::open(64 * MB);
    device
        .stage_host(vec![source.host_file()], RING_LEAST)
        .unwrap();
    let at = device.alloc(64 * MB).unwrap();
    let gate = device.hold_copies();
    let began = Instant::now();
    for _ in 0..2 {
        device.bring(at, source.all()).unwrap();
    }
    let issued = began.elapsed();
    println!("128 pieces issued in {issued:?}");
    assert!(issued < crate::device_support::PATIENCE / 2, "{issued:?}");
    drop(gate);
    device.synchronize().unwrap();
}

#[test]
fn what_cannot_be_held_is_refused_by_name() {
    let Some(_gpu) = gpu("what_cannot_be_held_is_refused_by_name") else {
        return;
    };
    let source = Source::noise(2 * MB as usize);
    let other = Source::noise(MB as usize);
    let mut device = CudaDevice::open(16 * MB);
    let small = device.stage_host(vec![source.host_file()], RING_LEAST - 1);
    let text = small.unwrap_err().to_string();
    assert!(
        text.contains("weight_offload_staging_mb") && text.contains("at least 8 MB"),
        "{text}"
    );
    device
        .stage_host(vec![source.host_file()], RING_LEAST)
        .unwrap();
    let twice = device.stage_host(vec![source.host_file()], RING_LEAST);
    assert!(matches!(twice, Err(Error::Internal(_))));
    // Bytes of which the file knows nothing.
    let at = device.alloc(MB).unwrap();
    let stray = device.bring(at, other.host(0..512));
    assert!(matches!(stray, Err(Error::Internal(_))));
    let found = copied(&mut device, source.host(4096..MB)).unwrap();
    assert!(found == source.bytes(4096..MB), "the device goes on");

    // Registered twice: the driver's words, and which bytes.
    let mut device = CudaDevice::open(MB);
    device.register_host(source.all(), &[]).unwrap();
    let text = device
        .register_host(source.all(), &[])
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("cuMemHostRegister failed")
            && text.contains("mapped weights, read-only, on cuda:0"),
        "{text}"
    );
    assert_eq!(device.host_mapped_bytes(), 2 * MB);
}
