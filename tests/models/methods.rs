//! Methods of one exported program: one store, one budget, one state; and sessions, which have a state of their own.

use crate::model_support::{files, options, Outputs};
use std::path::PathBuf;
use std::sync::Arc;
use weightstream::config::Options;
use weightstream::counters::Stats;
use weightstream::delegate::{Beside, Delegate, InputTensor, Memory, Program};
use weightstream::{Error, Result};

/// A decoder with two methods, `prefill` and `decode`, over one cache.
struct Files {
    pte: PathBuf,
    ptd: PathBuf,
}

fn decoder() -> Option<Files> {
    let (pte, ptd) = files("methods_decoder")?;
    Some(Files { pte, ptd })
}

/// One loaded program with both methods.
struct Decoder {
    prefill: Delegate,
    decode: Delegate,
}

impl Decoder {
    fn load(files: &Files, options: &Options) -> Decoder {
        let program = Program::open(&files.pte).unwrap();
        let load = |method: &str| program.load(method, files.ptd.clone(), options).unwrap();
        Decoder {
            prefill: load("prefill"),
            decode: load("decode"),
        }
    }

    fn session(&self, files: &Files, options: &Options) -> Result<Decoder> {
        let program = Program::open(&files.pte)?;
        let load = |beside: Beside<'_>, method: &str| {
            program.load_beside(beside, method, files.ptd.clone(), options, None)
        };
        let prefill = load(Beside::NewSession(&self.decode), "prefill")?;
        let decode = load(Beside::Session(&prefill), "decode")?;
        Ok(Decoder { prefill, decode })
    }

    /// A prompt and as many tokens one by one: the outputs of all.
    fn play(&self, prompt: &[i64], tokens: &[i64]) -> Outputs {
        let mut all = run(&self.prefill, prompt, 0).unwrap();
        for (at, &token) in tokens.iter().enumerate() {
            all.extend(run(&self.decode, &[token], prompt.len() + at).unwrap());
        }
        all
    }

    fn stats(&self) -> Stats {
        self.prefill.stats().unwrap()
    }
}

/// Tokens from position `start` on.
fn run(delegate: &Delegate, tokens: &[i64], start: usize) -> Result<Outputs> {
    let bytes =
        |numbers: &mut dyn Iterator<Item = i64>| numbers.flat_map(i64::to_le_bytes).collect();
    let count = tokens.len() as i64;
    let given: Vec<u8> = bytes(&mut tokens.iter().copied());
    let places: Vec<u8> = bytes(&mut (0..count).map(|at| start as i64 + at));
    let (sizes, length) = ([1, count], [count]);
    let input = |sizes, memory| InputTensor {
        dtype: 4,
        sizes,
        strides: None,
        memory: Memory::Host(memory),
    };
    let mut outputs = Outputs::new();
    delegate.execute(
        &[input(&sizes, &given), input(&length, &places)],
        &mut |_, output| {
            let mut dense = vec![0; output.nbytes()];
            output.copy_to_dense(&mut dense)?;
            outputs.push(dense);
            Ok(())
        },
    )?;
    Ok(outputs)
}

const PROMPT: [i64; 5] = [3, 1, 4, 1, 5];
const OTHER: [i64; 3] = [200, 7, 90];
const TOKENS: [i64; 6] = [9, 2, 6, 5, 3, 5];

/// More than all constants occupy, and less than a GPU has.
const EVERYTHING: u64 = 1 << 30;

fn floor(files: &Files) -> u64 {
    Program::open(&files.pte).unwrap().least_budget().unwrap()
}

fn budget(bytes: u64) -> Options {
    options(&[("weight_offload_budget_bytes", &bytes.to_string())])
}

/// All orders of budgets and policies give the same bits.
#[test]
fn methods_share_weights_and_state() {
    let Some(files) = decoder() else { return };
    let floor = floor(&files);
    let expected = Decoder::load(&files, &budget(EVERYTHING)).play(&PROMPT, &TOKENS);
    for policy in ["lru", "planned"] {
        for bytes in [floor, floor + 64 * 1024, EVERYTHING] {
            let mut options = budget(bytes);
            options.policy = match policy {
                "lru" => weightstream::config::PolicyKind::Lru,
                _ => weightstream::config::PolicyKind::Planned,
            };
            let decoder = Decoder::load(&files, &options);
            assert_eq!(decoder.prefill.methods(), ["decode", "prefill"]);
            for _ in 0..3 {
                assert!(
                    decoder.play(&PROMPT, &TOKENS) == expected,
                    "{policy}, {bytes} bytes"
                );
            }
            let stats = decoder.stats();
            assert_eq!(
                stats,
                decoder.decode.stats().unwrap(),
                "one program, one account"
            );
            assert!(stats.peak_bytes <= stats.budget_bytes);
            assert_eq!(stats.passes, 3 * 7);
        }
    }
}

