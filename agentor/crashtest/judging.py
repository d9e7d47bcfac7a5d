"""One killed and resumed run beside the uninterrupted one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from agentor.crashtest.evidence import Evidence, failure
from agentor.crashtest.processes import Ended
from agentor.crashtest.quoting import counted, short
from agentor.crashtest.recorded import Asked
from agentor.crashtest.report import Again, Case
from agentor.engine.effects import NO_VERDICT
from agentor.engine.events import Message


@dataclass(frozen=True)
class Reference:
    """The uninterrupted run, and what is known to differ from run to run without any crash."""

    run: Evidence
    effects: Mapping[str, str | None]  # by tool
    timeout_s: float
    varying: frozenset[str] = frozenset()  # calls that are answered differently each time
    live: bool = False  # the model sees what differs, and may answer to it

    @cached_property
    def breaches(self) -> frozenset[str]:
        return frozenset(self.run.breaches())

    @property
    def messages(self) -> list[Message]:
        return self.run.state.messages

    def judge_all(self, runs: Sequence[Evidence]) -> tuple[tuple[Case, ...], tuple[str, ...]]:
        """The cases, and the points that were planned and outlived. A run that outlived one is a case, too, if something is
        wrong with it."""
        cases, outlived = [], []
        for run in runs:
            case, missed = _placed(self.judge(run), run), run.processes[-1].missed
            if missed is not None:
                case = replace(case, missed=str(missed))
            if run.outlived is not None and not case.problems:
                outlived.append(", then ".join([*case.points_killed, case.missed]))
            else:
                cases.append(case)
        return tuple(cases), tuple(outlived)

    def judge(self, case: Evidence) -> Case:
        """What is to be said of a run that was killed and resumed."""
        killed, last = tuple(case.kills()), case.processes[-1]
        again, harms = self._again(case), self._harms_done(case)
        if reason := failure(last, self.timeout_s):
            told = f"resumed, {reason}" if killed else reason
            starts = _by_tool(case)
            return Case(killed, "failed", again, problems=(told, *harms), starts=starts)
        if not case.log:
            return self._nothing_saved(case, killed)
        never_ran = self._never_ran(case)
        doubts = tuple(dict.fromkeys(event.name or "" for event in case.in_doubt()))
        unseen = self.unseen(case)
        problems = [*map(not_seen, unseen), *harms, *map(_denial, never_ran), *self._damage(case)]
        differences, notes = self._differences(case)
        failed = case.failed_reconciles()
        problems += [f"{name}: {reason}" for name, reason in failed if NO_VERDICT in reason]
        failures = [
            f"{name}: its reconcile failed: {r}" for name, r in failed if NO_VERDICT not in r
        ]
        if case.is_parked_in_doubt:
            # That answer and conversation are not whole goes without saying.
            notes, differences = [], []
        elif doubts and self.live:
            notes, differences = notes + differences, []  # they follow from an honest "not known"
        notes += failures
        missed, otherwise = self._checked(case)
        problems += missed
        (notes if doubts else problems).extend(otherwise)
        return Case(
            killed,
            case.state.status or "unfinished",
            again,
            doubts,
            _tools(never_ran),
            max(case.state.usage.total_tokens - self.run.state.usage.total_tokens, 0),
            (*problems, *differences),
            tuple(notes),
            _tools(unseen),
            starts=_by_tool(case),
            reconcile_failed=tuple(dict.fromkeys(name for name, _ in failed)),
        )

    def _nothing_saved(self, case: Evidence, killed: tuple[str, ...]) -> Case:
        """Killed before anything was acknowledged: fine, unless something was done."""
        done = [f"{tool} was called, and nothing of the run was saved" for tool, _ in case.starts()]
        return Case(killed, "no run", problems=tuple(done))

    # Calls --------------------------------------------------------------------------------------------------------

    def _again(self, case: Evidence) -> tuple[Again, ...]:
        usual = self.run.starts()
        return tuple(
            Again(*asked, self.effects.get(asked.tool), starts, self._harm(case, asked) is not None)
            for asked, starts in case.starts().items()
            if starts > usual[asked]
        )

    def _harms_done(self, case: Evidence) -> list[str]:
        return [harm for asked in case.starts() if (harm := self._harm(case, asked)) is not None]

    def _harm(self, case: Evidence, asked: Asked) -> str | None:
        """What the starts of a call have done that its tool says they must not."""
        run, call = self.run, _call(asked)
        match self.effects.get(asked.tool):
            case "read":
                return None
            case "transactional":  # without a result it has written nothing
                return (
                    _COMMITTED.format(call) if _more(case.results(), run.results(), asked) else None
                )
            case "idempotent":
                is_other = len(case.keys(asked)) > len(run.keys(asked))
                return f"{call} ran again under another idempotency key" if is_other else None
            case "once":  # one that had not come to its end may be started, if reconcile says so
                return self._ended_twice(case, asked)
        return _SILENTLY.format(call) if _more(case.starts(), run.starts(), asked) else None

    def _ended_twice(self, case: Evidence, asked: Asked) -> str | None:
        if not _more(case.ends(), self.run.ends(), asked):
            return None
        if _more(case.returns(), self.run.ends(), asked):
            return f"{_call(asked)} took effect twice, although it is declared as once"
        return _ENDED.format(_call(asked))

    def _never_ran(self, case: Evidence) -> list[Asked]:
        """The calls that are answered as if they had happened, and were never started."""
        unseen = self.unseen(case)
        return [asked for asked in case.never_ran() if asked not in unseen]

    def unseen(self, case: Evidence) -> list[Asked]:
        """The calls that have a result and no start, and no `reconcile` to have said so: they hide from the watch."""
        usual = self.run.never_ran()
        return [
            asked
            for asked in case.never_ran()
            if usual[asked] or self.effects.get(asked.tool) != "once"
        ]

    def _checked(self, case: Evidence) -> tuple[list[str], list[str]]:
        """What the user's check objects to, and what it finds otherwise than in the uninterrupted run."""
        if case.check is None:
            return [], []
        if reason := objection(case.check, self.timeout_s):
            return [reason], []
        found, usual = _found(case), _found(self.run)
        return [], [f"check finds {short(found)}, not {short(usual)}"] if found != usual else []

    # The log ------------------------------------------------------------------------------------------------------

    def _damage(self, case: Evidence) -> list[str]:
        fresh = [breach for breach in case.breaches() if breach not in self.breaches]
        found = [f"the conversation is not legal: {breach}" for breach in fresh]
        told, used = case.state.usage, case.usage_of_the_answers()
        if told != used:
            counts = f"{told.total_tokens} tokens, and its answers took {used.total_tokens}"
            found.append(f"the usage that the run tells is {counts}")
        return found

    def _differences(self, case: Evidence) -> tuple[list[str], list[str]]:
        """What is not as in the uninterrupted run: what must be, and what need not."""
        before, after = self.run.state, case.state
        problems: list[str] = []
        notes: list[str] = []
        if before.status != after.status:
            error = f" ({after.error})" if after.error else ""
            problems.append(
                f"the run ends {after.status or 'unfinished'}{error}, not {before.status}"
            )
        if before.text != after.text:
            problems.append(f"the answer is {short(after.text)}, not {short(before.text)}")
        usual, used = self.run.usage_of_the_conversation(), case.usage_of_the_conversation()
        if usual != used:
            problems.append(
                f"the usage is {counted(used.total_tokens, 'token', 'tokens')}, not {usual.total_tokens}"
            )
        for difference, is_expected in self._conversation(case):
            (notes if is_expected else problems).append(difference)
        return problems, notes

    def _conversation(self, case: Evidence) -> Iterator[tuple[str, bool]]:
        """Each difference, and whether it is to be expected: of the answer to a call that was under way."""
        names = {e.call_id: e.name for e in case.log if e.call_id is not None}
        told = list(case.state.messages)
        if len(told) != len(self.messages):
            yield (
                f"the conversation has {counted(len(told), 'message', 'messages')}, not {len(self.messages)}",
                False,
            )
        for number, (before, after) in enumerate(zip(self.messages, told, strict=False), 1):
            if before == after:
                continue
            call_id = after.get("tool_call_id")
            if call_id is None or call_id != before.get("tool_call_id"):
                yield f"message {number} of the conversation differs", False
                continue
            told_of = f"{short(after.get('content'))}, not {short(before.get('content'))}"
            yield from self._answer(case, call_id, names.get(call_id), told_of)

    def _answer(
        self, case: Evidence, call_id: str, name: str | None, answers: str
    ) -> Iterator[tuple[str, bool]]:
        """Another answer of a tool than in the uninterrupted run. One that may be asked again must be able to answer
        again: a failure in place of an answer is never to be expected."""
        was_open = call_id in case.open_calls
        if was_open and call_id in case.not_known:
            return  # it is told as a doubt
        fails, failed = call_id in case.failing, call_id in self.run.failing
        if fails and not failed:
            yield f"{name} fails: it answered {answers}", False
        elif failed and not fails:
            yield f"{name} no longer fails: it answered {answers}", was_open
        elif call_id in self.varying:
            return
        elif was_open:
            yield f"{name} answered {answers}", True
        else:
            yield f"{name} answered {answers}, after the crash; {_MEMORY}", False


