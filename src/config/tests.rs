use super::*;
use crate::error::Error;
use std::path::PathBuf;

fn int(key: &str, value: i64) -> Spec {
    Spec {
        key: key.to_owned(),
        value: SpecValue::Int(value),
    }
}

fn text(key: &str, value: &str) -> Spec {
    Spec {
        key: key.to_owned(),
        value: SpecValue::Text(value.to_owned()),
    }
}

/// The message of the `Error::Option` that these specs end in, after checking its key.
fn refusal(specs: &[Spec]) -> String {
    let error = Options::parse(specs).expect_err("the specs are wrong");
    let Error::Option { key, what } = error else {
        panic!("not an option error: {error}")
    };
    assert_eq!(key, specs[specs.len() - 1].key);
    what
}

#[test]
fn no_specs_are_the_defaults() {
    assert_eq!(Options::parse(&[]).unwrap(), Options::default());
}

#[test]
fn every_key_takes_effect() {
    let options = Options::parse(&[
        int(BUDGET_MB, 3),
        text(POLICY, "lru"),
        text(HOST, "staged"),
        int(STAGING_MB, 64),
        int(DEVICE, 1),
        text(LINK_GBPS, "12.5"),
        text(KERNEL_TIMES, "/models/times.txt"),
        text(VERIFY, "load"),
        text(DATA, "/models/w.ptd"),
        text(PTE_SHA256, &format!("{}aB", "00".repeat(31))),
    ])
    .unwrap();
    assert_eq!(options.budget, Budget::Bytes(3 << 20));
    assert_eq!(options.policy, PolicyKind::Lru);
    assert_eq!(options.host, HostMemory::Staged);
    assert_eq!((options.staging, options.device), (Some(64 << 20), Some(1)));
    assert_eq!(options.link, LinkRate::Given(12_500_000_000));
    let times = PathBuf::from("/models/times.txt");
    assert_eq!(options.kernel_times, Some(times));
    assert_eq!(options.verify, Verify::Load);
    assert_eq!(options.data, Some(PathBuf::from("/models/w.ptd")));
    let pin = options.pte_sha256.map(|pin| pin.to_string());
    assert_eq!(pin, Some(format!("{}ab", "00".repeat(31))));
    let every = Options::parse(&[text(VERIFY, "every_read")]).unwrap();
    assert_eq!(every.verify, Verify::EveryRead);
}

#[test]
fn a_pin_is_64_hexadecimal_digits() {
    let digits = "0123456789abcdef".repeat(4);
    let mut wrong: Vec<String> = ["", "md5", &digits[1..], "+1"].map(str::to_owned).into();
    wrong.extend([
        format!("{digits}0"),
        digits.replace('a', "g"),
        digits.replace("a", "é"),
    ]);
    wrong.push(format!("+{}", &digits[1..]));
    for pin in &wrong {
        let what = refusal(&[text(PTE_SHA256, pin)]);
        assert!(what.contains("64 hexadecimal digits"), "{pin}: {what}");
    }
    assert!(refusal(&[int(PTE_SHA256, 7)]).contains("the int 7"));
    assert!(Options::parse(&[text(PTE_SHA256, &digits)]).is_ok());
}

#[test]
fn what_a_link_carries_is_a_positive_number() {
    let parse = |spec| Options::parse(&[spec]).unwrap().link;
    assert_eq!(parse(int(LINK_GBPS, 55)), LinkRate::Given(55_000_000_000));
    assert_eq!(parse(text(LINK_GBPS, "1e-9")), LinkRate::Given(1));
    assert_eq!(parse(text(LINK_GBPS, "auto")), LinkRate::Timed);
    for bad in ["", "0", "-1", "nan", "inf", "1e7", "55GB/s"] {
        let what = refusal(&[text(LINK_GBPS, bad)]);
        assert!(what.contains("positive number of GB/s"), "{bad}: {what}");
    }
    for bad in [0, -1, i64::MIN, i64::MAX] {
        assert!(refusal(&[int(LINK_GBPS, bad)]).contains("positive number of GB/s"));
    }
}

