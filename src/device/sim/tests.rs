use super::*;
use crate::device::Device;

const LEN: u64 = 128;

fn leaked(byte: u8) -> HostBytes {
    HostBytes::from_static(Box::leak(vec![byte; LEN as usize].into_boxed_slice()))
}

fn sim() -> (Sim, DevicePtr, HostBytes) {
    let mut sim = Sim::new(Order::CopiesFirst);
    let at = sim.alloc(LEN).unwrap();
    (sim, at, leaked(7))
}

/// The texts of what was found.
fn found(sim: &mut Sim) -> Vec<String> {
    sim.take_problems()
        .iter()
        .map(Violation::to_string)
        .collect()
}

#[test]
fn what_is_ordered_is_right() {
    let (mut sim, at, old) = sim();
    let new = leaked(8);
    sim.bring(at, old).unwrap();
    let arrived = sim.record_copy().unwrap();
    sim.compute_wait(&arrived).unwrap();
    sim.kernel(0, &[(at, old)]).unwrap();
    let read = sim.record_compute().unwrap();
    sim.copy_wait(&read).unwrap();
    sim.bring(at, new).unwrap();
    let arrived = sim.record_copy().unwrap();
    assert_eq!(sim.is_done(&arrived), Ok(false));
    sim.compute_wait(&arrived).unwrap();
    sim.kernel(1, &[(at, new)]).unwrap();
    assert_eq!(sim.verdict(), Ok(()));
    assert_eq!(sim.is_done(&arrived), Ok(true));
}

/// The bytes are right in this order of the streams, and it is reported all the same.
#[test]
fn a_kernel_that_does_not_wait_for_its_copy_is_a_race() {
    let (mut sim, at, bytes) = sim();
    sim.bring(at, bytes).unwrap();
    sim.kernel(5, &[(at, bytes)]).unwrap();
    assert_eq!(
        found(&mut sim),
        [
            "race at 0x100000..0x100080: nothing orders kernel 5 (compute stream, call 2) \
          after copy 1 to the device (copy stream, call 2)"
        ]
    );
}

#[test]
fn a_copy_that_does_not_wait_for_a_reader_is_a_race() {
    let (mut sim, at, old) = sim();
    sim.order = Order::KernelsFirst;
    sim.bring(at, old).unwrap();
    sim.synchronize().unwrap();
    sim.kernel(5, &[(at, old)]).unwrap();
    sim.bring(at, leaked(8)).unwrap();
    let found = found(&mut sim);
    assert!(
        found.len() == 1
            && found[0].contains("nothing orders copy 2 to the device")
            && found[0].contains("after kernel 5"),
        "{found:?}"
    );
}

#[test]
fn memory_given_back_before_its_reader_is_a_race() {
    for discard in [false, true] {
        let (mut sim, at, bytes) = sim();
        sim.bring(at, bytes).unwrap();
        sim.synchronize().unwrap();
        sim.kernel(5, &[(at, bytes)]).unwrap();
        match discard {
            true => sim.discard(at, LEN).unwrap(),
            false => sim.free(at, LEN).unwrap(),
        }
        let found = sim.take_problems();
        // Copies go first here, so the kernel found poison as well.
        assert!(
            matches!(
                found[..],
                [Violation::Race { .. }, Violation::WrongBytes { .. }]
            ),
            "{found:?}"
        );
    }
}

#[test]
fn bytes_without_value_are_not_to_be_read() {
    let (mut sim, at, bytes) = sim();
    sim.kernel(0, &[(at, bytes)]).unwrap();
    sim.bring(at, bytes).unwrap();
    sim.bring(at.offset(64), bytes.slice(0..64)).unwrap();
    sim.synchronize().unwrap();
    sim.discard(at, 64).unwrap();
    sim.synchronize().unwrap();
    sim.kernel(1, &[(at.offset(64), bytes.slice(0..64))])
        .unwrap();
    sim.kernel(2, &[(at, bytes)]).unwrap();
    let found = found(&mut sim);
    // Copies went first: kernel 0 found the right bytes, and was reported all the same.
    assert_eq!(found.len(), 4, "{found:#?}");
    assert!(found[0].starts_with("kernel 0 ") && found[0].contains("nobody wrote"));
    assert!(found[1].starts_with("race"));
    assert!(found[2].starts_with("kernel 2 ") && found[2].contains("lost by giving the bytes up"));
    assert!(found[3].starts_with("kernel 2 ") && found[3].contains("from byte 0 on"));
}

/// What the calling thread has seen to be done needs no event.
#[test]
fn what_was_waited_for_or_asked_for_is_ordered() {
    for asks in [false, true] {
        let (mut sim, at, bytes) = sim();
        sim.bring(at, bytes).unwrap();
        let arrived = sim.record_copy().unwrap();
        sim.run();
        if asks {
            assert_eq!(sim.is_done(&arrived), Ok(true));
        }
        sim.kernel(0, &[(at, bytes)]).unwrap();
        assert_eq!(sim.take_problems().is_empty(), asks);
    }
}

