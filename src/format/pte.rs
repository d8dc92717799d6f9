//! The `.pte` container (ExecuTorch program), as far as WeightStream needs it: delegates, named data and
//! constant methods.

use std::collections::btree_map::{BTreeMap, Entry};
use std::ops::Range;

use super::generated::program as fb;
use super::segments::{self, SegmentRow};
use super::{flat, header, malformed};
use crate::error::{Error, Result};

/// A validated `.pte`; borrows the file's bytes.
#[derive(Debug, Clone)]
pub struct Pte<'a> {
    file: String,
    bytes: &'a [u8],
    program: fb::Program<'a>,
    segments: Vec<Range<usize>>,
    plans: BTreeMap<&'a str, fb::ExecutionPlan<'a>>,
    /// Where the tables end.
    tables: usize,
    named: BTreeMap<&'a str, Range<usize>>,
}

/// One delegate of a method.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DelegateEntry<'a> {
    /// Name of the backend that runs it.
    pub backend: &'a str,
    /// What the backend's export wrote for its runtime.
    pub processed: &'a [u8],
    /// Compile specs: keys and values, in file order.
    pub compile_specs: Vec<(&'a str, &'a [u8])>,
}

impl<'a> DelegateEntry<'a> {
    /// Value of the first compile spec with this key.
    pub fn spec(&self, key: &str) -> Option<&'a [u8]> {
        self.compile_specs
            .iter()
            .find(|spec| spec.0 == key)
            .map(|spec| spec.1)
    }
}

/// What a constant method returns: a list arrives as one value each.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConstantMethod<'a> {
    /// Where the method stands in the file.
    pub offset: u64,
    /// Its integers, in order.
    pub ints: Vec<i64>,
    /// Its strings, in order.
    pub strings: Vec<&'a str>,
}

impl<'a> Pte<'a> {
    /// Checks header, tables, segments and names. `name` is what errors call the file.
    pub fn parse(name: &str, bytes: &'a [u8]) -> Result<Self> {
        let extent = header::program(name, bytes)?;
        let program = flat::root::<fb::Program>(name, &bytes[..extent.flatbuffer_end as usize])?;
        if program.version() != 0 {
            let what = format!("program version {}, expected 0", program.version());
            return Err(malformed(name, program._tab.loc(), what));
        }
        let rows = program
            .segments()
            .into_iter()
            .flatten()
            .map(|segment| SegmentRow {
                at: segment._tab.loc(),
                offset: segment.offset(),
                size: segment.size_(),
            });
        let tables = extent
            .segments
            .as_ref()
            .map_or(bytes.len(), |s| s.start as usize);
        let segments = segments::ranges(name, extent.segments, rows)?;
        let named = named_data(name, &program, &segments)?;
        let plans = plans(name, &program)?;
        let pte = Pte {
            file: name.to_owned(),
            bytes,
            tables,
            program,
            segments,
            plans,
            named,
        };
        for plan in pte.plans.values() {
            for delegate in plan.delegates().into_iter().flatten() {
                pte.read_delegate(&delegate)?;
            }
        }
        Ok(pte)
    }

    /// What errors call the file.
    pub fn name(&self) -> &str {
        &self.file
    }

