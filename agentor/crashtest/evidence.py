"""What one run has left behind, killed or not: its log, its journal, and how its processes ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from agentor.crashtest.journal import Kind, Mark, read_journal
from agentor.crashtest.orders import JOURNAL, STORE
from agentor.crashtest.points import Point
from agentor.crashtest.processes import Ended
from agentor.crashtest.recorded import Asked, Recorded, kept_generations, recorded
from agentor.engine import events as ev
from agentor.engine.batch import IN_DOUBT
from agentor.engine.calling import MAY_HAVE_HAPPENED, RECONCILE_FAILED
from agentor.engine.events import Event, Usage
from agentor.engine.replay import RunState, replay, verify, with_messages
from agentor.engine.store import SQLiteStore
from agentor.testing.checker import check_messages


@dataclass(frozen=True)
class Evidence:
    log: Sequence[Event]
    marks: Sequence[Mark]
    processes: Sequence[Ended]
    open_calls: frozenset[str] = (
        frozenset()
    )  # ids of those without a full batch of results at a kill
    run_id: str = ""
    directory: str = ""  # the name of what it has left it in
    seconds: float = 0.0  # that all its processes took
    check: Ended | None = None  # how the process ended that called the user's check, if one was

    @cached_property
    def state(self) -> RunState:
        return replay(self.log)

    def count(self, kind: Kind, process: int = 1) -> int:
        return sum(mark.kind == kind and mark.process == process for mark in self.marks)

    def starts(self) -> Counter[Asked]:
        return Counter(_asked(mark) for mark in self.marks if mark.kind == "start")

    def ends(self) -> Counter[Asked]:
        """How often the tool came to its end, in whatever way: one that raises may have taken effect before."""
        return Counter(_asked(mark) for mark in self.marks if mark.kind == "return")

    def returns(self) -> Counter[Asked]:
        """How often the tool came to its end, and did not fail."""
        done = (mark for mark in self.marks if mark.kind == "return" and not mark.failed)
        return Counter(_asked(mark) for mark in done)

    @cached_property
    def recorded(self) -> Sequence[Recorded]:
        """The results in the log."""
        return tuple(recorded(self.log, self.run_id))

    def results(self) -> Counter[Asked]:
        """How often the log holds a result that is no failure."""
        return Counter(each.asked for each in self.recorded if each.error is None)

    def never_ran(self) -> Counter[Asked]:
        """How often it does so for a call that no process has started."""
        started = {mark.key for mark in self.marks if mark.kind == "start"}
        good = (each for each in self.recorded if each.error is None)
        return Counter(each.asked for each in good if each.key not in started)

    @cached_property
    def failing(self) -> frozenset[str]:
        """The calls that the conversation answers with a failure. Not to be known is none."""
        errors = {each.call_id: each.error for each in self.recorded}  # of several the last is kept
        return frozenset(i for i, error in errors.items() if error not in (None, IN_DOUBT))

    @cached_property
    def not_known(self) -> frozenset[str]:
        """The calls that the conversation answers with a doubt."""
        errors = {each.call_id: each.error for each in self.recorded}
        return frozenset(i for i, error in errors.items() if error == IN_DOUBT)

    def keys(self, asked: Asked) -> set[str | None]:
        """The idempotency keys that it was started under."""
        return {m.key for m in self.marks if m.kind == "start" and _asked(m) == asked}

    def kills(self) -> list[str]:
        return [mark.text for mark in self.marks if mark.kind == "killed"]

    @property
    def outlived(self) -> Point | None:
        """Where it was still to be killed when it came to a good end."""
        last = self.processes[-1]
        return last.missed if failure(last) is None else None

    def in_doubt(self) -> list[Event]:
        """The events that say that nobody knows what became of a call, to the model or to a person."""
        return [
            event
            for event in self.log
            if (event.type == ev.TOOL_RESULT and event.error == IN_DOUBT)
            or (event.type == ev.APPROVAL and (event.reason or "").startswith(MAY_HAVE_HAPPENED))
        ]

    @cached_property
    def is_parked_in_doubt(self) -> bool:
        """Whether it has ended where a person is to say what became of a call."""
        batch = self.state.batch
        if self.state.status != "paused" or batch is None:
            return False
        asked = (batch.approvals.get(call.position) for call in batch.waiting)
        return any(each and (each.reason or "").startswith(MAY_HAVE_HAPPENED) for each in asked)

    def failed_reconciles(self) -> list[tuple[str, str]]:
        """The tools whose `reconcile` failed, and how it did."""
        before, _, after = RECONCILE_FAILED.partition("{}")
        told = ((event.name or "", event.result or event.reason or "") for event in self.in_doubt())
        found = ((name, text.partition(before)[2].removesuffix(after)) for name, text in told)
        return [*dict.fromkeys((name, reason) for name, reason in found if reason)]

    def breaches(self) -> list[str]:
        """What a provider may refuse of what the model was sent, and what does not replay."""
        _, filled = with_messages(self.log)
        sent = [event.messages for event in filled if event.type == ev.GENERATION]
        found = [breach for messages in sent for breach in check_messages(messages)]
        return [*dict.fromkeys(found), *verify(self.log)]

    def usage_of_the_answers(self) -> Usage:
        """Tokens of all answers in the log, added up without the fold that tells the run's usage."""
        used = (event.usage or Usage() for event in self.log if event.type == ev.GENERATION)
        return sum(used, Usage())

    def usage_of_the_conversation(self) -> Usage:
        """Tokens of the answers that the conversation holds: without those of turns given up and asked again."""
        return sum((event.usage or Usage() for event in kept_generations(self.log)), Usage())


def failure(ended: Ended, timeout_s: float = 0.0) -> str | None:
    """Why a process that nobody killed did not do what it should; None if it did."""
    if ended.timed_out:
        reason = f"the process did not end within {timeout_s:g} s"
    elif ended.outcome is None:
        reason = f"the process {ended.how}"
    elif ended.outcome.ending in ("ended", "no run"):
        return None
    else:
        reason = f"it failed: {ended.outcome.error}"
    return reason if ended.missed is None else f"{reason} (it was to be killed {ended.missed})"


def collect(
    directory: Path,
    run_id: str,
    processes: Sequence[Ended],
    at_kills: set[str],
    check: Ended | None = None,
    seconds: float = 0.0,
) -> Evidence:
    """Read what is there. No process of the run may be alive."""
    return Evidence(
        load(directory, run_id),
        read_journal(directory / JOURNAL),
        processes,
        frozenset(at_kills),
        run_id,
        directory.name,
        seconds,
        check,
    )


def load(directory: Path, run_id: str) -> list[Event]:
    if not (directory / STORE).exists():
        return []
    with SQLiteStore(directory / STORE) as store:
        return store.load(run_id)


def _asked(mark: Mark) -> Asked:
    return Asked(mark.tool or "", mark.args or "")
