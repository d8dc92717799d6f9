//! Every device call of a load and of the passes fails once, one after the other, under exported models: each failure
//! is an error that names the call and what it was for, nothing leaks, no output is wrong, and the process loads the
//! model again.

use std::collections::BTreeMap;

use crate::model_support::{options, Model, Outputs};
use weightstream::config::Options;
use weightstream::delegate::Delegate;
use weightstream::device::faulty::{Fault, Faults, LiveCounts};
use weightstream::device::CudaDevice;
use weightstream::Error;

/// The second one begins with what the first one left.
const PASSES: usize = 2;

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
            LiveCounts::default(),
            "{fault:?}: something is left"
        );
        self.check_files_closed(fault);
        let Some(&failed) = faults.failed().first() else {
            assert_eq!(told, None, "{fault:?}: nothing was made to fail");
            return None;
        };
        match told {
            Some(error) => self.check_error(&error, &faults.failed(), fault),
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
        for (pass, expected) in self.expected.iter().enumerate() {
            // A device that is lost never gives an output again.
            for _ in 0..3 {
                let outcome = self.model.run(delegate, pass);
                self.check_nothing_left(fault, faults);
                match outcome {
                    Ok(outputs) => {
                        assert!(
                            !matches!(first, Some(Error::Poisoned(_))),
                            "{fault:?}: a poisoned handle ran"
                        );
                        assert!(outputs == *expected, "{fault:?}: pass {pass} is wrong");
                        break;
                    }
                    Err(Error::Poisoned(_)) if first.is_some() => break,
                    Err(error) => {
                        let again = first.is_some() && !matches!(fault, Fault::From(_));
                        assert!(!again, "{fault:?}: a second error: {error}");
                        first.get_or_insert(error);
                    }
                }
            }
        }
        first
    }

    /// Between passes there are neither activations nor inputs, but for what the device refused to free: that ends
    /// with it.
    fn check_nothing_left(&self, fault: Fault, faults: &Faults) {
        let refused = faults.failed().contains(&"free_scratch");
        assert!(
            refused || faults.live().scratch_bytes == 0,
            "{fault:?}: {} bytes of activations are left",
            faults.live().scratch_bytes
        );
    }

    /// `failed` is one call, or, on a device that is lost, all that followed: an error that nobody could be told at
    /// once gives way to that of the next call.
    fn check_error(&self, error: &Error, failed: &[&str], fault: Fault) {
        let text = error.to_string();
        let named = failed
            .iter()
            .any(|call| text.contains(&format!("{call} failed")));
        match (fault, error) {
            (Fault::Memory(_), Error::OutOfMemory { .. }) => {}
            (Fault::Call(_) | Fault::From(_), Error::Device { .. } | Error::Poisoned(_))
                if named => {}
            (Fault::From(_), Error::Lost { .. }) if named => {}
            _ => panic!("{fault:?}: {failed:?} failed, the error is: {text}"),
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
            "{fault:?}: it does not say what {failed:?} was for: {text}"
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

    /// Each `step`-th n until nothing fails any more; after each failure the process loads another model and runs it.
    fn every(&self, step: usize, fault: fn(u64) -> Fault, other: &Case) -> Tally {
        let mut tally = Tally::new();
        for n in (1..).step_by(step) {
            let Some(failed) = self.run(fault(n)) else {
                break;
            };
            *tally.entry(failed).or_default() += 1;
            assert_eq!(other.run(Fault::None), None, "after {failed}, call {n}");
        }
        assert_eq!(self.run(Fault::None), None, "after all failures");
        tally
    }
}

/// A budget that covers everything, in bytes.
fn everything(model: &Model) -> String {
    let delegate = model.load(&Options::default(), &Faults::default()).unwrap();
    let stats = delegate.stats().unwrap();
    (stats.direct_bytes + stats.total_weight_bytes).to_string()
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn check(name: &str, pairs: &[(&str, &str)], all: bool) {
    let Some(model) = Model::open(name) else {
        return;
    };
    // The last device of a process takes the context with it, and a new one costs a quarter of a second.
    let _context = (model.record.device == "cuda").then(|| CudaDevice::new(0).unwrap());
    let everything = everything(&model);
    let mut pairs = pairs.to_vec();
    if all {
        pairs.push(("weight_offload_budget_bytes", &everything));
    }
    let case = Case::new(model, options(&pairs));
    let another = if name == "mlp" {
        "fact_returned"
    } else {
        "mlp"
    };
    let other = Case::new(Model::open(another).unwrap(), Options::default());
    let before = open_descriptors();
    for (what, step, fault) in [
        ("one call", 1, Fault::Call as fn(u64) -> Fault),
        ("memory", 1, Fault::Memory),
        ("all from one on", 3, Fault::From),
    ] {
        let tally = case.every(step, fault, &other);
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

#[test]
fn a_perceptron_by_lru() {
    check("mlp", &[("weight_offload_policy", "lru")], false);
}

#[test]
fn caches_by_lru() {
    check("kv_decoder", &[("weight_offload_policy", "lru")], false);
}
