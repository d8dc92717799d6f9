"""What `make test` reads from the reports of its runners."""

from __future__ import annotations

from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"

pytestmark = [pytest.mark.no_runtime, pytest.mark.no_package, pytest.mark.cpu_only("the script is the same everywhere")]

NEXTEST = """\
 Nextest run ID 5c5a with nextest profile: default
    Starting 4 tests across 2 binaries
        PASS [   0.012s] (1/4) weightstream aoti::slab::tests::a_test
        SLOW [> 60.000s] (───) weightstream::session_random programs
        FAIL [   1.500s] (2/4) weightstream::format_wiring another
  stdout ───
    PASS is a word that a test may print [1.0s]
        PASS [  61.250s] (3/4) weightstream::session_random programs
     SIGABRT [   0.250s] (4/4) weightstream::fork ends
     Summary [  61.300s] 4 tests run: 2 passed (1 slow), 2 failed, 3 skipped
        FAIL [   1.500s] (2/4) weightstream::format_wiring another
"""

CTEST = """<testsuite name="build" tests="3" failures="1" skipped="1" disabled="0" errors="0">
<testcase name="fork.ends" classname="fork.ends" time="2.5" status="run"/>
<testcase name="module.loads" classname="module.loads" time="70.5" status="fail"><failure message=""/></testcase>
<testcase name="module.waits" classname="module.waits" time="0" status="notrun"><skipped/></testcase>
</testsuite>"""

PYTEST = """<testsuites><testsuite name="pytest" tests="2" failures="0" errors="0" skipped="0">
<testcase classname="python.tests.test_api" name="test_one[a]" time="3.000"/>
<testcase classname="python.tests.test_api" name="test_two" time="0.001"/>
</testsuite></testsuites>"""


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import counts

    return counts


def test_the_slowest_tests_of_all_suites_are_named(counts, tmp_path: Path):
    (tmp_path / "ctest.xml").write_text(CTEST)
    (tmp_path / "pytest.xml").write_text(PYTEST)
    times = counts.nextest_times(NEXTEST.splitlines(keepends=True))
    times += counts.junit_times(tmp_path / "ctest.xml", "C++") + counts.junit_times(tmp_path / "pytest.xml", "Python")
    assert len(times) == 9
    assert [str(test).split() for test in counts.slowest(times, 5)] == [
        ["70.5", "s", "C++", "module.loads"],
        ["61.2", "s", "Rust", "weightstream::session_random", "programs"],
        ["3.0", "s", "Python", "python.tests.test_api::test_one[a]"],
        ["2.5", "s", "C++", "fork.ends"],
        ["1.5", "s", "Rust", "weightstream::format_wiring", "another"],
    ]
    assert counts.slowest(times)[-1].seconds == 0


def test_a_report_that_is_not_there_has_no_tests(counts, tmp_path: Path):
    assert counts.junit_times(tmp_path / "none.xml", "C++") == []
    assert counts.nextest_times(["    Finished `test` profile in 1.0s\n"]) == []


def test_reports_are_added_up(counts, tmp_path: Path):
    (tmp_path / "ctest.xml").write_text(CTEST)
    assert counts.nextest_counts(NEXTEST.splitlines()) == counts.Counts(2, 2, 3)
    assert counts.junit_counts(tmp_path / "ctest.xml") == counts.Counts(1, 1, 1)
    assert str(counts.Counts(1, 1, 1) + counts.Counts(2)) == "3 passed, 1 failed, 1 skipped"