/// Two loads of one file are two programs, each with a cache of its own, whatever the order of their loads and ends.
#[test]
fn two_programs_of_one_file_have_two_states() {
    let Some(files) = decoder() else { return };
    let options = budget(floor(&files));
    let alone = |prompt: &[i64]| Decoder::load(&files, &options).play(prompt, &TOKENS);
    let expected = [alone(&PROMPT), alone(&OTHER)];
    let programs = [0, 1].map(|_| Program::open(&files.pte).unwrap());
    let load =
        |program: &Program<'_>, method| program.load(method, files.ptd.clone(), &options).unwrap();
    let prefill = [0, 1].map(|at| load(&programs[at], "prefill"));
    let decode = [0, 1].map(|at| load(&programs[at], "decode"));
    let mut found = [0, 1].map(|at| run(&prefill[at], [&PROMPT[..], &OTHER][at], 0).unwrap());
    for (step, &token) in TOKENS.iter().enumerate() {
        for at in [1, 0] {
            let start = [PROMPT.len(), OTHER.len()][at] + step;
            found[at].extend(run(&decode[at], &[token], start).unwrap());
        }
    }
    assert!(found == expected, "two caches were mixed");
    let [first, second] = prefill;
    drop(first);
    let [one, two] = decode;
    drop(two);
    run(&one, &[1], 9).unwrap();
    drop(one);
    run(&second, &OTHER, 0).unwrap();
}

#[test]
fn sessions_share_weights_and_no_state() {
    let Some(files) = decoder() else { return };
    let options = budget(floor(&files));
    let alone = |prompt: &[i64]| Decoder::load(&files, &options).play(prompt, &TOKENS);
    let expected = [alone(&PROMPT), alone(&OTHER), alone(&TOKENS)];
    let first = Decoder::load(&files, &options);
    let second = first.session(&files, &options).unwrap();
    let third = second.session(&files, &options).unwrap();
    let all = [first, second, third];
    let prompts = [&PROMPT[..], &OTHER, &TOKENS];
    let mut found = [0, 1, 2].map(|at| run(&all[at].prefill, prompts[at], 0).unwrap());
    for (step, &token) in TOKENS.iter().enumerate() {
        for at in [2, 0, 1] {
            found[at].extend(run(&all[at].decode, &[token], prompts[at].len() + step).unwrap());
        }
    }
    assert!(found == expected, "three caches were mixed");
    let state = all[0].stats().session_bytes / 2;
    assert!(state > 0 && state <= all[0].stats().direct_bytes);
    let [first, second, third] = all;
    drop(first);
    assert!(
        second.play(&OTHER, &TOKENS) == expected[1],
        "the first session may end before the others"
    );
    drop(third);
    assert_eq!(second.stats().session_bytes, state);
    assert!(second.stats().peak_bytes <= second.stats().budget_bytes);
}

/// A hundred sessions, one after the other: what each took is given back.
#[test]
fn a_session_that_ends_gives_its_memory_back() {
    let Some(files) = decoder() else { return };
    let options = budget(floor(&files));
    let first = Decoder::load(&files, &options);
    let expected = first.play(&PROMPT, &TOKENS[..1]);
    for _ in 0..100 {
        let session = first.session(&files, &options).unwrap();
        assert!(session.play(&PROMPT, &TOKENS[..1]) == expected);
        let one = session.stats().session_bytes;
        assert!(one > 0 && one <= first.stats().direct_bytes);
    }
    assert_eq!(first.stats().session_bytes, 0);
}

#[test]
fn a_state_can_be_reset() {
    let Some(files) = decoder() else { return };
    let options = budget(floor(&files));
    let first = Decoder::load(&files, &options);
    let second = first.session(&files, &options).unwrap();
    // A token that sees a cache of zeros before it.
    let fresh = run(&first.decode, &[5], 8).unwrap();
    assert!(run(&second.decode, &[5], 8).unwrap() == fresh);
    let kept = second.play(&PROMPT, &TOKENS);
    first.play(&PROMPT, &TOKENS);
    assert!(run(&first.decode, &[5], 8).unwrap() != fresh);
    first.prefill.reset_state().unwrap();
    assert!(
        run(&first.decode, &[5], 8).unwrap() == fresh,
        "for all its methods"
    );
    assert!(second.play(&PROMPT, &TOKENS) == kept);
    second.decode.reset_state().unwrap();
    assert!(run(&second.decode, &[5], 8).unwrap() == fresh);
}

