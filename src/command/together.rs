//! `weightstream plan --together`: several programs under one budget. Their passes are played through the arbiter, and the
//! planner says what each grant costs.

use super::cost::{Cost, LinkArguments, PassCost};
use super::model::{Files, Model};
use super::size::{grouped, with_megabytes, BudgetArgument};
use crate::elastic::{Arbiter, Rule, Wants};
use crate::error::counted;
use crate::{Error, Result};
use serde_json::{json, Value};
use std::fmt::Write;
use std::path::PathBuf;

/// Passes that are played, of all programs together.
const PASSES: usize = 1000;

/// One program among others.
struct Program {
    model: Model,
    rate: f64,
    grant: u64,
    cost: PassCost,
    /// What an equal part of the budget costs; nothing if that is below the floor.
    equal: Option<PassCost>,
}

/// All programs under one budget.
struct Together<'a> {
    budget: u64,
    link: &'a LinkArguments,
    rule: Rule,
    programs: Vec<Program>,
}

/// What a round of passes costs: of each program as many as its rate says.
struct Round {
    bytes: f64,
    ms: f64,
}

pub fn run(
    paths: &[PathBuf],
    rates: &[f64],
    (budget, link): (BudgetArgument, &LinkArguments),
    json: bool,
) -> Result<String> {
    let models = open(paths, link)?;
    let rates = match rates.is_empty() {
        true => vec![1.0; models.len()],
        false => rates.to_vec(),
    };
    if rates.len() != models.len() {
        return Err(refused(
            "--rates",
            format!(
                "{} for {} programs",
                counted(rates.len() as u64, "rate"),
                models.len()
            ),
        ));
    }
    let sum = |of: fn(&Model) -> u64| models.iter().map(of).fold(0, u64::saturating_add);
    let budget = budget.bytes(sum(|one| one.floor.bytes()), sum(Model::everything));
    let together = Together::play(models, &rates, budget, link)?;
    Ok(match json {
        true => format!("{:#}\n", together.object()),
        false => together.text(),
    })
}

fn refused(key: &str, what: String) -> Error {
    Error::Option {
        key: key.to_owned(),
        what,
    }
}

/// Opens the programs, each with the weights that follow it.
fn open(paths: &[PathBuf], link: &LinkArguments) -> Result<Vec<Model>> {
    let mut files: Vec<Files> = Vec::new();
    for path in paths {
        let weights = path.extension().is_some_and(|extension| extension == "ptd");
        match files.last_mut() {
            Some(last) if weights && last.ptd.is_none() => last.ptd = Some(path.clone()),
            _ => files.push(Files {
                pte: path.clone(),
                ptd: None,
                method: None,
                pin: None,
                stream: None,
                method_share: None,
            }),
        }
    }
    if files.len() < 2 {
        let what = "needs two programs or more; `plan MODEL.pte` is for one";
        return Err(refused("--together", what.to_owned()));
    }
    let mut models = Vec::new();
    for one in &files {
        let mut model = Model::open(one)?;
        model.figures = link.figures(model.figures);
        models.push(model);
    }
    let first = &models[0];
    match models
        .iter()
        .find(|one| one.record.device != first.record.device)
    {
        None => Ok(models),
        Some(other) => Err(refused(
            "--together",
            format!(
                "'{}' was exported for '{}', '{}' for '{}'; programs share a budget on one device",
                first.name, first.record.device, other.name, other.record.device
            ),
        )),
    }
}

/// Which program passes when: the one whose accumulated rate is the largest.
fn order(rates: &[f64]) -> impl Iterator<Item = usize> + '_ {
    let all: f64 = rates.iter().sum();
    let mut due = vec![0.0; rates.len()];
    (0..PASSES).map(move |_| {
        due.iter_mut()
            .zip(rates)
            .for_each(|(due, rate)| *due += rate);
        let later = |best: usize, one: usize| if due[one] > due[best] { one } else { best };
        let next = (1..due.len()).fold(0, later);
        due[next] -= all;
        next
    })
}

