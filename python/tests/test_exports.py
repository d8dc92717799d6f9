"""The exports in the background do not depend on what a test does meanwhile."""

from __future__ import annotations

import time

import pytest
import sources
from exports import ExportFailed, Exports, defined_in, of_the_largest_sizes
from models import ZOO


def test_an_export_does_not_see_what_a_test_changes_in_the_environment(tmp_path, monkeypatch):
    """A test that compiles in this process points torch's caches at a folder of its own, and removes that when it ends."""
    exports = Exports(cache=tmp_path / "cache", workers=1)
    no_folder = tmp_path / "file"
    no_folder.touch()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(no_folder / "caches"))
    with pytest.raises(ExportFailed, match="KeyError: 'no such model'"):
        exports.folder("no such model")
    exports.close()


def test_the_runner_gets_inputs_of_the_largest_sizes():
    """Models whose passes are all shorter than their programs allow."""
    for name, largest in {"pages": [(16, 512)], "op_arrays": [(64, 9), (64, 9)]}.items():
        given = ZOO[name].passes(1)[0]
        found = of_the_largest_sizes(ZOO[name].export(), given)
        assert [tuple(x.shape) for x in found] == largest
        for x, y in zip(found, given, strict=True):
            assert x[: len(y)].equal(y)
            assert not x[len(y) :].any()


def test_two_that_ask_for_a_model_at_the_same_time_compile_it_once(tmp_path, monkeypatch):
    """Each as a process of its own would: with its own list of what it asked for."""
    compiled = []

    def compile(self, name, folder):
        compiled.append(name)
        time.sleep(0.2)
        folder.mkdir()

    monkeypatch.setattr(Exports, "compile", compile)
    both = [Exports(cache=tmp_path, workers=1) for _ in range(2)]
    for exports in both:
        exports.futures["model"] = exports.pool.submit(exports.provide, "model")
    assert {exports.folder("model") for exports in both} == {both[0].place("model")}
    assert compiled == ["model"]


def test_the_key_of_an_export_holds_what_the_export_depends_on():
    names = {path.name for path in sources.of_the_export()}
    assert {"inductor.py", "operators.py", "launches.py", "child.py", "snapshot.py"} <= names
    assert not {"range.py", "graph_pool.py"} & names
    assert "_eager" not in {path.parent.name for path in sources.of_the_export()}
    assert defined_in("fact_tied") == "fact_models"
    of_facts = {path.name for path in sources.of_a_model("fact_models")}
    assert {"fact_models.py", "zoo.py", "exports.py"} <= of_facts
    assert not {"form_models.py", "models.py"} & of_facts
    assert {"entry.py", "timm_models.py"} <= {path.name for path in sources.of_a_model("public_models.entry")}
