"""The mutants of `make mutants` fit the code: each rule has one marker, and each edit changes the statement there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = ROOT / "scripts" / "mutants"

pytestmark = [pytest.mark.no_runtime, pytest.mark.no_package, pytest.mark.cpu_only("the list is about the sources")]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(MUTANTS), *arguments], capture_output=True, text=True, check=False)


def test_every_rule_stands_in_one_place():
    done = run("--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) >= 100


@pytest.mark.parametrize("rules", ["session", "residency", "planned", "schedule", "methods", "device", "elastic"])
def test_every_mutant_of_a_list_fits_the_code(rules: str):
    done = run("--check", "--only", rules)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(MUTANTS))


@pytest.mark.parametrize("guilty", ["", "real"])
def test_a_suite_that_fails_anyway_catches_nothing(guilty: str, tmp_path: Path, sources, capsys):
    from edits import become
    from mutant import Mutant
    from workspace import Outcome, Workspace

    class Played(Workspace):
        """Cargo, where the suite `broken` always fails, and `guilty` where the mutant is in the tree."""

        def __init__(self):
            self.tree, self.timeout, self.broken, self.seconds, self.programs = tmp_path, 1, set(), {}, {}

        def cargo(self, what, which, pattern, limit):
            failing = {"broken"} | ({guilty} if "mutated" in (tmp_path / "src/a.rs").read_text() else set())
            for suite in which[1::2] if which[0] == "--test" else which[2::2]:
                if suite in failing:
                    return Outcome("caught", f"{suite}: a test", suite)
            return Outcome("passed", what)

    (tmp_path / "tests").mkdir()
    for name in ("broken", "fine", "real"):
        (tmp_path / "tests" / f"{name}.rs").touch()
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.rs").write_text("rule() // rule: a-rule\n")
    workspace = Played()
    outcome = workspace.run_everything(Mutant("a-rule", become("mutated"), "b", ("lib",)))
    assert (outcome.word, outcome.suite) == (("caught", "real") if guilty else ("survived", ""))
    assert workspace.broken == {"broken"}
    assert "broken fails without any mutant" in capsys.readouterr().out
    assert (tmp_path / "src/a.rs").read_text() == "rule() // rule: a-rule\n"


def test_tests_that_take_long_without_a_mutant_may_take_longer_with_one(sources):
    """Otherwise a busy machine would end them, and that counts as caught."""
    from workspace import Outcome, Workspace

    class Played(Workspace):
        def __init__(self):
            self.timeout, self.seconds, self.programs = 300, {}, {}

        def cargo(self, what, which, pattern, limit):
            return Outcome("passed", what, seconds=100.0 if which == ["--lib"] else 1.0)

    workspace = Played()
    assert workspace.prepare(["lib:planned", "quick"])
    assert (workspace.limit("lib"), workspace.limit("quick")) == (500.0, 300)


def mutant(name: str = "a-rule", edit=None, tests: tuple[str, ...] = ("lib",)):
    from edits import delete
    from mutant import Mutant

    return Mutant(name, edit or delete(), "what breaks", tests)


@pytest.fixture
def tree(tmp_path: Path, sources):
    """Writes one source and says what is wrong with some mutants of it; `fits` gives the mutated source."""
    from mutant import markers, problems

    class Tree:
        def write(self, source: str) -> Path:
            (tmp_path / "src").mkdir(exist_ok=True)
            (tmp_path / "src" / "a.rs").write_text(source)
            return tmp_path

        def problems(self, source: str, *mutants) -> list[str]:
            return problems(list(mutants), self.write(source))

        def fits(self, source: str, edit) -> str:
            one = mutant(edit=edit)
            return one.apply(one.place(markers(self.write(source))))

    return Tree()


MARKED = "// rule: a-rule\n"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("one();", "no marker `// rule: a-rule`"),
        (f"{MARKED}one();\n{MARKED}two();", "stands in 2 places, expected one: a.rs:1, a.rs:3"),
        (f"{MARKED}one();\ntwo(); // rule: another", "src/a.rs:3: no mutant takes the rule 'another' out"),
        ("// rule: A_rule\none();", "a.rs:1: a marker is written"),
        ("// rule a-rule\none();", "no marker `// rule: a-rule`"),
        ('let text = "// rule: a-rule";', "no marker `// rule: a-rule`"),
        (MARKED, "no code after the marker"),
    ],
)
def test_a_marker_that_is_missing_or_doubled_is_named(source: str, words: str, tree):
    assert any(words in problem for problem in tree.problems(source, mutant()))


def test_edits_that_do_not_fit_are_named(tree):
    import edits

    for edit, words in (
        (edits.replace("b", "c"), "has `b` 0 times, expected once"),
        (edits.replace("a", "c"), "has `a` 2 times, expected once"),
        (edits.become("a(a);"), "stays as it is"),
        (edits.never(), "has no `if`, `while` or `match`"),
        (edits.drop(")"), "other brackets"),
    ):
        (problem,) = tree.problems(f"{MARKED}a(a);", mutant(edit=edit))
        assert words in problem
    assert tree.problems(f"{MARKED}a(a);", mutant()) == []
    (problem,) = tree.problems(f"{MARKED}a(a);", mutant(tests=("none",)))
    assert "no test tests/none.rs" in problem
    (problem,) = tree.problems(f"{MARKED}a(a);", mutant(tests=("session:none",)))
    assert "no test tests/session/none.rs" in problem
    (problem,) = tree.problems(f"{MARKED}a(a);", mutant(tests=("lib:none",)))
    assert "no module of src/ is called 'none'" in problem
    assert tree.problems(f"{MARKED}a(a);", mutant(), mutant())[0] == "two mutants are called 'a-rule'"
    assert "is no mutant" in run("--only", "nonsense").stderr


@pytest.mark.parametrize(
    ("statement", "rest"),
    [
        ("one(|x| { x; });", " two();"),
        ("if a { b; } else if c { d; } else { e }", " two();"),
        ("match a { 1 => {} _ => {} }", " two();"),
        ("match a { _ => b }.unwrap();", " two();"),
        ("let x = if a { b } else { c };", " two();"),
        ("let Some(x) = y else { return; };", " two();"),
        ("a && b", "\n}"),
        (".wait(a)?", "\n}"),
        ("Some(a) => b(c, d)", ", two => 3 }"),
        ("Some(a) if b => { c; }", " two => 3 }"),
        ("P { a, b } => { c; }", " two => 3 }"),
        ("""one("};", ';', r#"a"}"#, 'x');""", " // };\ntwo();"),
        ("one::<'a>(';', /* ; */ b);", "\ntwo();"),
    ],
)
def test_the_statement_at_a_marker_ends_where_the_language_ends_it(statement: str, rest: str, sources):
    from statements import end_of_statement

    source = statement + rest
    ended = source[: end_of_statement(source, 0)]
    assert ended == statement


