"""Real agents in real processes, killed for real at every commit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentor.crashtest.processes import Processes
from agentor.crashtest.report import Case, Report
from agentor.errors import ConfigError
from agentor.testing import CrashtestFailedError, FakeServer, calls, crashtest

pytestmark = pytest.mark.slow

SHOPS = Path(__file__).with_name("shops.py")
UNSAVED = "before commit 3 (tool_result pay)"  # it has paid, and nobody has written that down


class Crasher:
    """Tests the agents of shops.py, with processes that all tests share."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._reports: dict[str, Report] = {}

    def test(self, name: str, **how: Any) -> Report:
        target = name if ":" in name else f"{SHOPS}:{name}"
        return crashtest(target, "Buy tea.", processes=self._processes, **how)

    def at(self, point: str, name: str) -> tuple[Report, Case]:
        """Killed at one point only."""
        report = self.test(name, at=point)
        (case,) = report.cases
        return report, case

    def report(self, name: str) -> Report:
        """One whole crash test for all who only look at its report."""
        if name not in self._reports:
            self._reports[name] = self.test(name)
        return self._reports[name]


@pytest.fixture(scope="module")
def crasher() -> Iterator[Crasher]:
    with Processes(2) as processes:
        yield Crasher(processes)


def killed_unsafely(report: Report) -> list[str]:
    return [case.name for case in report.cases if case.verdict == "unsafe"]


def payments(directory: Path) -> list[str]:
    ledger = directory / "scratch" / "payments.txt"
    return ledger.read_text().splitlines() if ledger.exists() else []


def test_a_payment_that_declares_nothing_is_found_where_its_result_is_not_yet_saved(
    crasher: Crasher,
) -> None:
    report = crasher.report("undeclared")
    assert not report.safe
    assert killed_unsafely(report) == [UNSAVED]
    (tool,) = report.tools
    assert (tool.name, tool.effect, tool.calls, tool.starts_most) == ("pay", None, 1, 2)
    with pytest.raises(AssertionError, match=r"pay .* would silently run twice(.|\n)*effect="):
        report.assert_safe()


def test_every_commit_is_a_place_to_die_before_and_after(crasher: Crasher) -> None:
    assert [case.name for case in crasher.report("undeclared").cases] == [
        f"{moment} commit {number} ({events})"
        for number, events in enumerate(
            [
                "run_start",
                "generation, tool_call pay",
                "tool_result pay",
                "generation, message, run_end",
            ],
            1,
        )
        for moment in ("before", "after")
    ]


def test_tokens_paid_again_for_a_turn_given_up_are_told_and_are_no_fault(crasher: Crasher) -> None:
    cases = crasher.report("undeclared").cases
    assert {case.name: case.paid_again for case in cases if case.paid_again} == {
        "after commit 2 (generation, tool_call pay)": 15,
        UNSAVED: 15,
    }
    assert "usage" not in str(crasher.report("undeclared"))


def test_a_run_that_was_killed_before_its_first_commit_has_lost_nothing(crasher: Crasher) -> None:
    first = crasher.report("undeclared").cases[0]
    assert (first.status, first.verdict) == ("no run", "safe")


def test_reconcile_mends_the_payment_and_each_case_pays_once(
    crasher: Crasher, tmp_path: Path
) -> None:
    report = crasher.test("reconciled", keep=tmp_path)
    report.assert_safe()
    assert report.in_doubt == ()
    paid = {each.name: payments(each) for each in tmp_path.iterdir() if each.is_dir()}
    assert {"first", "second", "before-commit-3", "after-commit-2"} <= paid.keys()
    assert paid.pop("before-commit-1") == []
    assert {len(each) for each in paid.values()} == {1}


def test_the_model_is_asked_in_the_first_run_only(crasher: Crasher, tmp_path: Path) -> None:
    crasher.test("reading", keep=tmp_path, at="after commit 2")
    asked = [each.parent.parent.name for each in tmp_path.glob("*/scratch/model_was_asked")]
    assert asked == ["first"]


def test_a_module_is_found_where_the_test_itself_would_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "src" / "bazaar"
    package.mkdir(parents=True)
    (package / "stalls.py").write_text(SHOPS.read_text())
    monkeypatch.syspath_prepend(tmp_path / "src")
    with Processes(1) as processes:
        found = crashtest("bazaar.stalls:chatting", "Hi.", processes=processes, at="after commit 1")
    assert found.safe


