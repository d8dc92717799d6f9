use super::*;
use crate::aoti::dtype::DType;
use crate::aoti::tensor::{Dims, Owner};
use crate::device::DevicePtr;
use proptest::prelude::*;

fn tensor(n: i64) -> Tensor {
    Tensor {
        dtype: DType::F32,
        offset: 0,
        dims: Dims::contiguous(&[n]).unwrap(),
    }
}

fn storage(owner: Owner, bytes: u64) -> Storage {
    Storage {
        owner,
        ptr: DevicePtr(64),
        bytes,
    }
}

#[test]
fn a_lease_ends_with_its_last_handle() {
    let mut slab = Slab::new();
    let first = slab
        .insert(storage(Owner::Lease(7), 40), tensor(10))
        .unwrap();
    let view = slab.share(first, tensor(4)).unwrap();
    assert_eq!(
        slab.delete(first).unwrap(),
        None,
        "the view still holds the lease"
    );
    assert_eq!(
        slab.delete(view).unwrap().map(|s| s.owner),
        Some(Owner::Lease(7))
    );
    assert_eq!(slab.live(), 0);
    slab.validate().unwrap();
}

#[test]
fn a_whole_window_has_a_storage_that_ends_with_it() {
    let mut slab = Slab::new();
    let lease = (Owner::Lease(3), DevicePtr(64));
    let nine = [1; 9];
    for (sizes, strides, bytes) in [
        (&[2i64, 3][..], &[10i64, 1][..], 52),
        (&nine, &nine, 4),
        (&[], &[], 4),
        (&[0, 5], &[5, 1], 0),
    ] {
        let handle = slab
            .insert_whole(lease, DType::F32, sizes, strides)
            .unwrap();
        let tensor = slab.tensor(handle).unwrap();
        assert_eq!(tensor.check_within(bytes), Ok(()));
        assert_eq!(
            (tensor.dims.sizes(), tensor.dims.strides()),
            (sizes, strides)
        );
        assert_eq!((tensor.dtype, tensor.offset), (DType::F32, 0));
        slab.validate().unwrap();
        let ended = slab.delete(handle).unwrap();
        assert_eq!(ended, Some(storage(Owner::Lease(3), bytes)));
    }
    slab.validate().unwrap();
}

#[test]
fn a_window_that_is_refused_leaves_nothing() {
    let mut slab = Slab::new();
    let lease = (Owner::Lease(3), DevicePtr(64));
    for (dtype, sizes, strides, why) in [
        (
            DType(99),
            &[2i64][..],
            &[1i64][..],
            "dtype number 99 is unknown",
        ),
        (DType::F32, &[2, 3], &[1], "2 sizes but 1 strides"),
        (DType::F32, &[-2], &[1], "-2 is negative"),
        (DType::F32, &[i64::MAX, 9], &[9, 1], "overflow"),
        (DType::F32, &[i64::MAX], &[1], "overflow"),
    ] {
        let refused = slab.insert_whole(lease, dtype, sizes, strides).unwrap_err();
        assert!(refused.contains(why), "{refused}");
        slab.validate().unwrap();
    }
    assert_eq!((slab.live(), slab.leftovers().len()), (0, 0));
}

#[test]
fn deleted_foreign_and_null_handles_are_errors() {
    let (mut slab, mut other) = (Slab::new(), Slab::new());
    let handle = slab
        .insert(storage(Owner::Borrowed, 40), tensor(10))
        .unwrap();
    let foreign = other
        .insert(storage(Owner::Borrowed, 40), tensor(10))
        .unwrap();
    assert!(slab
        .tensor(foreign)
        .unwrap_err()
        .contains("not a tensor handle of this program"));
    assert!(slab.delete(Handle::NULL).is_err());
    slab.delete(handle).unwrap();
    assert!(slab.tensor(handle).unwrap_err().contains("deleted before"));
    assert!(slab.delete(handle).is_err(), "deleted twice");
    let reused = slab
        .insert(storage(Owner::Borrowed, 40), tensor(10))
        .unwrap();
    assert_ne!(reused, handle, "the slot is the same, the handle is not");
    assert!(slab.tensor(handle).is_err());
    slab.validate().unwrap();
}

#[test]
fn windows_beyond_the_storage_are_refused() {
    let mut slab = Slab::new();
    assert!(slab
        .insert(storage(Owner::Borrowed, 39), tensor(10))
        .is_err());
    let handle = slab
        .insert(storage(Owner::Borrowed, 40), tensor(10))
        .unwrap();
    assert!(slab.share(handle, tensor(11)).is_err());
    assert_eq!(slab.live(), 1);
    slab.validate().unwrap();
}

#[test]
fn constants_are_not_leftovers() {
    let mut slab = Slab::new();
    let constant = slab
        .insert(storage(Owner::Borrowed, 40), tensor(10))
        .unwrap();
    slab.keep(constant).unwrap();
    let other = slab.share(constant, tensor(3)).unwrap();
    assert_eq!((slab.live(), slab.leftovers()), (1, vec![other]));
    slab.delete(other).unwrap();
    assert_eq!(slab.live(), 0);
    slab.delete(constant).unwrap();
    slab.validate().unwrap();
}

