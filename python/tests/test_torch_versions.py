"""Which releases of torch can export: known here and in the runtime, and others refused by name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import weightstream as ws
from packaging.specifiers import SpecifierSet
from weightstream._torch import version

pytestmark = pytest.mark.no_runtime
ROOT = Path(__file__).resolve().parents[2]


def test_the_installed_release_is_supported():
    version.check(torch.__version__)


@pytest.mark.parametrize("release", version.SUPPORTED)
def test_every_patch_of_a_release_is_supported(release):
    for text in (f"{release}.0", f"{release}.3+cu130", f"{release}.0a0+git1234"):
        version.check(text)


@pytest.mark.parametrize("other", ["2.10.0", "2.12.1", "2.16.0+cpu", "2.110.0", "3.0.0"])
def test_another_release_is_refused_by_name_unless_asked_for(other, monkeypatch):
    monkeypatch.delenv(version.OVERRIDE, raising=False)
    with pytest.raises(ws.ExportError, match=re.escape(f"torch {other} is installed")) as caught:
        version.check(other)
    assert f"torch=={version.SUPPORTED[-1]}.*" in str(caught.value)
    assert version.OVERRIDE in str(caught.value)
    monkeypatch.setenv(version.OVERRIDE, "1")
    version.check(other)


def test_the_runtime_serves_code_of_the_same_releases():
    source = ROOT / "src/weights/target.rs"
    if not source.exists():
        pytest.skip("the sources of the runtime are not here")
    (line,) = re.findall(r"^const TORCH: .*= \[(.*)\];", source.read_text(), re.MULTILINE)
    assert re.findall(r'"([\d.]+)"', line) == list(version.SUPPORTED)


@pytest.mark.parametrize("minor", range(10, 18))
def test_the_package_asks_for_these_releases(minor):
    package = ROOT / "python" / "pyproject.toml"
    if not package.exists():
        pytest.skip("the sources of the package are not here")
    (asked,) = re.findall(r'^export = \[.*"torch(.*)"\]$', package.read_text(), re.MULTILINE)
    assert (f"2.{minor}.1" in SpecifierSet(asked)) == (f"2.{minor}" in version.SUPPORTED)


@pytest.mark.parametrize(
    "name", ["scripts/gpu_test/environment.py", "scripts/gpu_test/README.md", "docs/gpu.md", "docs/compiler-facts.md", "README.md"]
)
def test_documents_and_scripts_name_these_releases(name):
    if not (ROOT / name).exists():
        pytest.skip("the sources of the project are not here")
    text = " ".join((ROOT / name).read_text().split())
    (listed,) = re.findall(r"torch,? (2\.\d\d, 2\.\d\d (?:or|and) 2\.\d\d)\b", text)[:1] or [""]
    assert sorted(re.findall(r"2\.\d\d", listed)) == sorted(version.SUPPORTED)
