"""The crash test itself: run, run again, then kill at every point and resume.

The first run asks the agent's own model; its log answers from then on. The second is not killed either: what differs
between the two differs without any crash. Then one case for each point at which the first run could have died, each in
processes of its own and on a store of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from agentor.crashtest.evidence import Evidence, collect, load
from agentor.crashtest.judging import Reference, not_seen, objection, varying
from agentor.crashtest.noting import failures, notes
from agentor.crashtest.orders import Order, Outcome
from agentor.crashtest.points import Point
from agentor.crashtest.processes import CrashtestFailedError, Ended, Processes
from agentor.crashtest.recorded import open_calls, side_by_side
from agentor.crashtest.replaying import write_replies
from agentor.crashtest.report import Report, tool_reports
from agentor.engine import clock
from agentor.engine import events as ev
from agentor.engine.store.protocol import new_run_id
from agentor.errors import ConfigError

# Told of each case: how many are done, of how many.
Progress: TypeAlias = Callable[[int, int], None]

_COMPARABLE: Final = ("completed", "paused")
_REPLIES: Final = "replies.jsonl"
_MOST_COMMITS: Final = 10_000


@dataclass
class Campaign:
    """One crash test, with all that it needs."""

    directory: Path
    target: str
    input: Any
    live: bool
    approve: bool
    timeout_s: float
    setup: str | None
    check: str | None
    processes: Processes
    pool: ThreadPoolExecutor
    progress: Progress | None
    done: int = 0
    expected: int = 0

    def report(self, kills: int, only: Point | None) -> Report:
        first, outcome = self._first()
        reference = self._reference(first, outcome)
        runs = self._killed_once(reference) if only is None else self._killed_at(only)
        if kills == 2:
            runs += self._killed_twice(runs)
        cases, outlived = reference.judge_all(runs)
        calls = Counter(mark.tool or "" for mark in first.marks if mark.kind == "start")
        return Report(
            target=self.target,
            outlived=outlived,
            agent=outcome.agent,
            status=first.state.status or "",
            answer=first.state.text,
            usage=first.state.usage.to_dict(),
            tools=tool_reports(outcome.effects, calls, cases, _failed(first)),
            cases=cases,
            notes=tuple(notes(first, reference, outcome)),
            parallel=bool(side_by_side(first.log)),
        )

    # Without a crash ----------------------------------------------------------------------------------------------

    def _first(self) -> tuple[Evidence, Outcome]:
        first = self._play("first")
        ended = first.processes[0]
        _raise_failure(ended, self.timeout_s, self.target)
        assert ended.outcome is not None
        status = first.state.status
        if status not in _COMPARABLE:
            raise CrashtestFailedError(
                f"the uninterrupted run ends {status!r} ({first.state.error}): a crash test needs one that completes "
                "or waits for a person"
            )
        if first.check is not None and (reason := objection(first.check, self.timeout_s)):
            raise CrashtestFailedError(f"without any crash, {reason}")
        write_replies(first.log, self.directory / _REPLIES)
        return first, ended.outcome

    def _reference(self, first: Evidence, outcome: Outcome) -> Reference:
        second = self._play("second")
        _raise_failure(second.processes[0], self.timeout_s, self.target)
        differing = varying(first, second)
        reference = Reference(first, outcome.effects, self.timeout_s, differing, self.live)
        unseen = set(map(not_seen, reference.unseen(second)))  # that is no difference
        if problems := [p for p in reference.judge(second).problems if p not in unseen]:
            raise CrashtestFailedError(
                "two runs differ without any crash, so there is nothing to compare: "
                + "; ".join(problems)
            )
        return reference

    # With crashes -------------------------------------------------------------------------------------------------

    def _killed_once(self, reference: Reference) -> list[Evidence]:
        first = reference.run
        points = list(_points(first, 1))
        runs = self._play_all([[point] for point in points])
        commits = first.count("commit")
        while commits < _MOST_COMMITS:  # until one lives to its end
            commits += 1
            (probe,) = self._play_all([[Point("before commit", commits)]])
            if probe.outlived:
                break
            runs.append(probe)
            if not probe.kills():
                break
            runs += self._play_all([[Point("after commit", commits)]])
        return sorted(runs, key=_place)

    def _killed_at(self, point: Point) -> list[Evidence]:
        (run,) = self._play_all([[point]])
        if run.outlived:
            raise ConfigError(f"the run never came to {str(point)!r}: it has fewer of them")
        return [run]

    def _killed_twice(self, runs: Sequence[Evidence]) -> list[Evidence]:
        plans = [[first, second] for first, run in _by_point(runs) for second in _points(run, 2)]
        return self._play_all(plans)

    def _play_all(self, plans: Sequence[Sequence[Point]]) -> list[Evidence]:
        self.expected += len(plans)
        played = []
        self._tell()
        for evidence in self.pool.map(self._play_plan, plans):
            played.append(evidence)
            self.done += 1
            self._tell()
        return played

    def _tell(self) -> None:
        if self.progress is not None:
            self.progress(self.done, self.expected)

    def _play_plan(self, points: Sequence[Point]) -> Evidence:
        return self._play("-then-".join(point.slug for point in points), points)

    def _play(self, name: str, points: Sequence[Point] = ()) -> Evidence:
        """One run, killed at each of the points in turn, and resumed after each."""
        began = clock.monotonic()
        directory = self.directory / name
        directory.mkdir(mode=0o700)
        run_id, ended, unanswered = new_run_id(), list[Ended](), set[str]()
        for process, point in enumerate([*points, None], 1):
            ended.append(self.processes.obey(self._order(directory, run_id, process, point)))
            if ended[-1].missed is not None:
                break
            unanswered |= open_calls(load(directory, run_id))
        check = self._checked(directory, run_id, ended)
        seconds = clock.monotonic() - began
        return collect(directory, run_id, ended, unanswered if points else set(), check, seconds)

    def _checked(self, directory: Path, run_id: str, ended: Sequence[Ended]) -> Ended | None:
        """Have the user's check look at what the run has left; not if it failed, or nothing of it was saved."""
        last = ended[-1].outcome
        if self.check is None or last is None or last.ending != "ended":
            return None
        order = self._order(directory, run_id, len(ended) + 1, None)
        checked = self.processes.obey(replace(order, check=self.check))
        if checked.outcome is not None and checked.outcome.ending == "config":
            raise ConfigError(checked.outcome.error)
        return checked

    def _order(self, directory: Path, run_id: str, process: int, point: Point | None) -> Order:
        replies = self.directory / _REPLIES
        return Order(
            directory,
            self.target,
            self.input,
            run_id,
            process,
            self.timeout_s,
            point,
            replies if replies.exists() and not self.live else None,
            self.approve,
            self.setup,
        )