#[test]
fn sizes_stay_in_place_while_the_slab_grows() {
    let mut slab = Slab::new();
    let first = slab
        .insert(storage(Owner::Borrowed, 40), tensor(10))
        .unwrap();
    let address = slab.tensor(first).unwrap().dims.sizes().as_ptr();
    for _ in 0..1000 {
        slab.insert(storage(Owner::Borrowed, 40), tensor(10))
            .unwrap();
    }
    assert_eq!(slab.tensor(first).unwrap().dims.sizes().as_ptr(), address);
}

/// What a probe does.
fn probe(slab: &mut Slab, id: i64, ptr: u64) -> Handle {
    let ptr = DevicePtr(ptr);
    slab.of_probe(id, ptr).unwrap_or_else(|| {
        let lease = (Owner::Lease(id), ptr);
        let made = slab.insert_whole(lease, DType::F32, &[2, 3], &[3, 1]);
        slab.keep_for_probe(id, made.clone().unwrap()).unwrap();
        made.unwrap()
    })
}

#[test]
fn a_probe_keeps_its_slot_and_window_and_gets_a_new_address() {
    let mut slab = Slab::new();
    let (first, other) = (probe(&mut slab, 0, 64), probe(&mut slab, 1, 128));
    let sizes = slab.tensor(first).unwrap().dims.sizes().as_ptr();
    assert_eq!(slab.of_probe(0, DevicePtr(0)), None, "it is in use");
    for handle in [first, other] {
        assert!(slab.delete(handle).unwrap().is_some());
        slab.validate().unwrap();
    }
    assert_eq!((slab.live(), slab.leftovers().len()), (0, 0));
    let again = probe(&mut slab, 0, 192);
    assert_ne!(again, first, "the one of the pass before is not this one");
    assert!(slab.tensor(first).is_err());
    let tensor = slab.tensor(again).unwrap();
    assert_eq!(tensor.dims.sizes(), [2, 3]);
    assert_eq!(tensor.dims.sizes().as_ptr(), sizes);
    let storage = slab.storage(again).unwrap();
    assert_eq!((storage.ptr, storage.bytes), (DevicePtr(192), 24));
    assert_eq!(slab.delete(again).unwrap(), Some(storage));
    for unknown in [-1, 2, i64::MAX] {
        assert_eq!(slab.of_probe(unknown, DevicePtr(0)), None);
    }
    slab.validate().unwrap();
}

#[test]
fn a_probe_whose_window_is_still_seen_gets_another_one() {
    let mut slab = Slab::new();
    let first = probe(&mut slab, 0, 64);
    let view = slab.share(first, tensor(4)).unwrap();
    assert_eq!(slab.delete(first).unwrap(), None);
    let second = probe(&mut slab, 0, 128);
    assert_eq!(slab.storage(view).unwrap().ptr, DevicePtr(64));
    slab.validate().unwrap();
    assert!(slab.delete(second).unwrap().is_some());
    assert!(slab.delete(view).unwrap().is_some());
    let third = probe(&mut slab, 0, 192);
    assert_eq!(slab.storage(third).unwrap().ptr, DevicePtr(192));
    slab.validate().unwrap();
}

proptest! {
    /// Against a plain list of (handle, storage number, lease): counts and ends of storages agree.
    #[test]
    fn any_order_of_operations_keeps_the_counts(ops in prop::collection::vec((0u8..4, any::<u16>()), 1..300)) {
        let mut slab = Slab::new();
        let mut model: Vec<(Handle, i64, i64)> = Vec::new();
        let mut next = 0;
        for (op, pick) in ops {
            let at = if model.is_empty() { None } else { Some(pick as usize % model.len()) };
            match (op, at) {
                (1, Some(at)) => {
                    let (of, number, lease) = model[at];
                    model.push((slab.share(of, tensor(5)).unwrap(), number, lease));
                }
                (2, Some(at)) => {
                    let (handle, number, lease) = model.swap_remove(at);
                    let ended = slab.delete(handle).unwrap().map(|s| s.owner);
                    let last = model.iter().all(|(_, n, _)| *n != number);
                    prop_assert_eq!(ended, last.then_some(Owner::Lease(lease)));
                }
                (3, _) => {
                    let (id, ptr) = (i64::from(pick % 5), 64 * u64::from(pick));
                    let handle = probe(&mut slab, id, ptr);
                    prop_assert_eq!(slab.storage(handle).unwrap().ptr, DevicePtr(ptr));
                    model.push((handle, next, id));
                    next += 1;
                }
                _ => {
                    let lease = 100 + next;
                    let handle = slab.insert(storage(Owner::Lease(lease), 40), tensor(10)).unwrap();
                    model.push((handle, next, lease));
                    next += 1;
                }
            }
            prop_assert_eq!(slab.live(), model.len());
            slab.validate().unwrap();
        }
    }
}
