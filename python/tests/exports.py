"""Exports the test models, each once per state of its sources: compiling takes half a minute and more.

`python exports.py NAME FOLDER` exports one model; `python exports.py --into FOLDER NAME...` through the cache; `python exports.py
--all` fills the cache, and `--light` with those models that are light enough to be carried to another
machine. `Exports` does that in the background, $WEIGHTSTREAM_TEST_JOBS at a time, and keeps the files in
$WEIGHTSTREAM_TEST_CACHE (default: build/test-cache), in folders named after the model and a hash of everything that decides the
result. With $WEIGHTSTREAM_TEST_KEEP_FAILURES a failed export is remembered there too, until the next `--all`.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import gc
import hashlib
import importlib.metadata
import multiprocessing
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any
from unittest import mock

import sources
import torch
from device_under_test import DEVICE, ON_GPU, SM, exact_products, kind
from torch.utils._sympy.value_ranges import bound_sympy

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
#: Not a model of ours: a package of torch's own ahead-of-time compiler, for the test that mixes the two.
TORCH_PACKAGE = "torch_package"
#: The LLM of python/examples, small: not a model of these tests either.
LLM = "llm"
#: What the names of programs start with that come from a small checkpoint: the family follows.
CHECKPOINT = "checkpoint_"
#: What the names of programs with several methods start with.
SEVERAL = "methods_"
#: What a model that is carried weighs at most: random numbers do not get smaller when they are packed.
LIGHT = 16 << 20
TIME_LIMIT = 900
#: A size from here on is none that anybody meant.
UNBOUNDED = 1 << 31


@dataclass(frozen=True)
class Files:
    """One exported model."""

    name: str
    pte: Path
    ptd: Path


def spec_of(name: str) -> Any:
    """A model of ours, one of several methods, or one of a public library."""
    from methods_models import METHODS
    from models import ZOO
    from public_models import PUBLIC

    if name in METHODS:
        return METHODS[name]
    return ZOO[name] if name in ZOO else PUBLIC[name].spec


def export_model(name: str, folder: Path) -> None:
    """The export as docs/export.md shows it."""
    import weightstream as ws
    from executorch.exir import to_edge_transform_and_lower
    from zoo import bits

    spec = spec_of(name)
    exact_products()
    if name.startswith(SEVERAL):
        export_methods(spec, folder)
        return
    ep = spec.export()
    partitioner = ws.WeightStreamPartitioner(device=DEVICE, sm=SM, offload=spec.offload)
    edge = to_edge_transform_and_lower(ep, partitioner=[partitioner], compile_config=ws.edge_compile_config())
    ws.save(edge, str(folder / "model.pte"), str(folder / "model.ptd"))
    # For the runner, which makes up numbers: indices must lie in their tables.
    largest = max(spec.passes(), key=lambda inputs: sum(x.numel() for x in inputs))
    for number, data in enumerate(bits(of_the_largest_sizes(ep, largest))):
        (folder / f"input{number}.bin").write_bytes(data)


def export_methods(spec: Any, folder: Path) -> None:
    """The export of a program of several methods."""
    import weightstream as ws
    from executorch.exir import to_edge_transform_and_lower

    partitioner = ws.WeightStreamPartitioner(device=DEVICE, sm=SM, offload=spec.offload, shared_state=spec.shared_state)
    edge = to_edge_transform_and_lower(
        spec.export(),
        partitioner=[partitioner],
        compile_config=ws.edge_compile_config(),
        constant_methods=spec.constant_methods or None,
    )
    ws.save(edge, str(folder / "model.pte"), str(folder / "model.ptd"))


def of_the_largest_sizes(program: torch.export.ExportedProgram, inputs: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """What the runner wants: these inputs, and zeros up to the largest sizes of the program."""
    sizes = {node.name: node.meta["val"].shape for node in program.graph.find_nodes(op="placeholder") if hasattr(node.meta["val"], "shape")}
    found = []
    for name, given in zip(program.graph_signature.user_inputs, inputs, strict=True):
        bounds = [size if isinstance(size, int) else bound_sympy(size.node.expr, program.range_constraints).upper for size in sizes[name]]
        found.append(given.new_zeros([int(bound) if bound < UNBOUNDED else size for bound, size in zip(bounds, given.shape, strict=True)]))
        found[-1][tuple(slice(size) for size in given.shape)] = given
    return found


def export_torch_package(folder: Path) -> None:
    """The perceptron through `torch._inductor.aoti_compile_and_package`."""
    import torch
    from models import ZOO
    from torch.export.passes import move_to_device_pass

    program = move_to_device_pass(ZOO["mlp"].export(), DEVICE)
    torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "model.pt2"))


def defined_in(name: str) -> str:
    """The module of the tests that defines a model."""
    if name in (LLM, TORCH_PACKAGE):
        return "llm_models" if name == LLM else "models"
    if name.startswith(CHECKPOINT):
        return "llm_checkpoints"
    try:
        return spec_of(name).build.__module__
    except KeyError:
        return "models"


@functools.cache
def fingerprint(name: str) -> str:
    """Changes whenever the export of this model could come out differently."""
    digest = hashlib.sha256()
    for package in ("torch", "executorch"):
        # Not for which CUDA its wheel was built: exports are carried between wheels.
        digest.update(importlib.metadata.version(package).split("+")[0].encode())
    digest.update(kind().encode())
    examples = [HERE.parent / "examples" / "llm.py"] if name == LLM else []
    more = ["llm.py", "_llm/command.py"] if name == LLM or name.startswith(CHECKPOINT) else []
    for path in (*sources.of_the_export(*more), *sources.of_a_model(defined_in(name)), *examples):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def export_llm(folder: Path) -> None:
    import llm_models

    llm_models.export(folder)


def export_checkpoint(family: str, folder: Path) -> None:
    import llm_checkpoints

    llm_checkpoints.export(family, folder)


def export_one(name: str, folder: Path) -> None:
    if name.startswith(CHECKPOINT):
        export_checkpoint(name.removeprefix(CHECKPOINT), folder)
        return
    others = {TORCH_PACKAGE: export_torch_package, LLM: export_llm}
    others[name](folder) if name in others else export_model(name, folder)


def export_in_a_child(name: str, folder: Path, environment: dict[str, str]) -> None:
    """An export in a process of its own, which writes to a log."""
    os.environ.clear()
    os.environ.update(environment)
    with (folder / "export.log").open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    # The process ends with the export: looking for garbage takes a seventh of its time.
    gc.disable()
    export_one(name, folder)


#: Forks those processes from one that has imported what they need, which takes a third of an export. Not where there is a GPU,
#: whatever the export is for: an import may ask for it, and the driver does not survive a fork.
CHILDREN = multiprocessing.get_context("spawn" if torch.cuda.is_available() else "forkserver")
CHILDREN.set_forkserver_preload(["executorch.exir", "weightstream._export.save", "models", "methods_models"])
#: Starting and reaping a child looks at all of them.
REAPING = threading.Lock()


def start_server(environment: dict[str, str]) -> None:
    """With this environment, not that of the test that comes first: what is imported reads it."""
    if CHILDREN.get_start_method() == "forkserver":
        with mock.patch.dict(os.environ, environment, clear=True):
            forkserver.ensure_running()


def outcome_of_a_child(name: str, folder: Path, environment: dict[str, str]) -> str:
    """Empty if the export ended well."""
    child = CHILDREN.Process(target=export_in_a_child, args=(name, folder, environment))
    with REAPING:
        child.start()
    if not wait([child.sentinel], TIME_LIMIT):
        child.kill()
    with REAPING:
        child.join()
    if child.exitcode == 0:
        return ""
    return f"exit status {child.exitcode}" if child.exitcode > 0 else f"ended by signal {-child.exitcode}, as after {TIME_LIMIT} s"


KEEP_FAILURES = bool(os.environ.get("WEIGHTSTREAM_TEST_KEEP_FAILURES"))


def failure_of(folder: Path) -> Path:
    """Where the failed export of what belongs into `folder` is remembered."""
    return folder.with_suffix(".failed")


class ExportFailed(AssertionError):
    """An export ended with an error; the message holds the end of its output."""


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Rust tests, C++ tests and several processes of Python tests ask for the same models at the same time."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Exports:
    """Exports in the background, at most `workers` at a time; a failure is kept and told to every test that asks."""

    def __init__(self, cache: Path | None = None, workers: int = 0):
        cache = cache or Path(os.environ.get("WEIGHTSTREAM_TEST_CACHE", ROOT / "build" / "test-cache"))
        self.cache = cache / DEVICE if ON_GPU else cache
        self.cache.mkdir(parents=True, exist_ok=True)
        # Compiling in this process, as some tests do, changes its environment meanwhile: an export that started then would look for
        # its caches in a folder that is gone when that test ends.
        self.environment = dict(os.environ)
        self.pool = ThreadPoolExecutor(workers or int(os.environ.get("WEIGHTSTREAM_TEST_JOBS", min(4, os.cpu_count() or 1))))
        self.futures: dict[str, Future[Path]] = {}
        self.compiled: dict[str, float] = {}

    def request(self, names: Iterable[str]) -> None:
        """Starts what is not there yet, in this order."""
        new = [name for name in names if name not in self.futures]
        if not all(self.place(name).is_dir() for name in new):
            start_server(self.environment)
        for name in new:
            self.futures[name] = self.pool.submit(self.provide, name)

    def place(self, name: str) -> Path:
        return self.cache / f"{name}-{fingerprint(name)}"

    def folder(self, name: str) -> Path:
        """The folder of the exported model; waits for it."""
        self.request([name])
        return self.futures[name].result()

    def files(self, name: str) -> Files:
        folder = self.folder(name)
        return Files(name, folder / "model.pte", folder / "model.ptd")

    def provide(self, name: str) -> Path:
        folder = self.place(name)
        if not folder.is_dir():
            with one_at_a_time(folder.with_suffix(".lock")):
                if not folder.is_dir():
                    self.try_to_compile(name, folder)
        return folder

    def try_to_compile(self, name: str, folder: Path) -> None:
        failure = failure_of(folder)
        if KEEP_FAILURES and failure.exists():
            raise ExportFailed(failure.read_text())
        try:
            self.compile(name, folder)
        except ExportFailed as problem:
            if KEEP_FAILURES:
                failure.write_text(str(problem))
            raise

    def forget_failures(self) -> None:
        for failure in self.cache.glob("*.failed"):
            failure.unlink()

    def compile(self, name: str, folder: Path) -> None:
        work = folder.with_suffix(f".{os.getpid()}")
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        started = time.monotonic()
        if failed := outcome_of_a_child(name, work, self.environment):
            log_path = work / "export.log"
            tail = "\n".join(log_path.read_text(errors="replace").splitlines()[-40:])
            raise ExportFailed(f"exporting {name} failed ({failed}); the end of {log_path}:\n{tail}")
        # Those of other sources.
        for old in self.cache.glob(f"{name}-*"):
            if not old.name.startswith(folder.name):
                shutil.rmtree(old, ignore_errors=True)
        work.rename(folder)
        self.compiled[name] = time.monotonic() - started

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)


def provide_flat(folder: Path, names: list[str]) -> None:
    """Exports models through the cache, and links them as FOLDER/NAME.pte and NAME.ptd: the C++ tests look there."""
    exports = Exports()
    exports.request(names)
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        files = exports.files(name)
        for source in (files.pte, files.ptd):
            link = folder / f"{name}{source.suffix}"
            if link.is_symlink() and link.readlink() == source.resolve():
                continue
            # Another process may be loading what is there: at no time is there nothing.
            fresh = folder / f".{link.name}.{os.getpid()}"
            fresh.symlink_to(source.resolve())
            fresh.replace(link)
    exports.close()


def known_models() -> list[str]:
    """The models that can be exported for the device under test. The largest first: it takes longest."""
    from methods_models import METHODS
    from models import ZOO

    names = [name for name, spec in ZOO.items() if not (ON_GPU and spec.refused_on_a_gpu)] + list(METHODS)
    return sorted(names, key="demo".__ne__)


def light_models() -> list[str]:
    """Those of at most `LIGHT` bytes of weights."""
    from zoo import weight_bytes

    return [name for name in known_models() if weight_bytes(spec_of(name).model()) <= LIGHT]


def provide_all(names: list[str]) -> int:
    """Fills the cache with these models, and says how long each took; returns the number of failures."""
    exports, failed = Exports(), 0
    exports.forget_failures()
    exports.request(names)
    of_future = {exports.futures[name]: name for name in names}
    for count, future in enumerate(as_completed(of_future), 1):
        name = of_future[future]
        try:
            future.result()
            outcome = f"{exports.compiled[name]:.0f} s" if name in exports.compiled else "was there"
        except ExportFailed as problem:
            failed += 1
            outcome = f"FAILED: {problem}"
        print(f"exported {count} of {len(names)}: {name}: {outcome}", flush=True)
    exports.close()
    return failed


if __name__ == "__main__":
    if sys.argv[1] == "--into":
        provide_flat(Path(sys.argv[2]), sys.argv[3:])
    elif sys.argv[1] == "--all":
        sys.exit(1 if provide_all(sys.argv[2:] or [*known_models(), TORCH_PACKAGE]) else 0)
    elif sys.argv[1] == "--light":
        sys.exit(1 if provide_all(sys.argv[2:] or light_models()) else 0)
    else:
        export_one(sys.argv[1], Path(sys.argv[2]))
