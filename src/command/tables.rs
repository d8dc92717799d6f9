//! Tables of which a pass takes rows: which are read in place, and by what figures.

use super::model::Model;
use super::size::grouped;
use crate::format::{Gather, Record};
use serde_json::{json, Value};

/// A line for each read of rows, with the figures that decide. Reads of equal figures whose weights have names of one form, as those of
/// layers have, are one line.
pub fn text(model: &Model) -> String {
    let mut lines: Vec<(String, u64, &Gather, &str, usize)> = Vec::new();
    for (record, gather) in gathers(model) {
        let (fqn, bytes) = table(record, gather);
        let form = format!("{} {}", record.method, form_of(fqn));
        let figures = (gather.rows, gather.row_bytes);
        let known = lines.iter_mut().find(|(of, size, one, ..)| {
            (of, *size, (one.rows, one.row_bytes)) == (&form, bytes, figures)
        });
        match known {
            Some(line) => line.4 += 1,
            None => lines.push((form, bytes, gather, fqn, 1)),
        }
    }
    let each = lines.iter();
    each.map(|(_, bytes, gather, fqn, count)| line(*bytes, gather, fqn, *count))
        .collect()
}

/// A name without its numbers.
fn form_of(fqn: &str) -> String {
    fqn.split('.')
        .map(|part| match part.parse::<u64>() {
            Ok(_) => "*",
            Err(_) => part,
        })
        .collect::<Vec<_>>()
        .join(".")
}

/// `count` weights like this one.
fn line(bytes: u64, gather: &Gather, fqn: &str, count: usize) -> String {
    let rows = match gather.rows {
        Some(rows) => format!(
            "at most {} rows of {} bytes in a pass",
            grouped(rows),
            grouped(gather.row_bytes)
        ),
        None => format!(
            "an unknown number of rows of {} bytes",
            grouped(gather.row_bytes)
        ),
    };
    let (what, is, table, each, of_each) = match count {
        1 => (format!("'{fqn}'"), "is", "no table", "", ""),
        _ => (
            format!("{count} weights such as '{fqn}'"),
            "are",
            "no tables",
            " each",
            " of each",
        ),
    };
    let what = format!("{what} ({} bytes{each}) {is}", grouped(bytes));
    match gather.pays(bytes) {
        true => format!(
            "{what} read in place, in host memory, below a budget for all weights: {rows}{of_each}\n"
        ),
        false if gather.rows.is_none() => format!(
            "{what} {table} to read in place: {rows}; export with an upper bound of its dynamic dimensions \
             (torch.export.Dim(..., max=...)), or load with weight_offload_gather=on\n"
        ),
        false => format!("{what} {table} to read in place: {rows}{of_each}, more than half of it\n"),
    }
}

/// The same for programs.
pub fn object(model: &Model) -> Value {
    let one = |(record, gather): (&Record, &Gather)| {
        let (fqn, bytes) = table(record, gather);
        json!({
            "method": record.method,
            "fqn": fqn,
            "probe": gather.probe,
            "bytes": bytes,
            "rows_per_pass": gather.rows,
            "row_bytes": gather.row_bytes,
            "in_place": gather.pays(bytes),
        })
    };
    gathers(model).map(one).collect()
}

/// Of the methods that lists are of.
fn gathers(model: &Model) -> impl Iterator<Item = (&Record, &Gather)> {
    let all = model.picked_records().iter();
    all.flat_map(|record| record.gathers.iter().map(move |gather| (record, gather)))
}

fn table<'a>(record: &'a Record, gather: &Gather) -> (&'a str, u64) {
    let found = record.probed(gather.probe);
    found.map_or(("", 0), |constant| (&constant.fqn, constant.nbytes))
}
