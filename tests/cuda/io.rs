//! Memory and streams of the caller's on a GPU: what is taken as it is, what is refused, and in what order it is used.
//! And what is said where there is no GPU.

use crate::device_support::gate::{in_context_of, is_idle, stream_like, Gate};
use crate::device_support::{gpu, PATIENCE};
use cudarc::driver::sys::{self, CUcontext, CUresult};
use std::ffi::c_void;
use std::time::Duration;
use weightstream::device::cuda::memory;
use weightstream::device::{cuda, CallerStream, CudaDevice, Device, DeviceBytes, DevicePtr};
use weightstream::Error;

const LEN: u64 = 1 << 20;

fn bytes(index: u32, ptr: u64, len: u64) -> DeviceBytes {
    // SAFETY: the tests free their memory after the calls, and hand out host addresses only to be refused.
    unsafe { DeviceBytes::new(index, ptr, len) }
}

fn check(code: CUresult) {
    assert_eq!(code, CUresult::CUDA_SUCCESS);
}

fn pattern(seed: u8) -> Vec<u8> {
    (0..LEN).map(|at| (at % 251) as u8 ^ seed).collect()
}

/// Memory of a caller, freed with its value.
struct Owned(DeviceBytes);

impl Owned {
    fn new(index: u32, len: u64) -> Owned {
        Owned(bytes(
            index,
            memory::allocate(index, len, 16).unwrap().0,
            len,
        ))
    }

    fn holding(contents: &[u8]) -> Owned {
        let owned = Owned::new(0, contents.len() as u64);
        memory::copy_in(owned.0, contents).unwrap();
        owned
    }

    fn contents(&self) -> Vec<u8> {
        let mut found = vec![0; self.0.len() as usize];
        memory::copy_out(&mut found, self.0).unwrap();
        found
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        memory::free(self.0.index(), self.0.ptr()).unwrap();
    }
}

#[track_caller]
fn refused<T>(outcome: weightstream::Result<T>, what: &str) {
    match outcome {
        Err(Error::InvalidInput(text)) => assert!(text.contains(what), "{text}"),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("not refused: {what}"),
    }
}

/// Needs no GPU: refused before the driver is asked.
#[test]
fn the_per_thread_default_stream_is_refused() {
    // SAFETY: the number of a stream that always exists.
    let stream = unsafe { CallerStream::new(std::ptr::without_provenance_mut(2)) };
    refused(
        CudaDevice::on_stream(0, stream),
        "per-thread default stream",
    );
}

#[test]
fn memory_of_a_gpu_that_is_not_there_says_what_is_missing() {
    if matches!(cuda::device_count(), Ok(1..)) {
        let count = cuda::device_count().unwrap();
        let error = memory::allocate(count, 64, 16).unwrap_err().to_string();
        assert!(
            error.contains(&format!("'cuda:{count}' is missing")),
            "{error}"
        );
        return;
    }
    for error in [
        memory::allocate(0, 64, 16).unwrap_err(),
        memory::free(0, DevicePtr(4096)).unwrap_err(),
        memory::copy_in(bytes(0, 4096, 1), &[0]).unwrap_err(),
        memory::copy_out(&mut [0], bytes(0, 4096, 1)).unwrap_err(),
    ] {
        assert!(
            matches!(error, Error::Missing { .. } | Error::Unsupported(_)),
            "{error}"
        );
    }
}