def test_a_paid_model_is_paid_for_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the network, as a user has it: two requests for two turns, however often the run is killed."""
    with FakeServer([calls(("pay", {"amount": 5})), "Paid."]) as server, Processes(1) as processes:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "test")
        found = crashtest(f"{SHOPS}:bought", "Pay.", processes=processes, at="after commit 2")
        assert found.safe
        assert len(server.requests) == 2


def test_live_asks_the_agents_own_model_in_every_run(crasher: Crasher) -> None:
    assert crasher.test("steady", live=True, at="after commit 2").safe


def test_a_tool_that_only_reads_may_run_again(crasher: Crasher) -> None:
    report, case = crasher.at(UNSAVED, "reading")
    assert report.safe
    assert [again.starts for again in case.again] == [2]


def test_an_idempotent_tool_mends_the_payment_and_its_own_store_is_named(crasher: Crasher) -> None:
    report, case = crasher.at(UNSAVED, "idempotent")
    assert report.safe
    assert [again.starts for again in case.again] == [2]
    assert report.notes == ("Tested on a SQLiteStore; the agent's own is a FileStore.",)


def test_a_once_tool_that_cannot_be_asked_is_in_doubt_and_not_unsafe(crasher: Crasher) -> None:
    report, case = crasher.at(UNSAVED, "blind")
    assert report.safe
    assert (report.in_doubt, case.verdict, case.again) == (("pay",), "in doubt", ())
    assert report.tools[0].verdict == "in doubt"
    assert "reconcile(ctx) that finds out" in str(report)


def test_a_run_that_parks_in_doubt_is_no_breach(crasher: Crasher) -> None:
    report, case = crasher.at(UNSAVED, "parking")
    assert report.safe
    assert (case.status, case.verdict) == ("paused", "in doubt")


def test_a_reconcile_that_denies_what_has_happened_is_found(crasher: Crasher) -> None:
    report, case = crasher.at(UNSAVED, "lying")
    assert case.verdict == "unsafe"
    assert "took effect twice" in str(report)


def test_rewinding_a_tool_that_wants_its_key_back_is_found(crasher: Crasher) -> None:
    report, case = crasher.at(UNSAVED, "rewinding")
    assert case.verdict == "unsafe"
    assert "another idempotency key" in str(report)


def test_a_run_that_waits_for_a_person_is_a_run_that_can_be_compared(crasher: Crasher) -> None:
    report, case = crasher.at("before commit 2", "approving")
    assert report.safe
    assert (report.status, case.status) == ("paused", "paused")


def test_with_consent_given_what_follows_is_tested_too(crasher: Crasher) -> None:
    consented = crasher.test("approving", approve=True, at="before commit 3")
    assert consented.cases[0].name == "before commit 3 (approval pay)"
    assert (consented.status, consented.cases[0].status) == ("completed", "completed")
    paid = crasher.test("approving", approve=True, at="before commit 6")
    assert paid.cases[0].name == "before commit 6 (tool_result pay)"
    assert (paid.cases[0].verdict, paid.cases[0].again) == ("in doubt", ())


def test_what_a_tool_keeps_in_memory_is_missed_after_the_crash(crasher: Crasher) -> None:
    report, case = crasher.at("after commit 3", "forgetful")
    assert case.verdict == "unsafe"
    assert "cart answered '[]', not '[\"tea\"]', after the crash" in str(report)
    assert "does it keep something in the process's memory?" in str(report)


def test_of_calls_side_by_side_each_return_is_a_place_to_die(crasher: Crasher) -> None:
    report = crasher.report("busy")
    assert report.safe, report
    names = [case.name for case in report.cases]
    assert sum(name.startswith("after return") for name in names) == 3
    assert "Answers differently each time, also without a crash: now." in report.notes


def test_the_resuming_process_can_be_killed_as_well(crasher: Crasher) -> None:
    report = crasher.test("chatting", at="after commit 1", kills=2)
    assert report.safe
    then = [case.killed for case in report.cases]
    assert then == [
        ("after commit 1 (run_start)",),
        ("after commit 1 (run_start)", "before commit 1 (run_start)"),
        ("after commit 1 (run_start)", "after commit 1 (run_start)"),
        ("after commit 1 (run_start)", "before commit 2 (generation, message, run_end)"),
        ("after commit 1 (run_start)", "after commit 2 (generation, message, run_end)"),
    ]


@pytest.mark.parametrize(
    ("name", "error", "told"),
    [
        ("quitting", CrashtestFailedError, "ended with exit code 7"),
        ("failing", CrashtestFailedError, "ConnectionError: the provider is down"),
        ("missing", ConfigError, "has no 'missing'"),
        ("CART", ConfigError, "is of type list, not an Agentor"),
    ],
)
def test_an_agent_that_does_not_run_uncrashed_is_an_error_that_says_why(
    crasher: Crasher, name: str, error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        crasher.test(name)


def test_a_module_that_cannot_be_imported_says_so(crasher: Crasher, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import no_such_module_anywhere")
    with pytest.raises(CrashtestFailedError, match="ModuleNotFoundError"):
        crasher.test(f"{tmp_path / 'broken.py'}:agent")


def test_an_agent_that_never_ends_is_ended(crasher: Crasher) -> None:
    with pytest.raises(CrashtestFailedError, match=r"did not end within 0.5 s: allow it more time"):
        crasher.test("waiting", timeout_s=0.5)


def test_a_model_that_differs_by_itself_cannot_be_tested_live(crasher: Crasher) -> None:
    with pytest.raises(CrashtestFailedError, match="two runs differ without any crash"):
        crasher.test("fickle", live=True)


def test_a_point_that_the_run_never_comes_to_is_wrong_usage(crasher: Crasher) -> None:
    with pytest.raises(ConfigError, match="never came to 'after commit 9'"):
        crasher.test("chatting", at="after commit 9")
