//! The constants of a record: five lists of equal length, and one that holds all layouts.

use std::collections::BTreeSet;

use super::fields::{Cursor, Fields};
use super::{ConstantKind, RecordedConstant};
use crate::error::Result;
use crate::format::sizes_text;

pub(super) fn read(fields: &Fields<'_>, offload: bool) -> Result<Vec<RecordedConstant>> {
    let fqns = fields.strings("fqns");
    let count = fqns.len();
    if u32::try_from(count).is_err() {
        return Err(fields.bad(
            "fqns",
            format!("holds {count} names, more than can be numbered"),
        ));
    }
    check_names(fields, fqns)?;
    let keys = keys(fields, count)?;
    let per = "constant";
    let kinds = fields.ints_of("kinds", count, per)?;
    let dtypes = fields.ints_of("dtypes", count, per)?;
    let nbytes = fields.ints_of("nbytes", count, per)?;
    let crcs = fields.ints_of("crc32", count, per)?;
    let mut layouts = fields.cursor("layouts");
    let mut constants = Vec::with_capacity(count);
    for (index, fqn) in fqns.iter().enumerate() {
        let (sizes, strides) = layout(&mut layouts)?;
        let constant = RecordedConstant {
            fqn: (*fqn).to_owned(),
            key: keys.get(index).unwrap_or(fqn).to_string(),
            kind: kind(fields, fqn, kinds[index], offload)?,
            dtype: fields.scalar("dtypes", dtypes[index])?,
            nbytes: u64::try_from(nbytes[index])
                .map_err(|_| fields.bad("nbytes", format!("is {} for '{fqn}'", nbytes[index])))?,
            crc32: u32::try_from(crcs[index])
                .map_err(|_| fields.bad("crc32", format!("is {} for '{fqn}'", crcs[index])))?,
            sizes,
            strides,
        };
        check_dense(fields, &constant)?;
        constants.push(constant);
    }
    if !layouts.at_end() {
        return Err(layouts.bad(format!("holds more than the layouts of {count} constants")));
    }
    Ok(constants)
}

/// Where a program has several methods: one key per constant.
fn keys<'a>(fields: &'a Fields<'_>, count: usize) -> Result<&'a [&'a str]> {
    let keys = fields.strings("keys");
    match keys.is_empty() || keys.len() == count {
        true if keys.iter().any(|key| key.is_empty()) => {
            Err(fields.bad("keys", "holds an empty key"))
        }
        true => Ok(keys),
        false => Err(fields.bad(
            "keys",
            format!(
                "holds {} keys, expected {count}, one per constant",
                keys.len()
            ),
        )),
    }
}

fn check_names(fields: &Fields<'_>, fqns: &[&str]) -> Result<()> {
    let mut seen = BTreeSet::new();
    for fqn in fqns {
        if fqn.is_empty() {
            return Err(fields.bad("fqns", "holds an empty name"));
        }
        if !seen.insert(fqn) {
            return Err(fields.bad("fqns", format!("holds '{fqn}' twice")));
        }
    }
    Ok(())
}

fn kind(fields: &Fields<'_>, fqn: &str, number: i64, offload: bool) -> Result<ConstantKind> {
    match number {
        0 if offload => Ok(ConstantKind::Weight),
        0 => Err(fields.bad(
            "kinds",
            format!("says weight for '{fqn}' in a program without offload"),
        )),
        1 => Ok(ConstantKind::Direct),
        2 => Ok(ConstantKind::Mutable),
        other => Err(fields.bad(
            "kinds",
            format!("is {other} for '{fqn}', expected 0, 1 or 2"),
        )),
    }
}

fn layout(layouts: &mut Cursor<'_, '_>) -> Result<(Vec<i64>, Vec<i64>)> {
    let ndim = layouts.ndim()?;
    let sizes = layouts.slice(ndim)?.to_vec();
    let strides = layouts.slice(ndim)?.to_vec();
    Ok((sizes, strides))
}

/// The bytes in the `.ptd` are the whole storage, each element once. With a stride that leaves holes, or
/// with two elements in one place, kernels would read bytes that are not this weight's.
fn check_dense(fields: &Fields<'_>, constant: &RecordedConstant) -> Result<()> {
    let RecordedConstant {
        fqn,
        dtype,
        nbytes,
        sizes,
        strides,
        ..
    } = constant;
    match dtype.dense_bytes(sizes.iter().copied()) {
        Some(bytes) if bytes == *nbytes => {}
        Some(bytes) => {
            let sizes = sizes_text(sizes);
            let what =
                format!("is {nbytes} for '{fqn}', but {dtype} of sizes {sizes} takes {bytes}");
            return Err(fields.bad("nbytes", what));
        }
        None => {
            let what = format!("holds impossible sizes {} for '{fqn}'", sizes_text(sizes));
            return Err(fields.bad("layouts", what));
        }
    }
    if is_dense(sizes, strides) {
        return Ok(());
    }
    let (sizes, strides) = (sizes_text(sizes), sizes_text(strides));
    let what = format!("gives '{fqn}' of sizes {sizes} the strides {strides}, which are not dense");
    Err(fields.bad("layouts", what))
}

/// Whether the strides are those of a dense tensor with its dimensions in any order. Sizes are checked.
fn is_dense(sizes: &[i64], strides: &[i64]) -> bool {
    if strides.iter().any(|stride| *stride < 0) {
        return false;
    }
    if sizes.contains(&0) {
        return true;
    }
    // The stride of a dimension of extent 1 is never used.
    let mut dims: Vec<_> = strides
        .iter()
        .zip(sizes)
        .filter(|(_, size)| **size > 1)
        .collect();
    dims.sort_unstable();
    let mut expected = 1;
    dims.into_iter().all(|(stride, size)| {
        let here = *stride == expected;
        expected *= size;
        here
    })
}

#[cfg(test)]
mod tests {
    use super::is_dense;

    #[test]
    fn dense_is_any_order_of_dimensions() {
        assert!(is_dense(&[], &[]));
        assert!(is_dense(&[2, 3], &[3, 1]));
        assert!(is_dense(&[2, 3], &[1, 2]));
        assert!(is_dense(&[2, 4, 5, 3], &[60, 1, 12, 4]), "channels last");
        assert!(is_dense(&[3, 1, 2], &[2, 777, 1]), "extent 1: any stride");
        assert!(is_dense(&[0, 3], &[3, 1]));
    }

    #[test]
    fn holes_overlaps_and_negative_strides_are_not_dense() {
        assert!(!is_dense(&[2, 3], &[4, 1]), "hole");
        assert!(!is_dense(&[2, 3], &[0, 1]), "expanded");
        assert!(!is_dense(&[2, 3], &[1, 1]), "overlap");
        assert!(!is_dense(&[2], &[2]), "hole in the innermost");
        assert!(!is_dense(&[2], &[-1]));
        assert!(!is_dense(&[0], &[-1]));
    }
}
