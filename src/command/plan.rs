//! `weightstream plan`.

use super::cost::{in_place, positive, Cost, LinkArguments, PassCost};
use super::explain;
use super::graphs::GraphCosts;
use super::model::{Files, Form, Model};
use super::picture;
use super::size::{grouped, with_megabytes, BudgetArgument};
use super::tables;
use super::together;
use crate::error::{bytes_text, counted};
use crate::{Error, Result};
use clap::Args;
use serde_json::{json, Value};
use std::fmt::Write;
use std::path::PathBuf;

/// Largest number of budgets in a sweep.
const MOST: u64 = 10_000;

/// Arguments of a plan for one program only.
const ALONE: [&str; 11] = [
    "pte",
    "ptd",
    "method",
    "sweep",
    "svg",
    "kernel_times",
    "compute_ms",
    "pin",
    "stream",
    "method_share",
    "graph_shapes",
];

#[derive(Args)]
#[command(mut_arg("pte", |pte| pte.required(false).required_unless_present("together")))]
pub struct PlanArguments {
    #[command(flatten)]
    files: Option<Files>,
    #[command(flatten)]
    form: Form,
    /// Bytes that weights may take on the device: 512MB, 1.5GB, 536870912, 50%, floor. Without it, a sweep.
    #[arg(long, short, conflicts_with = "sweep")]
    budget: Option<BudgetArgument>,
    #[command(flatten)]
    link: LinkArguments,
    /// How long kernels run: a file that a load on a GPU with `weight_offload_kernel_times` wrote. Plans then go by it, as they
    /// do there.
    #[arg(long, value_name = "FILE")]
    kernel_times: Option<PathBuf>,
    /// Shapes whose graphs a load captures, as in `weight_offload_graph_shapes`: their number and memory. Without it, those that
    /// the program names.
    #[arg(long, value_name = "SHAPES", requires = "budget")]
    graph_shapes: Option<String>,
    /// Number of budgets from the floor to everything.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(2..=MOST))]
    sweep: u64,
    /// Draw the sweep: time per pass against the budget, with the limit.
    #[arg(long, value_name = "FILE", conflicts_with = "budget")]
    svg: Option<PathBuf>,
    /// Several programs that share the budget: what each of them gets, and what their passes cost. A `.ptd` belongs to the
    /// program before it.
    #[arg(
        long,
        value_name = "MODEL.pte",
        num_args = 1..,
        requires = "budget",
        conflicts_with_all = ALONE
    )]
    together: Vec<PathBuf>,
    /// How often each of these programs passes, in their order, such as 1,0.2. Without it, all alike.
    #[arg(long, value_name = "RATE,RATE", value_delimiter = ',', requires = "together", value_parser = positive)]
    rates: Vec<f64>,
}

pub fn run(arguments: &PlanArguments) -> Result<String> {
    match (&arguments.files, arguments.budget) {
        (Some(files), _) => alone(files, arguments),
        (None, Some(budget)) => {
            let (programs, rates) = (&arguments.together, &arguments.rates);
            let figures = (budget, &arguments.link);
            together::run(programs, rates, figures, arguments.form.json)
        }
        (None, None) => unreachable!("clap asks for a program, or for programs and a budget"),
    }
}

fn alone(files: &Files, arguments: &PlanArguments) -> Result<String> {
    let mut model = Model::open(files)?;
    model.figures = arguments.link.figures(model.figures);
    if let Some(file) = &arguments.kernel_times {
        model.read_times(file)?;
    }
    let (floor, everything) = (model.floor.bytes(), model.everything());
    if let Some(budget) = arguments.budget {
        let cost = Cost::at(&model, &arguments.link, budget.bytes(floor, everything))?;
        let shapes = arguments
            .graph_shapes
            .as_ref()
            .or(model.graph_shapes.as_ref());
        let graphs = shapes.map(|shapes| GraphCosts::of(&model, &cost, shapes));
        let graphs = graphs.transpose()?;
        return Ok(match arguments.form.json {
            true => {
                let mut whole = with_head(&model, &arguments.link, &cost);
                if let Some(graphs) = graphs {
                    whole["graphs"] = graphs.object();
                }
                pretty(&whole)
            }
            false => {
                let graphs = graphs.map_or_else(String::new, |graphs| graphs.text());
                head(&model) + &one(&model, &arguments.link, &cost) + &graphs
            }
        });
    }
    let steps = arguments.sweep - 1;
    let budget =
        |step| (u128::from(everything - floor) * u128::from(step) / u128::from(steps)) as u64;
    let costs = (0..=steps).map(|step| Cost::at(&model, &arguments.link, floor + budget(step)));
    let costs: Vec<Cost> = costs.collect::<Result<_>>()?;
    let mut text = match arguments.form.json {
        true => {
            let all: Vec<Value> = costs.iter().map(|cost| object(&model, cost)).collect();
            let mut whole = facts(&model, &arguments.link);
            whole["budgets"] = Value::from(all);
            pretty(&whole)
        }
        false => head(&model) + &table(&model, &arguments.link, &costs),
    };
    if let Some(file) = &arguments.svg {
        let drawn = picture::draw(file, &model, &arguments.link, &costs);
        drawn.map_err(|what| Error::Io {
            file: file.display().to_string(),
            what,
        })?;
        if !arguments.form.json {
            let _ = writeln!(text, "\nwrote {}", file.display());
        }
    }
    Ok(text)
}

