"""A kernel that stores into a weight: the pages that kernels see are read-only, so it is a fault and never a wrong weight."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import pytest
from device_under_test import ON_GPU


def run(folder, specs: dict) -> subprocess.CompletedProcess:
    script = os.path.join(os.path.dirname(__file__), "storing_child.py")
    command = [sys.executable, script, str(folder), json.dumps(specs)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("storing")


@pytest.mark.skipif(ON_GPU, reason="on a GPU it is an error")
def test_on_the_cpu_the_process_ends_there(folder):
    done = run(folder, {})
    assert (folder / "storing.ptd").exists(), done.stderr
    assert done.returncode == -signal.SIGSEGV, done.stderr
    assert done.stdout == ""


@pytest.mark.skipif(not ON_GPU, reason="on the CPU it ends the process")
@pytest.mark.parametrize(("sync", "named"), [(0, {"first", "second", "third", "fourth"}), (1, {"first"})])
def test_on_a_gpu_the_error_names_what_was_leased(folder, sync, named):
    done = run(folder, {"weight_offload_sync": sync})
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert "context is lost" in seen["told"], done.stderr
    assert set(re.findall(r"'(\w+)'", seen["told"].split("known to have ended: ")[1])) <= named
    assert "'first'" in seen["told"]
    assert "cannot be used" in seen["again"] or "failed" in seen["again"]
