//! The checks of a load, in order: what is wrong with the record or this machine is said before the data
//! file is opened, and that before the compiled library is asked for.

use std::cell::Cell;
use std::path::PathBuf;

use crate::support::{payload, ptd, RecordSpec};
use sha2::{Digest, Sha256};
use weightstream::config::{Options, Spec, SpecValue};
use weightstream::delegate::program::check_files;
use weightstream::delegate::{DataSource, Delegate, LoadRequest, Program};
use weightstream::device::CallerStream;
use weightstream::format::{Record, Records, Wiring};
use weightstream::Error;

/// A load that has to fail, and how far it came.
struct Attempt {
    record: RecordSpec,
    options: Vec<Spec>,
    library: Vec<u8>,
    has_data: bool,
    library_was_asked: Cell<bool>,
}

impl Attempt {
    fn new() -> Attempt {
        let mut record = RecordSpec::small();
        record.set_ints("hard_minimum", &[256]);
        Attempt {
            record,
            options: Vec::new(),
            library: b"no library".to_vec(),
            has_data: true,
            library_was_asked: Cell::new(false),
        }
    }

    fn option(mut self, key: &str, value: &str) -> Attempt {
        let value = SpecValue::Text(value.to_owned());
        self.options.push(Spec {
            key: key.to_owned(),
            value,
        });
        self
    }

    fn data_missing(mut self) -> Attempt {
        self.has_data = false;
        self
    }

    #[track_caller]
    fn error(&self) -> Error {
        let folder = tempfile::tempdir().unwrap();
        let data: PathBuf = folder.path().join("model.ptd");
        if self.has_data {
            std::fs::write(&data, ptd(&RecordSpec::small_ptd())).unwrap();
        }
        let record = Record::from_payload("payload", &payload(&self.record)).unwrap();
        let library = |_: &str| {
            self.library_was_asked.set(true);
            Ok(self.library.as_slice())
        };
        let request = LoadRequest {
            records: record.into(),
            place: None,
            beside: None,
            library: &library,
            data: DataSource::File(data),
            wiring: Wiring::straight(1, 1),
        };
        let options = Options::parse(&self.options).unwrap();
        match Delegate::load(request, &options) {
            Ok(_) => panic!("the load went through"),
            Err(error) => error,
        }
    }

    /// The error of a load that must not open anything.
    #[track_caller]
    fn early_error(self) -> Error {
        let attempt = self.data_missing();
        let error = attempt.error();
        assert!(!attempt.library_was_asked.get(), "{error}");
        assert!(!matches!(error, Error::Io { .. }), "{error}");
        error
    }
}

#[test]
fn a_program_for_a_gpu_says_what_this_machine_lacks() {
    let mut attempt = Attempt::new();
    attempt
        .record
        .set_strings("device", &["cuda"])
        // No driver of today serves devices of this version.
        .set_strings("target", &["linux", "x86_64", "x86-64", "2.11.0", "20"]);
    let error = attempt.early_error();
    let expected = match weightstream::device::cuda::device_count() {
        Ok(1..) => "kernels for sm_20",
        Ok(0) => "no NVIDIA GPU",
        Err(Error::Missing { .. }) => "'libcuda.so.1' is missing",
        Err(_) => "'cuda'",
    };
    assert!(
        matches!(&error, Error::Unsupported(what) if what.contains(expected)),
        "{error}"
    );
}

#[test]
fn another_machine_is_unsupported_before_anything_is_opened() {
    for target in [
        ["linux", "aarch64", "x86-64", "2.11.0", ""],
        ["linux", "x86_64", "x86-64-v9", "2.11.0", ""],
        ["linux", "x86_64", "x86-64", "2.10.0", ""],
    ] {
        let mut attempt = Attempt::new();
        attempt.record.set_strings("target", &target);
        let error = attempt.early_error();
        assert!(
            matches!(error, Error::Unsupported(_)),
            "{target:?}: {error}"
        );
    }
}

