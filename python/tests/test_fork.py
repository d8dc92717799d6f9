"""A module that was loaded before `fork`: the child is told, and neither hangs nor dies."""

from __future__ import annotations

import pytest
from support import run_child


@pytest.mark.models("mlp")
@pytest.mark.parametrize("how", ["os.fork", "multiprocessing"])
def test_a_child_is_told_and_can_load_its_own(how, exported):
    files = exported("mlp")
    seen = run_child("forked", files.pte, files.ptd, how)
    assert seen["code"] == 0
    assert len(seen["messages"]) == 2
    for text in seen["messages"]:
        assert f"loaded in process {seen['parent']}, and this is process {seen['child']}" in text
        assert "load it again after the fork" in text
    if seen["gpu"]:
        assert f"the NVIDIA driver was initialised in process {seen['parent']}" in seen["own"]
        assert "CUDA does not survive fork" in seen["own"]
    else:
        assert seen["own"] is True
    assert seen["goes_on"]
