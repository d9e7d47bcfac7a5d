"""The verb: its exit codes, its JSON, its JUnit XML, and how it says what is wrong."""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from agentor.cli import crashing, main
from agentor.crashtest.processes import Processes
from agentor.crashtest.report import Case, Report
from agentor.errors import ConfigError
from agentor.testing import CrashtestFailedError, crashtest

SHOPS = Path(__file__).with_name("shops.py")
SAFE = Report("app.py:agent", "A", "completed", "Done.", {}, (), (Case(("before commit 1",), ""),))

Finding = Callable[[Callable[[], Report]], None]


def run(name: str, *words: str) -> Result:
    target = f"{SHOPS}:{name}"
    return CliRunner().invoke(main, ["crashtest", target, "--input", "Buy tea.", *words])


@pytest.fixture
def shared(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crashing, "run_crashtest", partial(crashtest, processes=processes))


@pytest.fixture
def finding(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Report]], None]:
    """No process: a function in place of the crash test."""

    def find(report: Callable[[], Report]) -> None:
        monkeypatch.setattr(crashing, "run_crashtest", lambda *_, **__: report())

    return find


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
def test_an_unsafe_agent_is_exit_code_1_and_all_of_it_is_in_the_json_and_the_xml(
    tmp_path: Path,
) -> None:
    xml = tmp_path / "crashes.xml"
    done = run("undeclared", "--json", "--at", "before commit 3", "--junit", str(xml))
    assert done.exit_code == 1
    report = json.loads(done.stdout)
    (case,) = report["cases"]
    assert (report["safe"], case["verdict"]) == (False, "unsafe")
    assert case["again"] == [
        {"tool": "pay", "args": '{"amount":5}', "effect": None, "starts": 2, "harmful": True}
    ]
    (test,) = ElementTree.fromstring(xml.read_text()).findall("testcase")
    assert test.get("name") == "before commit 3 (tool_result pay)"
    assert float(test.get("time") or 0) > 0
    failure = test.find("failure")
    assert failure is not None
    assert "would silently run twice" in (failure.get("message") or "")
    assert "declare what a second start would do" in (failure.text or "")


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
def test_a_call_in_doubt_is_exit_code_0_and_is_told(tmp_path: Path) -> None:
    done = run("blind", "--at", "before commit 3", "--keep", str(tmp_path / "kept"))
    assert done.exit_code == 0
    assert "in doubt, and told so: pay" in done.stdout
    shown = CliRunner().invoke(main, shlex.split(done.stderr.partition(": agentor ")[2]))
    assert "pay" in shown.stdout, shown.output
    assert {each.name for each in (tmp_path / "kept").iterdir()} == {
        *("first", "second", "before-commit-3", "replies.jsonl")
    }


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
def test_an_agent_that_fails_without_a_crash_is_exit_code_1_and_one_line() -> None:
    done = run("failing")
    assert done.exit_code == 1
    assert done.stderr == (
        "Error: the uninterrupted run failed: ConnectionError: the provider is down\n"
    )


def fail_with(error: Exception) -> Callable[[], Report]:
    def find() -> Report:
        raise error

    return find


def test_why_there_is_nothing_to_compare_is_in_the_json_and_the_xml(
    finding: Finding, tmp_path: Path
) -> None:
    finding(fail_with(CrashtestFailedError("the uninterrupted run failed: \x00 no")))
    xml = tmp_path / "crashes.xml"
    xml.write_text("of an earlier one")
    done = run("failing", "--json", "--junit", str(xml))
    assert done.exit_code == 1
    assert json.loads(done.stdout) == {
        "safe": None,
        "target": f"{SHOPS}:failing",
        "error": "the uninterrupted run failed: \x00 no",
    }
    suite = ElementTree.fromstring(xml.read_text())
    assert (suite.get("tests"), suite.get("errors")) == ("1", "1")
    error = suite.find("testcase/error")
    assert error is not None
    assert error.get("message") == "the uninterrupted run failed: ? no"


def test_a_link_for_the_junit_file_stays_one_and_what_it_leads_to_is_written(
    finding: Finding, tmp_path: Path
) -> None:
    finding(fail_with(CrashtestFailedError("the uninterrupted run failed")))
    there, link = tmp_path / "there.xml", tmp_path / "link.xml"
    there.write_text("of an earlier one")
    link.symlink_to(there)  # as /dev/stdout is one
    assert run("failing", "--junit", str(link)).exit_code == 1
    assert link.is_symlink()
    assert ElementTree.fromstring(there.read_text()).get("errors") == "1"


@pytest.mark.parametrize(
    ("error", "exit_code", "is_left"),
    [(ConfigError("no such agent"), 2, True), (KeyboardInterrupt(), 130, False)],
)
def test_the_file_of_an_earlier_crash_test_never_passes_for_one_of_this(
    error: Exception, exit_code: int, is_left: bool, finding: Finding, tmp_path: Path
) -> None:
    finding(fail_with(error))
    xml = tmp_path / "crashes.xml"
    xml.write_text("of an earlier one")
    done = run("failing", "--json", "--junit", str(xml))
    assert (done.exit_code, done.stdout) == (exit_code, "")
    assert xml.exists() == is_left
    assert not is_left or "no such agent" in xml.read_text()