impl<'a> Together<'a> {
    fn play(
        models: Vec<Model>,
        rates: &[f64],
        budget: u64,
        link: &'a LinkArguments,
    ) -> Result<Self> {
        let unit = |one: &Model| one.figures.page.unwrap_or(one.figures.granule);
        let unit = models.iter().map(unit).max();
        let mut arbiter = Arbiter::new(u64::MAX, unit.unwrap_or(1));
        let mut ids = Vec::new();
        for model in &models {
            ids.push(arbiter.join(Wants {
                name: model.name.clone(),
                total: model.everything(),
                floor: model.floor.bytes(),
                priority: 0,
            })?);
        }
        let fits = arbiter.set_cap(budget);
        fits.map_err(|error| refused("--budget", error.to_string()))?;
        order(rates).for_each(|next| arbiter.pass(ids[next]));
        let part = budget / models.len() as u64;
        let mut programs = Vec::new();
        for ((model, &rate), id) in models.into_iter().zip(rates).zip(ids) {
            let grant = arbiter.grant(id);
            programs.push(Program {
                rate,
                grant,
                cost: Cost::at(&model, link, grant)?.planned,
                equal: match part >= model.floor.bytes() {
                    true => Some(Cost::at(&model, link, part)?.planned),
                    false => None,
                },
                model,
            });
        }
        Ok(Together {
            budget,
            link,
            rule: arbiter.rule(),
            programs,
        })
    }

    fn round(&self, pass: impl Fn(&Program) -> Option<PassCost>) -> Option<Round> {
        let mut round = Round {
            bytes: 0.0,
            ms: 0.0,
        };
        for one in &self.programs {
            let PassCost { price, ms } = pass(one)?;
            round.bytes += one.rate * price.bytes as f64;
            round.ms += one.rate * ms;
        }
        Some(round)
    }

    fn text(&self) -> String {
        let names = self.programs.iter().map(|one| one.model.name.len());
        let width = names.max().unwrap_or(0).max("a round".len());
        let mut text = format!(
            "{} programs together, budget {}\n\n{:width$}{:>10}{:>16}{:>18}{:>18}{:>8}{:>18}{:>14}{:>18}{:>14}\n",
            self.programs.len(),
            with_megabytes(self.budget),
            "program",
            "rate",
            "floor, bytes",
            "everything",
            "grant",
            "%",
            "bytes per pass",
            "ms per pass",
            "equal, bytes",
            "equal, ms"
        );
        for one in &self.programs {
            let everything = one.model.everything();
            let _ = writeln!(
                text,
                "{:width$}{:>10}{:>16}{:>18}{:>18}{:>8.1}{}{}",
                one.model.name,
                one.rate,
                grouped(one.model.floor.bytes()),
                grouped(everything),
                grouped(one.grant),
                100.0 * one.grant as f64 / everything.max(1) as f64,
                columns(Some((one.cost.price.bytes, one.cost.ms))),
                columns(one.equal.map(|pass| (pass.price.bytes, pass.ms)))
            );
        }
        let sums = |round: Option<Round>| columns(round.map(|sum| (sum.bytes as u64, sum.ms)));
        let _ = writeln!(
            text,
            "{:width$}{:70}{}{}\n\n{}",
            "a round",
            "",
            sums(self.round(|one| Some(one.cost))),
            sums(self.round(|one| one.equal)),
            self.words()
        );
        text
    }

    fn words(&self) -> String {
        format!(
            "a round is a pass of each program times its rate: where rates are passes per second, it is a second\n\
             grants are those after {PASSES} passes, by the rule '{}'; times are at {} GB/s\n\
             equal is the cost if each program has the same part of the budget{}",
            self.rule.name(),
            self.link.link_gbps,
            match self.programs.iter().all(|one| one.equal.is_some()) {
                true => "",
                false => "; '-' where that is below a floor",
            }
        )
    }

    fn object(&self) -> Value {
        let pass = |PassCost { price, ms }: PassCost| {
            json!({
                "bytes_per_pass": price.bytes,
                "copies_per_pass": price.copies,
                "ms_per_pass": ms,
            })
        };
        let program = |one: &Program| {
            json!({
                "program": one.model.name,
                "rate": one.rate,
                "floor_bytes": one.model.floor.bytes(),
                "everything_bytes": one.model.everything(),
                "grant_bytes": one.grant,
                "planned": pass(one.cost),
                "equal_split": one.equal.map(pass),
            })
        };
        let round =
            |round: Option<Round>| round.map(|sum| json!({"bytes": sum.bytes, "ms": sum.ms}));
        json!({
            "budget_bytes": self.budget,
            "device": self.programs[0].model.record.device,
            "link_gbps": self.link.link_gbps,
            "passes": PASSES,
            "rule": self.rule.name(),
            "programs": self.programs.iter().map(program).collect::<Vec<_>>(),
            "round": round(self.round(|one| Some(one.cost))),
            "equal_split_round": round(self.round(|one| one.equal)),
        })
    }
}

/// Bytes and milliseconds.
fn columns(cost: Option<(u64, f64)>) -> String {
    match cost {
        Some((bytes, ms)) => format!("{:>18}{ms:>14.3}", grouped(bytes)),
        None => format!("{:>18}{:>14}", "-", "-"),
    }
}
