//! Where choices come from: a seed, or a list that a property test can shrink.

/// A source of choices.
pub trait Draw {
    /// Anything.
    fn next(&mut self) -> u64;

    /// A number below `n`, which is not 0.
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// `min..=max`.
    fn between(&mut self, min: u64, max: u64) -> u64 {
        min + self.below(max - min + 1)
    }

    /// Any order.
    fn shuffle<T>(&mut self, list: &mut [T])
    where
        Self: Sized,
    {
        for at in (1..list.len()).rev() {
            list.swap(at, self.below(at as u64 + 1) as usize);
        }
    }

    /// True once in `n` times.
    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == n - 1
    }
}

/// By a seed (SplitMix64): neighbouring seeds have nothing in common.
#[derive(Debug, Clone)]
pub struct Seeded(pub u64);

impl Draw for Seeded {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// From a list, then zeros: a shorter list, or a smaller number in it, makes a simpler program.
#[derive(Debug, Clone)]
pub struct Choices(std::vec::IntoIter<u32>);

impl Choices {
    pub fn new(list: Vec<u32>) -> Choices {
        Choices(list.into_iter())
    }

    /// Whether the list is used up.
    pub fn is_empty(&self) -> bool {
        self.0.len() == 0
    }
}

impl Draw for Choices {
    fn next(&mut self) -> u64 {
        self.0.next().map_or(0, u64::from)
    }
}

/// From bytes, then zeros: few for small numbers, so that a fuzzer changes one choice with one byte.
#[derive(Debug, Clone)]
pub struct Bytes<'a>(pub &'a [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> u64 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        u64::from(*first)
    }
}

impl Draw for Bytes<'_> {
    fn next(&mut self) -> u64 {
        (0..4).fold(0, |word, _| word << 8 | self.byte())
    }

    fn below(&mut self, n: u64) -> u64 {
        match n {
            0..=256 => self.byte() % n,
            _ => self.next() % n,
        }
    }
}