#[test]
fn a_ring_without_staged_is_refused() {
    for host in ["mapped", "pinned"] {
        let what = refusal(&[text(HOST, host), int(STAGING_MB, 64)]);
        assert!(
            what.contains("'staged'") && what.contains(&format!("is '{host}'")),
            "{what}"
        );
        assert!(Options::parse(&[int(STAGING_MB, 64), text(HOST, host)]).is_err());
    }
    for host in ["auto", "staged"] {
        Options::parse(&[text(HOST, host), int(STAGING_MB, 64)]).unwrap();
    }
}

#[test]
fn bytes_are_a_decimal_string_or_an_int() {
    let parse = |spec| Options::parse(&[spec]).unwrap().budget;
    assert_eq!(
        parse(text(BUDGET_BYTES, "18446744073709551615")),
        Budget::Bytes(u64::MAX)
    );
    assert_eq!(parse(int(BUDGET_BYTES, 4096)), Budget::Bytes(4096));
}

/// The floor of a program may be 0.
#[test]
fn nothing_is_a_budget_too() {
    for zero in [
        text(BUDGET_BYTES, "0"),
        int(BUDGET_BYTES, 0),
        int(BUDGET_MB, 0),
    ] {
        assert_eq!(Options::parse(&[zero]).unwrap().budget, Budget::Bytes(0));
    }
}

#[test]
fn bytes_refuse_what_is_no_decimal() {
    for bad in [
        "",
        "-1",
        "+1",
        " 1",
        "1 ",
        "0x10",
        "1e6",
        "1_000",
        "18446744073709551616",
        "512MB",
    ] {
        assert!(
            refusal(&[text(BUDGET_BYTES, bad)]).contains("decimal digits"),
            "{bad:?}"
        );
    }
    for bad in [-1, i64::MIN] {
        assert!(
            refusal(&[int(BUDGET_BYTES, bad)]).contains("decimal digits"),
            "{bad}"
        );
    }
}

#[test]
fn megabytes_refuse_negative_overflow_and_other_types() {
    for bad in [-1, i64::MIN] {
        assert!(
            refusal(&[int(BUDGET_MB, bad)]).contains("a number from 0 up"),
            "{bad}"
        );
    }
    assert!(refusal(&[int(BUDGET_MB, i64::MAX)]).contains("64 bits"));
    let flag = Spec {
        key: BUDGET_MB.to_owned(),
        value: SpecValue::Bool(true),
    };
    assert!(refusal(&[flag]).contains("the bool true"));
}

#[test]
fn both_budgets_are_refused_in_either_order() {
    let (mb, bytes) = (int(BUDGET_MB, 1), text(BUDGET_BYTES, "1048576"));
    assert!(refusal(&[mb.clone(), bytes.clone()]).contains("not two"));
    assert!(refusal(&[bytes, mb]).contains("not two"));
}

#[test]
fn unknown_keys_are_refused_with_the_list() {
    for key in [
        "weight_offload_budgets",
        "weight_offload_Policy",
        "num_threads",
        "",
    ] {
        let what = refusal(&[int(key, 1)]);
        assert!(
            table::ROWS.iter().all(|row| what.contains(row.key)),
            "{what}"
        );
    }
}

#[test]
fn choices_name_what_is_accepted() {
    assert!(refusal(&[text(POLICY, "LRU")]).contains("'lru'"));
    assert!(refusal(&[int(POLICY, 1)]).contains("the int 1"));
    assert!(refusal(&[text(VERIFY, "on")]).contains("'off', 'load'"));
    assert!(refusal(&[text(DATA, "")]).contains("path"));
    assert!(refusal(&[int(DATA, 1)]).contains("path"));
}

#[test]
fn a_key_given_twice_is_refused() {
    assert!(refusal(&[text(VERIFY, "off"), text(VERIFY, "off")]).contains("twice"));
}

#[test]
fn a_string_of_255_characters_may_be_cut() {
    let path = "p".repeat(CUT_LENGTH);
    for key in [DATA, POLICY, VERIFY, BUDGET_BYTES] {
        assert!(
            refusal(&[text(key, &path)]).contains("may have been cut"),
            "{key}"
        );
    }
    assert!(Options::parse(&[text(DATA, &path[1..])]).is_ok());
}

