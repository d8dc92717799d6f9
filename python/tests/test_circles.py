"""`scripts/check_circles.py` finds files that use each other in a circle, and takes no re-export for one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "check_circles.py"
pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="the bundle for a GPU has no sources")

#: `one` uses `two`, `two` uses `three`; what `three` uses is each test's.
FILES = {
    "lib.rs": "pub mod part;\n",
    "part/mod.rs": "mod one;\nmod two;\nmod three;\npub use one::One;\npub use two::Two;\n",
    "part/one.rs": "use super::Two;\npub struct One(Two);\n",
    "part/two.rs": "pub struct Two(pub super::three::Three);\n",
}


def found(folder: Path, three: str, **files: str) -> tuple[int, str]:
    for name, text in {**FILES, "part/three.rs": three, **files}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    done = subprocess.run([sys.executable, SCRIPT, folder], capture_output=True, text=True, check=False)
    assert not done.stderr
    return done.returncode, done.stdout


def test_a_chain_is_no_circle(tmp_path):
    status, text = found(tmp_path, "pub struct Three;\n")
    assert status == 0
    assert text == "5 files, 0 circles, 0 of more than 2 files\n"


@pytest.mark.parametrize(
    "three",
    [
        "use super::One;\npub struct Three(Option<Box<One>>);\n",
        "pub struct Three(Option<Box<crate::part::One>>);\n",
        "use super::*;\npub struct Three(Option<Box<One>>);\n",
        "use super::one as first;\npub struct Three(Option<Box<first::One>>);\n",
    ],
)
def test_three_files_in_a_circle_are_named(tmp_path, three):
    status, text = found(tmp_path, three)
    assert status == 1
    assert text.startswith("3 files: part/one.rs part/three.rs part/two.rs\n")


@pytest.mark.parametrize(
    "three",
    [
        "// use super::One;\npub struct Three;\n",
        'pub struct Three;\npub const TEXT: &str = "super::One::new()";\n',
        "pub struct Three;\n#[cfg(test)]\nmod tests {\n    use super::super::One;\n}\n",
    ],
)
def test_comments_texts_and_tests_make_no_circle(tmp_path, three):
    assert found(tmp_path, three)[0] == 0


def test_a_module_that_uses_what_it_passes_on_is_part_of_a_circle(tmp_path):
    parent = FILES["part/mod.rs"] + "pub struct Part(Two);\n"
    status, text = found(tmp_path, "pub struct Three(Option<Box<super::Part>>);\n", **{"part/mod.rs": parent})
    assert status == 1
    assert text.startswith("3 files: part/mod.rs part/three.rs part/two.rs\n")
