//! Compiled models for tests, and hooks that serve them and notice misuse.
#![allow(dead_code)] // not every test file uses everything

#[path = "../support/lock.rs"]
mod lock;

use std::alloc::{alloc, dealloc, Layout};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use sha2::{Digest, Sha256};
use weightstream::aoti::container::{Binding, Container, Input};
use weightstream::aoti::dtype::{load, DType};
use weightstream::aoti::hooks::{PassHooks, ProbeLayout};
use weightstream::aoti::registry;
use weightstream::aoti::tensor::contiguous_strides;
use weightstream::device::DevicePtr;
use weightstream::figures::DeviceId;
use weightstream::{Error, Result};

/// Directory of the compiled models; `None`, after saying why, without a Python that has torch.
pub fn models() -> Option<&'static Path> {
    static MODELS: OnceLock<Option<PathBuf>> = OnceLock::new();
    MODELS.get_or_init(compile).as_deref()
}

fn compile() -> Option<PathBuf> {
    let Ok(python) = std::env::var("WEIGHTSTREAM_PYTHON") else {
        println!("skipped: WEIGHTSTREAM_PYTHON names no Python with torch to compile models with");
        return None;
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let script = root.join("tests/aoti_models.py");
    let mut hash = Sha256::new();
    let archive = root.join("python/weightstream/_export/compile");
    hash.update(std::fs::read(&script).unwrap());
    for file in ["trampolines.py", "shims.txt"] {
        hash.update(std::fs::read(archive.join(file)).unwrap());
    }
    // Another torch compiles other code.
    let release = "import importlib.metadata; print(importlib.metadata.version('torch'))";
    let asked = Command::new(&python).args(["-c", release]).output();
    hash.update(asked.unwrap().stdout);
    let key: String = hash.finalize()[..8]
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("aoti_models_{key}"));
    let _lock = lock::exclusive(&out.with_extension("lock"));
    if !out.join("done").exists() {
        // The compiler of `make test`, which keeps the headers that all these models include.
        let ours = std::env::var_os("WEIGHTSTREAM_TEST_HEADERS").map(|_| "python/tests/cxx");
        let status = Command::new(python)
            .envs(ours.map(|cxx| ("CXX", root.join(cxx))))
            .arg(&script)
            .arg(&out)
            .status()
            .unwrap();
        assert!(status.success(), "compiling the models failed");
    }
    Some(out)
}

/// A dense tensor in aligned memory.
pub struct Value {
    pub dtype: DType,
    pub sizes: Vec<i64>,
    pub strides: Vec<i64>,
    words: Vec<u64>,
    len: usize,
}

impl Value {
    pub fn new(dtype: DType, sizes: Vec<i64>, bytes: &[u8]) -> Value {
        let mut words = vec![0u64; bytes.len().div_ceil(8) + 1];
        for (i, byte) in bytes.iter().enumerate() {
            words[i / 8] |= u64::from(*byte) << (8 * (i % 8));
        }
        let strides = contiguous_strides(&sizes);
        Value {
            dtype,
            sizes,
            strides,
            words,
            len: bytes.len(),
        }
    }

    pub fn f32(sizes: &[i64], values: &[f32]) -> Value {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Value::new(DType::F32, sizes.to_vec(), &bytes)
    }

    pub fn ptr(&self) -> DevicePtr {
        DevicePtr(self.words.as_ptr().expose_provenance() as u64)
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the words hold at least `len` initialised bytes.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.len) }
    }

    pub fn input(&self) -> Input<'_> {
        Input {
            ptr: self.ptr(),
            dtype: self.dtype,
            sizes: &self.sizes,
            strides: &self.strides,
        }
    }

    fn numbers(&self) -> Vec<f64> {
        let item = self.dtype.itemsize().unwrap();
        let number = |b: &[u8]| match self.dtype.is_int() {
            true => load::<i64>(self.dtype, b).unwrap() as f64,
            false => load::<f64>(self.dtype, b).unwrap(),
        };
        self.bytes().chunks(item).map(number).collect()
    }

    /// Panics unless `self` is `expected` up to the rounding of its type.
    pub fn assert_close(&self, expected: &Value, what: &str) {
        assert_eq!(
            (self.dtype, &self.sizes),
            (expected.dtype, &expected.sizes),
            "{what}"
        );
        let tolerance = match self.dtype {
            DType::F64 => 1e-9,
            DType::F32 => 1e-4,
            DType::F16 => 4e-3,
            DType::BF16 => 2e-2,
            _ => 0.0,
        };
        for (i, (a, b)) in self.numbers().iter().zip(expected.numbers()).enumerate() {
            let close = a == &b || (a - b).abs() <= tolerance * (1.0 + b.abs());
            assert!(close, "{what}: element {i} is {a}, expected {b}");
        }
    }
}

