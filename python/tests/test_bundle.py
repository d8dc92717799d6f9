"""The bundle for a machine with a GPU: what is packed comes out as it was, and what is too large is named."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

pytestmark = [pytest.mark.no_package, pytest.mark.cpu_only("the bundle is made where there is no GPU")]
SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
FILES = {
    "bin/rust/one": b"\x7fELF" * 1000,
    "lib/a.so": b"a" * 5000,
    "python/tests/t.py": b"pass\n",
    "programs/cuda/mlp-0/model.pte": b"PTE",
}


@pytest.fixture
def bundle(tmp_path, monkeypatch):
    """The script, over a bundle with a few files."""
    loader = SourceFileLoader("gpu_bundle", str(SCRIPTS / "gpu_bundle"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_bundle", loader))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader.exec_module(module)
    folder = tmp_path / "gpu-bundle"
    for name, value in {"ROOT": tmp_path, "BUNDLE": folder, "ARCHIVE": folder / "bundle.tar.xz"}.items():
        monkeypatch.setattr(module, name, value)
    for name, content in {**FILES, "wheels/w.whl": os.urandom(70_000)}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "bin/rust/one").chmod(0o755)
    return module


def unpacked(folder: Path) -> subprocess.CompletedProcess:
    """What `gpu-test` does first."""
    program = "import sys, environment as e, pathlib; e.unpack(pathlib.Path(sys.argv[1]))"
    around = {**os.environ, "PYTHONPATH": str(SCRIPTS / "gpu_test"), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, "-c", program, str(folder)], env=around, capture_output=True, text=True, check=False)


def test_what_is_packed_comes_out_as_it_was(bundle, capsys):
    bundle.pack()
    told = capsys.readouterr().out
    assert "of at most 60 MiB" in told
    assert sorted(path.name for path in bundle.BUNDLE.iterdir()) == ["bundle.tar.xz", "wheels"]
    done = unpacked(bundle.BUNDLE)
    assert done.returncode == 0, done.stderr
    assert {name: (bundle.BUNDLE / name).read_bytes() for name in FILES} == FILES
    assert os.access(bundle.BUNDLE / "bin/rust/one", os.X_OK)
    (bundle.BUNDLE / "lib/a.so").write_bytes(b"changed")
    assert unpacked(bundle.BUNDLE).stderr == ""
    assert (bundle.BUNDLE / "lib/a.so").read_bytes() == b"changed", "unpacked twice"


def test_what_is_too_large_is_refused_with_the_largest_things(bundle, monkeypatch, capsys):
    monkeypatch.setattr(bundle, "LIMIT_MIB", 0.05)
    with pytest.raises(SystemExit, match=r"0\.1 MiB are more than 0\.05 MiB"):
        bundle.pack()
    first, *others = capsys.readouterr().err.splitlines()
    assert first.endswith("0.1 MiB  wheels/w.whl")
    assert any(line.endswith("programs/cuda/mlp-0") for line in others)


def test_a_damaged_archive_is_named(bundle):
    bundle.pack()
    bundle.ARCHIVE.write_bytes(bundle.ARCHIVE.read_bytes()[: bundle.ARCHIVE.stat().st_size // 2])
    done = unpacked(bundle.BUNDLE)
    assert "bundle.tar.xz cannot be unpacked" in done.stderr
