//! Steps of a program with the rings of its ranges.

use super::{read, write, Contents, Draw, World, NOISE, UNIT};
use weightstream::device::sim::Actor;
use weightstream::device::UserStreams;
use weightstream::elastic::range::AllocId;
use weightstream::Error;

impl World {
    /// A ring of another size, if no slot is leased and there is room.
    pub fn set_ring(&mut self, at: usize, draw: &mut Draw) {
        let mine = &mut self.mine[at];
        match mine.range.set_ring(draw.below(4 * UNIT)) {
            Ok(()) | Err(Error::OutOfMemory { .. }) => assert!(mine.slots.is_empty()),
            Err(Error::InvalidInput(_)) => assert!(!mine.slots.is_empty()),
            Err(error) => panic!("{error}"),
        }
        self.check();
    }

    /// A slot, filled and read, if the ring has one. One that is filled by copies is read on the other stream.
    pub fn slot(&mut self, at: usize, draw: &mut Draw) {
        let mine = &mut self.mine[at];
        let alloc = draw.below(mine.sizes.len() as u64) as AllocId;
        let stream = draw.stream();
        let (slot, place) = match mine.range.slot(alloc, stream) {
            Ok(given) => given,
            Err(Error::OutOfMemory { .. } | Error::InvalidInput(_)) => return,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(place.bytes, mine.sizes[alloc as usize]);
        assert!(
            self.generations.insert(place.generation),
            "a generation came twice"
        );
        let len = place.bytes as usize;
        let from = draw.below((NOISE - len) as u64) as usize;
        let contents = Contents { from, len };
        self.ranges.with_device(|sim| {
            write(sim, stream, place, contents);
            if stream == Actor::Copy {
                let written = sim.record(stream).unwrap();
                sim.stream_wait(Actor::Compute, &written).unwrap();
            }
            read(sim, place, contents);
        });
        mine.slots.push((slot, Actor::Compute));
        if draw.below(3) > 0 {
            self.end_slot(at, draw);
        }
        self.check();
    }

    pub fn end_slot(&mut self, at: usize, draw: &mut Draw) {
        let mine = &mut self.mine[at];
        if !mine.slots.is_empty() {
            let one = draw.below(mine.slots.len() as u64) as usize;
            let (slot, stream) = mine.slots.swap_remove(one);
            mine.range.unpin(&[slot], stream).unwrap();
        }
    }
}
