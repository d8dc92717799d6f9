"""`scripts/check_docs.py` fails for each kind of name that does not exist, and for each broken rule of layout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "check_docs.py"

pytestmark = [pytest.mark.no_package, pytest.mark.cpu_only("the documents are the same for every device")]

FILES = {
    "src/config/table.rs": 'pub const POLICY: &str = "weight_offload_policy";',
    "src/store.rs": "// Vanished is a name in a comment.\npub struct Store; pub fn load_weight() {}",
    "src/command/mod.rs": "enum Command {\n    Plan(plan::Arguments),\n}\n#[arg(long, short)]\nbudget: u64,",
    "python/weightstream/_command.py": '"""Docstring of vanished_word."""\nparser.add_argument("--device", help="cpu or cuda")\n',
    "cpp/tools/arguments.cpp": 'return {{"device", "N", "index of the device", number(device)}};',
    "cpp/tools/runner.cpp": '{"passes", "K", "number of passes", number(passes)}, {"json", nullptr, "print JSON", present(json)}',
    "cpp/tools/generate.cpp": '{"tokens", "N,N,...", "the prompt", tokens(prompt)}',
    "Makefile": "demo: build ## runs\n\ttrue\n",
    ".gitignore": "/build\n",
    "docs/api.md": "# Interfaces\n\n## The `load` of a store\nText.\n",
}
RIGHT = (
    """# Title
`src/store.rs` and `store.rs` have `Store` and `store::load_weight()`.
`src/*.rs`, `docs/`, `build/x.so`, `model.pte`.
`weight_offload_policy=lru`, `weight_offload_*`, `WEIGHTSTREAM_POLICY=lru`, `make demo`, `--passes`.
`weightstream plan m.pte --budget 5`, `weightstream export --device cpu`, plain `words`.
`weightstream-run m.pte --json --device 1`, `weightstream-generate m.pte --tokens 1,2 --device 1`.
[The API](docs/api.md#the-load-of-a-store), [here](#title), [there](https://example.com/gone.md).

| tables may be wide | """
    + "wide " * 30
    + """|
```sh
weightstream-run model.pte model.ptd --passes 3   # code may be wide, too: all of this line is in a block of code
make demo
```
"""
)


def run(folder: Path, **documents: str) -> subprocess.CompletedProcess[str]:
    for name, text in {**FILES, **{name.replace("__", "/") + ".md": text for name, text in documents.items()}}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    return subprocess.run([sys.executable, SCRIPT, folder], capture_output=True, text=True, check=False)


def test_what_exists_may_be_named(tmp_path):
    done = run(tmp_path, README=RIGHT)
    assert (done.returncode, done.stdout) == (0, "2 documents name only what exists\n"), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("`src/gone.rs`", "file src/gone.rs"),
        ("`tore.rs`", "file tore.rs"),
        ("`docs/*.rs`", "file docs/*.rs"),
        ("`Vanished`", "symbol Vanished"),
        ("`vanished_word`", "symbol vanished_word"),
        ("`store::unload_weight()`", "no code has 'unload_weight'"),
        ("`load_weight(ahead_of=1)`", "no code has 'ahead_of'"),
        ("a\n`unload_weight(a,\nb)`", ":2: symbol"),
        ("weight_offload_policies", "option weight_offload_policies"),
        ("```\nweight_offload_gone\n```", ":2: option weight_offload_gone"),
        ("`WEIGHTSTREAM_POLICE`", "variable WEIGHTSTREAM_POLICE"),
        ("`make test`", "make test"),
        ("```sh\nmake test\n```", "make test"),
        ("`weightstream paint`", "weightstream paint"),
        ("`weightstream plan --device cpu`", "weightstream --device"),
        ("```sh\nweightstream plan m.pte --sweep 3\n```", ":2: weightstream --sweep"),
        ("`weightstream-run m.pte --budget 3`", "weightstream-run --budget"),
        ("`weightstream-generate m.pte --passes 3`", "weightstream-generate --passes"),
        ("`--colour`", "flag --colour"),
        ("[x](docs/gone.md)", "link to docs/gone.md"),
        ("[x](docs/api.md#gone)", "link to docs/api.md#gone"),
        ("[x](#gone)", "link to #gone"),
        ("word " * 21, "104 columns"),
        ("\n" * 120 + "last", "121 lines, at most 120"),
    ],
)
def test_what_does_not_exist_is_told(tmp_path, text, said):
    done = run(tmp_path, README=text)
    assert done.returncode == 1, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == 1
    assert done.stdout.startswith("README.md:")
    assert said in done.stdout


@pytest.mark.parametrize("name", ["SECURITY", "docs__any"])
def test_every_document_is_read(tmp_path, name):
    assert "symbol Vanished" in run(tmp_path, **{name: "`Vanished`"}).stdout


def test_the_architecture_has_a_length(tmp_path):
    assert run(tmp_path, docs__architecture="x\n" * 250).returncode == 0
    assert "251 lines, at most 250" in run(tmp_path, docs__architecture="x\n" * 251).stdout


def test_the_project_itself():
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