    /// The program without its segments: header, tables and what lies between.
    pub fn tables(&self) -> &'a [u8] {
        &self.bytes[..self.tables.min(self.bytes.len())]
    }

    /// Names of all methods, constant ones included, sorted.
    pub fn methods(&self) -> impl Iterator<Item = &'a str> + '_ {
        self.plans.keys().copied()
    }

    /// The one delegate of `method`.
    pub fn delegate(&self, method: &str) -> Result<DelegateEntry<'a>> {
        let Some(plan) = self.plans.get(method) else {
            return Err(Error::Missing {
                name: method.to_owned(),
                place: format!("{}; {}", self.file, self.methods_text()),
            });
        };
        let found: Vec<_> = plan.delegates().into_iter().flatten().collect();
        match found.as_slice() {
            [one] => self.read_delegate(one),
            [] => Err(Error::Missing {
                name: format!("delegate of method {method}"),
                place: format!("{}; {}", self.file, self.methods_text()),
            }),
            many => {
                let names: Vec<_> = many.iter().map(|one| one.id().unwrap_or("?")).collect();
                Err(Error::Mismatch {
                    name: method.to_owned(),
                    fact: "number of delegates",
                    expected: "1".to_owned(),
                    found: format!("{} ({}) in {}", many.len(), names.join(", "), self.file),
                })
            }
        }
    }

    /// The methods that a backend runs, in a sentence.
    fn methods_text(&self) -> String {
        let runs =
            |plan: &fb::ExecutionPlan<'a>| plan.delegates().is_some_and(|all| !all.is_empty());
        let names = self.plans.iter().filter(|(_, plan)| runs(plan));
        let names: Vec<_> = names.map(|(name, _)| format!("'{name}'")).collect();
        match names.is_empty() {
            true => "no method of it has a delegate".to_owned(),
            false => format!("its methods are {}", names.join(", ")),
        }
    }

    /// The bytes stored under `key` in the program itself.
    pub fn named_data(&self, key: &str) -> Result<&'a [u8]> {
        let range = self.named.get(key).cloned();
        range
            .map(|range| &self.bytes[range])
            .ok_or_else(|| self.missing(key))
    }

    /// Keys of all named data, sorted.
    pub fn named_data_keys(&self) -> impl Iterator<Item = &'a str> + '_ {
        self.named.keys().copied()
    }

    /// What the method `name` returns without being run: it has no inputs, and its outputs are stored.
    pub fn constant_method(&self, name: &str) -> Result<ConstantMethod<'a>> {
        let plan = self.plan(name)?;
        let at = plan._tab.loc();
        let bad = |what: String| malformed(&self.file, at, format!("method '{name}': {what}"));
        if let Some(inputs) = plan.inputs().filter(|inputs| !inputs.is_empty()) {
            return Err(bad(format!(
                "a constant method has no inputs, this has {}",
                inputs.len()
            )));
        }
        let mut method = ConstantMethod {
            offset: at as u64,
            ..ConstantMethod::default()
        };
        for output in plan.outputs().into_iter().flatten() {
            let value = plan.values().and_then(|values| {
                let index = usize::try_from(output)
                    .ok()
                    .filter(|index| *index < values.len())?;
                Some(values.get(index))
            });
            let value = value
                .ok_or_else(|| bad(format!("output names value {output}, which is not there")))?;
            if let Some(int) = value.val_as_int() {
                method.ints.push(int.int_val());
            } else if let Some(string) = value.val_as_string() {
                method.strings.push(string.string_val().unwrap_or_default());
            } else {
                return Err(bad(format!(
                    "value {output} is neither an integer nor a string"
                )));
            }
        }
        Ok(method)
    }

    /// Where the program's root table stands: the offset for what is missing altogether.
    pub(super) fn root_offset(&self) -> u64 {
        self.program._tab.loc() as u64
    }

    pub(super) fn plan(&self, method: &str) -> Result<&fb::ExecutionPlan<'a>> {
        self.plans.get(method).ok_or_else(|| self.missing(method))
    }

    fn missing(&self, name: &str) -> Error {
        Error::Missing {
            name: name.to_owned(),
            place: self.file.clone(),
        }
    }

    fn read_delegate(&self, delegate: &fb::BackendDelegate<'a>) -> Result<DelegateEntry<'a>> {
        let bad = |what: String| malformed(&self.file, delegate._tab.loc(), what);
        let backend = delegate
            .id()
            .ok_or_else(|| bad("a delegate names no backend".to_owned()))?;
        let reference = delegate
            .processed()
            .ok_or_else(|| bad(format!("delegate '{backend}' has no processed bytes")))?;
        let index = reference.index() as usize;
        let processed = match reference.location() {
            fb::DataLocation::INLINE => self.inline_data(index),
            fb::DataLocation::SEGMENT => self
                .segments
                .get(index)
                .map(|range| &self.bytes[range.clone()]),
            _ => None,
        };
        let processed = processed.ok_or_else(|| {
            let location = reference.location().0;
            bad(format!("delegate '{backend}' points to data {index} at location {location}, which is not there"))
        })?;
        let mut compile_specs = Vec::new();
        for spec in delegate.compile_specs().into_iter().flatten() {
            let key = spec
                .key()
                .ok_or_else(|| bad(format!("'{backend}': a compile spec has no key")))?;
            compile_specs.push((
                key,
                spec.value().map(|value| value.bytes()).unwrap_or_default(),
            ));
        }
        Ok(DelegateEntry {
            backend,
            processed,
            compile_specs,
        })
    }

    fn inline_data(&self, index: usize) -> Option<&'a [u8]> {
        let all = self.program.backend_delegate_data()?;
        if index >= all.len() {
            return None;
        }
        Some(
            all.get(index)
                .data()
                .map(|data| data.bytes())
                .unwrap_or_default(),
        )
    }
}

fn plans<'a>(
    file: &str,
    program: &fb::Program<'a>,
) -> Result<BTreeMap<&'a str, fb::ExecutionPlan<'a>>> {
    let mut plans = BTreeMap::new();
    for plan in program.execution_plan().into_iter().flatten() {
        let at = plan._tab.loc();
        let name = plan
            .name()
            .ok_or_else(|| malformed(file, at, "a method has no name"))?;
        insert(file, at, "method", &mut plans, name, plan)?;
    }
    Ok(plans)
}

fn named_data<'a>(
    file: &str,
    program: &fb::Program<'a>,
    segments: &[Range<usize>],
) -> Result<BTreeMap<&'a str, Range<usize>>> {
    let mut named = BTreeMap::new();
    for entry in program.named_data().into_iter().flatten() {
        let at = entry._tab.loc();
        let key = entry
            .key()
            .ok_or_else(|| malformed(file, at, "named data has no key"))?;
        let segment = entry.segment_index() as usize;
        let range = segments.get(segment).cloned().ok_or_else(|| {
            malformed(
                file,
                at,
                format!("'{key}' names segment {segment} of {}", segments.len()),
            )
        })?;
        insert(file, at, "key", &mut named, key, range)?;
    }
    Ok(named)
}

fn insert<'a, V>(
    file: &str,
    at: usize,
    what: &str,
    map: &mut BTreeMap<&'a str, V>,
    key: &'a str,
    value: V,
) -> Result<()> {
    match map.entry(key) {
        Entry::Vacant(free) => {
            free.insert(value);
            Ok(())
        }
        Entry::Occupied(_) => Err(malformed(
            file,
            at,
            format!("the {what} '{key}' stands here a second time"),
        )),
    }
}
