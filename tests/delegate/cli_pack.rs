//! `weightstream pack`: what it packs comes back, everything else stays, and nothing is lost.

use crate::support::{ptd, pte, PtdSpec, PteSpec, RecordSpec, BUILD_ID};
use serde_json::{json, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use weightstream::command;
use weightstream::format::packed::{decode, directory_of, read_table, PackedEntry, TABLE_KEY};
use weightstream::format::Ptd;

const BF16: u8 = 15;
const F32: u8 = 6;
const I16: u8 = 2;
/// More than a chunk of 4 MiB, and no whole number of blocks.
const LARGE: [i64; 2] = [2103, 1001];
const SMALL: [i64; 2] = [33, 77];

/// A constant, and where its bytes are.
struct Constant {
    fqn: &'static str,
    kind: i64,
    dtype: u8,
    sizes: [i64; 2],
    bytes: Vec<u8>,
    shares: Option<&'static str>,
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// fp32 whose exponents are those of these bf16 numbers.
fn floats(sizes: [i64; 2], seed: u64) -> Vec<u8> {
    let (low, high) = (noise(sizes, seed), weights(sizes, seed));
    let pairs = low.as_chunks::<2>().0.iter().zip(high.as_chunks::<2>().0);
    pairs
        .flat_map(|(low, high)| [low[0], low[1], high[0], high[1]])
        .collect()
}

/// Few exponents, as weights have them.
fn weights(sizes: [i64; 2], seed: u64) -> Vec<u8> {
    let mut state = seed;
    let value = |_| {
        let bits = random(&mut state);
        let exponent = 121 - (bits >> 32).trailing_zeros() as u16;
        ((bits & 0x807f) as u16 | exponent << 7).to_le_bytes()
    };
    (0..sizes[0] * sizes[1]).flat_map(value).collect()
}

fn noise(sizes: [i64; 2], seed: u64) -> Vec<u8> {
    let mut state = seed;
    (0..2 * sizes[0] * sizes[1])
        .map(|_| random(&mut state) as u8)
        .collect()
}

fn constants() -> Vec<Constant> {
    let new = |fqn, kind, dtype, sizes, bytes| Constant {
        fqn,
        kind,
        dtype,
        sizes,
        bytes,
        shares: None,
    };
    let again = |fqn, shares, sizes, bytes| Constant {
        shares: Some(shares),
        ..new(fqn, 0, BF16, sizes, bytes)
    };
    let (small, table) = (weights(SMALL, 1), weights([500, 64], 2));
    vec![
        new("large", 0, BF16, LARGE, weights(LARGE, 3)),
        new("table", 0, BF16, [500, 64], table.clone()),
        new("small", 0, BF16, SMALL, small.clone()),
        new("int", 0, I16, [33, 40], weights([33, 40], 4)),
        new("float", 0, F32, [40, 211], floats([40, 211], 9)),
        new("noise", 0, BF16, [70, 70], noise([70, 70], 5)),
        new("tiny", 0, BF16, [1, 3], weights([1, 3], 6)),
        new("empty", 0, BF16, [0, 3], Vec::new()),
        again("small.again", "small", [77, 33], small),
        again("table.again", "table", [64, 500], table),
        new("bias", 1, BF16, [80, 80], weights([80, 80], 7)),
    ]
}

fn record(constants: &[Constant]) -> RecordSpec {
    let ints = |of: &dyn Fn(&Constant) -> i64| constants.iter().map(of).collect::<Vec<_>>();
    let fqns: Vec<_> = constants.iter().map(|one| one.fqn).collect();
    let layouts = constants
        .iter()
        .map(|one| [2, one.sizes[0], one.sizes[1], one.sizes[1], 1]);
    let read = constants.iter().filter(|one| one.kind == 0).count() as i64;
    let probes: Vec<i64> = (0..read).collect();
    let pass = |n: &i64| [4 * n, 4 * n + 1, 4 * n + 2];
    let mut record = RecordSpec::small();
    record
        .set_strings("fqns", &fqns)
        .set_ints("kinds", &ints(&|one| one.kind))
        .set_ints("dtypes", &ints(&|one| i64::from(one.dtype)))
        .set_ints("nbytes", &ints(&|one| one.bytes.len() as i64))
        .set_ints(
            "crc32",
            &ints(&|one| i64::from(crc32fast::hash(&one.bytes))),
        )
        .set_ints("layouts", &layouts.flatten().collect::<Vec<_>>())
        .set_ints("probes", &probes)
        .set_ints("access_order", &probes)
        .set_ints("trace", &probes.iter().flat_map(pass).collect::<Vec<_>>())
        .set_ints("gathers", &[1, -1]);
    record
}

fn data(constants: &[Constant], alignment: usize) -> PtdSpec {
    let mut spec = PtdSpec {
        alignment,
        ..PtdSpec::default()
    };
    let mut segments = BTreeMap::new();
    for one in constants {
        let layout = Some((one.dtype, one.sizes.map(|size| size as i32).to_vec()));
        match one.shares {
            Some(other) => spec.share(one.fqn, layout, segments[other]),
            None => {
                segments.insert(one.fqn, spec.segments.len() as u32);
                spec.add(one.fqn, layout, one.bytes.clone())
            }
        };
    }
    let id = u128::from_str_radix(BUILD_ID, 16).unwrap().to_be_bytes();
    spec.add("weightstream_build_id_forward", None, id.to_vec());
    spec.add(
        "somebody's",
        Some((BF16, SMALL.map(|size| size as i32).to_vec())),
        weights(SMALL, 8),
    );
    spec
}

/// A program and its weights, in a folder of their own.
struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn new() -> Files {
        Files::of(&constants())
    }

    fn of(constants: &[Constant]) -> Files {
        let files = Files {
            folder: tempfile::tempdir().unwrap(),
        };
        let program = pte(&PteSpec::new(&record(constants), b"not a library"));
        std::fs::write(files.path("model.pte"), program).unwrap();
        std::fs::write(files.path("model.ptd"), ptd(&data(constants, 4096))).unwrap();
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    fn names(&self) -> BTreeSet<String> {
        let all = std::fs::read_dir(self.folder.path()).unwrap();
        all.map(|one| one.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    fn run(&self, more: &[&str]) -> Result<String, String> {
        run(&self.path("model.ptd"), more)
    }

    #[track_caller]
    fn json(&self, more: &[&str]) -> Value {
        let text = self.run(&[&["--json"], more].concat()).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// Refused with these words, and no file is another one than before.
    #[track_caller]
    fn assert_refused(&self, more: &[&str], words: &[&str]) {
        let before: Vec<_> = self
            .names()
            .iter()
            .map(|name| (name.clone(), self.read(name)))
            .collect();
        let error = self.run(more).unwrap_err();
        for word in words {
            assert!(error.contains(word), "{word}: {error}");
        }
        let after: Vec<_> = self
            .names()
            .iter()
            .map(|name| (name.clone(), self.read(name)))
            .collect();
        assert!(before == after, "{:?}", self.names());
    }
}

fn run(weights: &Path, more: &[&str]) -> Result<String, String> {
    let mut arguments: Vec<OsString> = vec!["pack".into(), weights.into(), "--least=0".into()];
    arguments.extend(more.iter().map(Into::into));
    let outcome = command::run("weightstream", arguments);
    match outcome.failed() {
        true => Err(outcome.text),
        false => Ok(outcome.text),
    }
}

fn table(file: &[u8]) -> BTreeMap<String, PackedEntry> {
    let ptd = Ptd::parse("packed", file).unwrap();
    let range = ptd.entry(TABLE_KEY).unwrap().range.clone();
    read_table("packed", range.start as u64, &file[range]).unwrap()
}

/// Every packed entry decodes to what it was, and every other entry is what it was. Returns the keys of the packed ones.
#[track_caller]
fn assert_same(before: &[u8], after: &[u8]) -> Vec<String> {
    let (old, new) = (
        Ptd::parse("old", before).unwrap(),
        Ptd::parse("new", after).unwrap(),
    );
    let packed = table(after);
    assert_eq!(new.entries().count(), old.entries().count() + 1);
    for (key, entry) in old.entries() {
        let raw = &before[entry.range.clone()];
        let found = new.entry(key).unwrap();
        let stored = &after[found.range.clone()];
        let Some(PackedEntry {
            layout,
            header,
            crc32,
        }) = packed.get(key)
        else {
            assert!(stored == raw && found.layout == entry.layout, "{key}");
            continue;
        };
        assert_eq!(
            (&found.layout, Some(layout)),
            (
                &Some(PackedEntry::layout_in_file(stored.len() as u64)),
                entry.layout.as_ref()
            ),
            "{key}"
        );
        assert_eq!(*crc32, crc32fast::hash(stored), "{key}");
        assert!(stored.len() * 20 <= raw.len() * 19, "{key}");
        let parts = header.parts(stored.len()).unwrap();
        let directory = directory_of(&stored[parts.directory]);
        let mut out = vec![0; raw.len()];
        let blocks = 0..header.blocks() as u32;
        decode(
            key,
            header,
            &directory,
            &stored[parts.payload],
            blocks,
            &mut out,
        )
        .unwrap();
        assert!(out == raw, "{key}");
    }
    let shares = |of: &Ptd| {
        let mut all: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        for (key, entry) in of.entries().filter(|(key, _)| *key != TABLE_KEY) {
            all.entry(entry.segment).or_default().push(key.to_owned());
        }
        all.into_values().collect::<Vec<_>>()
    };
    assert_eq!(shares(&old), shares(&new));
    packed.into_keys().collect()
}

#[test]
fn what_may_be_packed_is_packed_and_comes_back() {
    let files = Files::new();
    let found = files.json(&[]);
    let (before, after) = (files.read("model.ptd"), files.read("model.packed.ptd"));
    let packed = assert_same(&before, &after);
    assert_eq!(packed, ["float", "large", "small", "small.again"]);
    assert_eq!(files.names().len(), 3);
    let raw_bytes = 2 * (LARGE[0] * LARGE[1] + SMALL[0] * SMALL[1]) + 4 * 40 * 211;
    assert_eq!(
        found["output"],
        files.path("model.packed.ptd").to_str().unwrap()
    );
    assert_eq!(found["packed"]["entries"], 4);
    assert_eq!(found["packed"]["raw_bytes"], raw_bytes);
    let ratio = found["packed"]["ratio"].as_f64().unwrap();
    assert!((0.6..0.7).contains(&ratio), "{ratio}");
    assert_eq!(found["file_bytes"], after.len());
    assert_eq!(found["file_bytes_before"], before.len());
    let raw: Vec<_> = found["raw"].as_array().unwrap().iter().collect();
    let raw = raw
        .iter()
        .map(|one| json!([one["reason"], one["entries"], one["bytes"]]));
    let other = 16 + 2 * SMALL[0] * SMALL[1];
    let expected = json!([
        ["resident", 1, 12800],
        ["rows", 2, 64000],
        ["type", 1, 2640],
        ["gain", 3, 9806],
        ["other", 2, other],
    ]);
    assert_eq!(raw.collect::<Value>(), expected);
}

#[test]
fn a_report_is_text() {
    let text = Files::new().run(&[]).unwrap();
    let expected = [
        "4 entries packed: 4,249,048 bytes (4.1 MB) are ",
        "            64,000       2  tables of which kernels may read rows in place\n",
        "             9,806       3  would gain less than 5 %\n",
        "model.packed.ptd: ",
        ", before 4,",
    ];
    for words in expected {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn any_number_of_threads_writes_the_same_file() {
    let files = Files::new();
    for threads in ["1", "3"] {
        let output = files.path(threads);
        files
            .run(&["--threads", threads, "--output", output.to_str().unwrap()])
            .unwrap();
    }
    assert!(files.read("1") == files.read("3"));
    files.assert_refused(&["--threads", "0"], &["--threads"]);
}

/// Of pages as of what ExecuTorch's own writer gives; of less that.
#[test]
fn segments_stay_aligned() {
    for (alignment, expected) in [(4096, 4096), (256, 256), (64, 128)] {
        let files = Files::new();
        let source = ptd(&data(&constants(), alignment));
        std::fs::write(files.path("model.ptd"), &source).unwrap();
        files.run(&[]).unwrap();
        let packed = files.read("model.packed.ptd");
        assert_same(&source, &packed);
        let ptd = Ptd::parse("packed", &packed).unwrap();
        let begins = ptd.entries().map(|(_, entry)| entry.range.start);
        let least = begins.map(|begin| 1 << begin.trailing_zeros()).min();
        assert_eq!(least.map(|least: u64| least.min(4096)), Some(expected));
    }
}

#[test]
fn in_place_the_packed_file_is_the_only_one() {
    use std::os::unix::fs::PermissionsExt;
    let files = Files::new();
    let before = files.read("model.ptd");
    let mode = |name: &str| files.path(name).metadata().unwrap().permissions().mode() & 0o777;
    std::fs::set_permissions(files.path("model.ptd"), PermissionsExt::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink("model.ptd", files.path("link.ptd")).unwrap();
    let program = files.path("model.pte");
    let program = ["--in-place", "--program", program.to_str().unwrap()];
    run(&files.path("link.ptd"), &program).unwrap();
    assert_same(&before, &files.read("model.ptd"));
    assert_eq!(mode("model.ptd"), 0o640);
    assert!(files.path("link.ptd").is_symlink());
    assert_eq!(files.names().len(), 3);
    files.assert_refused(
        &["--in-place"],
        &["model.ptd: 4 of its entries are packed already"],
    );
    files.assert_refused(
        &["--in-place", "--output", "other.ptd"],
        &["cannot be used with"],
    );
}

#[test]
fn damaged_bytes_are_named_and_leave_no_file() {
    // One that would be packed, one of which only its sharer is a table, one that stays.
    for fqn in ["large", "small.again", "table.again", "noise", "bias"] {
        let files = Files::new();
        let mut bytes = files.read("model.ptd");
        let range = Ptd::parse("data", &bytes)
            .unwrap()
            .entry(fqn)
            .unwrap()
            .range
            .clone();
        bytes[range.end - 1] ^= 1;
        std::fs::write(files.path("model.ptd"), bytes).unwrap();
        let (place, name) = (
            format!("from byte {} on", range.start),
            fqn.replace(".again", ""),
        );
        let words = [
            &name,
            "CRC-32 of its bytes differs",
            "model.ptd",
            &place,
            "copy or export it again",
        ];
        files.assert_refused(&[], &words);
        files.assert_refused(&["--in-place"], &words);
    }
}

#[test]
fn a_file_that_is_there_is_replaced_only_by_force() {
    let files = Files::new();
    std::fs::write(files.path("model.packed.ptd"), "something").unwrap();
    let words = [
        "model.packed.ptd: this file is there already",
        "--force",
        "--output",
    ];
    files.assert_refused(&[], &words);
    files.run(&["--force"]).unwrap();
    assert_same(&files.read("model.ptd"), &files.read("model.packed.ptd"));
    let refused = |output: &str, words: &str| {
        let path = files.path(output);
        files.assert_refused(
            &["--force", "--output", path.to_str().unwrap()],
            &[output, words],
        );
    };
    refused("model.pte", "this is the program");
    refused("", "this is not a regular file");
    refused("no/model.ptd", "cannot create");
}

#[test]
fn files_that_do_not_fit_are_named() {
    let files = Files::new();
    let program = files.path("other.pte");
    let program = ["--program", program.to_str().unwrap()];
    files.assert_refused(&program, &["other.pte: cannot open"]);
    let mut other = record(&constants());
    other.set_strings("build_id", &["ff112233445566778899aabbccddeeff"]);
    let bytes = pte(&PteSpec::new(&other, b""));
    std::fs::write(files.path("other.pte"), bytes).unwrap();
    files.assert_refused(&program, &["build id differs"]);
    std::fs::remove_file(files.path("model.pte")).unwrap();
    files.assert_refused(
        &[],
        &[
            "model.pte: the program of '",
            "model.ptd' is not here",
            "--program",
        ],
    );
    let error = run(&files.path("other.pte"), &[]).unwrap_err();
    assert!(error.contains("which is a .pte program"), "{error}");
    let error = run(&files.path("nowhere.ptd"), &[]).unwrap_err();
    assert!(error.contains("nowhere.ptd: cannot open"), "{error}");
}

#[test]
fn a_file_of_which_nothing_can_be_packed_is_not_copied() {
    let words = [
        "nothing of it can be packed",
        "no file was written",
        "would gain less than 5 %",
    ];
    let mut all = constants();
    all.retain(|one| !["large", "float", "small", "small.again"].contains(&one.fqn));
    // The table is the second probe.
    all.swap(0, 1);
    Files::of(&all).assert_refused(&[], &words);
    // All of another type: known before anything is read.
    let mut all = constants();
    all.retain(|one| one.dtype == BF16);
    all.iter_mut().for_each(|one| one.dtype = I16);
    Files::of(&all).assert_refused(
        &[],
        &[
            "nothing of it can be packed",
            "of a type that is not packed",
        ],
    );
}
