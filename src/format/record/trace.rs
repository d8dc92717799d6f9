//! The trace of a record: it must be a pass that can happen.

use super::fields::Fields;
use super::{ConstantKind, Gather, Places, RecordedConstant};
use crate::error::Result;
use crate::schedule::{Event, ProbeId, WeightIndex};

/// Weight index of each probe: in range, and a weight.
pub(super) fn probes(
    fields: &Fields<'_>,
    constants: &[RecordedConstant],
) -> Result<Vec<WeightIndex>> {
    let mut probes = Vec::with_capacity(fields.ints("probes").len());
    for (id, value) in fields.ints("probes").iter().enumerate() {
        let index = usize::try_from(*value)
            .ok()
            .filter(|index| *index < constants.len());
        let index = index.ok_or_else(|| {
            let what = format!("maps probe {id} to constant {value} of {}", constants.len());
            fields.bad("probes", what)
        })?;
        if constants[index].kind != ConstantKind::Weight {
            let what = format!(
                "maps probe {id} to '{}', which is a direct constant",
                constants[index].fqn
            );
            return Err(fields.bad("probes", what));
        }
        probes.push(index as WeightIndex); // fits: the number of constants does
    }
    if u32::try_from(probes.len()).is_err() {
        return Err(fields.bad("probes", "holds more probes than can be numbered"));
    }
    Ok(probes)
}

/// Pairs of a probe and its most rows, -1 where that is not known.
pub(super) fn gathers(
    fields: &Fields<'_>,
    probes: &[WeightIndex],
    constants: &[RecordedConstant],
) -> Result<Vec<Gather>> {
    let mut gathers: Vec<Gather> = Vec::new();
    let mut cursor = fields.cursor("gathers");
    while !cursor.at_end() {
        let (id, rows) = (cursor.int()?, cursor.int()?);
        let probe = ProbeId::try_from(id).ok();
        let probe = probe.filter(|&id| gathers.last().is_none_or(|last| last.probe < id));
        let weight = probe.and_then(|id| probes.get(id as usize));
        let (Some(probe), Some(&weight)) = (probe, weight) else {
            let count = probes.len();
            return Err(cursor.bad(format!("holds probe {id} of {count} out of turn")));
        };
        if rows < -1 {
            return Err(cursor.bad(format!("says that probe {id} takes {rows} rows")));
        }
        let constant = &constants[weight as usize];
        let row_bytes = row_bytes(constant).ok_or_else(|| {
            let fqn = &constant.fqn;
            cursor.bad(format!(
                "says that probe {id} takes rows of '{fqn}', which has none"
            ))
        })?;
        gathers.push(Gather {
            probe,
            rows: u64::try_from(rows).ok(),
            row_bytes,
        });
    }
    Ok(gathers)
}

/// Pairs of a probe whose rows may lie apart, and the constant that says where they do and counts them.
pub(super) fn places(
    fields: &Fields<'_>,
    gathers: &[Gather],
    probes: &[WeightIndex],
    constants: &[RecordedConstant],
) -> Result<Vec<Places>> {
    let mut found = Vec::new();
    let mut cursor = fields.cursor("x_places");
    while !cursor.at_end() {
        let (id, constant) = (cursor.int()?, cursor.int()?);
        let gather = gathers.iter().find(|one| i64::from(one.probe) == id);
        let told = usize::try_from(constant).ok();
        let told = told.and_then(|at| constants.get(at));
        let (Some(gather), Some(told)) = (gather, told) else {
            return Err(cursor.bad(format!(
                "says that constant {constant} has the places of the rows of probe {id}, and takes no rows"
            )));
        };
        let table = &constants[probes[gather.probe as usize] as usize];
        let rows = table.nbytes.checked_div(gather.row_bytes).unwrap_or(0);
        let expected = rows.saturating_mul(16).saturating_add(8);
        if told.kind != ConstantKind::Direct || told.nbytes != expected {
            return Err(cursor.bad(format!(
                "says that '{}' has the places of {rows} rows: a direct constant of {expected} bytes is expected; export the program again",
                told.fqn
            )));
        }
        found.push(Places {
            probe: gather.probe,
            constant: constant as WeightIndex, // fits: there is one
            row_bytes: gather.row_bytes,
        });
    }
    Ok(found)
}

