//! Every device call of a load and of the passes fails once, one after the other, under exported models: each failure
//! is an error that names the call and what it was for, nothing leaks, no output is wrong, and the process loads the
//! model again.

mod model_support;

use std::collections::BTreeMap;

use model_support::{options, Model, Outputs};
use weightstream::config::Options;
use weightstream::delegate::Delegate;
use weightstream::device::faulty::{Fault, Faults, Live};
use weightstream::Error;

const PASSES: usize = 3;

/// One way to run a model, and what comes out.
struct Case {
    model: Model,
    options: Options,
    expected: Vec<Outputs>,
}

/// How often each call was made to fail, for people.
type Tally = BTreeMap<&'static str, usize>;

impl Case {
    fn new(model: Model, options: Options) -> Case {
        let mut case = Case {
            model,
            options,
            expected: Vec::new(),
        };
        let delegate = case.model.load(&case.options, &Faults::default()).unwrap();
        case.expected = (0..PASSES)
            .map(|pass| case.model.run(&delegate, pass).unwrap())
            .collect();
        let different = case.expected.windows(2).all(|pair| pair[0] != pair[1]);
        assert!(
            different,
            "{}: passes must differ to show anything",
            case.model.name
        );
        case
    }

    /// A load, its passes and its end with one fault. Returns the call that failed, `None` if there was none.
    fn run(&self, fault: Fault) -> Option<&'static str> {
        let faults = Faults::new(fault);
        let told = match self.model.load(&self.options, &faults) {
            Err(error) => Some(error),
            Ok(delegate) => self.passes(&delegate, fault, &faults),
        };
        assert_eq!(
            faults.live(),
            Live::default(),
            "{fault:?}: something is left"
        );
        self.check_files_closed(fault);
        let failed = faults.failed()?;
        match told {
            Some(error) => self.check_error(&error, failed, fault),
            // What finds no memory may give something up and try again.
            None => assert!(
                matches!(fault, Fault::Memory(_)),
                "{fault:?}: {failed} failed, and nobody was told"
            ),
        }
        Some(failed)
    }

    /// Runs the passes, each again if it fails. Returns the first error.
    fn passes(&self, delegate: &Delegate, fault: Fault, faults: &Faults) -> Option<Error> {
        let mut first = None;
        let mut poisoned = false;
        for (pass, expected) in self.expected.iter().enumerate() {
            for attempt in 0.. {
                let outcome = self.model.run(delegate, pass);
                assert_eq!(
                    faults.live().scratch_bytes * u64::from(!poisoned && first.is_none()),
                    0
                );
                match outcome {
                    Ok(outputs) => {
                        assert!(!poisoned, "{fault:?}: a poisoned handle ran");
                        assert!(outputs == *expected, "{fault:?}: pass {pass} is wrong");
                        break;
                    }
                    Err(error @ Error::Poisoned(_)) => {
                        poisoned = true;
                        assert!(
                            first.is_some(),
                            "{fault:?}: poisoned before any error: {error}"
                        );
                        break;
                    }
                    Err(error) => {
                        let lost = matches!(fault, Fault::From(_));
                        assert!(
                            first.is_none() || lost,
                            "{fault:?}: a second error: {error}"
                        );
                        first.get_or_insert(error);
                        if lost && attempt > 2 {
                            break;
                        }
                    }
                }
            }
        }
        first
    }

    fn check_error(&self, error: &Error, failed: &str, fault: Fault) {
        let text = error.to_string();
        match (fault, error) {
            (Fault::Memory(_), Error::OutOfMemory { .. }) => {}
            (Fault::Memory(_), _) => panic!("{fault:?}: {failed} found no memory: {text}"),
            (_, Error::Device { call, .. }) => assert_eq!(*call, failed, "{fault:?}: {text}"),
            _ => panic!("{fault:?}: {failed} failed: {text}"),
        }
        let constants = &self.model.record.constants;
        let names_weight = constants
            .iter()
            .any(|c| text.contains(&format!("'{}'", c.fqn)));
        const OTHERS: [&str; 9] = [
            "the budget of",
            "all direct constants",
            "all weights",
            "an activation",
            "input ",
            "output ",
            "the end of the pass",
            "the compiled code",
            "the first loads",
        ];
        let names_other = OTHERS.iter().any(|what| text.contains(what));
        assert!(
            names_weight || names_other,
            "{fault:?}: it does not say what {failed} was for: {text}"
        );
    }

    fn check_files_closed(&self, fault: Fault) {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let path = self.model.ptd.canonicalize().unwrap();
        let mapped = maps
            .lines()
            .filter(|line| line.ends_with(path.to_str().unwrap()));
        assert_eq!(
            mapped.count(),
            0,
            "{fault:?}: the data file is still mapped"
        );
    }

    /// Each n from 1 until nothing fails any more; after each failure the process loads the model and runs it.
    fn every(&self, fault: fn(u64) -> Fault) -> Tally {
        let mut tally = Tally::new();
        for n in 1.. {
            let Some(failed) = self.run(fault(n)) else {
                return tally;
            };
            *tally.entry(failed).or_default() += 1;
            assert_eq!(self.run(Fault::None), None, "after {failed}, call {n}");
        }
        tally
    }
}

/// A budget that covers everything, in bytes.
fn everything(model: &Model) -> String {
    let delegate = model.load(&Options::default(), &Faults::default()).unwrap();
    let stats = delegate.stats();
    (stats.direct_bytes + stats.total_weight_bytes).to_string()
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn check(name: &str, pairs: &[(&str, &str)], all: bool) {
    let Some(model) = Model::open(name) else {
        return;
    };
    let everything = everything(&model);
    let mut pairs = pairs.to_vec();
    if all {
        pairs.push(("weight_offload_budget_bytes", &everything));
    }
    let case = Case::new(model, options(&pairs));
    let before = open_descriptors();
    for (what, fault) in [
        ("one call", Fault::Call as fn(u64) -> Fault),
        ("memory", Fault::Memory),
        ("all from one on", Fault::From),
    ] {
        let tally = case.every(fault);
        println!("{name} {pairs:?}: {what}: {tally:?}");
        assert!(tally.values().sum::<usize>() > 3, "hardly anything failed");
    }
    assert_eq!(open_descriptors(), before, "descriptors are left open");
}

#[test]
fn a_perceptron_at_the_floor() {
    check("mlp", &[], false);
}

#[test]
fn a_perceptron_with_everything_resident() {
    check("mlp", &[], true);
}

#[test]
fn caches_at_the_floor() {
    check("kv_decoder", &[], false);
}

#[test]
fn caches_with_everything_resident() {
    check("kv_decoder", &[], true);
}

#[test]
fn a_returned_weight_at_the_floor() {
    check("fact_returned", &[], false);
}

#[test]
fn a_returned_weight_with_everything_resident() {
    check("fact_returned", &[], true);
}

#[test]
fn the_verified_mode_at_the_floor() {
    check("mlp", &[("weight_offload_verify", "every_read")], false);
}
