"""Where everything of the bundle lies, what the machine must have, and the environment that the tests run in."""

from __future__ import annotations

import ctypes
import json
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

BUNDLE = Path(__file__).resolve().parents[1]
#: Everything but the wheels and these scripts.
ARCHIVE = "bundle.tar.xz"
#: What exporting imports, as `pip install` names it (with ExecuTorch's own long list left out) and as Python does.
PACKAGES = {
    "torch, 2.11, 2.14 or 2.15": "torch",
    "executorch==1.5.1 (with --no-deps)": "executorch.exir",
    "numpy": "numpy",
    "flatbuffers": "flatbuffers",
    "ruamel.yaml": "ruamel.yaml",
    "tabulate": "tabulate",
    "pytest": "pytest",
}
PROBE = """
import importlib, json, sys
found = {}
for name, module in json.loads(sys.argv[1]).items():
    try:
        importlib.import_module(module)
        found[name] = None
    except Exception as problem:
        found[name] = f"{type(problem).__name__}: {problem}"
import importlib.metadata as metadata
versions = {name: metadata.version(name) for name in ("torch", "executorch") if not any(found.get(k) for k in found if k.startswith(name))}
where = None
if "executorch" in versions:
    import importlib.util
    where = list(importlib.util.find_spec("executorch").submodule_search_locations)[0]
print(json.dumps({"problems": found, "versions": versions, "executorch": where}))
"""


@dataclass
class Settings:
    """What the command line says."""

    device: str
    work: Path
    jobs: int
    filter: str
    quick: bool
    dry_run: bool


class NotReady(Exception):
    """Something that the machine lacks; the text says what to do."""


