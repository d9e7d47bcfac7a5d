"""What a crash test found."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, TypeAlias

from agentor.crashtest.quoting import counted

Verdict: TypeAlias = Literal["safe", "in doubt", "unsafe"]
ToolVerdict: TypeAlias = Verdict | Literal["failed", "not called"]

MEND: Final[Mapping[str | None, str]] = {
    None: 'declare what a second start would do: effect="read" if it changes nothing, "idempotent" if whoever it calls '
    'drops a ctx.idempotency_key that it has seen, "transactional" if it writes through ctx.db, "once" with a reconcile '
    "if it must not be started twice",
    "idempotent": "let the half-finished batch be settled, not rewound: leave out half_finished='rewind'",
    "transactional": "let the half-finished batch be settled, not rewound: leave out half_finished='rewind'",
    "once": "let the half-finished batch be settled, not rewound, and let reconcile(ctx) find what had happened, and "
    "only that: a call in doubt may never have begun, and one that failed may have taken effect before",
}

_OUTLIVED: Final = (
    "Not tested, for this time the run ended before it came there: {}. Which results are committed together can differ from "
    "run to run"
)
_TOLD: Final = "the model or a person is told so"
_SETTLED: Final = {
    False: "A reconcile(ctx) that finds out what became of the call would settle it",
    True: "Its reconcile, which failed, could settle it",
}


@dataclass(frozen=True, slots=True)
class Again:
    """A call that was started more often than in the uninterrupted run."""

    tool: str
    args: str  # as JSON
    effect: str | None
    starts: int
    harmful: bool


@dataclass(frozen=True, slots=True)
class Case:
    """One run that was killed, once or more, and resumed. `killed` says where; empty: it lived to its end.

    `problems` make it unsafe; `notes` do not. `paid_again`: tokens of answers that had to be asked for again.
    """

    killed: tuple[str, ...]
    status: str  # of the run; "no run": nothing was saved, so there is nothing to lose
    again: tuple[Again, ...] = ()
    in_doubt: tuple[str, ...] = ()  # tools whose call may have happened, as the log says itself
    never_ran: tuple[str, ...] = ()  # tools whose call is answered as if it had, by their reconcile
    paid_again: int = 0
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()  # tools whose call has a result, and whose start nobody saw
    missed: str = ""  # where it was still to be killed, and had come to an end
    starts: Mapping[str, int] = field(default_factory=dict)  # of each tool, by all processes
    reconcile_failed: tuple[str, ...] = ()  # tools that could not be asked about a call in doubt
    run_id: str = ""
    directory: str = ""  # its name in the one that is kept
    seconds: float = 0.0  # that its processes took

    @property
    def verdict(self) -> Verdict:
        if self.problems:
            return "unsafe"
        return "in doubt" if self.in_doubt else "safe"

    @property
    def name(self) -> str:
        return self._named(self.killed)

    @property
    def points(self) -> str:
        """`name` without what was in the commits, which tells it apart from all others."""
        return self._named(self.points_killed)

    def _named(self, kills: Sequence[str]) -> str:
        missed = [f"not {self.missed}"] if self.missed else []
        return ", then ".join([*kills, *missed]) or "not killed"

    @property
    def points_killed(self) -> list[str]:
        return [text.partition(" (")[0] for text in self.killed]


@dataclass(frozen=True, slots=True)
class ToolReport:
    """One tool, over all cases. `calls` and `starts_most` are of a whole run: the uninterrupted one, and the one that
    started the tool most often.

    `verdict` is about its starts alone. What it answers is compared in the cases, and may make one of them unsafe.
    "failed": it did nothing but fail in the uninterrupted run, so what it does was not tested.
    """

    name: str
    effect: str | None
    calls: int  # in the uninterrupted run
    starts_most: int
    again_in: int  # cases in which it was started again
    in_doubt_in: int
    verdict: ToolVerdict
    unseen_in: int = 0  # cases in which nobody saw it start: then the numbers are too small

    @property
    def mend(self) -> str | None:
        """What to do about it."""
        return MEND.get(self.effect) if self.verdict == "unsafe" and not self.unseen_in else None


@dataclass(frozen=True)
class Report:
    """All of it. `str(report)` is what a failing test shows."""

    target: str
    agent: str
    status: str  # of the uninterrupted run
    answer: str | None
    usage: Mapping[str, int]
    tools: tuple[ToolReport, ...]
    cases: tuple[Case, ...]
    notes: tuple[str, ...] = ()
    outlived: tuple[str, ...] = ()  # points that a run was to be killed at, and did not come to
    parallel: bool = (
        False  # calls were under way together: what a commit holds depends on who is first
    )

    @property
    def tested(self) -> bool:
        """Whether some tool did its work in the uninterrupted run. If not, a crash could do no harm."""
        return any(tool.verdict not in ("failed", "not called") for tool in self.tools)

    @property
    def safe(self) -> bool:
        """No tool would silently run twice or ran unseen, and status, answer, usage and conversation are those of the uninterrupted
        run. A call of a `once` tool whose outcome is not known, and told as such, is no breach."""
        return not any(case.problems for case in self.cases)

    @property
    def in_doubt(self) -> tuple[str, ...]:
        """The tools that had a call in doubt in some case."""
        return tuple(dict.fromkeys(tool for case in self.cases for tool in case.in_doubt))

    def assert_safe(self) -> None:
        """`AssertionError` with all that was found, if it is not safe."""
        if not self.safe:
            raise AssertionError(f"{self.target} does not survive every crash\n{self}")

    def to_dict(self) -> dict[str, Any]:
        return {
            "safe": self.safe,
            "tested": self.tested,
            "target": self.target,
            "agent": self.agent,
            "status": self.status,
            "answer": self.answer,
            "usage": dict(self.usage),
            "in_doubt": list(self.in_doubt),
            "tools": [{**asdict(tool), "mend": tool.mend} for tool in self.tools],
            "cases": [{"verdict": case.verdict, **asdict(case)} for case in self.cases],
            "notes": list(self.notes),
            "outlived": list(self.outlived),
        }

    def findings(self) -> list[str]:
        """The problems, each once and with where it was found; then how to mend them."""
        lines = _each_once((problem, case) for case in self.cases for problem in case.problems)
        return [*lines, *(f"{tool.name}: {tool.mend}" for tool in self.tools if tool.mend)]

    def remarks(self) -> list[str]:
        """What is worth knowing and no problem."""
        failed = {tool for case in self.cases for tool in case.reconcile_failed}
        return [
            *_each_once((note, case) for case in self.cases for note in case.notes),
            *(f"{tool}: in doubt; {_TOLD}. {_SETTLED[tool in failed]}" for tool in self.in_doubt),
            *self.notes,
            *([_OUTLIVED.format(_some(self.outlived))] if self.outlived else ()),
        ]

    def summary(self) -> str:
        bad = sum(bool(case.problems) for case in self.cases)
        doubts = f"; in doubt, and told so: {', '.join(self.in_doubt)}" if self.in_doubt else ""
        verdict = f"{bad} not safe" if bad else self._harmless()
        return f"{counted(len(self.cases), 'crash', 'crashes')}: {verdict}{doubts}."

    def _harmless(self) -> str:
        """What is to be said where nothing is wrong: not more than was tried."""
        if self.tools and not self.tested:
            return "nothing wrong, but no tool has done anything that a crash could spoil"
        failed = [tool.name for tool in self.tools if tool.verdict == "failed"]
        untested = (
            f", but for what failed without a crash, too: {', '.join(failed)}" if failed else ""
        )
        until = " up to where it waits for a person" if self.status == "paused" else ""
        return f"all safe{until}{untested}"

    def __str__(self) -> str:
        return "\n".join(
            [*(f"- {line}" for line in self.findings()), *self.remarks(), self.summary()]
        )


def tool_reports(
    effects: Mapping[str, str | None],
    calls: Mapping[str, int],
    cases: Sequence[Case],
    failed: Collection[str] = (),
) -> tuple[ToolReport, ...]:
    """The tools over all cases. `calls`: starts in the uninterrupted run; `failed`: those that only failed in it."""
    return tuple(
        _tool(name, effects[name], calls.get(name, 0), cases, name in failed) for name in effects
    )


def _tool(
    name: str, effect: str | None, calls: int, cases: Sequence[Case], failed: bool
) -> ToolReport:
    again = [each for case in cases for each in case.again if each.tool == name]
    again_in = sum(any(each.tool == name for each in case.again) for case in cases)
    doubts = sum(name in case.in_doubt for case in cases)
    harmful = any(each.harmful for each in again) or any(name in case.never_ran for case in cases)
    starts = max([calls, *(case.starts.get(name, 0) for case in cases)])
    verdict: ToolVerdict = "safe" if starts else "not called"
    if failed:
        verdict = "failed"
    unseen = sum(name in case.unseen for case in cases)
    if harmful or doubts or unseen:
        verdict = "unsafe" if harmful or unseen else "in doubt"
    return ToolReport(name, effect, calls, starts, again_in, doubts, verdict, unseen)


def _each_once(told: Iterable[tuple[str, Case]]) -> list[str]:
    names_of: dict[str, list[str]] = {}
    for text, case in told:
        names_of.setdefault(text, []).append(case.name)
    return [f"{text}\n    killed {_some(names)}" for text, names in names_of.items()]


def _some(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return "; ".join(names[:most]) + more