#[test]
fn plain_memory_keeps_its_bytes_and_is_freed_once() {
    let Some(_gpu) = gpu("plain_memory_keeps_its_bytes_and_is_freed_once") else {
        return;
    };
    for alignment in [1, 16, 256, 4096, 1 << 21] {
        let ptr = memory::allocate(0, 100, alignment).unwrap();
        assert_eq!(ptr.0 % alignment, 0);
        memory::copy_in(bytes(0, ptr.0, 100), &[7; 100]).unwrap();
        let mut found = [0; 100];
        memory::copy_out(&mut found, bytes(0, ptr.0, 100)).unwrap();
        assert_eq!(found, [7; 100]);
        memory::free(0, ptr).unwrap();
        refused(memory::free(0, ptr), "was not allocated on cuda:0");
    }
    let none = memory::allocate(0, 0, 16).unwrap();
    memory::free(0, none).unwrap();
    assert!(matches!(
        memory::allocate(0, 1 << 50, 16),
        Err(Error::OutOfMemory { .. })
    ));
}

#[test]
fn an_input_is_read_where_it_lies_or_from_an_aligned_copy() {
    let Some(_gpu) = gpu("an_input_is_read_where_it_lies_or_from_an_aligned_copy") else {
        return;
    };
    let expected = pattern(1);
    let owned = Owned::holding(&expected);
    let mut device = CudaDevice::new(0).unwrap();
    let at = device.lend(owned.0).unwrap();
    assert_eq!(at, owned.0.ptr(), "used in place");

    // It may be copied from, inside its range only, and only while it is lent.
    let scratch = device.alloc_scratch(LEN).unwrap();
    device.copy_across(scratch, at, LEN).unwrap();
    let mut found = vec![0; LEN as usize];
    device.download(scratch, &mut found).unwrap();
    assert!(found == expected);
    assert!(matches!(
        device.copy_across(scratch, at.offset(1), LEN),
        Err(Error::Internal(_))
    ));
    device.end_lending(owned.0, at).unwrap();
    assert!(matches!(
        device.copy_across(scratch, at, LEN),
        Err(Error::Internal(_))
    ));
    assert!(matches!(
        device.end_lending(owned.0, at),
        Err(Error::Internal(_))
    ));

    for offset in [1, 4, 8, 15] {
        let part = bytes(0, owned.0.ptr().0 + offset, LEN - 16);
        let copy = device.lend(part).unwrap();
        assert_ne!(copy, part.ptr());
        assert_eq!(copy.0 % 16, 0);
        let mut found = vec![0; part.len() as usize];
        device.download(copy, &mut found).unwrap();
        assert!(found == expected[offset as usize..][..found.len()]);
        device.end_lending(part, copy).unwrap();
    }
    device.free_scratch(scratch, LEN).unwrap();
    device.finish_compute().unwrap();
}

#[test]
fn an_output_is_copied_to_the_callers_memory() {
    let Some(_gpu) = gpu("an_output_is_copied_to_the_callers_memory") else {
        return;
    };
    let expected = pattern(2);
    let (input, room) = (Owned::holding(&expected), Owned::new(0, LEN));
    let mut device = CudaDevice::new(0).unwrap();
    let scratch = device.alloc_scratch(LEN).unwrap();
    device.upload(scratch, &expected).unwrap();
    device.copy_to_caller(room.0, scratch).unwrap();
    // Freed in the order of the stream: the copy is in front of it.
    device.free_scratch(scratch, LEN).unwrap();
    device.finish_compute().unwrap();
    assert!(room.contents() == expected);

    let other = pattern(3);
    device.upload_to_caller(room.0, &other).unwrap();
    device.finish_compute().unwrap();
    assert!(room.contents() == other);

    // Straight from an input; in place; and refused where the two overlap.
    let at = device.lend(input.0).unwrap();
    device.copy_to_caller(room.0, at).unwrap();
    device.copy_to_caller(input.0, at).unwrap();
    let shifted = bytes(0, at.0 + 64, LEN - 64);
    refused(device.copy_to_caller(shifted, at), "overlaps");
    device.end_lending(input.0, at).unwrap();
    device.finish_compute().unwrap();
    assert!(room.contents() == expected && input.contents() == expected);
}