#[test]
fn a_budget_without_offload_names_the_cure() {
    let mut attempt = Attempt::new().option("weight_offload_budget_bytes", "1000000");
    attempt
        .record
        .set_ints("offload", &[0])
        .set_ints("kinds", &[1, 1, 1, 2]);
    for field in ["probes", "access_order", "trace"] {
        attempt.record.remove(field);
    }
    let error = attempt.early_error();
    assert!(
        matches!(&error, Error::Option { what, .. } if what.contains("offload=True")),
        "{error}"
    );
}

/// Weights 'a.weight' and 'b.weight', direct constants 'scale' and 'cache'.
#[test]
fn patterns_that_name_no_weight_are_refused() {
    let (pin, stream) = ("weight_offload_pin", "weight_offload_stream");
    let rows: [(&str, &str, &[&str]); 7] = [
        // 'scale' stays anyway, so nobody meant it.
        (
            pin,
            "scal",
            &["'scal' matches no weight; `weightstream inspect MODEL.pte` lists the weights"],
        ),
        (
            stream,
            "encoder.*",
            &["'encoder.*' matches no weight; `weightstream inspect MODEL.pte` lists the weights"],
        ),
        (
            pin,
            "c.weight",
            &["'c.weight' matches no weight", "'a.weight', 'b.weight'"],
        ),
        (pin, "*.weight,x", &["'x' matches no weight"]),
        (stream, "A.*", &["'A.*' matches no weight", "'a.weight'"]),
        (
            stream,
            "s*",
            &["'s*' matches only constants that always stay, such as 'scale'"],
        ),
        (
            stream,
            "cache",
            &["'cache' matches only constants that always stay"],
        ),
    ];
    for (option, patterns, expected) in rows {
        let error = Attempt::new().option(option, patterns).early_error();
        let Error::Option { key, what } = &error else {
            panic!("{error}");
        };
        assert_eq!(key, option);
        for words in expected {
            assert!(what.contains(words), "{what}");
        }
    }
}

#[test]
fn a_weight_cannot_be_pinned_and_streamed() {
    let attempt = Attempt::new().option("weight_offload_pin", "a.*,scale");
    let error = attempt.option("weight_offload_stream", "*").early_error();
    assert!(
        matches!(&error, Error::Option { key, what } if key == "weight_offload_stream"
            && what.contains("'a.weight'") && what.contains("weight_offload_pin")),
        "{error}"
    );
}

#[test]
fn patterns_of_names_without_offload_are_refused() {
    for option in ["weight_offload_pin", "weight_offload_stream"] {
        let mut attempt = Attempt::new().option(option, "a.weight");
        attempt
            .record
            .set_ints("offload", &[0])
            .set_ints("kinds", &[1, 1, 1, 2]);
        for field in ["probes", "access_order", "trace"] {
            attempt.record.remove(field);
        }
        let error = attempt.early_error();
        assert!(
            matches!(&error, Error::Option { key, what } if key == option && what.contains("offload=True")),
            "{error}"
        );
    }
}

/// What names weights, or direct constants too, is accepted: the load goes on to the library.
#[test]
fn direct_constants_may_be_named_since_they_stay_anyway() {
    for (option, patterns) in [
        ("weight_offload_pin", "scale,b.weight"),
        ("weight_offload_pin", "*"),
        ("weight_offload_stream", "*"),
    ] {
        let attempt = Attempt::new().option(option, patterns);
        assert!(matches!(attempt.error(), Error::Mismatch { .. }));
        assert!(attempt.library_was_asked.get());
    }
}

/// On the CPU nothing is pinned and nothing is staged: an option that could only be ignored is refused.
#[test]
fn how_copies_to_a_gpu_are_held_is_refused_on_the_cpu() {
    for host in ["pinned", "staged"] {
        let error = Attempt::new()
            .option("weight_offload_host", host)
            .early_error();
        assert!(
            matches!(&error, Error::Option { key, what }
                if key == "weight_offload_host" && what.contains("could have no effect") && what.contains("'cpu'")),
            "{error}"
        );
    }
    let mut attempt = Attempt::new();
    attempt.options.push(Spec {
        key: "weight_offload_staging_mb".to_owned(),
        value: SpecValue::Int(64),
    });
    let error = attempt.early_error();
    assert!(
        matches!(&error, Error::Option { key, what }
            if key == "weight_offload_staging_mb" && what.contains("'cpu'")),
        "{error}"
    );
}

