//! Options that cannot take effect on a method are refused at load, before anything is opened.
#![deny(unsafe_code)]

use crate::config::{
    Budget, Given, LinkRate, Options, Origin, PolicyKind, Verify, BUDGET, BUDGET_BYTES, BUDGET_MB,
    CUDA_GRAPH, GRAPH_MB, GRAPH_SHAPES, LINK_GBPS, PIN, POLICY, PRIORITY, PTE_SHA256, STREAM, SYNC,
    VERIFY,
};
use crate::device::{CallerStream, HostStorage};
use crate::error::{Error, Result};
use crate::format::Record;
use crate::residency::Policy;

/// On the CPU a kernel has ended when it returns, and a fault in it ends the process there and then.
pub(super) fn check_sync(record: &Record, options: &Options) -> Result<()> {
    match options.sync && record.device == "cpu" {
        false => Ok(()),
        true => Err(Error::Option {
            key: SYNC.to_owned(),
            what: format!(
                "waits for kernels of a GPU, and method '{}' was exported for 'cpu', where each has ended before the next \
                 begins",
                record.method
            ),
        }),
    }
}

/// Only plans ask what copies cost, and on the CPU they cost none.
pub(super) fn check_link(record: &Record, options: &Options) -> Result<()> {
    let why = match (options.link, options.policy) {
        (LinkRate::Unsaid, _) => return Ok(()),
        (_, policy) if !policy.plans() => {
            format!("under {POLICY} = {} nothing is planned", policy.name())
        }
        _ if record.device == "cpu" => format!(
            "method '{}' was exported for 'cpu', which has no link",
            record.method
        ),
        _ => return Ok(()),
    };
    Err(Error::Option {
        key: LINK_GBPS.to_owned(),
        what: format!("is for plans of what to copy, and {why}; leave it out"),
    })
}

/// A graph runs without the host, which therefore can do nothing in the middle of a pass.
pub(super) fn check_graph(record: &Record, options: &Options) -> Result<()> {
    if !options.cuda_graph {
        let unused = [
            (GRAPH_MB, "memory", options.graph_bytes.is_some()),
            (GRAPH_SHAPES, "shapes", !options.graph_shapes.is_empty()),
        ];
        let Some((key, what, _)) = unused.into_iter().find(|(.., given)| *given) else {
            return Ok(());
        };
        return Err(Error::Option {
            key: key.to_owned(),
            what: format!("is the {what} of graphs, and none are captured without {CUDA_GRAPH}"),
        });
    }
    if record.device == "cpu" {
        return Err(no_graph(&format!(
            "method '{}' was exported for 'cpu', which has no graphs; leave it out",
            record.method
        )));
    }
    if options.sync || options.verify == Verify::EveryRead {
        let other = match options.sync {
            true => SYNC.to_owned() + " = 1",
            false => VERIFY.to_owned() + " = every_read",
        };
        return Err(no_graph(&format!(
            "the host cannot wait in the middle of a graph, as {other} asks for; leave one of the two out"
        )));
    }
    Ok(())
}

/// Whether passes are captured, once it is known how weights are held, and which policy runs: the one that was asked for, or what the
/// budget leaves. Where they cannot be, a default is left out; that a load asks for it is an error.
pub(super) fn captures(options: &Options, held: HostStorage, policy: &dyn Policy) -> Result<bool> {
    if !options.cuda_graph {
        return Ok(false);
    }
    let able = check_no_ring(held).and_then(|()| check_repeats(options, policy));
    let asked =
        options.origin(CUDA_GRAPH) == Some(Origin::Load) || !options.graph_shapes.is_empty();
    match able {
        Err(error) if !asked => {
            log::info!("passes are not captured as graphs: {error}");
            Ok(false)
        }
        able => able.map(|()| true),
    }
}

fn check_repeats(options: &Options, policy: &dyn Policy) -> Result<()> {
    if policy.is_periodic() {
        return Ok(());
    }
    let key = match options.graph_shapes.is_empty() {
        true => CUDA_GRAPH,
        false => GRAPH_SHAPES,
    };
    Err(Error::Option {
        key: key.to_owned(),
        what: differs(options.policy, policy.name()),
    })
}