def test_what_is_kept_of_the_worst_case_can_be_shown_with_the_line_that_is_printed(
    finding: Finding, tmp_path: Path
) -> None:
    doubt = Case(("after commit 2 (x)",), "completed", in_doubt=("pay",), run_id="r-1")
    unsafe = Case(("before commit 3 (x)",), "completed", problems=("Twice.",), run_id="r-2")
    cases = (
        replace(doubt, directory="after-commit-2"),
        replace(unsafe, directory="before-commit-3"),
    )
    finding(lambda: replace(SAFE, cases=cases))
    done = run("chatting", "--keep", str(tmp_path / "a b"))
    assert done.stderr == (
        f"Killed before commit 3: agentor show r-2 --store '{tmp_path}/a b/before-commit-3/runs.db'\n"
    )
    finding(lambda: SAFE)
    assert run("chatting", "--keep", str(tmp_path / "a b")).stderr == ""


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
def test_no_such_agent_is_wrong_usage() -> None:
    done = run("nobody")
    assert done.exit_code == 2
    assert "has no 'nobody'" in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--at", "after lunch"], "'after lunch' names no moment: write 'before commit 3'"),
        (["--kills", "3"], "--kills"),
        (["--at", ""], "names no moment"),
        (["--timeout", "0"], "--timeout"),
        (["--timeout", "inf"], "--timeout"),
        (["--timeout", "1e300"], "--timeout"),
        (["--timeout", "1000001"], "--timeout"),
        (["--timeout", "nan"], "timeout_s is a number of seconds above 0, not nan"),
        (["--jobs", "0"], "--jobs"),
        (["--jobs", "9" * 20], "--jobs"),
        (["--input", " "], "the input is empty"),
        (["--junit", "no/such/place.xml"], "there is no such directory"),
        (["--junit", "x" * 300], "cannot be written (File name too long); name another file"),
        (["--keep", str(SHOPS.parent)], "is not empty; name a new directory"),
        (["--keep", str(SHOPS / "kept")], "cannot be made or read"),
    ],
)
def test_options_that_cannot_be_meant_are_wrong_usage_before_any_work(
    words: list[str], told: str
) -> None:
    done = run("chatting", *words)
    assert done.exit_code == 2
    assert told in done.stderr


@pytest.mark.parametrize(
    "option",
    [
        {"timeout_s": float("inf")},
        {"timeout_s": float("nan")},
        {"timeout_s": 1e300},
        {"timeout_s": None},
        {"jobs": 10**9},
        {"kills": 3},
    ],
)
def test_options_that_cannot_be_meant_are_refused_by_the_function_too(option: Any) -> None:
    (name,) = option
    with pytest.raises(ConfigError, match=f"^{name} is "):
        crashtest(f"{SHOPS}:chatting", "Hi.", **option)


def test_there_being_nowhere_for_temporary_files_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    done = run("chatting")
    assert done.exit_code == 2
    assert "a temporary directory cannot be made or read: " in done.stderr


# Without a process ------------------------------------------------------------------------------------------------


def test_many_safe_cases_and_no_other_are_a_short_story(finding: Finding) -> None:
    finding(lambda: Report("a:b", "A", "completed", "", {}, (), SAFE.cases * 61))
    done = run("chatting")
    assert done.exit_code == 0
    assert done.stdout == "61 are safe; --json has them.\n\n61 crashes: all safe.\n"


def test_a_file_that_cannot_be_written_after_all_does_not_swallow_the_report(
    finding: Finding, tmp_path: Path
) -> None:
    directory = tmp_path / "there"
    directory.mkdir()

    def find() -> Report:
        directory.rmdir()
        return SAFE

    finding(find)
    done = run("chatting", "--junit", str(directory / "crashes.xml"))
    assert done.exit_code == 2
    assert "1 crash: all safe." in done.stdout
    assert "crashes.xml' cannot be written (No such file or directory)" in done.stderr


def test_no_empty_file_is_left_by_a_crash_test_that_fails(finding: Finding, tmp_path: Path) -> None:
    def find() -> Report:
        raise KeyboardInterrupt

    finding(find)
    xml = tmp_path / "crashes.xml"
    assert run("chatting", "--junit", str(xml)).exit_code == 130
    assert not xml.exists()


@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_breaks_it_off_in_good_order(
    number: signal.Signals, exit_code: int, finding: Finding
) -> None:
    """What comes while it tidies up does not keep it from that; and afterwards all is as it was."""
    tidied = []

    def find() -> Report:
        try:
            signal.raise_signal(number)
        finally:
            if number != signal.SIGINT:
                signal.raise_signal(signal.SIGTERM)
            tidied.append(number)
        return SAFE

    finding(find)
    with heard(number):
        before = signal.getsignal(number)
        done = run("chatting")
        assert signal.getsignal(number) == before
    assert done.exit_code == exit_code
    assert tidied == [number]
    assert "no process of it is left" in done.stderr


@contextmanager
def heard(number: signal.Signals) -> Iterator[None]:
    """A signal does what it does in a program that nobody has started in the background."""
    usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    before = signal.signal(number, usual)
    try:
        yield
    finally:
        signal.signal(number, before)


def test_a_hangup_that_is_to_be_ignored_is_ignored(
    finding: Finding, monkeypatch: pytest.MonkeyPatch
) -> None:
    before: Any = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        finding(lambda: signal.raise_signal(signal.SIGHUP) or SAFE)
        assert run("chatting").exit_code == 0
    finally:
        signal.signal(signal.SIGHUP, before)