#[test]
fn what_happens_anyway_on_the_cpu_is_accepted() {
    for host in ["auto", "mapped"] {
        let attempt = Attempt::new().option("weight_offload_host", host);
        assert!(matches!(attempt.error(), Error::Mismatch { .. }));
        assert!(attempt.library_was_asked.get());
    }
}

#[test]
fn a_recorded_floor_that_is_not_enforced_is_a_mismatch() {
    for (field, recorded) in [("floor", 320), ("hard_minimum", 192)] {
        let mut attempt = Attempt::new();
        attempt.record.set_ints(field, &[recorded]);
        let error = attempt.early_error();
        let text = error.to_string();
        assert!(matches!(error, Error::Mismatch { .. }), "{text}");
        assert!(
            text.contains(&format!(
                "256 bytes, by the recorded trace, found {recorded}"
            )),
            "{text}"
        );
    }
}

/// Where the program is not at hand, a pin could only be ignored.
#[test]
fn a_pin_without_the_program_is_refused() {
    let error = Attempt::new()
        .option("weight_offload_pte_sha256", &"00".repeat(32))
        .early_error();
    assert!(
        matches!(&error, Error::Option { key, what }
            if key == "weight_offload_pte_sha256" && what.contains("cannot take effect")),
        "{error}"
    );
}

/// The pin is looked at before anything in the program is.
#[test]
fn only_the_pinned_program_is_loaded() {
    let bytes = b"no program at all";
    let digest: String = Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let load = |pin: &str| {
        let options = Options::parse(&[Spec {
            key: "weight_offload_pte_sha256".to_owned(),
            value: SpecValue::Text(pin.to_owned()),
        }]);
        let program = Program::from_bytes(bytes);
        let loaded = program.load("forward", PathBuf::from("/nowhere.ptd"), &options.unwrap());
        loaded.err().expect("no program was loaded")
    };
    for pin in [digest.clone(), digest.to_uppercase()] {
        let error = load(&pin);
        assert!(matches!(error, Error::Malformed { .. }), "{error}");
    }
    let other = "5e".repeat(32);
    let error = load(&other);
    let text = error.to_string();
    assert!(matches!(error, Error::Mismatch { .. }), "{text}");
    assert!(text.contains(&other) && text.contains(&digest), "{text}");

    let folder = tempfile::tempdir().unwrap();
    let pte = folder.path().join("model.pte");
    std::fs::write(&pte, bytes).unwrap();
    let pin = Options::parse(&[Spec {
        key: "weight_offload_pte_sha256".to_owned(),
        value: SpecValue::Text(other),
    }])
    .unwrap()
    .pte_sha256;
    let error = check_files(&pte, &folder.path().join("model.ptd"), pin).unwrap_err();
    assert!(
        matches!(&error, Error::Mismatch { name, .. } if name.ends_with("model.pte")),
        "{error}"
    );
}

#[test]
fn a_missing_data_file_is_named_before_the_library_is_asked_for() {
    let attempt = Attempt::new().data_missing();
    let error = attempt.error();
    assert!(
        matches!(&error, Error::Io { file, .. } if file.ends_with("model.ptd")),
        "{error}"
    );
    assert!(!attempt.library_was_asked.get());
}

#[test]
fn damaged_data_is_seen_only_when_asked_for() {
    let mut attempt = Attempt::new().option("weight_offload_verify", "load");
    attempt.record.ints_mut("crc32")[1] ^= 1;
    let error = attempt.error();
    assert!(
        matches!(&error, Error::Mismatch { name, .. } if name == "b.weight"),
        "{error}"
    );
    assert!(!attempt.library_was_asked.get());
    attempt.options.clear();
    assert!(!attempt.error().to_string().contains("CRC"));
}

