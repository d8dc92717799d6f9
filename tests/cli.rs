//! The program `weightstream`: what it prints, and what it refuses.

mod support;

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use support::{ptd, pte, PteSpec, RecordSpec};

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
        "x float32 [1..8, 3]",
        "mutable",
        "belongs to it",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let text = printed(&run("inspect", &[files.path("model.pte")], &[]));
    assert!(text.contains("no WEIGHTS.ptd was given"), "{text}");
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
