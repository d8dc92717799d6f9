//! Tables of which a pass takes rows: which are read in place, and by what figures.

use super::model::Model;
use super::size::grouped;
use crate::format::{Gather, Record};
use serde_json::{json, Value};
use std::fmt::Write;

/// A line for each read of rows, with the figures that decide.
pub fn text(model: &Model) -> String {
    let mut text = String::new();
    for (record, gather) in gathers(model) {
        let (fqn, bytes) = table(record, gather);
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
        let _ = match gather.pays(bytes) {
            true => writeln!(text, "'{fqn}' ({} bytes) is read in place, in host memory, below a budget for all weights: {rows}", grouped(bytes)),
            false if gather.rows.is_none() => writeln!(
                text,
                "'{fqn}' ({} bytes) is no table to read in place: {rows}; export with an upper bound of its dynamic dimensions \
                 (torch.export.Dim(..., max=...)), or load with weight_offload_gather=on",
                grouped(bytes)
            ),
            false => writeln!(
                text,
                "'{fqn}' ({} bytes) is no table to read in place: {rows}, more than half of it",
                grouped(bytes)
            ),
        };
    }
    text
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
