//! Exported programs for tests, their inputs, and their outputs as bytes.
#![allow(dead_code)] // not every test file uses everything

#[path = "../support/lock.rs"]
mod lock;

use std::path::{Path, PathBuf};
use std::process::Command;

use weightstream::config::{Options, Spec, SpecValue};
use weightstream::delegate::{Delegate, InputTensor, Memory, Program};
use weightstream::device::faulty::Faults;
use weightstream::format::{InputSpec, Pte, Record};
use weightstream::Result;

/// The outputs of one pass, dense.
pub type Outputs = Vec<Vec<u8>>;

/// Program and weights of an exported model; `None`, after saying why, if it cannot be had.
pub fn files(name: &str) -> Option<(PathBuf, PathBuf)> {
    let folder = given(name).or_else(|| exported(name))?;
    let pte = folder.join(format!("{name}.pte"));
    let ptd = pte.with_extension("ptd");
    Some((pte, ptd))
}

/// One exported program.
pub struct Model {
    pub name: String,
    pub pte: PathBuf,
    pub ptd: PathBuf,
    pub record: Record,
}

impl Model {
    /// The model of this name in the Python tests' zoo: from $WEIGHTSTREAM_TEST_MODELS, or exported with
    /// $WEIGHTSTREAM_PYTHON. `None`, after saying why, without either.
    pub fn open(name: &str) -> Option<Model> {
        let folder = given(name).or_else(|| exported(name))?;
        let pte = folder.join(format!("{name}.pte"));
        let bytes = std::fs::read(&pte).unwrap();
        let record = Record::of(&Pte::parse(name, &bytes).unwrap(), "forward").unwrap();
        Some(Model {
            name: name.to_owned(),
            ptd: pte.with_extension("ptd"),
            pte,
            record,
        })
    }

    /// Loads the model on a device in front of which `faults` stand.
    pub fn load(&self, options: &Options, faults: &Faults) -> Result<Delegate> {
        Program::open(&self.pte)?.load_faulty("forward", self.ptd.clone(), options, faults)
    }

    /// Runs pass `pass` with inputs of its own: the same pass, run again, has the same outputs.
    pub fn run(&self, delegate: &Delegate, pass: usize) -> Result<Outputs> {
        let specs: Vec<&InputSpec> = (0..delegate.num_inputs())
            .map(|index| {
                delegate
                    .input(index)
                    .expect("the model reads all its inputs")
            })
            .collect();
        let sizes: Vec<Vec<i64>> = specs.iter().map(|spec| sizes(spec)).collect();
        let bytes: Vec<Vec<u8>> = (specs.iter().zip(&sizes))
            .map(|(spec, sizes)| values(spec.dtype.number(), sizes, pass))
            .collect();
        let inputs: Vec<InputTensor<'_>> = (specs.iter())
            .zip(&sizes)
            .zip(&bytes)
            .map(|((spec, sizes), bytes)| InputTensor {
                dtype: spec.dtype.number(),
                sizes,
                strides: None,
                memory: Memory::Host(bytes),
            })
            .collect();
        let mut outputs = Outputs::new();
        delegate.execute(&inputs, &mut |_, output| {
            let mut dense = vec![0; output.nbytes()];
            output.copy_to_dense(&mut dense)?;
            outputs.push(dense);
            Ok(())
        })?;
        Ok(outputs)
    }
}

/// Options from pairs of key and text.
pub fn options(pairs: &[(&str, &str)]) -> Options {
    let spec = |&(key, text): &(&str, &str)| Spec {
        key: key.to_owned(),
        value: SpecValue::Text(text.to_owned()),
    };
    Options::parse(&pairs.iter().map(spec).collect::<Vec<_>>()).unwrap()
}

fn given(name: &str) -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os("WEIGHTSTREAM_TEST_MODELS")?);
    folder
        .join(format!("{name}.pte"))
        .exists()
        .then_some(folder)
}

fn exported(name: &str) -> Option<PathBuf> {
    let Ok(python) = std::env::var("WEIGHTSTREAM_PYTHON") else {
        println!("skipped: neither WEIGHTSTREAM_TEST_MODELS has '{name}' nor is there a WEIGHTSTREAM_PYTHON to export it with");
        return None;
    };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("exported_models");
    let _lock = lock::exclusive(&folder.join(format!("{name}.lock")));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/tests/exports.py");
    let status = Command::new(python)
        .arg(script)
        .arg("--into")
        .arg(&folder)
        .arg(name)
        .status()
        .unwrap();
    assert!(status.success(), "exporting '{name}' failed");
    Some(folder)
}

fn sizes(spec: &weightstream::format::InputSpec) -> Vec<i64> {
    spec.dims.iter().map(|dim| dim.max).collect()
}

/// Small numbers: float32, or integers that are good indices.
fn values(dtype: i32, sizes: &[i64], pass: usize) -> Vec<u8> {
    let count = sizes.iter().product::<i64>() as usize;
    let float = |at: usize| (((at * 37 + pass * 11) % 64) as f32 - 31.5) / 16.0;
    match dtype {
        4 => (0..count)
            .flat_map(|_| (pass as i64).to_le_bytes())
            .collect(),
        6 => (0..count).flat_map(|at| float(at).to_le_bytes()).collect(),
        other => panic!("no inputs of dtype {other} here"),
    }
}
