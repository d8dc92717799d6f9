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

proptest! {
    /// Against a plain list of (handle, storage number): counts and ends of storages agree.
    #[test]
    fn any_order_of_operations_keeps_the_counts(ops in prop::collection::vec((0u8..3, any::<u16>()), 1..300)) {
        let mut slab = Slab::new();
        let mut model: Vec<(Handle, i64)> = Vec::new();
        let mut next = 0;
        for (op, pick) in ops {
            let at = if model.is_empty() { None } else { Some(pick as usize % model.len()) };
            match (op, at) {
                (1, Some(at)) => {
                    let (of, number) = model[at];
                    model.push((slab.share(of, tensor(5)).unwrap(), number));
                }
                (2, Some(at)) => {
                    let (handle, number) = model.swap_remove(at);
                    let ended = slab.delete(handle).unwrap().map(|s| s.owner);
                    let last = model.iter().all(|(_, n)| *n != number);
                    prop_assert_eq!(ended, last.then_some(Owner::Lease(number)));
                }
                _ => {
                    let handle = slab.insert(storage(Owner::Lease(next), 40), tensor(10)).unwrap();
                    model.push((handle, next));
                    next += 1;
                }
            }
            prop_assert_eq!(slab.live(), model.len());
            slab.validate().unwrap();
        }
    }
}