def unpack(bundle: Path = BUNDLE) -> None:
    """Unpacks the bundle in place, once."""
    archive, stamp = bundle / ARCHIVE, bundle / ".unpacked"
    if not archive.exists():
        raise NotReady(f"{archive} is missing: `make gpu-bundle` makes it")
    facts = archive.stat()
    wanted = f"{facts.st_size} {facts.st_mtime_ns}"
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    print(f"gpu-test: unpacking {ARCHIVE}, {facts.st_size / (1 << 20):.1f} MiB", file=sys.stderr, flush=True)
    try:
        with tarfile.open(archive) as packed:
            # Releases of Python before 3.11.4 have no filters.
            packed.extractall(bundle, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    except (OSError, EOFError, lzma.LZMAError, tarfile.TarError) as problem:
        raise NotReady(f"{archive} cannot be unpacked: {problem}") from problem
    stamp.write_text(wanted)


def gpus() -> list[str]:
    """The GPUs by name, asked of the driver itself; an error says what is missing."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as problem:
        raise NotReady(
            f"no NVIDIA driver: {problem}. This bundle tests the NVIDIA target; it needs a GPU, its driver and nothing of a CUDA toolkit"
        ) from problem
    code, count = driver.cuInit(0), ctypes.c_int()
    if code != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        raise NotReady(
            f"the NVIDIA driver shows no GPU (cuInit: {code}); CUDA_VISIBLE_DEVICES is {os.environ.get('CUDA_VISIBLE_DEVICES')!r}"
        )
    names, text = [], ctypes.create_string_buffer(128)
    for index in range(count.value):
        names.append(text.value.decode() if driver.cuDeviceGetName(text, 128, index) == 0 else "unknown")
    return names


def install_wheels(work: Path) -> Path | None:
    """Unpacks the bundle's wheels into a folder of their own; pip takes those that fit this Python."""
    wheels = sorted((BUNDLE / "wheels").glob("*.whl"))
    if not wheels:
        return None
    folder, stamp = work / "packages", work / "packages" / "installed.txt"
    wanted = "\n".join([sys.version, *(wheel.name for wheel in wheels)])
    if stamp.is_file() and stamp.read_text() == wanted:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    names = sorted({wheel.name.split("-")[0] for wheel in wheels})
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--disable-pip-version-check"]
    where = ["--find-links", str(BUNDLE / "wheels"), "--target", str(folder)]
    done = subprocess.run([*command, *where, *names], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NotReady(f"pip could not install the wheels of {BUNDLE / 'wheels'}:\n{done.stderr.strip()}")
    stamp.write_text(wanted)
    return folder


def python_path(packages: Path | None) -> str:
    parts = [str(BUNDLE / "python"), *([str(packages)] if packages else []), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(filter(None, parts))


def look_at_packages(path: str) -> dict:
    """What can be imported, with which versions, and where ExecuTorch lies."""
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(PACKAGES)], env=environment, capture_output=True, text=True, check=False, cwd="/"
    )
    if done.returncode != 0:
        raise NotReady(f"{sys.executable} cannot look at its packages:\n{done.stderr.strip()}")
    return json.loads(done.stdout.splitlines()[-1])


def check_packages(seen: dict) -> str:
    """The folder of ExecuTorch; an error names everything that is missing at once."""
    lines = [f"  {name:36} {why}" for name, why in seen["problems"].items() if why]
    for name, wanted in (("torch", ("2.11.", "2.14.", "2.15.")), ("executorch", ("1.5.1",))):
        found = seen["versions"].get(name)
        if found is not None and not found.startswith(wanted):
            lines.append(f"  {name} {' or '.join(w.rstrip('.') for w in wanted)}: found {found}")
    if lines:
        raise NotReady(
            f"{sys.executable} (Python {sys.version.split()[0]}) lacks:\n"
            + "\n".join(lines)
            + "\nInstall them, or, without a network, put "
            "wheels for this Python into the bundle: README.md shows how (make gpu-bundle WHEELS=folder). PYTHON=... chooses another Python."
        )
    return seen["executorch"]


def variables(settings: Settings, path: str, executorch: str) -> dict[str, str]:
    """What the tests find in their environment beyond what is there."""
    libraries = os.pathsep.join(filter(None, [f"{executorch}/lib", os.environ.get("LD_LIBRARY_PATH", "")]))
    threads = max(1, 2 * (os.cpu_count() or 2) // settings.jobs)
    return {
        "PYTHONPATH": path,
        "LD_LIBRARY_PATH": libraries,
        "WEIGHTSTREAM_LIBRARY": str(BUNDLE / "lib" / "libweightstream.so"),
        "WEIGHTSTREAM_TEST_DEVICE": settings.device,
        # Plugins of the Python's own packages may be for another pytest than the one that was carried along.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "WEIGHTSTREAM_TEST_CACHE": str(settings.work / "models"),
        "WEIGHTSTREAM_TEST_MODELS": str(settings.work / "cpp-models"),
        "WEIGHTSTREAM_TEST_JOBS": str(settings.jobs),
        "WEIGHTSTREAM_TEST_KEEP_FAILURES": "1",
        # Compilers of one export; several exports run at once.
        "TORCHINDUCTOR_COMPILE_THREADS": str(threads),
        "PYTHONDONTWRITEBYTECODE": "1",
        # Something that is missing is a failure here, not a skip.
        "CI": "true",
    }


def prepare(settings: Settings) -> dict[str, str]:
    """Checks the machine and returns the whole environment of the tests; an error lists everything that is missing."""
    settings.work.mkdir(parents=True, exist_ok=True)
    problems, around = [], dict(os.environ)
    if settings.device == "cuda":
        try:
            print(f"gpu-test: {', '.join(gpus())}", flush=True)
        except NotReady as problem:
            problems.append(str(problem))
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        problems.append("exporting needs a C++ compiler: install g++, or set CXX")
    try:
        path = python_path(install_wheels(settings.work))
        seen = look_at_packages(path)
        executorch = check_packages(seen)
        around.update(variables(settings, path, executorch))
        print(f"gpu-test: Python {sys.version.split()[0]}, torch {seen['versions']['torch']}, executorch {executorch}", flush=True)
    except NotReady as problem:
        problems.append(str(problem))
    if problems:
        raise NotReady("\n".join(problems))
    return around
