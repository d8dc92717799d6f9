"""The table of `make zoo`."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"

pytestmark = [pytest.mark.no_package, pytest.mark.cpu_only("the table is the same for every device")]

ABOUT = {"library": "timm", "deployed": "any batch", "detail": ""}
FIGURES = {"weight_bytes": 2_000_000, "floor_bytes": 500_000, "copied_50": 900_000, "error": 1.2e-6}
RIGHT = {**ABOUT, **FIGURES, "name": "timm_vit", "result": "right"}


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("zoo_table")


def with_result(result: str) -> dict[str, object]:
    return {**ABOUT, "name": f"timm_{result}", "result": result, "detail": "operator 'aten.median'"}


def test_a_row_holds_shares_of_the_weights(page):
    assert page.cells(RIGHT) == ["vit", "timm", "any batch", "2.00", "25", "45 %", "1e-06", "right"]
    assert page.cells(with_result("refused"))[-1] == "refused"


def test_all_results_are_counted(page):
    rows = [RIGHT, RIGHT, with_result("refused"), with_result("wrong")]
    assert page.summary(rows) == "4 models: 2 right, 1 refused, 0 failed, 1 wrong"
    assert len(page.table(rows).splitlines()) == 5


def test_one_wrong_model_or_too_few_right_ones_are_not_enough(page):
    assert page.enough([RIGHT] * 38 + [with_result("refused")] * 2)
    assert not page.enough([RIGHT] * 37 + [with_result("refused")] * 3)
    assert not page.enough([RIGHT] * 99 + [with_result("wrong")])