#[test]
fn a_later_load_may_not_say_something_else() {
    let Some(files) = decoder() else { return };
    let floor = floor(&files);
    let program = Program::open(&files.pte).unwrap();
    let load = |method, options: &Options| program.load(method, files.ptd.clone(), options);
    let _prefill = load("prefill", &budget(floor)).unwrap();
    let refused = |options: &Options, key: &str, words: &[&str]| {
        let error = load("decode", options)
            .err()
            .expect("the load was to be refused");
        assert!(
            matches!(&error, Error::Option { key: found, .. } if found == key),
            "{error}"
        );
        let text = error.to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    };
    let other = (floor + 1).to_string();
    refused(
        &budget(floor + 1),
        "weight_offload_budget_bytes",
        &[&other, &floor.to_string()],
    );
    let lru = options(&[("weight_offload_policy", "lru")]);
    refused(&lru, "weight_offload_policy", &["'lru'", "nothing"]);
    // What is not said is what the first load said.
    let decode = load("decode", &Options::default()).unwrap();
    assert_eq!(decode.stats().unwrap().budget_bytes, floor);
}

#[test]
fn the_least_budget_is_that_of_the_program() {
    let Some(files) = decoder() else { return };
    let program = Program::open(&files.pte).unwrap();
    let least = program.least_budget().unwrap();
    assert_eq!(program.methods().unwrap(), ["decode", "prefill"]);
    for method in ["decode", "prefill"] {
        assert_eq!(program.required_budget(method).unwrap(), least);
        let error = program.load(method, files.ptd.clone(), &budget(least - 1));
        let error = error.err().expect("a budget below the floor");
        assert!(
            matches!(error, Error::BudgetTooSmall { floor, .. } if floor == least),
            "{error}"
        );
    }
}

#[test]
fn shares_name_all_methods_of_the_program() {
    let Some(files) = decoder() else { return };
    let program = Program::open(&files.pte).unwrap();
    for (shares, word) in [
        ("decode=0.98", "'prefill'"),
        ("decode=0.9,prefill=0.1,other=0.1", "'other'"),
        ("decode=0.9,decode=0.1", "twice"),
        ("decode=2,prefill=0.1", "at most 1"),
        ("decode", "decode=0.98,prefill=0.02"),
    ] {
        let spec = weightstream::config::Spec {
            key: "weight_offload_method_share".to_owned(),
            value: weightstream::config::SpecValue::Text(shares.to_owned()),
        };
        let options = Options::parse(&[spec]);
        let loaded =
            options.and_then(|options| program.load("decode", files.ptd.clone(), &options));
        let error = loaded
            .err()
            .unwrap_or_else(|| panic!("'{shares}' was accepted"));
        assert!(error.to_string().contains(word), "{error}");
    }
    let options = options(&[("weight_offload_method_share", "decode=0.98, prefill=0.02")]);
    let delegate = program.load("decode", files.ptd.clone(), &options).unwrap();
    run(&delegate, &[1], 0).unwrap();
}

/// Two sessions on two threads: passes take turns, and each finds its own cache.
#[test]
fn passes_of_two_threads_take_turns() {
    let Some(files) = decoder() else { return };
    let options = budget(floor(&files));
    let expected = Decoder::load(&files, &options).play(&PROMPT, &TOKENS);
    let first = Arc::new(Decoder::load(&files, &options));
    let second = Arc::new(first.session(&files, &options).unwrap());
    let threads = [first, second].map(|decoder| {
        let expected = expected.clone();
        std::thread::spawn(move || {
            for _ in 0..20 {
                assert!(decoder.play(&PROMPT, &TOKENS) == expected);
            }
        })
    });
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn a_session_is_of_the_same_program() {
    let Some(files) = decoder() else { return };
    let Some((pte, ptd)) = files_of_another() else {
        return;
    };
    let decoder = Decoder::load(&files, &Options::default());
    let other = Program::open(&pte).unwrap();
    for beside in [
        Beside::Session(&decoder.decode),
        Beside::NewSession(&decoder.decode),
    ] {
        let loaded = other.load_beside(beside, "forward", ptd.clone(), &Options::default(), None);
        let error = loaded.err().expect("another program");
        assert!(
            matches!(
                error,
                Error::Mismatch {
                    fact: "build id",
                    ..
                }
            ),
            "{error}"
        );
    }
}

fn files_of_another() -> Option<(PathBuf, PathBuf)> {
    files("mlp")
}
