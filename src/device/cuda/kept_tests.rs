use super::*;

/// A heap with `parts` in it, and what is known of them.
struct Heap {
    parts: Vec<HostBytes>,
    cuts: Vec<Cut>,
    edges: Edges,
    copies: Vec<Vec<u8>>,
    _bytes: Vec<u8>,
}

/// As a load does it, without a driver.
fn cut(part: HostBytes, taken: &mut Taken) -> Cut {
    let found = Cut::of(part, taken);
    if !found.in_place.is_empty() && matches!(taken.of(&found.in_place), Registered::Nothing) {
        taken.insert(found.in_place.clone(), None);
    }
    found
}

fn heap(ranges: &[Range<usize>]) -> Heap {
    let end = ranges.iter().map(|range| range.end).max().unwrap() + 2 * PAGE as usize;
    let bytes: Vec<u8> = (0..end).map(|at| (at % 251) as u8).collect();
    let page = bytes.as_ptr().align_offset(PAGE as usize);
    let part = |range: &Range<usize>| {
        let bytes = &bytes[page..][range.clone()];
        // SAFETY: the heap keeps the bytes, and nobody writes them.
        unsafe { HostBytes::new(bytes.as_ptr(), bytes.len() as u64) }
    };
    let parts: Vec<_> = ranges.iter().map(part).collect();
    let mut taken = Taken::default();
    let cuts: Vec<_> = parts.iter().map(|part| cut(*part, &mut taken)).collect();
    let (mut copies, mut edges) = (Vec::new(), Edges::default());
    for range in cuts.iter().flat_map(|cut| cut.copied.clone()) {
        let mut copy = vec![0; (range.end - range.start) as usize];
        Parts(&parts).read_at(range.start, &mut copy).unwrap();
        // SAFETY: the heap keeps it; a vector's bytes stay in place when it moves.
        let kept = unsafe { HostBytes::new(copy.as_ptr(), copy.len() as u64) };
        if !range.is_empty() {
            // SAFETY: as above; the range is of a part.
            let original = unsafe { HostBytes::new(range.start as *const u8, kept.len()) };
            edges.insert(original, kept);
        }
        copies.push(copy);
    }
    Heap {
        parts,
        cuts,
        edges,
        copies,
        _bytes: bytes,
    }
}

fn read(bytes: HostBytes) -> Vec<u8> {
    let mut found = vec![0; bytes.len() as usize];
    Parts(&[bytes])
        .read_at(addresses(bytes).start, &mut found)
        .unwrap();
    found
}

/// Weights of all sizes end to end, as a heap of two loads may have them.
fn end_to_end() -> Vec<Range<usize>> {
    let sizes = [
        70_000, 16, 3, 200_000, 65_536, 8192, 131_072, 100_001, 69_632, 4095, 90_000,
    ];
    let mut at = 0;
    let range = |size| {
        let start = at;
        at += size;
        start..at
    };
    sizes.map(range).to_vec()
}

#[test]
fn only_pages_that_one_weight_fills_are_registered() {
    let heap = heap(&end_to_end());
    let mut registered = 0;
    for (cut, part) in heap.cuts.iter().zip(&heap.parts) {
        let (all, found) = (addresses(*part), &cut.in_place);
        assert!(all.start <= found.start && found.end <= all.end, "{cut:?}");
        if !found.is_empty() {
            assert!(found.start % PAGE == 0 && found.end % PAGE == 0, "{cut:?}");
            assert!(found.end - found.start >= LEAST, "{cut:?}");
            registered += 1;
        }
    }
    assert_eq!(registered, 6);
}

#[test]
fn a_weight_that_fills_its_pages_has_no_edges() {
    let whole = 0..20 * PAGE as usize;
    let heap = heap(std::slice::from_ref(&whole));
    assert_eq!(heap.cuts[0].in_place, addresses(heap.parts[0]));
    assert_eq!(heap.edges.copies.len(), 0);
}

