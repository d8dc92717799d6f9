//! What copies on the link from host to device cost.
#![deny(unsafe_code)]

/// A link: copies of `b` bytes in `n` calls take `b / bytes_per_second + n * ns_per_copy / 10^9` seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// What it carries.
    pub bytes_per_second: u64,
    /// Nanoseconds of a copy beyond those of its bytes, with waits for events between copies.
    pub ns_per_copy: u64,
}

/// How long some bytes took in so many copies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timed {
    /// Copies, of equal size.
    pub copies: u64,
    /// Seconds for all of them.
    pub seconds: f64,
}

impl Link {
    /// What a copy costs beyond its bytes if nobody measured it: measured on an H200 (`benches/gpu/copies.py`).
    pub const NS_PER_COPY: u64 = 3500;
    /// The smallest of the values that [`Link::bytes_per_copy`] can have.
    const LEAST_STEP: u64 = 3 << 10;

    /// A link of which only the rate is known.
    pub fn of_rate(bytes_per_second: u64) -> Link {
        Link {
            bytes_per_second,
            ns_per_copy: Link::NS_PER_COPY,
        }
    }

    /// From the same bytes copied in few pieces and in many. `None` where that makes no sense, as noise does.
    pub fn fitted(bytes: u64, few: Timed, many: Timed) -> Option<Link> {
        let pieces = many.copies.checked_sub(few.copies).filter(|&n| n > 0)?;
        let each = ((many.seconds - few.seconds) / pieces as f64).max(0.0);
        let rate = bytes as f64 / (few.seconds - each * few.copies as f64);
        (rate.is_finite() && rate >= 1.0).then_some(Link {
            bytes_per_second: rate as u64,
            ns_per_copy: (each * 1e9) as u64,
        })
    }

    /// A copy's own cost as the bytes that could be copied in that time, for plans: rounded to 3 KiB times a power of
    /// four, so that two measurements of one link give one plan. Being off by a factor of two makes what a plan on pages
    /// costs beyond the limit larger by 6 % of itself, as that goes with the root of this number.
    pub fn bytes_per_copy(&self) -> u64 {
        let exact = self.ns_per_copy as f64 * 1e-9 * self.bytes_per_second as f64;
        let mut step = Link::LEAST_STEP;
        // In the geometric middle the next one is as near.
        while exact > 2.0 * step as f64 && step < Link::LEAST_STEP << 14 {
            step *= 4;
        }
        step
    }

    /// Seconds for `bytes` in so many copies.
    pub fn seconds(&self, bytes: u64, copies: u64) -> f64 {
        bytes as f64 / self.bytes_per_second as f64 + copies as f64 * self.ns_per_copy as f64 * 1e-9
    }
}

impl std::fmt::Display for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (rate, each) = (self.bytes_per_second as f64, self.ns_per_copy as f64);
        write!(f, "{:.1} GB/s, and {:.1} us a copy", rate / 1e9, each / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1_000_000_000;

    #[test]
    fn rate_and_cost_of_a_copy_follow_from_two_times() {
        let link = Link {
            bytes_per_second: 55 * GB,
            ns_per_copy: 3500,
        };
        let bytes = 64 << 20;
        let timed = |copies| Timed {
            copies,
            seconds: link.seconds(bytes, copies),
        };
        let found = Link::fitted(bytes, timed(4), timed(64)).unwrap();
        assert!(found.ns_per_copy.abs_diff(3500) <= 1, "{found:?}");
        assert!(
            found.bytes_per_second.abs_diff(55 * GB) < 55 * GB / 1000,
            "{found:?}"
        );
        assert_eq!(found.to_string(), "55.0 GB/s, and 3.5 us a copy");
    }

    #[test]
    fn times_that_make_no_sense_give_no_link() {
        let timed = |copies, seconds| Timed { copies, seconds };
        // More copies were faster: none costs anything.
        let noisy = Link::fitted(1000, timed(1, 2.0), timed(9, 1.5)).unwrap();
        assert_eq!((noisy.bytes_per_second, noisy.ns_per_copy), (500, 0));
        assert_eq!(Link::fitted(1000, timed(4, 0.0), timed(64, 0.0)), None);
        assert_eq!(Link::fitted(1000, timed(4, 1.0), timed(64, 99.0)), None);
        assert_eq!(Link::fitted(1000, timed(4, 1.0), timed(4, 1.0)), None);
    }

    /// What is measured differs from time to time, and the plan does not.
    #[test]
    fn the_cost_of_a_copy_for_plans_comes_in_steps() {
        let at = |gbps: u64, ns_per_copy| {
            let link = Link {
                bytes_per_second: gbps * GB,
                ns_per_copy,
            };
            link.bytes_per_copy() >> 10
        };
        for ns in [2000, 2800, 3500, 5000, 5700] {
            assert_eq!(at(55, ns), 192, "{ns}");
        }
        assert_eq!((at(12, 3500), at(3, 3500), at(0, 3500)), (48, 12, 3));
        assert_eq!((at(400, 3500), at(55, 1500), at(55, 0)), (768, 48, 3));
        assert_eq!(at(1_000_000, 1_000_000_000), 3 << 14);
    }
}