fn head(model: &Model) -> String {
    let records = model.picked_records();
    let events: usize = records.iter().map(|one| one.trace.len()).sum();
    let reads: usize = records.iter().map(|one| one.probes.len()).sum();
    format!(
        "{}: {} for {}: {}, {}, {} in a trace of {}\n\
         floor {} bytes: {}\n{}",
        model.name,
        model.names(),
        model.record.device,
        counted(model.union.constants.len() as u64, "constant"),
        with_megabytes(model.everything()),
        counted(reads as u64, "read"),
        counted(events as u64, "event"),
        grouped(model.floor.bytes()),
        model.floor,
        tables::text(model)
    )
}

fn one(model: &Model, link: &LinkArguments, cost: &Cost) -> String {
    let share = 100.0 * cost.budget as f64 / model.everything().max(1) as f64;
    let mut text = format!(
        "budget {}, {share:.1} % of everything\n\n{:10}{:>20}{:>9}{:>14}\n",
        with_megabytes(cost.budget),
        "policy",
        "bytes per pass",
        "copies",
        "ms per pass"
    );
    for (name, PassCost { price, ms }) in [
        ("lru", cost.lru),
        ("planned", cost.planned),
        ("limit", cost.limit),
    ] {
        let copies = if name == "limit" {
            String::new()
        } else {
            grouped(price.copies)
        };
        let _ = writeln!(
            text,
            "{name:10}{:>20}{copies:>9}{ms:>14.3}",
            grouped(price.bytes)
        );
    }
    let _ = writeln!(
        text,
        "\nat {} GB/s{}; the limit is what{} exceeds the budget; passes under the LRU may differ: their mean",
        link.link_gbps,
        computing(model, link),
        match model.records.all().len() {
            1 => "",
            _ => " of a method's weights",
        }
    );
    text + &explain::text(model, link, cost)
}

/// How long kernels run, in words, if that is known.
fn computing(model: &Model, link: &LinkArguments) -> String {
    let in_place = match in_place(model) {
        0 => String::new(),
        bytes => format!(
            ", and at most {} that kernels read in place, in {:.3} ms",
            bytes_text(bytes),
            link.in_place_ms(model)
        ),
    };
    let ms = link.compute_ms(model);
    let kernels = match (&model.times, ms > 0.0) {
        (Some(_), _) => {
            format!(", with kernels of {ms:.3} ms: under 'planned' as they alternate with copies")
        }
        (None, true) => format!(", and at least {ms:.3} ms"),
        (None, false) => String::new(),
    };
    kernels + &in_place
}

fn table(model: &Model, link: &LinkArguments, costs: &[Cost]) -> String {
    let mut text = format!(
        "\n{:>16}{:>8}{:>18}{:>18}{:>12}{:>12}{:>12}\n",
        "budget, bytes", "%", "lru, bytes", "planned, bytes", "lru, ms", "planned, ms", "limit, ms"
    );
    for cost in costs {
        let _ = writeln!(
            text,
            "{:>16}{:>8.1}{:>18}{:>18}{:>12.3}{:>12.3}{:>12.3}",
            grouped(cost.budget),
            100.0 * cost.budget as f64 / model.everything().max(1) as f64,
            grouped(cost.lru.price.bytes),
            grouped(cost.planned.price.bytes),
            cost.lru.ms,
            cost.planned.ms,
            cost.limit.ms
        );
    }
    let _ = writeln!(
        text,
        "\nbytes that a pass copies, and its time at {} GB/s{}",
        link.link_gbps,
        computing(model, link)
    );
    text
}

fn facts(model: &Model, link: &LinkArguments) -> Value {
    json!({
        "method": model.one_name(),
        "methods": model.records.names(),
        "device": model.record.device,
        "floor_bytes": model.floor.bytes(),
        "hard_minimum_bytes": model.floor.hard_minimum,
        "direct_bytes": model.floor.direct,
        "pinned_bytes": model.floor.pinned,
        "everything_bytes": model.everything(),
        "tables": tables::object(model),
        "link_gbps": link.link_gbps,
        "compute_ms": link.compute_ms(model),
        "kernel_times": model.times.is_some(),
    })
}

fn with_head(model: &Model, link: &LinkArguments, cost: &Cost) -> Value {
    let mut whole = facts(model, link);
    if let (Value::Object(whole), Value::Object(more)) = (&mut whole, object(model, cost)) {
        whole.extend(more);
    }
    whole
}

fn object(model: &Model, cost: &Cost) -> Value {
    let pass = |PassCost { price, ms }: PassCost| {
        json!({
            "bytes_per_pass": price.bytes,
            "copies_per_pass": price.copies,
            "ms_per_pass": ms,
        })
    };
    let mut planned = pass(cost.planned);
    if let (Value::Object(planned), Value::Object(more)) =
        (&mut planned, explain::object(model, cost))
    {
        planned.extend(more);
    }
    json!({
        "budget_bytes": cost.budget,
        "lru": pass(cost.lru),
        "planned": planned,
        "in_place_bytes_per_pass": in_place(model),
        "limit_bytes_per_pass": cost.limit.price.bytes,
        "limit_ms_per_pass": cost.limit.ms,
    })
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}