#[test]
fn activations_are_ordered_by_the_compute_stream() {
    let mut sim = Sim::new(Order::CopiesFirst);
    let at = sim.alloc_scratch(LEN).unwrap();
    sim.upload(at, &[3; LEN as usize]).unwrap();
    sim.free_scratch(at, LEN).unwrap();
    let next = sim.alloc_scratch(LEN + 1).unwrap();
    assert_eq!(next, at);
    sim.zero(next, LEN + 1).unwrap();
    sim.upload(next.offset(1), &[9; 2]).unwrap();
    let other = sim.alloc_scratch(64).unwrap();
    sim.copy_across(other, next, 4).unwrap();
    let mut bytes = [1; 4];
    sim.download(other, &mut bytes).unwrap();
    assert_eq!(bytes, [0, 9, 9, 0]);
    assert_eq!((sim.live_scratch_bytes(), sim.live_bytes()), (LEN + 65, 0));
    sim.verdict().unwrap();
    sim.download(other, &mut [0; 5]).unwrap();
    assert!(matches!(
        sim.take_problems()[..],
        [Violation::Worthless { given_up: None, .. }]
    ));
}

#[test]
fn free_memory_in_pieces_does_not_serve_larger_ones() {
    let mut sim = Sim::new(Order::CopiesFirst);
    sim.limit_addresses(256);
    let blocks: Vec<_> = (0..4).map(|_| sim.alloc(64).unwrap()).collect();
    sim.free(blocks[0], 64).unwrap();
    sim.free(blocks[2], 64).unwrap();
    let refused = sim.alloc(128).unwrap_err().to_string();
    assert!(
        refused.contains("128 of 256 bytes are free, in pieces of at most 64"),
        "{refused}"
    );
    sim.free(blocks[1], 64).unwrap();
    assert_eq!(sim.alloc(192), Ok(blocks[0]));
    assert_eq!((sim.live_bytes(), sim.live_blocks()), (256, 2));
    sim.verdict().unwrap();
}

#[test]
fn more_than_the_budget_is_reported() {
    let mut sim = Sim::new(Order::CopiesFirst);
    sim.set_budget(LEN).unwrap();
    sim.alloc(LEN).unwrap();
    assert_eq!(sim.verdict(), Ok(()));
    sim.alloc(64).unwrap();
    assert_eq!(
        sim.take_problems(),
        [Violation::OverBudget {
            live: LEN + 64,
            budget: LEN
        }]
    );
}

#[test]
fn faults_hit_the_call_they_are_told() {
    let mut sim = Sim::new(Order::CopiesFirst);
    sim.fail_call("record_copy", 1);
    assert!(sim.record_copy().is_ok() && sim.record_compute().is_ok());
    let failed = sim.record_copy().err().unwrap();
    assert!(matches!(
        failed,
        Error::Device {
            call: "record_copy",
            ..
        }
    ));
    assert_eq!(
        (sim.failed_call(), sim.calls()),
        (Some(("record_copy", 3)), 3)
    );
    assert!(sim.record_copy().is_ok() && sim.pending_fault().is_none());
    sim.fail(SimFault {
        call: None,
        after: 1,
        lost: true,
    });
    assert!(sim.alloc(64).is_ok());
    assert!(sim.synchronize().is_err() && sim.alloc(64).is_err());
}

#[test]
fn an_endless_loop_of_its_caller_ends_as_an_error() {
    let mut sim = Sim::new(Order::CopiesFirst);
    let at = sim.alloc_scratch(64).unwrap();
    let failed = (0..1 << 21).find_map(|_| sim.zero(at, 64).err());
    assert!(matches!(failed, Some(Error::Device { call: "zero", .. })));
    sim.run();
    sim.zero(at, 64).unwrap();
}

#[test]
fn events_are_counted_and_belong_to_their_device() {
    let (mut sim, mut other) = (Sim::new(Order::CopiesFirst), Sim::new(Order::CopiesFirst));
    let live = sim.live_events();
    let events = (sim.record_copy().unwrap(), sim.record_compute().unwrap());
    assert_eq!(live.load(Ordering::Relaxed), 2);
    assert!(sim.copy_wait(&events.0).is_err() && sim.compute_wait(&events.1).is_err());
    assert!(other.compute_wait(&events.0).is_err());
    drop(sim);
    drop(events);
    assert_eq!(live.load(Ordering::Relaxed), 0);
}

#[test]
fn a_held_stream_lets_the_other_one_go_on() {
    let (mut sim, at, bytes) = sim();
    let hold = sim.hold(Actor::Copy);
    sim.bring(at, bytes).unwrap();
    let arrived = sim.record_copy().unwrap();
    sim.finish_compute().unwrap();
    sim.run();
    assert_eq!(sim.is_done(&arrived), Ok(false));
    let opener = std::thread::spawn(move || drop(hold));
    sim.synchronize().unwrap();
    opener.join().unwrap();
    assert_eq!(sim.is_done(&arrived), Ok(true));
}

/// It cannot be made through the trait: an event is recorded before it is waited for.
#[test]
fn streams_that_wait_for_each_other_are_reported() {
    let mut sim = Sim::new(Order::Random(1));
    sim.compute.push(Op::Wait(1));
    sim.copy.push(Op::Wait(1));
    assert!(sim.synchronize().is_err());
    assert_eq!(sim.problems, [Violation::Deadlock]);
    sim.problems.clear();
    // Dropped now it would find the same again.
    std::mem::forget(sim);
}

#[test]
#[should_panic(expected = "problems that nobody asked for:\nrace at")]
fn problems_cannot_be_forgotten() {
    let (mut sim, at, bytes) = sim();
    sim.bring(at, bytes).unwrap();
    sim.kernel(0, &[(at, bytes)]).unwrap();
}