/// Pageable bytes are read at once, pinned ones by the device when it gets there: then the call lasts as long.
#[test]
fn pinned_bytes_may_change_as_soon_as_they_were_uploaded() {
    let Some(_gpu) = gpu("pinned_bytes_may_change_as_soon_as_they_were_uploaded") else {
        return;
    };
    let mut device = CudaDevice::new(0).unwrap();
    let stream = device.compute_stream();
    let mut pinned = std::ptr::null_mut();
    in_context_of(stream.cast(), || {
        // SAFETY: a context is current; the driver writes one address.
        check(unsafe { sys::cuMemHostAlloc(&mut pinned, LEN as usize, 0) });
    });
    // SAFETY: just allocated, and used through this alone but for the device, which only reads while a call lasts.
    let src = unsafe { std::slice::from_raw_parts_mut(pinned.cast::<u8>(), LEN as usize) };
    let at = device.alloc_scratch(LEN).unwrap();
    let gate = Gate::close(stream, Duration::from_millis(300));
    src.fill(7);
    device.upload(at, src).unwrap();
    src.fill(200);
    drop(gate);
    let mut found = vec![0; LEN as usize];
    device.download(at, &mut found).unwrap();
    assert!(found == vec![7; LEN as usize]);
    device.free_scratch(at, LEN).unwrap();
    in_context_of(stream.cast(), || {
        // SAFETY: allocated above, and nobody uses it any more.
        check(unsafe { sys::cuMemFreeHost(pinned) });
    });
}

#[test]
fn what_is_not_memory_of_the_device_is_refused_and_the_device_goes_on() {
    let Some(_gpu) = gpu("what_is_not_memory_of_the_device_is_refused_and_the_device_goes_on")
    else {
        return;
    };
    let owned = Owned::holding(&pattern(4));
    let mut device = CudaDevice::new(0).unwrap();
    let host = vec![0u8; LEN as usize];
    let host_at = host.as_ptr().addr() as u64;
    refused(device.lend(bytes(0, host_at, LEN)), "address of the host");
    refused(device.lend(bytes(0, 4096, 16)), "address of the host");
    refused(device.lend(bytes(1, owned.0.ptr().0, LEN)), "cuda:1");
    refused(
        device.lend(bytes(0, owned.0.ptr().0, 1 << 44)),
        "are memory of cuda:0",
    );
    refused(device.lend(bytes(0, u64::MAX - 8, 64)), "overflow");
    let mut pinned = std::ptr::null_mut();
    in_context_of(device.compute_stream().cast(), || {
        // SAFETY: a context is current; the driver writes one address.
        check(unsafe { sys::cuMemHostAlloc(&mut pinned, LEN as usize, 0) });
    });
    refused(
        device.lend(bytes(0, pinned.addr() as u64, LEN)),
        "is host memory",
    );
    in_context_of(device.compute_stream().cast(), || {
        // SAFETY: allocated above, and nobody uses it.
        check(unsafe { sys::cuMemFreeHost(pinned) });
    });
    let scratch = device.alloc_scratch(64).unwrap();
    refused(
        device.copy_to_caller(bytes(0, host_at, 64), scratch),
        "address of the host",
    );
    device.free_scratch(scratch, 64).unwrap();
    let at = device.lend(owned.0).unwrap();
    device.end_lending(owned.0, at).unwrap();
    device.finish_compute().unwrap();
}

