"""What runs where nothing can be exported, and what is said there: without the package executorch, with another release of it, with
an older torch."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import torch
import weightstream as ws
from support import error_of
from weightstream._native import allocator, bindings

pytestmark = pytest.mark.no_export

#: `None` there hides a package from every import.
HIDDEN = """
import sys
sys.modules["executorch"] = None
import weightstream as ws
"""
#: All that runs, then all that exports, then the command.
RUN = """
for name in ("Module", "Range", "required_budget", "set_options", "set_device_budget", "device_report", "torch", "LLM"):
    getattr(ws, name)
ws.torch.offload, ws.torch.GraphPool
print("before", sorted(name for name in sys.modules if name.startswith("executorch.") or name == "weightstream._torch"))
for name in ("export", "save", "apply_weight_offload", "WeightStreamPartitioner", "edge_compile_config", "llm"):
    try:
        getattr(ws, name)
    except ws.ExportError as error:
        print(name, error)
from weightstream._command import main
sys.exit(main(["export", "model.pt2", "model.pte", "model.ptd"]))
"""


@pytest.mark.no_runtime
def test_without_the_package_executorch_only_exports_are_refused():
    # A torch that cannot export is refused first. Its error says the same.
    done = subprocess.run([sys.executable, "-c", HIDDEN + RUN], capture_output=True, text=True, check=False)
    before, *refusals = done.stdout.splitlines()
    assert before == "before []", done.stderr
    assert len(refusals) == 6
    assert all("pip install 'weightstream[export]'" in refusal for refusal in refusals)
    assert done.returncode == 1
    assert re.fullmatch(r"weightstream export: (exporting needs the package executorch|torch 2).*\n", done.stderr)


def found(monkeypatch, folder: Path) -> None:
    """Python finds the package executorch in ``folder``, and in another one that only has its name."""
    spec = ModuleSpec("executorch", None, is_package=True)
    spec.submodule_search_locations = [str(folder / "checkout"), str(folder)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)


def installed(folder: Path, version: str) -> Path:
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "libexecutorch.so").touch()
    (folder / "version.py").write_text(f'__all__ = ["__version__"]\n__version__ = "{version}"\n')
    return folder


def test_the_package_executorch_is_found_among_folders_of_its_name(monkeypatch, tmp_path):
    found(monkeypatch, installed(tmp_path, f"{bindings.EXECUTORCH}+cpu"))
    assert bindings.executorch_package() == tmp_path


def test_a_folder_that_is_called_executorch_is_not_the_package(monkeypatch, tmp_path):
    found(monkeypatch, tmp_path)
    assert bindings.executorch_package() is None


@pytest.mark.parametrize("version", ["1.6.0+cpu", "1.5.10"])
def test_another_release_of_executorch_is_refused_by_name(version, monkeypatch, tmp_path):
    found(monkeypatch, installed(tmp_path, version))
    message = error_of(bindings.executorch_package)
    assert f"{tmp_path} is executorch {version.split('+')[0]};" in message
    assert f"pip install executorch=={bindings.EXECUTORCH}" in message


def test_a_library_without_a_runtime_of_executorch_says_what_is_missing(monkeypatch, tmp_path):
    found(monkeypatch, tmp_path)
    monkeypatch.setenv("WEIGHTSTREAM_LIBRARY", str(tmp_path / "libweightstream.so"))
    message = error_of(bindings._executorch_libraries)
    assert f"{tmp_path}/executorch/libexecutorch.so is missing" in message


@pytest.mark.parametrize("call", [ws.torch.pool, lambda: ws.torch.GraphPool("cpu")], ids=["pool()", "GraphPool"])
def test_memory_for_torch_refuses_an_older_torch_by_name(call, monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.10.1+cu128")
    message = error_of(call)
    assert "torch 2.11 or later" in message
    assert "found 2.10.1+cu128" in message
    monkeypatch.setattr(torch, "__version__", "2.110.0")
    allocator.check_torch("pool()")