/// Large allocations of glibc have a mapping of their own, and no neighbours on their pages.
#[test]
#[cfg(all(target_env = "gnu", target_pointer_width = "64"))]
fn an_allocation_with_a_mapping_of_its_own_has_no_edges() {
    let bytes = vec![7_u8; 40 << 20];
    // SAFETY: the vector keeps them.
    let part = |bytes: &[u8]| unsafe { HostBytes::new(bytes.as_ptr(), bytes.len() as u64) };
    let whole = part(&bytes);
    assert!(!addresses(whole).start.is_multiple_of(PAGE));
    let cut = Cut::of(whole, &Taken::default());
    assert_eq!(cut.in_place.start, addresses(whole).start / PAGE * PAGE);
    assert_eq!(
        cut.in_place.end,
        addresses(whole).end.next_multiple_of(PAGE)
    );
    assert!(cut.copied.iter().all(Range::is_empty), "{cut:?}");
    // Parts of it have neighbours.
    for one in [&bytes[..30 << 20], &bytes[16..], &bytes[100..1 << 20]] {
        assert_eq!(own_mapping(part(one)), None);
    }
    let small = vec![7_u8; 70_000];
    assert_eq!(own_mapping(part(&small[4096..])), None);
}

/// The same bytes in two modules, a part of them, and what overlaps with them.
#[test]
fn what_is_registered_is_shared() {
    let pages = |from: usize, to: usize| from * PAGE as usize..to * PAGE as usize;
    let inside = 64 + 3 * PAGE as usize..30 * PAGE as usize - 5;
    let heap = heap(&[
        pages(1, 40),
        pages(1, 40),
        inside,
        pages(30, 60),
        pages(0, 60),
    ]);
    let lengths = heap
        .cuts
        .iter()
        .map(|cut| (cut.in_place.end - cut.in_place.start) / PAGE);
    // A registration does not grow, and no copy may leave it.
    assert_eq!(lengths.collect::<Vec<_>>(), [39, 39, 25, 0, 0]);
    assert_eq!(heap.cuts[3].copied[0], addresses(heap.parts[3]));
}

/// Every range of a weight comes out whole, from bytes that are registered and from copies alone.
#[test]
fn pieces_make_up_the_weight() {
    let heap = heap(&end_to_end());
    let copies: Vec<_> = heap.copies.iter().map(|copy| copy.as_ptr_range()).collect();
    for (cut, part) in heap.cuts.iter().zip(&heap.parts) {
        let borders = [0, 1, 2000, 5000, 66_000, part.len() - 1, part.len()];
        for (from, to) in borders.iter().flat_map(|a| borders.map(|b| (*a, b))) {
            if from > to || to > part.len() {
                continue;
            }
            let src = part.slice(from..to);
            let pieces: Vec<_> = heap.edges.pieces(src).collect();
            let found: Vec<u8> = pieces.iter().flat_map(|piece| read(*piece)).collect();
            assert!(found == read(src), "{from}..{to} of {cut:?}");
            assert!(pieces.len() <= 3);
            for piece in pieces {
                let at = addresses(piece);
                let in_place = cut.in_place.start <= at.start && at.end <= cut.in_place.end;
                let copied = copies.iter().any(|copy| copy.contains(&piece.as_ptr()));
                assert!(in_place || copied, "{at:?} of {cut:?}");
            }
        }
    }
}

/// Of a weight with edges, and of one that was copied as a whole: what lies in host memory of our own is known by either address.
#[test]
fn all_copies_of_a_weight_are_found_again() {
    let heap = heap(&end_to_end());
    for (cut, part) in heap.cuts.iter().zip(&heap.parts) {
        let src = match cut.in_place.is_empty() {
            true => heap.edges.pieces(*part).next().unwrap(),
            false => *part,
        };
        let found = heap.edges.of(src);
        let originals: Vec<_> = found.iter().map(|(one, _)| addresses(*one)).collect();
        let copied = cut.copied.iter().filter(|range| !range.is_empty());
        assert_eq!(originals, copied.cloned().collect::<Vec<_>>());
        for (original, copy) in found {
            assert_eq!(
                heap.edges.pieces(original).next().unwrap().as_ptr(),
                copy.as_ptr()
            );
        }
    }
}

/// Kernels that read a weight in place read what its owner has written.
#[test]
fn the_copy_that_is_read_in_place_is_found_again() {
    let mut heap = heap(&end_to_end());
    let (table, other) = (heap.parts[3], heap.parts[6]);
    let found = |heap: &Heap| [table, other].map(|one| heap.edges.of(one).len());
    let [edges, others] = found(&heap);
    heap.edges.whole.push((table, other));
    assert_eq!(found(&heap), [edges + 1, others]);
}

#[test]
fn no_copy_is_joined_across_an_edge() {
    let heap = heap(&end_to_end());
    for (cut, part) in heap.cuts.iter().zip(&heap.parts) {
        let start = part.as_ptr().addr();
        let known = heap.edges.begins_at(start) || cut.in_place.start == start as u64;
        assert!(known, "{cut:?}");
    }
}