def _points(run: Evidence, process: int) -> Iterator[Point]:
    """Where a process that did what this one did can be killed.

    The return of a tool that was called alone is the same moment as that before the commit of its result.
    """
    for number in range(1, run.count("commit", process) + 1):
        yield Point("before commit", number)
        yield Point("after commit", number)
    together = side_by_side(run.log)
    for mark in run.marks:
        if mark.kind == "return" and mark.process == process and mark.call_id in together:
            yield Point("after return", mark.number)


def _place(run: Evidence) -> tuple[bool, int, bool]:
    """Where a run stands in the report: by commit, then the returns, then what failed before it was killed."""
    if not run.kills():
        return (True, _MOST_COMMITS, True)
    point = read_point(run.kills()[0])
    return (point.moment == "after return", point.number, point.moment == "after commit")


def _by_point(runs: Iterable[Evidence]) -> Iterator[tuple[Point, Evidence]]:
    for run in runs:
        for killed in run.kills():
            yield read_point(killed), run


def _failed(first: Evidence) -> frozenset[str]:
    """The tools that did nothing but fail in the uninterrupted run."""
    failing = Counter(event.name or "" for event in failures(first))
    answers = Counter(event.name for event in first.log if event.type == ev.TOOL_RESULT)
    return frozenset(name for name, times in failing.items() if times == answers[name])


def _raise_failure(ended: Ended, timeout_s: float, target: str) -> None:
    """Say why there is nothing to compare, if the run did not come to its end."""
    outcome = ended.outcome
    if ended.timed_out:
        raise CrashtestFailedError(
            f"the uninterrupted run of {target} did not end within {timeout_s:g} s: allow it more time (timeout)"
        )
    if outcome is None:
        raise CrashtestFailedError(f"the process of {target} {ended.how}, in the middle of the run")
    if outcome.ending == "config":
        raise ConfigError(outcome.error)
    if outcome.ending == "not loaded":
        raise CrashtestFailedError(outcome.error)
    if outcome.ending != "ended":
        raise CrashtestFailedError(f"the uninterrupted run failed: {outcome.error}")


def read_point(text: str) -> Point:
    """The point that a text names, also as a report names it; else `ConfigError`."""
    try:
        return Point.parse(text.partition(" (")[0])
    except (AttributeError, ValueError):
        raise ConfigError(
            f"{text!r} names no moment: write 'before commit 3', 'after commit 3' or 'after return 2'"
        ) from None
