"""What passes between the processes, and what is handed out in the end, reads as it was written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentor import Agentor, ConfigError, MemoryStore
from agentor.crashtest.crashing import crashtest
from agentor.crashtest.journal import Journal, read_journal
from agentor.crashtest.junit import to_junit
from agentor.crashtest.orders import Order, Outcome
from agentor.crashtest.points import Point
from agentor.crashtest.replaying import ReplayingModel, read_replies, write_replies
from agentor.crashtest.report import Again, Case, Report, tool_reports
from agentor.errors import ModelError
from agentor.testing import ScriptedModel, calls, says

POINTS = st.builds(
    Point,
    st.sampled_from(["before commit", "after commit", "after return"]),
    st.integers(1, 10_000),
)


@given(POINTS)
def test_a_point_is_named_as_it_is_read(point: Point) -> None:
    assert Point.parse(str(point)) == point


@pytest.mark.parametrize("text", ["", "before", "before commit", "before commit 0", "at noon 3"])
def test_what_is_no_point_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no point"):
        Point.parse(text)


@given(POINTS | st.none(), st.text() | st.lists(st.dictionaries(st.text(), st.text())))
def test_an_order_arrives_as_it_was_given(point: Point | None, said: Any) -> None:
    order = Order(Path("somewhere"), "app.py:agent", said, "r", 2, 1.5, point, Path("replies"))
    line = order.to_json()
    assert Order.from_json(line) == order
    assert "\n" not in line


def test_an_outcome_is_there_or_not(tmp_path: Path) -> None:
    outcome = Outcome("raised", "no \u2028 such", "A", {"pay": None}, "FileStore")
    assert Outcome.read(tmp_path / "outcome") is None
    outcome.write(tmp_path / "outcome")
    assert Outcome.read(tmp_path / "outcome") == outcome


def test_a_torn_line_of_a_journal_was_not_reached(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    assert read_journal(path) == []
    Journal(path, 1).write("start", 1, tool="pay", args='{"to":"\u2028"}')
    Journal(path, 2).write("return", 1, tool="pay", failed=True)
    with path.open("a") as file:
        file.write('{"process":2,"kind":"com')
    started, returned = read_journal(path)
    assert (started.process, started.kind, started.args) == (1, "start", '{"to":"\u2028"}')
    assert (returned.process, returned.failed) == (2, True)


def look(city: str) -> str:
    """Look."""
    return f"sunny \u2028 in {city}"


SCRIPT = [
    calls(("look", {"city": "Oslo"}), text="Let me see.", reasoning_details=[{"n": 1}]),
    says("", reasoning="hm"),
    says("Sunny.", reasoning="It is."),
]


async def test_a_recorded_model_says_all_that_the_first_one_said(tmp_path: Path) -> None:
    first = Agentor("A", model=ScriptedModel(SCRIPT), tools=[look], store=MemoryStore())
    before = await first.arun("How is Oslo?")
    write_replies(before.events, tmp_path / "replies")
    again = Agentor(
        "A",
        model=ReplayingModel(read_replies(tmp_path / "replies"), "scripted", "scripted"),
        tools=[look],
        store=MemoryStore(),
    )
    after = await again.arun("How is Oslo?")
    kept = [
        {k: v for k, v in event.to_dict().items() if k not in ("started_at", "ended_at", "nonce")}
        for event in after.events
    ]
    assert kept == [
        {k: v for k, v in event.to_dict().items() if k not in ("started_at", "ended_at", "nonce")}
        for event in before.events
    ]


async def test_a_turn_that_nobody_recorded_is_an_error_that_says_so(tmp_path: Path) -> None:
    model = ReplayingModel({}, "m", None)
    with pytest.raises(ModelError, match="goes on where the uninterrupted one did not"):
        await model.complete([{"role": "user", "content": "Hello"}])


def report(*cases: Case) -> Report:
    tools = tool_reports({"pay": None, "idle": "read"}, {"pay": 1}, cases)
    return Report("app.py:agent", "A", "completed", "Done.", {}, tools, cases)


AGAIN = Again("pay", "{}", None, 2, True)
UNSAFE = Case(("before commit 3 (x)",), "completed", (AGAIN,), problems=("pay twice \x1b[31m\x00",))
DOUBT = Case(("after commit 2 (x)",), "paused", in_doubt=("pay",), notes=("it says \ud800 so",))
SAFE = Case(("after commit 1 (x)",), "completed")


def test_a_report_is_as_safe_as_its_worst_case() -> None:
    assert report(SAFE).safe
    assert report(SAFE, DOUBT).safe
    assert not report(SAFE, DOUBT, UNSAFE).safe
    assert [tool.verdict for tool in report(SAFE).tools] == ["safe", "not called"]
    assert [tool.verdict for tool in report(DOUBT).tools] == ["in doubt", "not called"]
    assert [tool.verdict for tool in report(DOUBT, UNSAFE).tools] == ["unsafe", "not called"]


def test_the_same_problem_in_many_cases_is_told_once_and_how_to_mend_it() -> None:
    text = str(report(*[UNSAFE] * 5, DOUBT))
    assert text.count("pay twice") == 1
    assert "and 2 more" in text
    assert "- pay: declare what a second start would do" in text
    assert "6 crashes: 5 not safe; in doubt, and told so: pay." in text


def test_any_text_fits_into_the_xml() -> None:
    suite = ElementTree.fromstring(to_junit(report(SAFE, DOUBT, UNSAFE)))
    assert (suite.get("tests"), suite.get("failures")) == ("3", "1")
    assert [test.get("name") for test in suite.iter("testcase")] == [
        "after commit 1 (x)",
        "after commit 2 (x)",
        "before commit 3 (x)",
    ]
    assert suite.findtext("testcase/system-out") == "in doubt: pay\nit says ? so"


def test_a_test_case_has_the_same_name_whichever_of_two_calls_was_recorded_first() -> None:
    def named(*killed: str) -> tuple[str | None, str | None]:
        parallel = replace(report(Case(killed, "completed")), parallel=True)
        (case,) = ElementTree.fromstring(to_junit(parallel)).iter("testcase")
        return case.get("name"), case.findtext("system-out")

    one = named("before commit 3 (tool_result search)", "after return 2 (pay)")
    other = named("before commit 3 (tool_result pay)", "after return 2 (search)")
    assert one[0] == other[0] == "before commit 3, then after return 2"
    assert one[1] == "killed before commit 3 (tool_result search), then after return 2 (pay)"
    assert named()[0] == "not killed"


@pytest.mark.parametrize(
    ("target", "how", "told"),
    [
        (Agentor("A", model=ScriptedModel([])), {}, "'app.py:agent', not Agentor"),
        ("app.py:agent", {"kills": 3}, "kills is 1 or 2, not 3"),
        ("app.py:agent", {"jobs": 0}, "jobs is a number of processes from 1 to 1,000"),
        ("app.py:agent", {"timeout_s": 0}, "timeout_s is a number of seconds above 0"),
        ("app.py:agent", {"at": "noon"}, "'noon' names no moment"),
        ("app.py:agent", {"at": ["before commit 3"]}, r"\['before commit 3'\] names no moment"),
        ("app.py:agent", {"setup": print}, "setup is the name of a function, such as 'app_test"),
        ("app.py:agent", {"check": "check"}, "check is the name of a function, .* not 'check'"),
        ("app.py:agent", {"input": []}, "message"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_any_process(
    target: Any, how: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        crashtest(target, **{"input": "Hello", **how})


# The verdict says no more than was tried --------------------------------------------------------------------------


def verdict_of(calls: dict[str, int], failed: Any = (), status: str = "completed") -> Report:
    tools = tool_reports({"pay": None, "look": "read"}, calls, [SAFE], failed)
    return Report("app.py:agent", "A", status, "Done.", {}, tools, (SAFE,))


@pytest.mark.parametrize(
    ("calls", "failed", "status", "told", "tested"),
    [
        ({"pay": 1}, (), "completed", "all safe.", True),
        ({}, (), "completed", "nothing wrong, but no tool has done anything", False),
        ({}, (), "paused", "nothing wrong, but no tool has done anything", False),
        ({"pay": 1}, {"pay"}, "completed", "nothing wrong, but no tool has done anything", False),
        (
            *({"pay": 1, "look": 1}, {"pay"}, "completed"),
            *("all safe, but for what failed without a crash, too: pay.", True),
        ),
        ({"pay": 1}, (), "paused", "all safe up to where it waits for a person.", True),
    ],
)
def test_what_was_not_tried_is_not_called_safe(
    calls: dict[str, int], failed: Any, status: str, told: str, tested: bool
) -> None:
    report = verdict_of(calls, failed, status)
    assert f"1 crash: {told}" in report.summary()
    assert (report.safe, report.tested, report.to_dict()["tested"]) == (True, tested, tested)


def test_an_agent_without_tools_is_all_safe() -> None:
    assert Report("a:b", "A", "completed", "", {}, (), (SAFE,)).summary() == "1 crash: all safe."


def test_calls_and_starts_of_a_tool_are_both_of_a_whole_run() -> None:
    """Two calls, each of which is started again in a case of its own: three starts, not two and not four."""
    cases = [replace(SAFE, starts={"look": starts}) for starts in (2, 3, 3)]
    (_, look) = tool_reports({"pay": None, "look": "read"}, {"look": 2}, cases)
    assert (look.calls, look.starts_most) == (2, 3)
