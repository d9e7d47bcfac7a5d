"""Numbers that a foreign log calls times, and that are none: every verb tells of the run all the same."""

from __future__ import annotations

import pytest
from stored_runs import BODIES, Program, write

from agentor.cli.deciding import _since
from agentor.cli.overview import STATUSES

NO_TIMES = [10**400, -(10**400), 1.7e308, -1.7e308, 0]


def _short(number: float | None) -> str:
    return str(number)[:8]


@pytest.mark.parametrize("began", NO_TIMES, ids=_short)
@pytest.mark.parametrize("ended", [*NO_TIMES, None], ids=_short)
def test_a_run_is_shown_whatever_its_log_calls_a_time(
    program: Program, began: float, ended: float | None
) -> None:
    times = {"started_at": began} if ended is None else {"started_at": began, "ended_at": ended}
    write(
        "runs/", "odd", [{**body, **times} for body in BODIES if ended or body["type"] != "run_end"]
    )
    for words in (["runs"], ["show", "odd"], ["show", "odd", "--json"], ["verify"]):
        result = program(*words, "--store", "runs/")
        assert result.exit_code == 0
        assert result.stderr == ""
        assert ("odd" in result.stdout) == (words != ["verify"])


@pytest.mark.parametrize("since", NO_TIMES, ids=_short)
def test_a_question_is_shown_whatever_its_log_calls_a_time(since: float) -> None:
    assert _since(since).startswith("since ")


@pytest.mark.parametrize("status", STATUSES)
def test_only_an_unfinished_run_has_taken_so_long_so_far(
    program: Program, store_path: str, status: str
) -> None:
    end = [] if status == "unfinished" else [{"type": "run_end", "status": status}]
    write(store_path, "run", [*BODIES[:-1], *end])
    for words in (["runs"], ["show", "run"]):
        shown = program(*words, "--store", store_path).stdout
        assert ("so far" in shown) == (status == "unfinished")
