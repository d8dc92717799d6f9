"""Exports the test models, each once per state of the sources: compiling takes half a minute and more.

`python exports.py NAME FOLDER` exports one model. `Exports` runs that in the background, two at a time, and keeps the
files in $WEIGHTSTREAM_TEST_CACHE (default: build/test-cache), in folders named after the model and a hash of everything
that decides the result.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
#: Not a model of ours: a package of torch's own ahead-of-time compiler, for the test that mixes the two.
TORCH_PACKAGE = "torch_package"
SOURCES = {".py", ".txt", ".fbs", ".c", ".cpp", ".h", ".S"}
TIME_LIMIT = 900


@dataclass(frozen=True)
class Files:
    """One exported model."""

    name: str
    pte: Path
    ptd: Path


def export_model(name: str, folder: Path) -> None:
    """The export as the README shows it."""
    from executorch.exir import to_edge_transform_and_lower
    from models import ZOO

    import weightstream as ws

    spec = ZOO[name]
    ep = spec.export()
    if spec.offload:
        ep = ws.apply_weight_offload(ep)
    edge = to_edge_transform_and_lower(
        ep, partitioner=[ws.WeightStreamPartitioner(device="cpu")], compile_config=ws.edge_compile_config()
    )
    ws.save(edge, str(folder / "model.pte"), str(folder / "model.ptd"))


def export_torch_package(folder: Path) -> None:
    """The perceptron through `torch._inductor.aoti_compile_and_package`."""
    import torch
    from models import ZOO

    torch._inductor.aoti_compile_and_package(ZOO["mlp"].export(), package_path=str(folder / "model.pt2"))


def source_files() -> list[Path]:
    found = importlib.util.find_spec("weightstream")
    if found is None or found.origin is None:
        return []
    package = Path(found.origin).parent
    inputs = [HERE / n for n in ("zoo.py", "models.py", "fact_models.py", "exports.py")]
    return sorted(p for p in package.rglob("*") if p.suffix in SOURCES and "__pycache__" not in p.parts) + inputs


def fingerprint() -> str:
    """Changes whenever an export could come out differently."""
    digest = hashlib.sha256()
    for package in ("torch", "executorch"):
        digest.update(importlib.metadata.version(package).encode())
    for path in source_files():
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


class ExportFailed(AssertionError):
    """An export ended with an error; the message holds the end of its output."""


class Exports:
    """Exports in the background, at most `workers` at a time; a failure is kept and told to every test that asks."""

    def __init__(self, cache: Path | None = None, workers: int = 0):
        self.cache = cache or Path(os.environ.get("WEIGHTSTREAM_TEST_CACHE", ROOT / "build" / "test-cache"))
        self.cache.mkdir(parents=True, exist_ok=True)
        self.hash = fingerprint()
        self.pool = ThreadPoolExecutor(workers or min(4, os.cpu_count() or 1))
        self.futures: dict[str, Future[Path]] = {}
        self.compiled: dict[str, float] = {}

    def request(self, names: Iterable[str]) -> None:
        """Starts what is not there yet, in this order."""
        for name in names:
            if name not in self.futures:
                self.futures[name] = self.pool.submit(self.provide, name)

    def folder(self, name: str) -> Path:
        """The folder of the exported model; waits for it."""
        self.request([name])
        return self.futures[name].result()

    def files(self, name: str) -> Files:
        folder = self.folder(name)
        return Files(name, folder / "model.pte", folder / "model.ptd")

    def provide(self, name: str) -> Path:
        folder = self.cache / f"{name}-{self.hash}"
        if not folder.is_dir():
            self.compile(name, folder)
        return folder

    def compile(self, name: str, folder: Path) -> None:
        work = folder.with_suffix(f".{os.getpid()}")
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        started = time.monotonic()
        command = [sys.executable, str(Path(__file__).resolve()), name, str(work)]
        with (work / "export.log").open("wb") as log:
            try:
                code = subprocess.run(command, stdout=log, stderr=log, timeout=TIME_LIMIT, check=False).returncode
            except subprocess.TimeoutExpired:
                code = f"none after {TIME_LIMIT} s"
        if code != 0:
            log_path = work / "export.log"
            tail = "\n".join(log_path.read_text(errors="replace").splitlines()[-40:])
            raise ExportFailed(f"exporting {name} failed (exit status {code}); the end of {log_path}:\n{tail}")
        for old in set(self.cache.glob(f"{name}-*")) - {work}:
            shutil.rmtree(old, ignore_errors=True)
        work.rename(folder)
        self.compiled[name] = time.monotonic() - started

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)


if __name__ == "__main__":
    model_name, target = sys.argv[1], Path(sys.argv[2])
    if model_name == TORCH_PACKAGE:
        export_torch_package(target)
    else:
        export_model(model_name, target)
