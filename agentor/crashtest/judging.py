"""One killed and resumed run beside the uninterrupted one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from agentor.crashtest.evidence import Asked, Evidence, failure
from agentor.crashtest.report import Again, Case
from agentor.engine.events import Message

_SHOWN = 80  # characters of a text that is quoted


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

    def judge(self, case: Evidence) -> Case:
        """What is to be said of a run that was killed and resumed."""
        killed, last = tuple(case.kills()), case.processes[-1]
        if reason := failure(last, self.timeout_s):
            return Case(
                killed,
                "failed",
                self._again(case),
                problems=(f"resumed, {reason}" if killed else reason,),
            )
        if not case.log:
            return self._nothing_saved(case, killed)
        doubts = tuple(dict.fromkeys(event.name or "" for event in case.in_doubt()))
        again = self._again(case)
        problems = [_harm(each) for each in again if each.harmful]
        problems += self._damage(case)
        differences, notes = self._differences(case)
        if doubts and (self.live or case.state.status == "paused"):
            notes, differences = notes + differences, []  # they follow from an honest "not known"
        return Case(
            killed,
            case.state.status or "unfinished",
            again,
            doubts,
            max(case.state.usage.total_tokens - self.run.state.usage.total_tokens, 0),
            (*problems, *differences),
            tuple(notes),
        )

    def _nothing_saved(self, case: Evidence, killed: tuple[str, ...]) -> Case:
        """Killed before anything was acknowledged: fine, unless something was done."""
        done = [f"{tool} was called, and nothing of the run was saved" for tool, _ in case.starts()]
        return Case(killed, "no run", problems=tuple(done))

    # Calls --------------------------------------------------------------------------------------------------------

    def _again(self, case: Evidence) -> tuple[Again, ...]:
        usual = self.run.starts()
        return tuple(
            Again(asked[0], asked[1], self.effects.get(asked[0]), starts, self._harms(case, asked))
            for asked, starts in case.starts().items()
            if starts > usual[asked]
        )

    def _harms(self, case: Evidence, asked: Asked) -> bool:
        """Whether a further start of a call does what its tool says that it must not."""
        match self.effects.get(asked[0]):
            case "read" | "transactional":  # without a result it has written nothing
                return False
            case "idempotent":
                return len(case.keys(asked)) > len(self.run.keys(asked))
            case "once":  # one that had not come to its end may be started, if reconcile says so
                return case.returns()[asked] > self.run.returns()[asked]
        return True

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
            problems.append(f"the answer is {_short(after.text)}, not {_short(before.text)}")
        usual, used = self.run.usage_of_the_conversation(), case.usage_of_the_conversation()
        if usual != used:
            problems.append(f"the usage is {used.total_tokens} tokens, not {usual.total_tokens}")
        for difference, is_expected in self._conversation(case):
            (notes if is_expected else problems).append(difference)
        return problems, notes

    def _conversation(self, case: Evidence) -> Iterator[tuple[str, bool]]:
        """Each difference, and whether it is to be expected: of the answer to a call that was under way."""
        names = {e.call_id: e.name for e in case.log if e.call_id is not None}
        told = list(case.state.messages)
        if len(told) != len(self.messages):
            yield f"the conversation has {len(told)} messages, not {len(self.messages)}", False
        for number, (before, after) in enumerate(zip(self.messages, told, strict=False), 1):
            if before == after:
                continue
            call_id = after.get("tool_call_id")
            if call_id is None or call_id != before.get("tool_call_id"):
                yield f"message {number} of the conversation differs", False
                continue
            answers = f"{_short(after.get('content'))}, not {_short(before.get('content'))}"
            if call_id in self.varying:
                continue
            if call_id in case.open_calls:
                yield f"{names.get(call_id)} answered {answers}", True
            else:
                yield f"{names.get(call_id)} answered {answers}, after the crash; {_MEMORY}", False


_MEMORY = "does it keep something in the process's memory?"


def varying(one: Evidence, other: Evidence) -> frozenset[str]:
    """The calls that two uninterrupted runs got different answers to."""
    pairs = zip(one.state.messages, other.state.messages, strict=False)
    return frozenset(
        before["tool_call_id"]
        for before, after in pairs
        if before != after and before.get("tool_call_id") == after.get("tool_call_id") is not None
    )


def _harm(again: Again) -> str:
    call = f"{again.tool} {_short(again.args, quoted=False)}"
    match again.effect:
        case None:
            return f"{call} would silently run twice: it does not say what a second start would do"
        case "once":
            return f"{call} took effect twice, although it is declared as once"
    return f"{call} ran again under another idempotency key"


def _short(text: object, *, quoted: bool = True) -> str:
    told = str(text) if isinstance(text, str) else repr(text)
    told = told if len(told) <= _SHOWN else f"{told[:_SHOWN]}..."
    return repr(told) if quoted and isinstance(text, str) else told
