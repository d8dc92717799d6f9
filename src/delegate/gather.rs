//! Which tables are read in place: decided before anything is tried, by the record, the option and how the weights are
//! held on the host. Each decision that differs from the record's rule is logged or asked for.
#![deny(unsafe_code)]

use crate::config::{Gathering, Options, GATHER, HOST};
use crate::device::HostStorage;
use crate::error::{bytes_text, Error, Result};
use crate::format::{Gather, Record, Records};
use crate::schedule::ProbeId;

/// The reads that are done in place by the rule alone: known to take at most half of their table.
pub fn by_rule(record: &Record) -> Vec<ProbeId> {
    reads(record, |gather, table| gather.pays(table))
}

/// The reads that some option may have done in place.
#[cfg(feature = "cli")]
pub(super) fn by_any_option(record: &Record) -> Vec<ProbeId> {
    reads(record, |_, _| true)
}

/// The reads of each method that are done in place in this load.
pub(super) fn choose_all(
    records: &Records,
    options: &Options,
    held: &HostStorage,
) -> Result<Vec<Vec<ProbeId>>> {
    let chosen = records.all().iter();
    let chosen: Vec<_> = chosen.map(|record| choose(record, options, held)).collect();
    if chosen.iter().all(Result::is_err) {
        return chosen.into_iter().collect();
    }
    // 'on' has an effect if one method has such reads.
    Ok(chosen.into_iter().map(Result::unwrap_or_default).collect())
}

fn choose(record: &Record, options: &Options, held: &HostStorage) -> Result<Vec<ProbeId>> {
    let chosen = match options.gather {
        Gathering::Off => return Ok(Vec::new()),
        Gathering::Auto => by_rule(record),
        Gathering::On => reads(record, |_, table| table > 0),
    };
    if let HostStorage::Staged { .. } = held {
        return match options.gather {
            Gathering::On => Err(refused(format!(
                "'on' cannot take effect with {HOST} = staged: kernels cannot read a file that need not be in memory"
            ))),
            _ => {
                if let Some(&first) = chosen.first() {
                    log::info!(
                        "method '{}': tables such as '{}' are streamed, though only some of their rows are read: with {HOST} \
                         = staged they need not be in memory",
                        record.method,
                        name(record, first)
                    );
                }
                Ok(Vec::new())
            }
        };
    }
    if chosen.is_empty() && options.gather == Gathering::On {
        return Err(refused(format!(
            "'on' cannot take effect: method '{}' has no weight of which a kernel only looks rows up",
            record.method
        )));
    }
    say(record, &chosen);
    Ok(chosen)
}

/// One line for all of them: a mixture of experts has hundreds.
fn say(record: &Record, chosen: &[ProbeId]) {
    let Some(&first) = chosen.first() else {
        return;
    };
    let gathers = record.gathers.iter();
    let gathers = gathers.filter(|one| chosen.contains(&one.probe));
    let most = gathers.map(Gather::bytes);
    let most = most
        .reduce(|sum, next| Some(sum?.saturating_add(next?)))
        .flatten();
    log::info!(
        "method '{}': rows of {} weights, the first of them '{}', are read in place, in host memory, where the budget does not cover all \
         weights: {}",
        record.method,
        chosen.len(),
        name(record, first),
        most.map_or("as many as a pass asks for".to_owned(), |bytes| format!("at most {} in a pass", bytes_text(bytes)))
    );
}

fn reads(record: &Record, which: impl Fn(&Gather, u64) -> bool) -> Vec<ProbeId> {
    let table = |id: ProbeId| record.probed(id).map_or(0, |constant| constant.nbytes);
    let chosen = record.gathers.iter();
    let chosen = chosen.filter(|gather| which(gather, table(gather.probe)));
    chosen.map(|gather| gather.probe).collect()
}

fn name(record: &Record, probe: ProbeId) -> &str {
    record.probed(probe).map_or("", |constant| &constant.fqn)
}

fn refused(what: String) -> Error {
    Error::Option {
        key: GATHER.to_owned(),
        what,
    }
}