def test_each_edit_changes_the_statement_at_its_marker_only(tree):
    import edits

    source = "fn f() {{\n    before();\n    {}\n    after();\n}}\n"

    def edited(edit, statement: str, marker: str = "// rule: other, a-rule\n    // Why.\n    ") -> str:
        text = tree.fits(source.format(marker + statement), edit)
        head, tail = source.format(marker + "@").split("@")
        assert text.startswith(head)
        assert text.endswith(tail)
        return " ".join(text[len(head) : len(text) - len(tail)].split())

    loop = "while a.len() > self.cap {\n        b();\n    }"
    assert edited(edits.delete(), loop) == ""
    assert edited(edits.never(), loop) == "while false && (a.len() > self.cap) { b(); }"
    assert edited(edits.always(), loop) == "while true || (a.len() > self.cap) { b(); }"
    assert edited(edits.replace("self.cap", "self.cap + 1"), loop) == "while a.len() > self.cap + 1 { b(); }"
    assert edited(edits.become("c();"), loop) == "c();"
    # Lines that a formatter broke, and a word within another.
    assert edited(edits.drop(".offset(start)"), "self.at\n        .offset(start)\n        .offset(starts);") == "self.at .offset(starts);"
    assert tree.fits("one(a); // rule: a-rule\none(b);\n", edits.replace("a", "c")) == "one(c); // rule: a-rule\none(b);\n"
