//! What was done, for people and for programs.

use super::super::size::{grouped, with_megabytes};
use super::source::RawSegment;
use crate::delegate::packing::WhyRaw;
use crate::error::counted;
use crate::{Error, Result};
use serde_json::{json, Value};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Why bytes stay as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// By the program.
    Record(WhyRaw),
    /// More than a packed entry can say.
    Large,
    /// The packed form is hardly shorter.
    Gain,
    /// A copy of it costs more than the packed form saves.
    Small,
    /// The program names no such constant.
    Other,
}

impl Reason {
    fn text(self) -> &'static str {
        match self {
            Reason::Record(WhyRaw::Resident) => "loaded once and resident, or written to",
            Reason::Record(WhyRaw::Rows) => "tables of which kernels may read rows in place",
            Reason::Record(WhyRaw::Type) => "of a type that is not packed",
            Reason::Large => "larger than a packed entry can be",
            Reason::Gain => "would gain less than 5 %",
            Reason::Small => "smaller than --least",
            Reason::Other => "no constants of the program",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Reason::Record(WhyRaw::Resident) => "resident",
            Reason::Record(WhyRaw::Rows) => "rows",
            Reason::Record(WhyRaw::Type) => "type",
            Reason::Large => "large",
            Reason::Gain => "gain",
            Reason::Small => "small",
            Reason::Other => "other",
        }
    }
}

/// Entries, and their bytes, those that are shared counted once.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    entries: u64,
    bytes: u64,
}

impl Sum {
    fn add(&mut self, segment: &RawSegment<'_>) {
        self.entries += segment.entries.len() as u64;
        self.bytes += segment.bytes.len() as u64;
    }
}

pub struct PackReport {
    packed: Sum,
    stored: u64,
    raw: BTreeMap<Reason, Sum>,
    /// Of the source.
    file_bytes_before: u64,
    /// Of the packed file.
    pub file_bytes: u64,
}

impl PackReport {
    pub fn new(file_bytes_before: u64) -> PackReport {
        PackReport {
            packed: Sum::default(),
            stored: 0,
            raw: BTreeMap::new(),
            file_bytes_before,
            file_bytes: 0,
        }
    }

    /// A segment was packed in so many bytes.
    pub fn packed(&mut self, segment: &RawSegment<'_>, stored: u64) {
        self.packed.add(segment);
        self.stored += stored;
    }

    pub fn stays(&mut self, reason: Reason, segment: &RawSegment<'_>) {
        self.raw.entry(reason).or_default().add(segment);
    }

    fn ratio(&self) -> f64 {
        self.stored as f64 / self.packed.bytes as f64
    }

    /// A line for each reason.
    fn raw_text(&self) -> String {
        let mut text = String::new();
        for (reason, Sum { entries, bytes }) in &self.raw {
            let (bytes, entries) = (grouped(*bytes), grouped(*entries));
            let _ = writeln!(text, "{bytes:>18} {entries:>7}  {}", reason.text());
        }
        text
    }

    pub fn text(&self, path: &str) -> String {
        let mut text = format!(
            "{} packed: {} are {} now, ratio {:.3}\n",
            counted_entries(self.packed.entries),
            with_megabytes(self.packed.bytes),
            with_megabytes(self.stored),
            self.ratio()
        );
        if !self.raw.is_empty() {
            let _ = write!(
                text,
                "\n{:>18} {:>7}  what stays as it is\n{}\n",
                "bytes",
                "entries",
                self.raw_text()
            );
        }
        let _ = writeln!(
            text,
            "{path}: {}, before {}, ratio {:.3}",
            with_megabytes(self.file_bytes),
            with_megabytes(self.file_bytes_before),
            self.file_bytes as f64 / self.file_bytes_before as f64
        );
        text
    }

    pub fn object(&self, path: &str) -> Value {
        let raw = self.raw.iter().map(|(reason, sum)| {
            json!({
                "reason": reason.name(),
                "text": reason.text(),
                "entries": sum.entries,
                "bytes": sum.bytes,
            })
        });
        json!({
            "output": path,
            "packed": {
                "entries": self.packed.entries,
                "raw_bytes": self.packed.bytes,
                "stored_bytes": self.stored,
                "ratio": self.ratio(),
            },
            "raw": raw.collect::<Vec<_>>(),
            "file_bytes_before": self.file_bytes_before,
            "file_bytes": self.file_bytes,
        })
    }
}

fn counted_entries(entries: u64) -> String {
    match entries {
        1 => "1 entry".to_owned(),
        _ => format!("{} entries", grouped(entries)),
    }
}

/// Refuses data of which it is known before they are read that nothing can be packed.
pub fn some_may_be_packed(file: &str, segments: &[RawSegment<'_>]) -> Result<()> {
    let mut report = PackReport::new(0);
    for segment in segments {
        match segment.form {
            Err(reason) => report.stays(reason, segment),
            Ok(_) => return Ok(()),
        }
    }
    refuse_nothing_packed(file, &report)
}

/// Refuses to make a copy of a file.
pub fn refuse_nothing_packed(file: &str, report: &PackReport) -> Result<()> {
    if report.packed.entries > 0 {
        return Ok(());
    }
    let reasons = report.raw.iter().map(|(reason, sum)| {
        let count = counted(sum.bytes, "byte");
        format!(
            "{count} of {}: {}",
            counted_entries(sum.entries),
            reason.text()
        )
    });
    let reasons: Vec<_> = reasons.collect();
    Err(Error::Io {
        file: file.to_owned(),
        what: format!(
            "nothing of it can be packed, and no file was written: {}",
            reasons.join("; ")
        ),
    })
}