/// One compiled model with everything its manifest lists.
pub struct Model {
    pub name: String,
    pub library: Vec<u8>,
    pub constants: HashMap<String, (Value, bool)>,
    pub probes: Vec<String>,
    pub calls: Vec<(Vec<Value>, Vec<Value>)>,
}

impl Model {
    pub fn open(name: &str) -> Option<Model> {
        let folder = models()?.join(name);
        let library = std::fs::read(folder.join("model.so")).unwrap();
        let mut model = Model {
            name: name.into(),
            library,
            constants: HashMap::new(),
            probes: vec![],
            calls: vec![],
        };
        for line in std::fs::read_to_string(folder.join("manifest.txt"))
            .unwrap()
            .lines()
        {
            model.read_line(&folder, &line.split(' ').collect::<Vec<_>>());
        }
        Some(model)
    }

    fn read_line(&mut self, folder: &Path, words: &[&str]) {
        if words[0] == "probe" {
            self.probes.push(words[1].into());
            return;
        }
        let numbers: Vec<i64> = words[3..].iter().map(|w| w.parse().unwrap()).collect();
        let bytes = std::fs::read(folder.join(words[2])).unwrap();
        let value = Value::new(DType(numbers[0] as i32), numbers[2..].to_vec(), &bytes);
        if let "weight" | "direct" = words[0] {
            self.constants
                .insert(words[1].into(), (value, words[0] == "direct"));
            return;
        }
        let call: usize = words[1].parse().unwrap();
        self.calls
            .resize_with(self.calls.len().max(call + 1), Default::default);
        let list = match words[0] {
            "input" => &mut self.calls[call].0,
            _ => &mut self.calls[call].1,
        };
        list.push(value);
    }

    /// A container of this model with its constants bound; the model must outlive it.
    pub fn container(&self) -> Container {
        let library = registry::load(&self.name, &self.library).unwrap();
        let mut container = Container::new(library, DeviceId::Cpu).unwrap();
        self.bind(&mut container);
        container
    }

    /// Gives a container of this model its constants; the model must outlive it.
    pub fn bind(&self, container: &mut Container) {
        self.try_bind(container).unwrap();
    }

    pub fn try_bind(&self, container: &mut Container) -> Result<()> {
        let infos = container.constants().to_vec();
        let bindings: Vec<_> = infos
            .iter()
            .map(|info| match &self.constants[&info.fqn] {
                (value, true) => Binding::Direct {
                    ptr: value.ptr(),
                    nbytes: value.len as u64,
                    sizes: &value.sizes,
                    strides: &value.strides,
                },
                _ => Binding::Placeholder,
            })
            .collect();
        // SAFETY: the constants' values live as long as the model.
        unsafe { container.bind_constants(&bindings) }
    }

    /// Runs one call and gives dense copies of its outputs.
    pub fn run(
        &self,
        container: &mut Container,
        hooks: &mut Hooks,
        inputs: &[Value],
    ) -> Result<Vec<Value>> {
        let inputs: Vec<_> = inputs.iter().map(Value::input).collect();
        let mut results = Vec::new();
        // SAFETY: the inputs are dense values, and the hooks serve memory of the sizes they say.
        unsafe {
            container.run(hooks, &inputs, |outputs| {
                for output in outputs.list() {
                    let mut bytes = vec![0; output.nbytes()];
                    output.copy_to_dense(&mut bytes)?;
                    results.push(Value::new(output.dtype, output.sizes.to_vec(), &bytes));
                }
                Ok(())
            })
        }?;
        Ok(results)
    }

    /// Runs a call of the manifest and compares with eager.
    pub fn check(&self, container: &mut Container, hooks: &mut Hooks, call: usize) {
        let results = self.run(container, hooks, &self.calls[call].0).unwrap();
        let expected = &self.calls[call].1;
        assert_eq!(results.len(), expected.len());
        for (i, (found, expected)) in results.iter().zip(expected).enumerate() {
            found.assert_close(expected, &format!("{}, call {call}, output {i}", self.name));
        }
        hooks.assert_idle();
        assert_eq!(container.live_handles(), 0);
    }
}