#[test]
fn auto_is_the_only_word_for_a_budget() {
    let parsed = Options::parse(&[text(BUDGET, "auto")]).unwrap();
    assert_eq!(parsed.budget, Budget::Auto);
    for wrong in [text(BUDGET, "512MiB"), int(BUDGET, 512), text(BUDGET, "")] {
        assert!(refusal(&[wrong]).contains(BUDGET_BYTES));
    }
    assert!(refusal(&[int(BUDGET_MB, 1), text(BUDGET, "auto")]).contains("not two"));
}

#[test]
fn a_device_is_an_index() {
    for wrong in [int(DEVICE, -1), int(DEVICE, 1 << 32)] {
        assert!(refusal(&[wrong]).contains("index"));
    }
}

#[test]
fn patterns_stand_with_commas_between() {
    let options = Options::parse(&[text(PIN, "lm_head.*, layers.0.*"), text(STREAM, "a")]);
    let options = options.unwrap();
    assert_eq!(options.pin, ["lm_head.*", "layers.0.*"]);
    assert_eq!(options.stream, ["a"]);
    for key in [PIN, STREAM] {
        for wrong in ["", " ", "a,", ",a", "a,,b"] {
            let what = refusal(&[text(key, wrong)]);
            assert!(what.contains("'lm_head.*,layers.0.*'"), "{wrong}: {what}");
        }
        assert!(refusal(&[text(key, "a, a")]).contains("'a' twice"));
        assert!(refusal(&[int(key, 7)]).contains("the int 7"));
    }
}

/// From the environment, from Python's `str` and from a program there are texts only.
#[test]
fn a_number_may_be_a_string() {
    for (key, number) in [
        (BUDGET_MB, 512),
        (STAGING_MB, 64),
        (GRAPH_MB, 64),
        (PRIORITY, -3),
        (DEVICE, 1),
        (BUDGET_BYTES, 4096),
    ] {
        let as_text = Options::parse(&[text(key, &number.to_string())]).unwrap();
        let mut as_int = Options::parse(&[int(key, number)]).unwrap();
        if key == BUDGET_BYTES {
            // Texts of this key are its own type.
            as_int.given = as_text.given.clone();
        }
        assert_eq!(as_text, as_int, "{key}");
        for bad in ["", "+1", "1e3", "one", "0x10", "1 ", "1_000"] {
            let what = refusal(&[text(key, bad)]);
            assert!(what.contains(&format!("the string '{bad}'")), "{what}");
        }
    }
}

#[test]
fn a_part_of_a_megabyte_is_a_whole_number_of_bytes() {
    let budget = |mb| Options::parse(&[text(BUDGET_MB, mb)]).unwrap().budget;
    for (mb, bytes) in [
        ("0.5", 1 << 19),
        ("1.50", 3 << 19),
        ("0.00000095367431640625", 1),
        ("512.0", 512 << 20),
    ] {
        assert_eq!(budget(mb), Budget::Bytes(bytes), "{mb}");
    }
    let what = refusal(&[text(BUDGET_MB, "0.1")]);
    assert!(
        what.contains("no whole number of bytes; give the bytes, as weight_offload_budget_bytes"),
        "{what}"
    );
    let what = refusal(&[text(GRAPH_MB, "1.1")]);
    assert!(what.ends_with("no whole number of bytes"), "{what}");
    for bad in [".5", "1.", "-0.5", "1.5.1", "0.5e1", "inf"] {
        let what = refusal(&[text(BUDGET_MB, bad)]);
        assert!(what.contains("takes a number from 0 up"), "{bad}: {what}");
    }
    assert!(refusal(&[text(STAGING_MB, "0.5")]).contains("a number from 1 up"));
    let long = format!("0.{}1", "0".repeat(40));
    assert!(refusal(&[text(BUDGET_MB, &long)]).contains("no whole number of bytes"));
}

#[test]
fn a_gpu_is_named_as_everywhere_else() {
    let device = |name| Options::parse(&[text(DEVICE, name)]).unwrap().device;
    for (name, index) in [("cuda:1", 1), ("cuda", 0), ("2", 2)] {
        assert_eq!(device(name), Some(index), "{name}");
    }
    for bad in [
        "cpu",
        "cuda:",
        "cuda:-1",
        "cuda:x",
        "gpu:1",
        "cuda:4294967296",
    ] {
        let what = refusal(&[text(DEVICE, bad)]);
        assert!(what.contains("'cuda:1'"), "{bad}: {what}");
    }
}
