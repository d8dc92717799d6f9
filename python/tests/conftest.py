"""Fixtures: exported models (compiled once, in the background), eager references, and the rule about absences.

Without the native library the tests that need it are skipped, and the summary says so; under CI=true they fail.
"""

from __future__ import annotations

import functools
import gc
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from device_under_test import DEVICE, ON_GPU, exact_products, problem
from exports import TORCH_PACKAGE, Exports, Files
from methods_models import METHODS
from models import ZOO
from public_models import PUBLIC
from support import export_problem, open_module, run_passes, runtime_problem
from zoo import SHARED, Spec, bits

#: Passes per model and budget.
PASSES = 50 if ON_GPU else 20
#: Not run on a GPU: whole files, with the reason.
CPU_ONLY = {
    "test_zoo.py": "the models by themselves; no device has a part in it",
    "test_trampolines.py": "the trampolines are linked on the host, and are the same for every device",
}
EXPORTS = pytest.StashKey[Exports]()
ABSENT = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "models(*names): exported models this test asks for, so that they start early")
    config.addinivalue_line("markers", "no_runtime: needs no native library, only the export side or neither")
    config.addinivalue_line("markers", "no_export: needs nothing that exports, so that it runs with a torch that cannot")
    config.addinivalue_line("markers", "no_package: needs nothing of weightstream")
    config.addinivalue_line("markers", "gpu: runs where WEIGHTSTREAM_TEST_DEVICE=cuda")
    config.addinivalue_line("markers", "cpu_only(reason): not run there")
    config.stash[ABSENT] = []
    if (missing := problem()) is not None:
        pytest.exit(missing, returncode=4)
    exact_products()
    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))


def absence(item: pytest.Item) -> str | None:
    """What this test needs and does not find."""
    if item.get_closest_marker("no_package"):
        return None
    runtime = None if item.get_closest_marker("no_runtime") else runtime_problem()
    return runtime or (None if item.get_closest_marker("no_export") else export_problem())


class LeftOut(pytest.Module):
    """A file that is not imported, since it imports what exports."""

    def collect(self) -> list[pytest.Item]:
        self.config.stash[ABSENT].append(reason := export_problem() or "")
        pytest.skip(reason, allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    needs_none = re.search(r"^pytestmark = .*\.no_(export|package)\b", module_path.read_text(), re.MULTILINE)
    if needs_none or os.environ.get("CI") == "true" or export_problem() is None:
        return None
    return LeftOut.from_parent(parent, path=module_path)


def elsewhere(item: pytest.Item) -> str | None:
    """Why the test is not for the device under test."""
    if ON_GPU:
        marker = item.get_closest_marker("cpu_only")
        return marker.args[0] if marker else CPU_ONLY.get(item.path.name) or refused_model(item)
    return "needs a GPU: set WEIGHTSTREAM_TEST_DEVICE=cuda" if item.get_closest_marker("gpu") else None


def refused_model(item: pytest.Item) -> str | None:
    """Which of the test's models no GPU runs."""
    for name in wanted_models(item):
        if name in ZOO and (refused := ZOO[name].refused_on_a_gpu):
            return f"{name} is refused for a GPU: {refused}"
    return None


def wanted_models(item: pytest.Item) -> list[str]:
    marker = item.get_closest_marker("models")
    names = list(marker.args) if marker else []
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return names + [SHARED.get(p, p) for p in parameters if isinstance(p, str) and (p in ZOO or p in METHODS or p in PUBLIC)]


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.option.collectonly:
        return
    # What was imported stays: nobody has to look through it for garbage again.
    gc.freeze()
    items = [item for item in session.items if elsewhere(item) is None and absence(item) is None]
    names = list(dict.fromkeys(name for item in items for name in wanted_models(item)))
    # Of several processes each knows all tests; one of them exports ahead.
    if names and os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0":
        exports = session.config.stash[EXPORTS] = Exports()
        exports.request(names)


def pytest_report_header() -> str:
    return f"weightstream: device under test is {DEVICE}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if (reason := elsewhere(item)) is not None:
        pytest.skip(reason)
    missing = absence(item)
    if missing is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(missing, pytrace=False)
    item.config.stash[ABSENT].append(missing)
    pytest.skip(missing)


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput["absent"] = config.stash[ABSENT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """One of several processes has run its tests."""
    node.config.stash[ABSENT] += getattr(node, "workeroutput", {}).get("absent", [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skipped = config.stash[ABSENT]
    for reason in dict.fromkeys(skipped):
        terminalreporter.write_line(f"WARNING: {skipped.count(reason)} tests were skipped: {reason}", red=True)
    exports = config.stash.get(EXPORTS, None)
    if exports is not None and exports.compiled:
        times = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in exports.compiled.items())
        terminalreporter.write_line(f"exported: {times}")


def pytest_unconfigure(config: pytest.Config) -> None:
    exports = config.stash.get(EXPORTS, None)
    if exports is not None:
        exports.close()


@pytest.fixture(scope="session")
def exports(request: pytest.FixtureRequest) -> Exports:
    stash = request.config.stash
    if EXPORTS not in stash:
        stash[EXPORTS] = Exports()
    return stash[EXPORTS]


@pytest.fixture(scope="session")
def exported(exports: Exports) -> Callable[[str], Files]:
    """`exported(name)`: the files of a model of the zoo."""
    return exports.files


@pytest.fixture(scope="session")
def torch_package(exports: Exports) -> str:
    return str(exports.folder(TORCH_PACKAGE) / "model.pt2")


@pytest.fixture(scope="session")
def reference() -> Callable[[str], list[list[torch.Tensor]]]:
    """`reference(name)`: eager outputs of twenty passes."""

    @functools.cache
    def outputs(name: str) -> list[list[torch.Tensor]]:
        spec: Spec = ZOO[name]
        return spec.eager(spec.passes(PASSES))

    return outputs


@pytest.fixture(scope="session")
def resident_bits(exported: Callable[[str], Files]) -> Callable[[str], list[list[bytes]]]:
    """`resident_bits(name)`: outputs of twenty passes with room for everything, the bits every budget must give."""

    @functools.cache
    def outputs(name: str) -> list[list[bytes]]:
        module = open_module(exported(name), 1 << 30)
        return [bits(out) for out in run_passes(module, ZOO[name].passes(PASSES))]

    return outputs


@pytest.fixture
def quick():
    """The exports of this test compile nothing: see `quick_compiler`. A list of what each compilation was given."""
    from quick_compiler import quick_compiler

    with quick_compiler() as calls:
        yield calls


@pytest.fixture
def write(quick, tmp_path):
    """`write(prefill=module, ...)`: the files of a program that was compiled quickly."""
    from methods_support import Written, lower

    return lambda partitioner=None, **modules: Written(tmp_path, lower(partitioner, **modules))