/// Bytes of what lies together at one index of the first dimension.
fn row_bytes(constant: &RecordedConstant) -> Option<u64> {
    let rows = u64::try_from(*constant.sizes.first()?)
        .ok()
        .filter(|&rows| rows > 0)?;
    let outermost = constant.strides.iter().max() == constant.strides.first();
    outermost.then_some(constant.nbytes / rows)
}

/// State of one probe while the trace is walked.
#[derive(Clone, Copy, PartialEq)]
enum Lease {
    NotYet,
    Open,
    Ended,
}

/// The events, each probe exactly once, kernels numbered from 0, releases of open leases only. Leases that
/// are open at the end last until the compiled code returns.
pub(super) fn events(fields: &Fields<'_>, probes: usize) -> Result<Vec<Event>> {
    let codes = fields.ints("trace");
    let mut leases = vec![Lease::NotYet; probes];
    let mut kernels = 0;
    let mut events = Vec::with_capacity(codes.len());
    for (position, code) in codes.iter().enumerate() {
        let bad = |what: String| fields.bad("trace", format!("{what} (event {position})"));
        let event =
            event(*code).ok_or_else(|| bad(format!("holds {code}, which is not an event")))?;
        match event {
            Event::Kernel(number) if number == kernels => kernels += 1,
            Event::Kernel(number) => {
                return Err(bad(format!(
                    "holds kernel {number}, expected kernel {kernels}"
                )));
            }
            Event::Probe(id) => step(&mut leases, id, Lease::NotYet, Lease::Open)
                .ok_or_else(|| bad(format!("holds probe {id} of {probes} out of turn")))?,
            // rule: recorded-release-needs-an-open-lease
            Event::Release(id) => step(&mut leases, id, Lease::Open, Lease::Ended)
                .ok_or_else(|| bad(format!("releases probe {id}, whose lease is not open")))?,
        }
        events.push(event);
    }
    match leases.iter().position(|lease| *lease == Lease::NotYet) {
        None => Ok(events),
        Some(id) => Err(fields.bad("trace", format!("never reaches probe {id} of {probes}"))),
    }
}

fn event(code: i64) -> Option<Event> {
    let code = u64::try_from(code).ok()?;
    let id = u32::try_from(code / 4).ok()?;
    match code % 4 {
        0 => Some(Event::Probe(id)),
        1 => Some(Event::Kernel(id)),
        2 => Some(Event::Release(id)),
        _ => None,
    }
}

/// Moves a lease from `from` to `to`; `None` if there is no such probe or it is elsewhere.
fn step(leases: &mut [Lease], id: ProbeId, from: Lease, to: Lease) -> Option<()> {
    let lease = leases
        .get_mut(id as usize)
        .filter(|lease| **lease == from)?;
    *lease = to;
    Some(())
}

/// The access order is the trace's probes as weight indices; it is recorded for tools and checked here.
pub(super) fn access_order(
    fields: &Fields<'_>,
    trace: &[Event],
    probes: &[WeightIndex],
) -> Result<Vec<WeightIndex>> {
    let order: Vec<WeightIndex> = trace
        .iter()
        .filter_map(|event| match event {
            Event::Probe(id) => probes.get(*id as usize).copied(),
            _ => None,
        })
        .collect();
    let recorded = fields.ints_of("access_order", probes.len(), "probe")?;
    let differs = order
        .iter()
        .zip(recorded)
        .position(|(here, there)| i64::from(*here) != *there);
    match differs {
        None => Ok(order),
        Some(position) => {
            let (here, there) = (order[position], recorded[position]);
            let what =
                format!("says weight {there} at position {position}, the trace says weight {here}");
            Err(fields.bad("access_order", what))
        }
    }
}
