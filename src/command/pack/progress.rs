//! How far it is, on a terminal: one line on standard error, written again and again.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_millis(200);
const GB: f64 = (1u64 << 30) as f64;

pub struct PackProgress {
    is_shown: bool,
    all: u64,
    raw: u64,
    stored: u64,
    last: Instant,
}

impl PackProgress {
    /// Of so many bytes.
    pub fn of(all: u64) -> PackProgress {
        PackProgress {
            is_shown: std::io::stderr().is_terminal(),
            all,
            raw: 0,
            stored: 0,
            last: Instant::now(),
        }
    }

    /// The next bytes, and what they take in the new file.
    pub fn add(&mut self, raw: usize, stored: usize) {
        self.raw += raw as u64;
        self.stored += stored as u64;
        if self.is_shown && self.last.elapsed() >= EVERY {
            self.last = Instant::now();
            self.show(&self.line());
        }
    }

    fn line(&self) -> String {
        format!(
            "{:.2} GB of {:.2} GB, ratio {:.3}",
            self.raw as f64 / GB,
            self.all as f64 / GB,
            self.stored as f64 / self.raw.max(1) as f64
        )
    }

    /// Instead of what stood there. Nobody is harmed if it cannot be written.
    fn show(&self, line: &str) {
        let mut to = std::io::stderr().lock();
        let _ = write!(to, "\r\x1b[K{line}").and_then(|()| to.flush());
    }
}

impl Drop for PackProgress {
    fn drop(&mut self) {
        if self.is_shown {
            self.show("");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_it_is() {
        let mut progress = PackProgress::of(3 << 30);
        progress.is_shown = false;
        assert_eq!(progress.line(), "0.00 GB of 3.00 GB, ratio 0.000");
        progress.add(1 << 29, 1 << 28);
        progress.add(1 << 28, 1 << 28);
        assert_eq!(progress.line(), "0.75 GB of 3.00 GB, ratio 0.667");
    }
}
