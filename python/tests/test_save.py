"""What `save` does with paths and files, whatever it writes."""

from __future__ import annotations

import os
import stat

import pytest
import weightstream as ws
from support import error_of
from weightstream._export import save

pytestmark = pytest.mark.no_runtime


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_files_have_the_permissions_that_the_process_gives(mask, mode, tmp_path):
    path, before = tmp_path / "model.pte", os.umask(mask)
    try:
        for text in (b"first", b"second"):
            save._write(path, lambda file, text=text: file.write(text))
    finally:
        os.umask(before)
    assert path.read_bytes() == b"second"
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert [each.name for each in tmp_path.iterdir()] == ["model.pte"]


def test_a_write_that_fails_leaves_the_older_file_and_nothing_else(tmp_path):
    path = tmp_path / "model.ptd"
    path.write_bytes(b"older")

    def fail(file):
        file.write(b"half of it")
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="disk is full"):
        save._write(path, fail)
    assert path.read_bytes() == b"older"
    assert [each.name for each in tmp_path.iterdir()] == ["model.ptd"]


def test_one_path_for_both_files_is_refused_by_name(tmp_path):
    path = tmp_path / "model.pte"
    (tmp_path / "link.ptd").symlink_to(path)
    for other in (path, tmp_path / "." / "model.pte", tmp_path / "link.ptd"):
        text = error_of(lambda other=other: ws.save(None, path, other), ws.ExportError)
        assert str(other) in text
        assert "given twice" in text
    assert not path.exists()