#[test]
fn a_library_of_another_digest_is_not_opened() {
    let attempt = Attempt::new();
    let error = attempt.error();
    assert!(attempt.library_was_asked.get());
    let Error::Mismatch { fact, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(*fact, "SHA-256 of the compiled library");
}

#[test]
fn a_library_that_is_none_is_malformed() {
    let mut attempt = Attempt::new();
    let digest: String = Sha256::digest(&attempt.library)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    attempt
        .record
        .set_strings("so_key", &[&format!("weightstream_so_{digest}")]);
    let error = attempt.error();
    assert!(matches!(error, Error::Malformed { .. }), "{error}");
}

/// An option that could only be ignored is an error, also where it names the device that is there.
#[test]
fn what_only_a_gpu_has_is_refused_for_a_program_of_the_cpu() {
    let mut attempt = Attempt::new();
    attempt.options.push(Spec {
        key: "weight_offload_device".to_owned(),
        value: SpecValue::Int(0),
    });
    let error = attempt.early_error();
    assert!(
        matches!(&error, Error::Option { key, what } if key == "weight_offload_device" && what.contains("no GPU to choose")),
        "{error}"
    );

    let record = Record::from_payload("payload", &payload(&Attempt::new().record)).unwrap();
    let request = LoadRequest {
        records: record.into(),
        place: None,
        beside: None,
        library: &|_: &str| panic!("the library was asked for"),
        data: DataSource::File(PathBuf::from("/nowhere.ptd")),
        wiring: Wiring::straight(1, 1),
    };
    // SAFETY: null is the default stream.
    let stream = unsafe { CallerStream::new(std::ptr::null_mut()) };
    let error = Delegate::load_on(request, &Options::default(), Some(stream))
        .err()
        .expect("a program of the CPU has no streams");
    assert!(
        matches!(&error, Error::Unsupported(what) if what.contains("has no streams")),
        "{error}"
    );
}

/// It would say nothing: an error, and no warning.
#[test]
fn memory_of_graphs_without_graphs_is_refused() {
    let mut attempt = Attempt::new();
    attempt.options.push(Spec {
        key: "weight_offload_graph_mb".to_owned(),
        value: SpecValue::Int(64),
    });
    let error = attempt.early_error();
    assert!(
        matches!(&error, Error::Option { key, what }
            if key == "weight_offload_graph_mb" && what.contains("without weight_offload_cuda_graph")),
        "{error}"
    );
}

/// Before the driver is asked for anything: this machine need not have one.
#[test]
fn graphs_and_the_default_stream_are_refused_together() {
    let mut attempt = Attempt::new();
    attempt
        .record
        .set_strings("device", &["cuda"])
        .set_strings("target", &["linux", "x86_64", "x86-64", "2.11.0", "90"]);
    let graph = Spec {
        key: "weight_offload_cuda_graph".to_owned(),
        value: SpecValue::Int(1),
    };
    for name in [0, 1] {
        let request = LoadRequest {
            records: Records::from_payload("payload", &payload(&attempt.record)).unwrap(),
            place: None,
            beside: None,
            library: &|_: &str| panic!("the library was asked for"),
            data: DataSource::File(PathBuf::from("/nowhere.ptd")),
            wiring: Wiring::straight(1, 1),
        };
        // SAFETY: the two names of the default stream.
        let stream = unsafe { CallerStream::new(std::ptr::without_provenance_mut(name)) };
        let options = Options::parse(std::slice::from_ref(&graph)).unwrap();
        let error = Delegate::load_on(request, &options, Some(stream)).err();
        assert!(
            matches!(&error, Some(Error::Option { key, what }) if key == "weight_offload_cuda_graph" && what.contains("default stream")),
            "{error:?}"
        );
    }
}

/// Another index than the first one is asked of the driver as it is.
#[test]
fn a_gpu_that_is_not_there_is_named_with_the_number_of_those_that_are() {
    let mut attempt = Attempt::new();
    attempt
        .record
        .set_strings("device", &["cuda"])
        .set_strings("target", &["linux", "x86_64", "x86-64", "2.11.0", "90"]);
    attempt.options.push(Spec {
        key: "weight_offload_device".to_owned(),
        value: SpecValue::Int(4096),
    });
    let error = attempt.early_error();
    let expected = match weightstream::device::cuda::device_count() {
        Ok(count @ 1..) => format!(
            "'cuda:4096' is missing in this machine, whose NVIDIA driver shows {count} device"
        ),
        _ => "GPU".to_owned(),
    };
    assert!(
        matches!(&error, Error::Unsupported(what) if what.contains(&expected)),
        "{error}"
    );
}
