"""Machines on which a program for a GPU cannot run: each is told what is missing, and goes on with what can.

Nothing here needs a GPU: the program is one for the CPU whose record says `cuda`, and the driver, where there must be one, is made
for the test (`fake_driver.py`). What is refused is refused before the compiled library is opened.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import fake_driver
import pytest
from device_under_test import ON_GPU
from doctor import changed_record, sealed
from exports import Files
from models import ZOO
from support import HERE, Input, refused_in_a_child, run_child

pytestmark = pytest.mark.models("mlp")


@pytest.fixture(scope="module")
def on_cpu(exported, tmp_path_factory) -> Files:
    """The perceptron for the CPU, also where the device under test is another."""
    if not ON_GPU:
        return exported("mlp")
    folder = tmp_path_factory.mktemp("cpu")
    command = [sys.executable, str(HERE / "exports.py"), "--into", str(folder), "mlp"]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "WEIGHTSTREAM_TEST_DEVICE": "cpu"})
    return Files("mlp", folder / "mlp.pte", folder / "mlp.ptd")


@pytest.fixture(scope="module")
def for_cuda(on_cpu, tmp_path_factory) -> Files:
    """The same, but for its record, which says that it was compiled for a GPU."""
    folder = tmp_path_factory.mktemp("cuda")

    def change(record):
        record["device"] = ["cuda"]
        record["target"][4] = "90"

    pte = changed_record(on_cpu.pte, folder / "cuda.pte", change)
    return Files("mlp", pte, sealed(pte, on_cpu.ptd, folder / "cuda.ptd"))


@pytest.fixture
def refusal(for_cuda, on_cpu, tmp_path):
    """`refusal(environment)`: what the load of the program for a GPU says; afterwards the one for the CPU is right."""
    plain = Input(ZOO["mlp"], tmp_path)
    return lambda environment: refused_in_a_child(for_cuda, on_cpu, plain, environment)


def test_no_driver(refusal, tmp_path):
    """On a machine that has one, a file in front of it that is no library."""
    environment = fake_driver.broken(tmp_path / "broken") if ON_GPU else {}
    message = refusal(environment)
    assert "'libcuda.so.1' is missing" in message
    assert "NVIDIA driver" in message
    assert "method 'forward' was exported for the device 'cuda'" in message


DRIVERS = {
    "no GPU": (
        f"int cuInit(unsigned flags) {{ return {fake_driver.NO_DEVICE}; }}" + fake_driver.VERSION.format(13000),
        (),
        ["no NVIDIA GPU was found", "cuInit"],
    ),
    "the toolkit's stub": (
        f"int cuInit(unsigned flags) {{ return {fake_driver.STUB_LIBRARY}; }}" + fake_driver.VERSION.format(13000),
        (),
        ["stub", "LD_LIBRARY_PATH"],
    ),
    "too old": (fake_driver.VERSION.format(11080), (), ["CUDA 11.8", "12.2 or newer"]),
    "without memory pools": (fake_driver.VERSION.format(13000), ("cuMemPoolCreate",), ["'cuMemPoolCreate' is missing", "too old"]),
    "no GPU shown": (
        "int cuDeviceGetCount(int *n) { *n = 0; return 0; }" + fake_driver.VERSION.format(13000),
        (),
        ["'cuda:0' is missing", "0 devices"],
    ),
}


@pytest.mark.parametrize("case", DRIVERS)
def test_a_driver_that_will_not_do(case, refusal, tmp_path):
    source, without, expected = DRIVERS[case]
    message = refusal(fake_driver.build(tmp_path / "driver", source, without=without))
    for text in expected:
        assert text in message


CALLS_IN_A_CHILD = """
#include <unistd.h>
static int parent;
int cuInit(unsigned flags) { if (parent != 0 && parent != getpid()) _exit(99); parent = getpid(); return 0; }
int cuDeviceGetCount(int *n) { if (parent != getpid()) _exit(99); *n = 0; return 0; }
int cuDriverGetVersion(int *v) { if (parent != 0 && parent != getpid()) _exit(99); *v = 13000; return 0; }
"""


def test_a_driver_that_was_initialised_before_a_fork_is_not_called_behind_it(for_cuda, on_cpu, tmp_path):
    """The driver that is made here ends a child that calls it."""
    plain, environment = Input(ZOO["mlp"], tmp_path), fake_driver.build(tmp_path / "driver", CALLS_IN_A_CHILD)
    files = (for_cuda.pte, for_cuda.ptd, on_cpu.pte, on_cpu.ptd, plain.shape, plain.path)
    seen = run_child("forked", *files, environment=environment, script="driver_children.py")
    assert "0 devices" in seen["parent_message"]
    assert seen["code"] == 0
    assert f"the NVIDIA driver was initialised in process {seen['parent']}, and this is process {seen['child']}" in seen["message"]
    assert "CUDA does not survive fork" in seen["message"]
    assert plain.error(seen["output"]) <= plain.spec.tolerance  # a program for the CPU, in the child


def test_the_c_functions_need_neither_torch_nor_cuda_s_runtime_library(exported, tmp_path):
    """On the device under test: the driver is needed for a GPU, and `libcudart` never."""
    files, plain = exported("mlp"), Input(ZOO["mlp"], tmp_path)
    seen = run_child("without_torch", files.pte, files.ptd, plain.shape, plain.path, script="driver_children.py")
    assert not seen["torch"]
    assert [name for name in seen["libraries"] if not name.startswith("libcuda.so")] == []
    assert bool(seen["libraries"]) == ON_GPU
    assert plain.error(seen["output"]) <= plain.spec.tolerance


@pytest.mark.gpu
def test_no_gpu_is_visible(refusal):
    """The machine's own driver, told to show none."""
    message = refusal({"CUDA_VISIBLE_DEVICES": ""})
    assert "no NVIDIA GPU was found" in message


def test_the_fake_driver_is_the_one_that_is_found(tmp_path):
    """Otherwise the tests above would show nothing about it."""
    environment = fake_driver.build(tmp_path / "driver", fake_driver.VERSION.format(11080))
    program = "import ctypes; v = ctypes.c_int(); ctypes.CDLL('libcuda.so.1').cuDriverGetVersion(ctypes.byref(v)); print(v.value)"
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "11080"
    assert Path(environment["LD_LIBRARY_PATH"].split(os.pathsep)[0], "libcuda.so").exists()