/// Memory of a stream-ordered pool, and a range that was mapped piece by piece: callers have both.
#[test]
fn memory_of_pools_and_of_mapped_pieces_is_taken() {
    let Some(_gpu) = gpu("memory_of_pools_and_of_mapped_pieces_is_taken") else {
        return;
    };
    let mut device = CudaDevice::new(0).unwrap();
    let mut other = CudaDevice::new(0).unwrap();
    let pooled = bytes(0, other.alloc_scratch(LEN).unwrap().0, LEN);
    other.upload(pooled.ptr(), &pattern(9)).unwrap();
    memory::copy_in(pooled, &pattern(10)).unwrap();
    let at = device.lend(pooled).unwrap();
    assert_eq!(at, pooled.ptr());
    device.end_lending(pooled, at).unwrap();
    let mut found = vec![0; LEN as usize];
    memory::copy_out(&mut found, pooled).unwrap();
    assert!(found == pattern(10));
    device.finish_compute().unwrap();
    other.free_scratch(pooled.ptr(), LEN).unwrap();

    in_context_of(device.compute_stream().cast(), || {
        let (at, piece) = mapped_pieces();
        let across = bytes(0, at + piece / 2, piece);
        let lent = device.lend(across).unwrap();
        assert_eq!(lent, across.ptr());
        device.end_lending(across, lent).unwrap();
        // The rest of the reserved range has no memory behind it.
        refused(
            device.lend(bytes(0, at + piece, 2 * piece)),
            "are memory of cuda:0",
        );
        device.finish_compute().unwrap();
    });
}

/// Two pieces of memory at one run of addresses, with as many addresses behind them; never given back.
fn mapped_pieces() -> (u64, u64) {
    // SAFETY: zero is a value of each field. The driver reads the structures and writes the results.
    unsafe {
        let mut prop: sys::CUmemAllocationProp = std::mem::zeroed();
        prop.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        prop.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        let minimum = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        let mut piece = 0;
        check(sys::cuMemGetAllocationGranularity(
            &mut piece, &prop, minimum,
        ));
        let mut at = 0;
        check(sys::cuMemAddressReserve(&mut at, 4 * piece, 0, 0, 0));
        for index in 0..2 {
            let mut handle = 0;
            check(sys::cuMemCreate(&mut handle, piece, &prop, 0));
            check(sys::cuMemMap(
                at + index * piece as u64,
                piece,
                0,
                handle,
                0,
            ));
        }
        let mut access: sys::CUmemAccessDesc = std::mem::zeroed();
        access.location = prop.location;
        access.flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        check(sys::cuMemSetAccess(at, 2 * piece, &access, 1));
        (at, piece as u64)
    }
}

/// What was issued to the caller's stream before is done before an input is read, without a wait of the host.
#[test]
fn the_callers_stream_orders_producers_before_the_call() {
    let Some(_gpu) = gpu("the_callers_stream_orders_producers_before_the_call") else {
        return;
    };
    let own = CudaDevice::new(0).unwrap();
    let raw = stream_like(own.compute_stream());
    // SAFETY: never destroyed.
    let stream = unsafe { CallerStream::new(raw) };
    let device = CudaDevice::on_stream(0, stream).unwrap();
    assert_eq!(device.native_stream(), raw);
    held_producer(device, raw);
}

/// Without a stream of the caller's, the same holds for the default stream.
#[test]
fn the_default_stream_is_waited_for_where_none_was_given() {
    let Some(_gpu) = gpu("the_default_stream_is_waited_for_where_none_was_given") else {
        return;
    };
    let device = CudaDevice::new(0).unwrap();
    let context = device.context();
    context
        .with_current(|| held_producer(device, std::ptr::null_mut()))
        .unwrap();
}

/// A copy into an input, held by a gate on the producer's stream; the compute stream must wait for it.
fn held_producer(mut device: CudaDevice, producer: *mut c_void) {
    let (before, after) = (pattern(5), pattern(6));
    let (input, source) = (Owned::holding(&before), Owned::holding(&after));
    // Allocated up front: some calls of the driver wait for the whole device, which is held below.
    let scratch = device.alloc_scratch(LEN).unwrap();
    device.finish_compute().unwrap();
    let gate = Gate::close(producer, PATIENCE);
    in_context_of(device.compute_stream().cast(), || {
        let (dst, src) = (input.0.ptr().0, source.0.ptr().0);
        // SAFETY: both live until the end of this function, which waits.
        check(unsafe { sys::cuMemcpyDtoDAsync_v2(dst, src, LEN as usize, producer.cast()) });
    });
    let at = device.lend(input.0).unwrap();
    device.copy_across(scratch, at, LEN).unwrap();
    assert!(!is_idle(device.compute_stream()), "it waits for the gate");
    gate.open();
    let mut found = vec![0; LEN as usize];
    device.download(scratch, &mut found).unwrap();
    assert!(found == after, "the input was read before it was made");
    device.end_lending(input.0, at).unwrap();
    device.free_scratch(scratch, LEN).unwrap();
    device.finish_compute().unwrap();
}