/// Serves weights from fresh copies that are spoiled when their lease ends, so that a read after the end, or
/// a write into a weight, shows in the outputs.
pub struct Hooks<'a> {
    model: &'a Model,
    leases: HashMap<i64, Block>,
    activations: HashMap<u64, Block>,
    spoiled: Vec<Block>,
    pub events: Vec<(char, i64)>,
    pub fail_probe: Option<(i64, Error)>,
    pub fail_alloc: Option<usize>,
}

struct Block {
    ptr: *mut u8,
    layout: Layout,
}

impl Block {
    fn new(bytes: usize, fill: u8) -> Block {
        let layout = Layout::from_size_align(bytes.max(1), 64).unwrap();
        // SAFETY: the layout is not empty.
        let ptr = unsafe { alloc(layout) };
        assert!(!ptr.is_null());
        // SAFETY: all of the new block.
        unsafe { ptr.write_bytes(fill, layout.size()) };
        Block { ptr, layout }
    }

    fn address(&self) -> DevicePtr {
        DevicePtr(self.ptr.expose_provenance() as u64)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.ptr, self.layout) };
    }
}

impl<'a> Hooks<'a> {
    pub fn new(model: &'a Model) -> Hooks<'a> {
        Hooks {
            model,
            leases: HashMap::new(),
            activations: HashMap::new(),
            spoiled: Vec::new(),
            events: Vec::new(),
            fail_probe: None,
            fail_alloc: None,
        }
    }

    fn weight(&self, id: i64) -> &'a Value {
        &self.model.constants[&self.model.probes[id as usize]].0
    }

    /// No lease and no activation is open.
    pub fn assert_idle(&mut self) {
        assert!(
            self.leases.is_empty(),
            "leases are open: {:?}",
            self.leases.keys()
        );
        assert!(
            self.activations.is_empty(),
            "{} activations are open",
            self.activations.len()
        );
        self.spoiled.clear();
    }
}

impl PassHooks for Hooks<'_> {
    fn probe(&mut self, id: i64) -> Result<DevicePtr> {
        if let Some((_, error)) = self.fail_probe.as_ref().filter(|(at, _)| *at == id) {
            return Err(error.clone());
        }
        let bytes = self.weight(id).bytes();
        let block = Block::new(bytes.len(), 0);
        // SAFETY: the block has room for the bytes.
        unsafe {
            block
                .ptr
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
        let address = block.address();
        assert!(
            self.leases.insert(id, block).is_none(),
            "probe {id} is open already"
        );
        self.events.push(('p', id));
        Ok(address)
    }

    fn probe_layout(&self, id: i64) -> Result<ProbeLayout<'_>> {
        let weight = self.weight(id);
        Ok(ProbeLayout {
            dtype: weight.dtype.0,
            sizes: &weight.sizes,
            strides: &weight.strides,
        })
    }

    fn release(&mut self, id: i64) {
        let block = self.leases.remove(&id).expect("a release without a lease");
        let weight = self.weight(id).bytes();
        // SAFETY: the block holds as many bytes as the weight.
        let bytes = unsafe { std::slice::from_raw_parts(block.ptr, weight.len()) };
        assert_eq!(bytes, weight, "the weight of probe {id} was written to");
        // SAFETY: all of the block is ours again. It is kept until the pass ends, so that a late reader
        // finds this and not another's data.
        unsafe { block.ptr.write_bytes(0xfe, block.layout.size()) };
        self.spoiled.push(block);
        self.events.push(('r', id));
    }

    fn alloc_activation(&mut self, bytes: u64) -> Result<DevicePtr> {
        assert!(bytes > 0);
        match &mut self.fail_alloc {
            Some(0) => {
                return Err(Error::OutOfMemory {
                    what: "a test".into(),
                    bytes,
                })
            }
            Some(n) => *n -= 1,
            None => {}
        }
        let block = Block::new(bytes as usize, 0xff);
        let address = block.address();
        self.activations.insert(address.0, block);
        Ok(address)
    }

    fn free_activation(&mut self, ptr: DevicePtr, bytes: u64) {
        let block = self
            .activations
            .remove(&ptr.0)
            .expect("freed what was not allocated");
        assert_eq!(block.layout.size() as u64, bytes);
    }
}