/// The ring of 'staged' is filled by the host during each pass.
fn check_no_ring(held: HostStorage) -> Result<()> {
    match held {
        HostStorage::Staged { .. } => Err(no_graph(
            "weights are held 'staged' on the host here, which fills the ring during each pass; hold them otherwise \
             (weight_offload_host), or leave it out",
        )),
        _ => Ok(()),
    }
}

/// Why no pass can be captured where the policy `runs`, with `asked` for.
pub(crate) fn differs(asked: PolicyKind, runs: &str) -> String {
    let instead = match asked.plans() {
        true => format!(
            "{POLICY} = '{}' has no plan at this budget; give a larger one, or leave graphs out",
            asked.name()
        ),
        false => format!(
            "take {POLICY} = 'planned' in place of '{}', or a budget for all weights, or leave graphs out",
            asked.name()
        ),
    };
    format!(
        "no pass can be captured under the policy '{runs}', since each one leaves other weights on the device than it found: \
         {instead}"
    )
}

/// The driver captures no graph from it.
pub(super) fn check_stream(options: &Options, stream: Option<CallerStream>) -> Result<()> {
    match options.cuda_graph && stream.is_some_and(|stream| stream.is_default()) {
        false => Ok(()),
        true => Err(no_graph(
            "the default stream cannot be captured; load the program with a stream of your own, or with none",
        )),
    }
}

pub(super) fn no_graph(why: &str) -> Error {
    Error::Option {
        key: CUDA_GRAPH.to_owned(),
        what: why.to_owned(),
    }
}

/// Who has the program's bytes compares them and takes the option out; here they are not known.
pub(super) fn check_no_pin(options: &Options) -> Result<()> {
    match options.pte_sha256 {
        None => Ok(()),
        Some(_) => Err(Error::Option {
            key: PTE_SHA256.to_owned(),
            what: "cannot take effect here: ExecuTorch gives a backend its own part of the program only, so that the \
                   whole cannot be compared; load it with weightstream::Module, weightstream-run, Python's Module or the C \
                   function ws_init, or compare the file before ExecuTorch opens it"
                .to_owned(),
        }),
    }
}

/// A shared budget is one of plans; and a priority is one of a shared budget.
pub(super) fn check_shared(options: &Options) -> Result<()> {
    let shared = options.budget == Budget::Shared;
    if shared && options.policy != PolicyKind::Planned {
        return Err(Error::Option {
            key: BUDGET.to_owned(),
            what: format!("'shared' needs {POLICY} = 'planned': budgets of plans only can change"),
        });
    }
    // A default of the process is for those that it is for.
    let given = |one: &Given| one.spec.key == PRIORITY && one.origin == Origin::Load;
    match options.given.iter().any(given) && !shared {
        true => Err(Error::Option {
            key: PRIORITY.to_owned(),
            what: format!(
                "is the priority of a store with {BUDGET} = 'shared', and this one has a budget of its own"
            ),
        }),
        false => Ok(()),
    }
}

/// Without probes everything is loaded up front, so a budget could only be ignored, and so could patterns of weights.
pub(super) fn check_offloads(record: &Record, options: &Options) -> Result<()> {
    if record.offload {
        return Ok(());
    }
    let given = [
        (
            options.budget != Budget::Floor,
            format!("{BUDGET} / {BUDGET_MB} / {BUDGET_BYTES}"),
            "give no budget",
        ),
        (!options.pin.is_empty(), PIN.to_owned(), "leave it out"),
        (
            !options.stream.is_empty(),
            STREAM.to_owned(),
            "leave it out",
        ),
    ];
    let Some((_, key, instead)) = given.into_iter().find(|(given, ..)| *given) else {
        return Ok(());
    };
    Err(Error::Option {
        key,
        what: format!(
            "method '{}' was exported with WeightStreamPartitioner(offload=False), so all its weights are always in memory; \
             export it with offload=True, or {instead}",
            record.method
        ),
    })
}

#[cfg(test)]
#[path = "option_checks_tests.rs"]
mod tests;