#[test]
fn a_stream_of_another_context_is_refused_and_the_current_context_is_kept() {
    let Some(_gpu) = gpu("a_stream_of_another_context_is_refused_and_the_current_context_is_kept")
    else {
        return;
    };
    let mut device = CudaDevice::new(0).unwrap();
    let owned = Owned::holding(&pattern(7));
    let mut other = std::ptr::null_mut();
    let mut stream = std::ptr::null_mut();
    let mut foreign = 0;
    // SAFETY: the driver is there, and this is its signature; newer bindings have only newer versions of it.
    let create = unsafe {
        type Create = unsafe extern "C" fn(*mut CUcontext, u32, i32) -> CUresult;
        *sys::culib().get::<Create>(b"cuCtxCreate_v2").unwrap()
    };
    // SAFETY: the driver is there; a context of the caller's own, current from here on, with a stream and memory.
    unsafe {
        check(create(&mut other, 0, 0));
        check(sys::cuStreamCreate(&mut stream, 1));
        check(sys::cuMemAlloc_v2(&mut foreign, 4096));
    }
    // SAFETY: it exists until the end of this test.
    let given = unsafe { CallerStream::new(stream.cast()) };
    refused(
        CudaDevice::on_stream(0, given),
        "does not belong to the primary context",
    );
    refused(
        device.lend(bytes(0, foreign, 4096)),
        "belongs to another context",
    );
    let at = device.lend(owned.0).unwrap();
    let scratch = device.alloc_scratch(LEN).unwrap();
    device.copy_across(scratch, at, LEN).unwrap();
    device.copy_to_caller(owned.0, scratch).unwrap();
    device.end_lending(owned.0, at).unwrap();
    device.free_scratch(scratch, LEN).unwrap();
    device.finish_compute().unwrap();
    owned.contents();
    let mut current = std::ptr::null_mut();
    // SAFETY: the driver writes one pointer.
    check(unsafe { sys::cuCtxGetCurrent(&mut current) });
    assert_eq!(current, other, "the caller's context is current as before");
    // SAFETY: made above, and nobody uses them any more.
    unsafe {
        check(sys::cuMemFree_v2(foreign));
        check(sys::cuStreamDestroy_v2(stream));
        check(sys::cuCtxDestroy_v2(other));
    }
}

#[test]
fn another_index_is_another_device() {
    let Some(_gpu) = gpu("another_index_is_another_device") else {
        return;
    };
    if cuda::device_count().unwrap() < 2 {
        println!("skipped: another_index_is_another_device (there is one GPU)");
        return;
    }
    let mut device = CudaDevice::new(1).unwrap();
    assert_eq!(device.index(), 1);
    assert!(device.full_name().starts_with("cuda:1 "));
    let (here, there) = (Owned::new(1, LEN), Owned::new(0, LEN));
    memory::copy_in(here.0, &pattern(8)).unwrap();
    assert!(here.contents() == pattern(8));
    let at = device.lend(here.0).unwrap();
    device.end_lending(here.0, at).unwrap();
    // Said to be there, and said to be here.
    refused(device.lend(there.0), "is said to be on cuda:0");
    refused(
        device.lend(bytes(1, there.0.ptr().0, LEN)),
        "is memory of cuda:0",
    );
    device.finish_compute().unwrap();
}
