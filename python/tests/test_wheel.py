"""The wheel in an empty environment: the examples of the documents, the commands, and C++ projects against its CMake package."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.cpu_only("the package is the same for every device"), pytest.mark.no_package]


def run(*command: object, **options) -> str:
    ran = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    assert ran.returncode == 0, f"{command}: {ran.stdout}\n{ran.stderr}"
    return ran.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    """An environment that has the wheel, and of this one only what the wheel depends on."""
    if not (ROOT / "scripts" / "wheel").is_file() or Path(sys.prefix).parent != ROOT:
        pytest.skip("needs the project's sources, and runs in its environment")
    folder = tmp_path_factory.mktemp("wheel")
    run(ROOT / "scripts" / "wheel", folder)
    (wheel,) = folder.glob("weightstream-*-py3-none-*.whl")
    venv.create(folder / "env", with_pip=False, symlinks=True)
    python = folder / "env" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    # After the environment's own: the package that is found is the wheel's.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return python


def environment(python: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WEIGHTSTREAM_", "PYTHONPATH"))}
    return {**kept, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}


def examples(document: str, section: str, language: str) -> list[str]:
    """The examples of a section of a document in one language."""
    text = (ROOT / document).read_text().split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


MODEL = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.Tanh(), torch.nn.Linear(1024, 256))
inputs = (torch.randn(8, 256),)
"""
CHECK = """
import pathlib
assert pathlib.Path(ws.__file__).is_relative_to(pathlib.Path(sys.prefix)), ws.__file__
torch.testing.assert_close(y, model(x), atol=1e-5, rtol=1e-5)
torch.export.save(torch.export.export(model.eval(), inputs), "model.pt2")
"""


@pytest.fixture(scope="module")
def files(python, tmp_path_factory) -> Path:
    """A folder in which the Python examples have run: model.pte, model.ptd, model.pt2."""
    (one,), (load,) = examples("README.md", "Export", "python"), examples("README.md", "Run in Python", "python")
    (steps,) = examples("docs/export.md", "Step by step", "python")
    folder = tmp_path_factory.mktemp("examples")
    script = "\n".join(["import sys", MODEL, one, "x = inputs[0]", load, CHECK, steps])
    run(python, "-c", script, cwd=folder, env=environment(python))
    return folder


def test_the_commands(python, files):
    options = {"cwd": files, "env": environment(python)}
    command = python.parent / "weightstream"
    assert "plan" in run(command, "--help", **options)
    assert "export" in run(command, "--help", **options)
    assert "floor" in run(command, "plan", "model.pte", "model.ptd", "--budget", "floor", **options)
    assert "0.weight" in run(command, "inspect", "model.pte", "model.ptd", **options)
    run(command, "export", "model.pt2", "n.pte", "n.ptd", "--default", "weight_offload_budget_mb=3", **options)
    text = run(python.parent / "weightstream-run", "n.pte", "n.ptd", "--json", **options)
    assert '"weight_offload_budget_mb": {"value": 3, "from": "program"}' in text
    assert "--tokens" in run(python.parent / "weightstream-generate", "--help", **options)
    failed = subprocess.run([command, "inspect", "nowhere.pte"], capture_output=True, text=True, **options)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "nowhere.pte" in failed.stderr


def built(python: Path, source: Path, build: Path, target: str) -> Path:
    """A program of a C++ project that finds the wheel's CMake package."""
    prefix = run(python, "-c", "import weightstream; print(weightstream.cmake_prefix_path)").strip()
    executorch = run(python, "-c", "import importlib.util as u; print(u.find_spec('executorch').submodule_search_locations[0])").strip()
    cmake = Path(sys.executable).parent / "cmake"
    run(cmake, "-S", source, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix};{executorch}", env=environment(python))
    run(cmake, "--build", build, "--target", target)
    return build / target


#: An environment that has torch, and nothing of ExecuTorch.
PLAIN = """
import sys
sys.modules["executorch"] = None
import torch, weightstream as ws
with torch.inference_mode():
    model, x = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))).eval(), torch.randn(2, 64)
    expected = model(x)
    with ws.torch.offload(model, device="cpu"):
        assert all(torch.equal(model(x), expected) for _ in range(3))
with ws.Range("cpu", 1 << 20) as weights:
    one = weights.alloc(1 << 20)
    assert weights.fault(one).fill
    weights.unpin(one)
assert ws.Module("model.pte", "model.ptd").forward(torch.randn(8, 256)).shape == (8, 256)
(runtime,) = {line.split()[-1] for line in open("/proc/self/maps") if line.rstrip().endswith("/libexecutorch.so")}
assert runtime.startswith(sys.prefix), runtime
try:
    ws.export
except ws.ExportError as error:
    assert "pip install 'weightstream[export]'" in str(error), error
else:
    raise AssertionError("nothing was refused")
"""


def test_running_needs_torch_alone(python, files):
    asked = "import importlib.metadata as m; print(*(r for r in m.requires('weightstream') if 'extra' not in r), sep='\\n')"
    assert run(python, "-c", asked, env=environment(python)).split() == ["torch>=2.6"]
    run(python, "-c", PLAIN, cwd=files, env=environment(python))


def test_programs_of_the_wheel_look_for_libraries_in_the_wheel_alone(python):
    folder = Path(run(python, "-c", "import weightstream; print(weightstream.__path__[0])").strip())
    own = [*folder.glob("lib/**/*.so"), *folder.glob("bin/*")]
    assert {path.name for path in own} >= {"libweightstream.so", "libexecutorch.so", "weightstream-run", "weightstream-generate"}
    system = {"libstdc++.so.6", "libgcc_s.so.1", "libm.so.6", "libc.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2"}
    for path in own:
        text = run("readelf", "--dynamic", "--wide", path)
        assert set(re.findall(r"\(NEEDED\).*\[(.+)\]", text)) <= system | {other.name for other in own}
        for places in re.findall(r"\(RUNPATH\).*\[(.+)\]", text):
            assert all(place.startswith("$ORIGIN") for place in places.split(":")), f"{path.name}: {places}"


def test_a_project_in_cpp_finds_the_wheel(python, tmp_path):
    run(built(python, ROOT / "tests" / "consumer", tmp_path / "build", "registered"))


MAIN = """
#include <executorch/extension/tensor/tensor.h>
{includes}
int main() {{
  std::vector<float> numbers(8 * 256);
  const auto inputs = executorch::extension::from_blob(numbers.data(), {{8, 256}});
{body}
  return outputs.ok() && stats.ok() && stats->passes == 1 ? 0 : 1;
}}
"""


def test_the_example_in_cpp(python, files, tmp_path):
    (cmake,), (code,) = examples("README.md", "Run in C++", "cmake"), examples("README.md", "Run in C++", "cpp")
    lines = code.splitlines()
    includes = "\n".join(line for line in lines if line.startswith("#"))
    body = "\n".join(line for line in lines if not line.startswith("#"))
    (tmp_path / "main.cpp").write_text(MAIN.format(includes=includes, body=body))
    head = "cmake_minimum_required(VERSION 3.28)\nproject(app LANGUAGES CXX)\nadd_executable(app main.cpp)\n"
    (tmp_path / "CMakeLists.txt").write_text(head + cmake)
    run(built(python, tmp_path, tmp_path / "build", "app"), cwd=files)