_MEMORY: Final = "does it keep something in the process's memory?"
_SILENTLY: Final = "{} would silently run twice: it does not say what a second start would do"
_COMMITTED: Final = (
    "{} was committed twice: its batch was given up when its first result had been saved"
)
_NOT_SEEN: Final = (
    "{} has a result, and nobody saw it start, so how often it ran is not known: what is watched is the `call` and the "
    "`invoke` of a Tool. Make the tool of a function that does the work"
)
_ENDED: Final = "{} came to its end twice, although it is declared as once: it failed, and may have taken effect before"


def _placed(case: Case, run: Evidence) -> Case:
    """With where to look at it, and how long it took."""
    return replace(case, run_id=run.run_id, directory=run.directory, seconds=run.seconds)


def _more(found: Counter[Asked], usual: Counter[Asked], asked: Asked) -> bool:
    return found[asked] > usual[asked]


def varying(one: Evidence, other: Evidence) -> frozenset[str]:
    """The calls that two uninterrupted runs got different answers to."""
    pairs = zip(one.state.messages, other.state.messages, strict=False)
    return frozenset(
        before["tool_call_id"]
        for before, after in pairs
        if before != after and before.get("tool_call_id") == after.get("tool_call_id") is not None
    )


def _tools(calls: Sequence[Asked]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(asked.tool for asked in calls))


def objection(check: Ended, timeout_s: float) -> str | None:
    """Why the user's check does not accept what a run has left."""
    if check.outcome is not None and check.outcome.ending == "raised":
        return check.outcome.error
    reason = failure(check, timeout_s)
    return None if reason is None else f"check: {reason}"


def _found(run: Evidence) -> str:
    return run.check.outcome.found if run.check and run.check.outcome else ""


def _by_tool(case: Evidence) -> dict[str, int]:
    return dict(Counter(mark.tool or "" for mark in case.marks if mark.kind == "start"))


def not_seen(asked: Asked) -> str:
    return _NOT_SEEN.format(_call(asked))


def _denial(asked: Asked) -> str:
    return f"reconcile said that a call had happened which never ran: {_call(asked)}"


def _call(asked: Asked) -> str:
    return f"{asked.tool} {short(asked.args, quoted=False)}"
