//! The program `weightstream`: what it prints, and what it refuses.

use crate::support::{ptd, pte, PteSpec, RecordSpec};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A program of two weights (48 and 64 bytes, the first read twice), and its weights, in a folder of their own.
struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn new() -> Files {
        Files::of(&RecordSpec::small())
    }

    fn of(record: &RecordSpec) -> Files {
        let folder = tempfile::tempdir().unwrap();
        let program = pte(&PteSpec::new(record, b"not a library"));
        std::fs::write(folder.path().join("model.pte"), program).unwrap();
        std::fs::write(
            folder.path().join("model.ptd"),
            ptd(&RecordSpec::small_ptd()),
        )
        .unwrap();
        Files { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, command: &str, more: &[&str]) -> Output {
        let files = ["model.pte", "model.ptd"].map(|name| self.path(name));
        run(command, &files, more)
    }
}

fn run(command: &str, files: &[PathBuf], more: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_weightstream"));
    program.arg(command).args(files).args(more);
    program.output().unwrap()
}

#[track_caller]
fn printed(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[track_caller]
fn json(output: &Output) -> Value {
    serde_json::from_str(&printed(output)).unwrap()
}

#[track_caller]
fn refused(output: &Output) -> String {
    assert!(!output.status.success());
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Direct constants 128 bytes, the weights 64 and 64: the floor 256 is everything, too.
#[test]
fn a_budget_says_what_a_pass_copies() {
    let files = Files::new();
    let found = json(&files.run("plan", &["--budget", "floor", "--json"]));
    assert_eq!(found["floor_bytes"], 256);
    assert_eq!(found["everything_bytes"], 256);
    assert_eq!(found["planned"]["by"], "resident");
    assert_eq!(found["lru"]["bytes_per_pass"], 0);
    let text = printed(&files.run("plan", &["--budget", "100%"]));
    assert!(
        text.contains("everything is resident") && text.contains("budget 256 bytes"),
        "{text}"
    );
}

/// 'a.weight' has 48 bytes in 4 rows, and is read twice.
#[test]
fn a_table_that_is_not_read_in_place_says_why() {
    let mut record = RecordSpec::small();
    record.set_ints("gathers", &[0, 3, 2, -1]);
    let text = printed(&Files::of(&record).run("plan", &["--budget", "100%"]));
    let expected = [
        "at most 3 rows of 12 bytes in a pass, more than half of it",
        "an unknown number of rows of 12 bytes; export with an upper bound of its dynamic dimensions",
        "or load with weight_offload_gather=on",
    ];
    for words in expected {
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn a_budget_below_the_floor_is_refused_as_at_load() {
    let error = refused(&Files::new().run("plan", &["--budget", "255"]));
    assert!(
        error.contains("255 bytes") && error.contains("needs at least 256 bytes"),
        "{error}"
    );
}

#[test]
fn budgets_may_have_units_and_only_these() {
    let files = Files::new();
    for (text, bytes) in [
        ("1MB", 1u64 << 20),
        ("1.5MiB", 3 << 19),
        ("2GB", 2 << 30),
        ("300", 300),
        ("200%", 512),
    ] {
        let found = json(&files.run("plan", &["--json", "-b", text]));
        assert_eq!(found["budget_bytes"], bytes, "{text}");
    }
    for text in ["", "MB", "1 TB", "1.5", "-3MB", "99999999999GB", "1e3"] {
        let error = refused(&files.run("plan", &["-b", text]));
        assert!(
            error.contains("no budget") || error.contains("unexpected argument"),
            "{text}: {error}"
        );
    }
    for link in ["0", "-1", "inf", "fast"] {
        let error = refused(&files.run("plan", &["--link-gbps", link]));
        assert!(
            error.contains("no number above 0") || error.contains("unexpected argument"),
            "{link}: {error}"
        );
    }
}

#[test]
fn a_sweep_is_a_table_an_array_and_a_picture() {
    let files = Files::new();
    let picture = files.path("sweep.svg");
    let svg = picture.to_str().unwrap();
    let text = printed(&files.run("plan", &["--sweep", "4", "--svg", svg]));
    let rows = text
        .lines()
        .filter(|line| line.trim_start().starts_with("256 "));
    assert_eq!(rows.count(), 4, "{text}");
    let drawn = std::fs::read_to_string(&picture).unwrap();
    assert!(
        drawn.contains("<svg") && drawn.contains("planned") && drawn.contains("limit"),
        "{drawn}"
    );
    let found = json(&files.run("plan", &["--sweep", "4", "--json"]));
    assert_eq!(found["budgets"].as_array().unwrap().len(), 4);
    let error = refused(&files.run("plan", &["--svg", "/nowhere/at/all.svg"]));
    assert!(error.contains("/nowhere/at/all.svg"), "{error}");
    let error = refused(&files.run("plan", &["--svg", svg, "--budget", "1GB"]));
    assert!(error.contains("cannot be used with"), "{error}");
}

#[test]
fn a_plan_says_what_pinned_and_streamed_weights_cost() {
    const SIZE: u64 = 64 << 20;
    let files = Files::of(&RecordSpec::gpu_chain(24));
    let plan = |more: &[&str]| run("plan", &[files.path("model.pte")], more);
    let found = json(&plan(&["--json", "--budget", "floor"]));
    assert_eq!(found["floor_bytes"], 3 * SIZE);
    let pin = "layers.0.*, layers.1.*";
    let found = json(&plan(&["--json", "--budget", "floor", "--pin", pin]));
    assert_eq!(found["pinned_bytes"], 2 * SIZE);
    assert_eq!(found["floor_bytes"], 5 * SIZE);
    assert_eq!(found["everything_bytes"], 24 * SIZE);
    assert_eq!(found["lru"]["bytes_per_pass"], 22 * SIZE);
    let error = refused(&plan(&["--budget", "256MB", "--pin", pin]));
    for words in ["335544320 bytes", "pinned weights 134217728 bytes"] {
        assert!(error.contains(words), "{error}");
    }
    let stream = ["--stream", "layers.2?.weight"];
    let found = json(&plan(
        &[&["--json", "--budget", "100%"], &stream[..]].concat(),
    ));
    assert_eq!(found["floor_bytes"], 3 * SIZE);
    for policy in ["planned", "lru"] {
        assert_eq!(found[policy]["bytes_per_pass"], 4 * SIZE, "{policy}");
    }
    assert_eq!(found["limit_bytes_per_pass"], 4 * SIZE);
    let error = refused(&plan(&["--pin", "layer.3.weight"]));
    assert!(error.contains("'layers.3.weight'"), "{error}");
    let error = refused(&plan(&["--pin", "*.22.*", stream[0], stream[1]]));
    assert!(error.contains("'layers.22.weight'"), "{error}");
}

#[test]
fn times_of_kernels_are_what_a_pass_is_planned_for() {
    const WEIGHTS: i64 = 24;
    let files = Files::of(&RecordSpec::gpu_chain(WEIGHTS));
    let program = [files.path("model.pte")];
    // Behind every fourth read kernels run as long as the link takes for four weights.
    let long = 4 * (64 << 20) / 50;
    let mut text = format!(
        "weightstream kernel times 1\nprogram {}\ndevice NVIDIA X\n",
        crate::support::BUILD_ID
    );
    for id in 0..WEIGHTS {
        let behind = if id % 4 == 0 { long } else { 0 };
        text += &format!("{id} 10000 {behind} layers.{id}.weight\n");
    }
    let file = files.path("times.txt");
    std::fs::write(&file, &text).unwrap();
    let times = file.to_str().unwrap();
    let options = ["--budget", "25%", "--link-gbps", "50", "--json"];
    let plan = |more: &[&str]| run("plan", &program, &[&options, more].concat());
    let (without, with) = (json(&plan(&[])), json(&plan(&["--kernel-times", times])));
    let ms = |of: &Value| of["planned"]["ms_per_pass"].as_f64().unwrap();
    let kernels = (6 * long + 24 * 10_000) as f64 / 1e6;
    assert_eq!(with["compute_ms"].as_f64().unwrap(), kernels);
    assert_eq!(without["compute_ms"], 0.0);
    assert!(
        ms(&without) < kernels && kernels <= ms(&with),
        "{} {kernels} {}",
        ms(&without),
        ms(&with)
    );
    // The plan of the load has room for one copy beside a read, and would keep the link waiting.
    let ring = |of: &Value| of["planned"]["ring_bytes"].as_u64().unwrap();
    assert!(
        ring(&with) > ring(&without) && ms(&with) < 1.1 * kernels,
        "{} {}",
        ring(&with),
        ms(&with)
    );

    let found = printed(&run(
        "plan",
        &program,
        &["--budget", "25%", "--kernel-times", times],
    ));
    assert!(found.contains("with kernels of 32.452 ms"), "{found}");
    let found = printed(&run(
        "plan",
        &program,
        &["--sweep", "3", "--kernel-times", times],
    ));
    assert!(found.contains("with kernels of 32.452 ms"), "{found}");
    let error = refused(&run(
        "plan",
        &program,
        &["--kernel-times", "/nowhere/times.txt"],
    ));
    assert!(
        error.contains("/nowhere/times.txt") && error.contains("reading the times"),
        "{error}"
    );
    std::fs::write(&file, text.replace("\n3 10000", "\n4 10000")).unwrap();
    let error = refused(&plan(&["--kernel-times", times]));
    assert!(
        error.contains("line 7: probe 4 where 3 of 24 is expected"),
        "{error}"
    );
    let small = Files::new();
    let error = refused(&small.run("plan", &["--kernel-times", times]));
    assert!(error.contains("exported for 'cpu'"), "{error}");
}

/// Two programs of 64 MiB weights, 24 and 12 of them, and what `plan --together` says of them.
struct Pair {
    large: Files,
    small: Files,
}

const UNIT: u64 = 64 << 20;

impl Pair {
    fn new() -> Pair {
        Pair {
            large: Files::of(&RecordSpec::gpu_chain(24)),
            small: Files::of(&RecordSpec::gpu_chain(12)),
        }
    }

    fn plan(&self, more: &[&str]) -> Output {
        let programs = [self.large.path("model.pte"), self.small.path("model.pte")];
        let [large, small] = [0, 1].map(|at: usize| programs[at].to_str().unwrap());
        run("plan", &[], &[&["--together", large, small], more].concat())
    }

    /// The same as JSON.
    fn found(&self, more: &[&str]) -> Value {
        json(&self.plan(&[more, &["--json"]].concat()))
    }
}

#[test]
fn programs_together_share_a_budget_by_their_rates() {
    let pair = Pair::new();
    let found = pair.found(&["--budget", "1600MB", "--rates", "1,0.2"]);
    let [large, small] = [0, 1].map(|at: usize| &found["programs"][at]);
    let bytes = |of: &Value, what: &str| of[what].as_u64().unwrap();
    assert_eq!(bytes(large, "everything_bytes"), 24 * UNIT);
    assert_eq!(bytes(small, "everything_bytes"), 12 * UNIT);
    // Who passes five times as often gets all that is left above the other floor, in whole pages.
    let floor = bytes(small, "floor_bytes");
    let left = bytes(&found, "budget_bytes") - floor;
    assert_eq!(bytes(small, "grant_bytes"), floor);
    assert_eq!(bytes(large, "grant_bytes"), left.min(24 * UNIT));
    let alone = pair.large.path("model.pte");
    let budget = bytes(large, "grant_bytes").to_string();
    let alone = json(&run("plan", &[alone], &["--json", "-b", &budget]));
    for figure in ["bytes_per_pass", "copies_per_pass", "ms_per_pass"] {
        assert_eq!(large["planned"][figure], alone["planned"][figure]);
    }
    let per_pass = |of: &Value| of["planned"]["bytes_per_pass"].as_f64().unwrap();
    let round = found["round"]["bytes"].as_f64().unwrap();
    assert!((round - (per_pass(large) + 0.2 * per_pass(small))).abs() < 1.0);
    assert!(round < found["equal_split_round"]["bytes"].as_f64().unwrap());
}

#[test]
fn programs_together_are_a_table() {
    let pair = Pair::new();
    let text = printed(&pair.plan(&["--budget", "50%"]));
    let expected = [
        "2 programs together, budget 1,207,959,552 bytes (1152.0 MB)",
        "a round",
        "grants are those after 1000 passes",
    ];
    for words in expected {
        assert!(text.contains(words), "{text}");
    }
    let rows = text.lines().filter(|line| line.contains("model.pte "));
    assert_eq!(rows.count(), 2, "{text}");
    // A part of the budget may be less than a floor; all of it is not.
    let found = pair.found(&["--budget", "floor"]);
    let grants = found["programs"].as_array().unwrap().iter();
    assert!(grants
        .clone()
        .all(|one| one["grant_bytes"] == one["floor_bytes"]));
}

#[test]
fn what_is_wrong_with_programs_together_is_named() {
    let pair = Pair::new();
    let floors = pair.found(&["--budget", "100%"]);
    let floor = |at: usize| floors["programs"][at]["floor_bytes"].as_u64().unwrap();
    let least = floor(0) + floor(1);
    let too_small = (least - 1).to_string();
    let least = format!("the tenants need at least {least} bytes");
    let cases: [(&[&str], &str); 8] = [
        (&["--budget", &too_small], &least),
        (
            &["--budget", "1GB", "--rates", "1"],
            "option '--rates': 1 rate for 2 programs",
        ),
        (
            &["--budget", "1GB", "--rates", "1,0"],
            "'0' is no number above 0",
        ),
        (
            &["--budget", "1GB", "--rates", "1,often"],
            "'often' is no number above 0",
        ),
        (&[], "--budget"),
        (
            &["--budget", "1GB", "--method", "forward"],
            "cannot be used with",
        ),
        (&["--budget", "1GB", "--sweep", "3"], "cannot be used with"),
        (
            &["/nowhere.pte", "--budget", "1GB"],
            "/nowhere.pte: cannot open",
        ),
    ];
    for (more, words) in cases {
        let error = refused(&pair.plan(more));
        assert!(error.contains(words), "{more:?}: {error}");
    }
    let one = pair.large.path("model.pte");
    let one = one.to_str().unwrap();
    let error = refused(&run("plan", &[], &["--together", one, "--budget", "1GB"]));
    assert!(error.contains("needs two programs or more"), "{error}");
    let error = refused(&run("plan", &[], &["--rates", "1,2"]));
    assert!(error.contains("required arguments"), "{error}");
    let error = refused(&run("plan", &[], &[]));
    assert!(error.contains("MODEL.pte"), "{error}");
}

#[test]
fn programs_together_may_have_their_weights_beside_them_and_one_device() {
    let files = Files::new();
    let [pte, ptd] = ["model.pte", "model.ptd"].map(|name| files.path(name));
    let (pte, ptd) = (pte.to_str().unwrap(), ptd.to_str().unwrap());
    let plan = |programs: &[&str]| {
        let all = [&["--together"], programs, &["--budget", "512", "--json"]].concat();
        run("plan", &[], &all)
    };
    let found = json(&plan(&[pte, ptd, pte]));
    assert_eq!(found["programs"].as_array().unwrap().len(), 2);
    assert_eq!(found["round"]["bytes"], 0.0);
    let gpu = Files::of(&RecordSpec::gpu_chain(3));
    let gpu = gpu.path("model.pte");
    let error = refused(&plan(&[pte, gpu.to_str().unwrap()]));
    assert!(
        error.contains("programs share a budget on one device"),
        "{error}"
    );
    let error = refused(&plan(&[gpu.to_str().unwrap(), ptd, pte]));
    let expected = format!("is missing in {ptd}");
    assert!(error.contains(&expected), "{error}");
}

#[test]
fn an_inspection_lists_constants_inputs_and_outputs() {
    let files = Files::new();
    let found = json(&files.run("inspect", &["--json"]));
    let fqns: Vec<_> = found["constants"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["fqn"])
        .collect();
    assert_eq!(fqns, ["a.weight", "b.weight", "scale", "cache"]);
    assert_eq!(found["constants"][0]["reads"], 2);
    assert_eq!(
        found["inputs"][0]["dims"],
        serde_json::json!([[1, 8], [3, 3]])
    );
    let text = printed(&files.run("inspect", &[]));
    for part in [
        "a.weight float32 [4, 3]",
        "x float32 [n: 1..8, 3]",
        "mutable",
        "belongs to it",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let text = printed(&run("inspect", &[files.path("model.pte")], &[]));
    assert!(text.contains("no WEIGHTS.ptd was given"), "{text}");
}

#[test]
fn an_inspection_says_how_a_method_is_called_and_for_which_sizes() {
    let text = printed(&Files::new().run("inspect", &[]));
    assert!(!text.contains("a call takes"), "{text}");
    assert!(!text.contains("only for sizes with"), "{text}");
    let mut spec = RecordSpec::small();
    spec.set_strings("x_call", &["x", "mode", "mask"])
        .set_ints("x_call_places", &[0, 1, -1])
        .set_strings("x_call_constants", &["", "'relu'", ""])
        .set_strings("guards", &["s0 4 % 0 !="])
        .set_strings("relations", &["i0.1 3 s0 *"]);
    let files = Files::of(&spec);
    let text = printed(&files.run("inspect", &[]));
    for part in [
        "method 'forward': a call takes, in this order:\n    x\n    mode: always 'relu'\n    mask (keyword)\n",
        "x float32 [n: 1..8, 3*n: 3]",
        "only for sizes with:\n    n % 4 != 0\n",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let found = json(&files.run("inspect", &["--json"]))["methods"][0].take();
    assert_eq!(
        found["call"][1],
        serde_json::json!({"name": "mode", "place": 1, "constant": "'relu'"})
    );
    assert_eq!(found["guards"], serde_json::json!(["n % 4 != 0"]));
    assert_eq!(
        found["inputs"][0]["dim_names"],
        serde_json::json!(["n", "3*n"])
    );
}

#[test]
fn an_inspection_names_the_gpu_and_says_if_nothing_was_tuned() {
    let text = printed(&Files::new().run("inspect", &[]));
    assert!(!text.contains("GPU:"), "{text}");
    let mut cuda = RecordSpec::small();
    cuda.set_strings("device", &["cuda"]);
    cuda.set_strings("target", &["linux", "x86_64", "x86-64", "2.11.0", "90,120"]);
    let text = printed(&Files::of(&cuda).run("inspect", &[]));
    assert!(
        text.contains("GPU: compute capability 9.0, 12.0, tuned\n"),
        "{text}"
    );
    cuda.set_ints("x_tuned", &[0]);
    let files = Files::of(&cuda);
    let text = printed(&files.run("inspect", &[]));
    assert!(text.contains("12.0, not tuned (no GPU"), "{text}");
    let target = json(&files.run("inspect", &["--json"]))["target"].take();
    assert_eq!(target["sms"], serde_json::json!([90, 120]));
    assert_eq!(target["tuned"], false);
}

#[test]
fn files_that_are_not_right_are_named() {
    let files = Files::new();
    let error = refused(&run("plan", &[Path::new("/nowhere.pte").to_owned()], &[]));
    assert!(error.contains("/nowhere.pte: cannot open"), "{error}");
    let mut huge = RecordSpec::small();
    huge.set_ints(
        "layouts",
        &[
            2,
            1 << 30,
            1 << 30,
            1 << 30,
            1,
            2,
            2,
            8,
            8,
            1,
            2,
            1,
            5,
            5,
            1,
            2,
            2,
            2,
            2,
            1,
        ],
    );
    huge.set_ints("nbytes", &[1 << 62, 64, 20, 16]);
    std::fs::write(files.path("huge.pte"), pte(&PteSpec::new(&huge, b""))).unwrap();
    let error = refused(&run("plan", &[files.path("huge.pte")], &[]));
    assert!(error.contains("4611686018427388"), "{error}");
    let error = refused(&files.run("plan", &["--method", "backward"]));
    assert!(error.contains("backward"), "{error}");
    let swapped = [files.path("model.ptd"), files.path("model.pte")];
    let error = refused(&run("inspect", &swapped, &[]));
    assert!(error.contains("model.ptd: malformed"), "{error}");
    let mut other = RecordSpec::small();
    other.set_strings("build_id", &["ff112233445566778899aabbccddeeff"]);
    std::fs::write(files.path("model.pte"), pte(&PteSpec::new(&other, b""))).unwrap();
    let error = refused(&files.run("plan", &[]));
    assert!(error.contains("build id differs"), "{error}");
}

/// Opened without a look, a FIFO waits for somebody who writes to it.
#[test]
fn what_is_no_file_is_refused_at_once() {
    let files = Files::new();
    let (fifo, folder) = (
        crate::support::fifo(files.folder.path()),
        files.folder.path(),
    );
    let [pte, ptd] = ["model.pte", "model.ptd"].map(|name| files.path(name));
    for (other, kind) in [(fifo.as_path(), "a FIFO"), (folder, "a directory")] {
        for paths in [
            vec![other.to_owned()],
            vec![other.to_owned(), ptd.clone()],
            vec![pte.clone(), other.to_owned()],
        ] {
            for command in ["plan", "inspect"] {
                let error = refused(&run(command, &paths, &[]));
                let expected = format!("{}: cannot open: this is {kind}", other.display());
                assert!(error.contains(&expected), "{error}");
            }
        }
    }
    let mut gpu = RecordSpec::small();
    gpu.set_strings("device", &["cuda"])
        .set_strings("target", &["linux", "x86_64", "x86-64", "2.11.0", "90"]);
    let gpu = Files::of(&gpu);
    let error = refused(&gpu.run("plan", &["--kernel-times", fifo.to_str().unwrap()]));
    assert!(error.contains("this is a FIFO"), "{error}");
}

/// 2 where arguments are wrong by what they say, 1 where what they lead to is.
#[test]
fn wrong_arguments_have_an_exit_code_of_their_own() {
    let files = Files::new();
    let code = |output: Output| {
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code().unwrap(), error)
    };
    let wrong: [&[&str]; 6] = [
        &["--budget", "much"],
        &["--budget", "floor", "--budget", "1GB"],
        &["--method", "forward", "--method", "other"],
        &["--pin", ","],
        &["--method-share", "forward"],
        &["--unknown"],
    ];
    for more in wrong {
        let (found, error) = code(files.run("plan", more));
        assert_eq!(found, 2, "{more:?}: {error}");
    }
    let failed: [&[&str]; 3] = [
        &["--budget", "1"],
        &["--method", "other"],
        &["--kernel-times", "/nowhere"],
    ];
    for more in failed {
        let (found, error) = code(files.run("plan", more));
        assert_eq!(found, 1, "{more:?}: {error}");
    }
    let (found, error) = code(run("", &[], &[]));
    assert_eq!(found, 2, "{error}");
    for (flag, words) in [
        ("-h", "Usage"),
        ("--help", "Usage"),
        ("-V", "0."),
        ("--version", "0."),
    ] {
        let mut program = Command::new(env!("CARGO_BIN_EXE_weightstream"));
        let text = printed(&program.arg(flag).output().unwrap());
        assert!(text.contains(words), "{flag}: {text}");
    }
}

#[test]
fn one_file_for_both_is_refused_by_name() {
    let files = Files::new();
    std::os::unix::fs::symlink("model.pte", files.path("other.ptd")).unwrap();
    for (pte, ptd) in [
        ("model.pte", "model.pte"),
        ("model.ptd", "model.ptd"),
        ("model.pte", "other.ptd"),
    ] {
        let error = refused(&run("inspect", &[files.path(pte), files.path(ptd)], &[]));
        assert!(
            error.contains(&format!("{ptd}: this file was given twice")),
            "{error}"
        );
    }
}

#[test]
fn nothing_is_a_budget_of_a_program_that_needs_nothing() {
    let mut record = RecordSpec::small();
    for field in [
        "fqns",
        "kinds",
        "dtypes",
        "nbytes",
        "crc32",
        "layouts",
        "probes",
        "access_order",
        "trace",
    ] {
        record.set_ints(field, &[]);
    }
    record
        .set_strings("fqns", &[])
        .set_ints("floor", &[0])
        .set_ints("hard_minimum", &[0]);
    let files = Files::of(&record);
    for budget in ["0", "0MB", "floor", "0%"] {
        let text = printed(&files.run("plan", &["--budget", budget]));
        assert!(text.contains("budget 0 bytes"), "{text}");
        assert!(text.contains("everything is resident"), "{text}");
    }
    printed(&files.run("plan", &[]));
    // Of a program that needs more it is one that is too small.
    let error = refused(&Files::new().run("plan", &["--budget", "0"]));
    assert!(error.contains("needs at least 256 bytes"), "{error}");
}
