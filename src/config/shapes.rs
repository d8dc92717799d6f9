//! The shapes whose graphs are captured at load, as the option names them.
//!
//! ```text
//! tokens=1,2,4                               of a program's only method
//! decode:batch=1,2;prefill:tokens=128,256    of several methods
//! batch=1,8,tokens=1,16                      all four combinations
//! decode:static                              a method without dynamic dimensions
//! ```

use super::values::{decimal, wrong};
use super::{refuse, Spec, SpecValue};
use crate::error::Result;

/// What stands in the place of sizes where a method has one shape only.
const STATIC: &str = "static";

/// Sizes of the dimensions of one method: all combinations of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShapeGroup {
    /// `None`: the program's only method.
    pub method: Option<String>,
    /// Name and sizes of each dimension; none for a method with one shape.
    pub dims: Vec<(String, Vec<i64>)>,
}

pub(super) fn shapes(spec: &Spec) -> Result<Vec<ShapeGroup>> {
    let SpecValue::Text(text) = &spec.value else {
        return Err(wrong(spec));
    };
    text.split(';').map(|part| group(spec, part)).collect()
}

fn group(spec: &Spec, text: &str) -> Result<ShapeGroup> {
    let (method, sizes) = match text.split_once(':') {
        None => (None, text.trim()),
        Some((method, sizes)) => (Some(method.trim().to_owned()), sizes.trim()),
    };
    if method.as_ref().is_some_and(String::is_empty) || sizes.is_empty() {
        return Err(wrong(spec));
    }
    let dims = match sizes {
        STATIC => Vec::new(),
        sizes => dims(spec, sizes)?,
    };
    Ok(ShapeGroup { method, dims })
}

/// `batch=1,8,tokens=1,16`: a part with `=` begins another dimension.
fn dims(spec: &Spec, text: &str) -> Result<Vec<(String, Vec<i64>)>> {
    let mut found: Vec<(String, Vec<i64>)> = Vec::new();
    for part in text.split(',') {
        let size = match part.split_once('=') {
            None => part,
            Some((name, size)) => {
                let name = name.trim();
                if name.is_empty() {
                    return Err(wrong(spec));
                }
                if found.iter().any(|(before, _)| before == name) {
                    let what = format!("names dimension '{name}' twice in '{text}'");
                    return Err(refuse(&spec.key, what));
                }
                found.push((name.to_owned(), Vec::new()));
                size
            }
        };
        let (name, sizes) = found.last_mut().ok_or_else(|| wrong(spec))?;
        sizes.push(size_of(spec, name, sizes, size.trim())?);
    }
    Ok(found)
}

fn size_of(spec: &Spec, name: &str, before: &[i64], text: &str) -> Result<i64> {
    let size = decimal(text).and_then(|size| i64::try_from(size).ok());
    let size = size.ok_or_else(|| {
        let what = format!("gives dimension '{name}' the size '{text}', which is no whole number");
        refuse(&spec.key, what)
    })?;
    match before.contains(&size) {
        true => Err(refuse(
            &spec.key,
            format!("gives dimension '{name}' the size {size} twice"),
        )),
        false => Ok(size),
    }
}
