"""Real agents in real processes, killed for real at every commit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import pytest

from agentor import SQLiteStore
from agentor.crashtest.evidence import load
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
        for role in {"setup", "check"} & how.keys():
            how[role] = how[role] if ":" in how[role] else f"{SHOPS}:{how[role]}"
        return crashtest(target, "Buy tea.", processes=self._processes, **how)

    def at(self, point: str, name: str, **how: Any) -> tuple[Report, Case]:
        """Killed at one point only."""
        report = self.test(name, at=point, **how)
        (case,) = report.cases
        return report, case

    def report(self, name: str) -> Report:
        """One whole crash test for all who only look at its report."""
        if name not in self._reports:
            self._reports[name] = self.test(name)
        return self._reports[name]


@pytest.fixture(scope="module")
def crasher(processes: Processes) -> Crasher:
    return Crasher(processes)


@dataclass(frozen=True)
class Elsewhere:
    """Processes of another environment: with a model on the network, a module to be imported, and a plain locale."""

    processes: Processes
    server: FakeServer


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    source = tmp_path_factory.mktemp("src")
    (source / "bazaar").mkdir()
    (source / "bazaar" / "stalls.py").write_text(SHOPS.read_text())
    replies = [calls(("pay", {"amount": 5})), "Paid."]
    with FakeServer(replies) as server, pytest.MonkeyPatch.context() as changed:
        changed.syspath_prepend(source)
        changed.setenv("OPENAI_BASE_URL", server.base_url)
        changed.setenv("OPENAI_API_KEY", "test")
        changed.setenv("PYTHONIOENCODING", "ascii")
        with Processes(1) as processes:
            yield Elsewhere(processes, server)


def killed_unsafely(report: Report) -> list[str]:
    return [case.name for case in report.cases if case.verdict == "unsafe"]


def run_id_of(directory: Path) -> str:
    with SQLiteStore(directory / "runs.db") as store:
        (run_id,) = store.list_runs()
    return run_id


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


def test_a_tool_that_works_in_a_call_of_its_own_is_found_like_any_other(crasher: Crasher) -> None:
    report, case = crasher.at(UNSAVED, "in_call")
    (tool,) = report.tools
    assert (tool.calls, tool.starts_most, tool.verdict) == (1, 2, "unsafe")
    assert [again.starts for again in case.again] == [2]


def test_a_tool_whose_work_nobody_can_see_is_never_called_safe(
    crasher: Crasher, tmp_path: Path
) -> None:
    report = crasher.test("hiding", keep=tmp_path, at=UNSAVED)
    assert len(payments(tmp_path / "before-commit-3")) == 2
    (tool,) = report.tools
    assert (tool.calls, tool.verdict, tool.unseen_in) == (0, "unsafe", 1)
    with pytest.raises(AssertionError, match="has a result, and nobody saw it start"):
        report.assert_safe()
    assert report.notes == ()


def test_a_process_that_somebody_else_kills_is_a_case_and_a_problem(crasher: Crasher) -> None:
    report = crasher.test("hunted")
    assert len(report.cases) == 8
    assert "the process was ended by SIGKILL, and not by the crash test" in str(report)
    assert "(it was to be killed before commit 3)" in str(report)
    assert not report.safe


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


def test_a_module_is_found_where_the_test_itself_would_find_it(elsewhere: Elsewhere) -> None:
    found = crashtest(
        "bazaar.stalls:chatting", "Hi.", processes=elsewhere.processes, at="after commit 1"
    )
    assert found.safe


def test_what_the_user_says_arrives_whatever_the_locale_can_write(
    elsewhere: Elsewhere, tmp_path: Path
) -> None:
    said, keep = "Zwölf Brötchen, bitte \u2028 👋", tmp_path / "Brötchen"
    how = {"processes": elsewhere.processes, "at": "after commit 1", "keep": keep}
    assert crashtest(f"{SHOPS}:chatting", said, **how).safe
    (asked, *_) = load(keep / "first", run_id_of(keep / "first"))[0].messages or []
    assert asked["content"] == said


def test_a_paid_model_is_paid_for_one_run(elsewhere: Elsewhere) -> None:
    """Over the network, as a user has it: two requests for two turns, however often the run is killed."""
    found = crashtest(f"{SHOPS}:bought", "Pay.", processes=elsewhere.processes, at="after commit 2")
    assert found.safe
    assert len(elsewhere.server.requests) == 2


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


def test_a_reconcile_that_raises_is_told_and_not_wished_for(crasher: Crasher) -> None:
    report, case = crasher.at(UNSAVED, "unreachable")
    assert (report.safe, case.status, case.reconcile_failed) == (True, "paused", ("pay",))
    assert "pay: its reconcile failed: ZeroDivisionError" in str(report)
    assert "Its reconcile, which failed, could settle it" in str(report)
    assert "A reconcile(ctx)" not in str(report)


def test_a_reconcile_that_answers_no_verdict_is_a_problem(crasher: Crasher) -> None:
    report, case = crasher.at(UNSAVED, "affirming")
    assert case.verdict == "unsafe"
    assert "- pay: TypeError: reconcile answers Happened(result)" in str(report)


@pytest.mark.parametrize("name", ["lying", "clearing"])
def test_a_reconcile_that_denies_what_has_happened_is_found(crasher: Crasher, name: str) -> None:
    report, case = crasher.at(UNSAVED, name)
    assert case.verdict == "unsafe"
    assert "took effect twice" in str(report)


def test_a_reconcile_that_claims_what_never_was_is_found(crasher: Crasher, tmp_path: Path) -> None:
    """Killed when the call was claimed and nobody had begun it: the payment is told of, and never made."""
    report = crasher.test("claiming", at="after commit 2", keep=tmp_path)
    (case,) = report.cases
    assert payments(tmp_path / "after-commit-2") == []
    assert (case.verdict, report.tools[0].verdict) == ("unsafe", "unsafe")
    assert 'reconcile said that a call had happened which never ran: pay {"amount":5}' in str(
        report
    )
    assert "a call in doubt may never have begun" in str(report)


def test_a_once_tool_that_pays_and_then_raises_has_paid_twice(
    crasher: Crasher, tmp_path: Path
) -> None:
    report = crasher.test("raising", at=UNSAVED, keep=tmp_path)
    assert len(payments(tmp_path / "before-commit-3")) == 2
    assert report.cases[0].verdict == "unsafe"
    assert "came to its end twice" in str(report)


def test_a_committed_transaction_that_is_rewound_is_found(crasher: Crasher, tmp_path: Path) -> None:
    committed = "after commit 3 (tool_result note)"
    report = crasher.test("noting", at=committed, keep=tmp_path)
    (case,) = report.cases
    file = apsw.Connection(str(tmp_path / "after-commit-3" / "runs.db"))
    assert file.execute("SELECT text FROM note").fetchall() == [("tea",), ("tea",)]
    file.close()
    assert (case.name, case.verdict) == (committed, "unsafe")
    assert 'note {"text":"tea"} was committed twice' in str(report)
    assert "leave out half_finished='rewind'" in str(report)


def test_an_answer_that_varies_anyhow_must_still_be_an_answer_after_the_crash(
    crasher: Crasher,
) -> None:
    report, case = crasher.at("before commit 3", "stamping")
    assert report.notes == ("Answers differently each time, also without a crash: stamp.",)
    assert case.verdict == "unsafe"
    assert "stamp fails: it answered 'Error: RuntimeError: stale" in str(report)


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
    assert report.parallel
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
        ("unplugged", CrashtestFailedError, "Connection error. The server is 127.0.0.1:9."),
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


def test_tools_that_fail_anyhow_are_told_and_not_called_tested(crasher: Crasher) -> None:
    report = crasher.test("tableless", at=UNSAVED)
    assert "pay fails without a crash, too: it answered 'Error: " in str(report)
    assert (report.tools[0].verdict, report.tested, report.safe) == ("failed", False, True)


def test_calls_that_nobody_can_make_are_told_as_such(crasher: Crasher) -> None:
    report = crasher.test("mistaken", at="after commit 1")
    unknown, unfit, nothing = report.notes
    assert unfit.startswith("pay fails without a crash, too")
    assert "there is no tool 'nosuch'" in unknown
    assert "no call could be made as the model asked" in nothing


# The functions of the user's: setup and check ---------------------------------------------------------------------


def test_each_run_is_given_what_it_needs_before_it_begins_and_once(
    crasher: Crasher, tmp_path: Path
) -> None:
    report = crasher.test("tableless", setup="make_orders", at=UNSAVED, keep=tmp_path)
    assert (report.safe, report.tested, report.notes) == (True, True, ())
    for name in ("first", "second", "before-commit-3"):
        scratch = tmp_path / name / "scratch"
        assert Path((scratch / "stock.txt").read_text()) == scratch.resolve()
        file = apsw.Connection(str(tmp_path / name / "runs.db"))
        assert file.execute("SELECT amount FROM orders").fetchall() == [(5,)]
        file.close()


def test_a_declaration_is_held_against_what_the_service_saw(crasher: Crasher) -> None:
    """The tool says that a second start is dropped, and nobody drops it."""
    assert crasher.test("deaf", at=UNSAVED).safe
    report = crasher.test("deaf", at=UNSAVED, check="paid")
    assert not report.safe
    assert '- check finds \'["5", "5"]\', not \'["5"]\'' in str(report)
    report = crasher.test("deaf", at=UNSAVED, check="paid_at_most_once")
    assert "paid_at_most_once raised AssertionError: paid 2 times" in str(report)


def test_a_check_that_finds_what_it_found_is_content(crasher: Crasher) -> None:
    for how in ({"at": UNSAVED}, {"at": "before commit 1"}):
        assert crasher.test("idempotent", check="paid", **how).safe


def test_what_a_check_finds_otherwise_where_a_call_is_in_doubt_is_told(crasher: Crasher) -> None:
    """Killed when the call was claimed and nobody had begun it: that it was not paid is what the doubt says."""
    report, case = crasher.at("after commit 2", "blind", check="paid")
    assert (case.verdict, case.notes) == ("in doubt", ("check finds '[]', not '[\"5\"]'",))
    report, _ = crasher.at(UNSAVED, "blind", check="paid")
    assert "check" not in str(report)


@pytest.mark.parametrize(
    ("how", "error", "told"),
    [
        ({"setup": "break_down"}, CrashtestFailedError, "break_down raised SystemExit: no disk"),
        ({"setup": "SERVICE"}, ConfigError, r"setup: .*:SERVICE is no function `def setup\("),
        ({"check": "no_such"}, ConfigError, "check: .*:no_such is no function"),
        ({"check": "paid_never"}, CrashtestFailedError, "without any crash, check .*paid_never"),
        ({"check": "fail_in_silence"}, CrashtestFailedError, "check: the process ended with exit"),
        (
            *({"check": "key_of_the_payment"}, CrashtestFailedError),
            "two runs differ without any crash, .*: check finds",
        ),
    ],
)
def test_a_setup_or_check_that_does_not_work_without_a_crash_says_why(
    crasher: Crasher, how: dict[str, Any], error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        crasher.test("reading", at=UNSAVED, **how)


LOADED = """
import os
from agentor import Agentor
from agentor.testing import ScriptedModel

with open(os.environ["AGENTOR_CRASHTEST_DIR"] + "/loaded", "a") as file:
    file.write("once ")
agent = Agentor("Hello", model=ScriptedModel(["Hello."]))
"""


def test_a_module_that_the_setup_imports_is_not_run_again_for_the_agent(
    crasher: Crasher, tmp_path: Path
) -> None:
    (tmp_path / "hello_app.py").write_text(LOADED)
    (tmp_path / "before.py").write_text("import hello_app\n\ndef prepare(store, scratch): ...\n")
    kept = tmp_path / "kept"
    how: dict[str, Any] = {"setup": f"{tmp_path / 'before.py'}:prepare", "keep": kept}
    crasher.test(f"{tmp_path / 'hello_app.py'}:agent", at="after commit 1", **how)
    assert (kept / "first" / "scratch" / "loaded").read_text() == "once "
