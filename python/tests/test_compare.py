"""`benches/gpu/compare.py`: what it refuses before anything is measured."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support import HERE

COMPARE = HERE.parents[1] / "benches/gpu/compare.py"
pytestmark = pytest.mark.no_package


def refused(*arguments):
    done = subprocess.run([sys.executable, str(COMPARE), *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("only", "lacks", "cure"),
    [
        ("ours", "'ours' lacks offload.ptd and expected.pt", "--only exports,eager,ours"),
        ("eager,ours", "'ours' lacks offload.ptd in", "--only exports,eager,ours"),
        ("pairs", "'pairs' lacks offload.ptd and baseline.ptd", "--only exports,pairs"),
    ],
)
def test_a_section_says_which_files_it_lacks_and_who_makes_them(only, lacks, cure, tmp_path):
    text = refused("--only", only, "--keep", tmp_path, "--tokens", 1, 512, "--out", tmp_path / "out.jsonl")
    for folder in ("16-layers-1-tokens", "16-layers-512-tokens"):
        assert str(tmp_path / folder) in text
    assert lacks in text
    assert cure in text


def test_what_is_there_is_not_asked_for(tmp_path):
    folder = tmp_path / "16-layers-1-tokens"
    folder.mkdir()
    (folder / "offload.ptd").touch()
    assert "'ours' lacks expected.pt in" in refused("--only", "ours", "--keep", tmp_path)


def test_unknown_sections_are_named():
    assert "unknown sections ['our']" in refused("--only", "our")
