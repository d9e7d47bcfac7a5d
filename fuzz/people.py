"""What people say of the calls that wait for them, and whether it is true.

A call in doubt has happened or has not, and the simulated world knows: its tool has begun, or has not. Somebody who
looks says what is so; somebody who does not may send the same payment twice, and then that is no fault of agentor's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, assert_never

from fuzz.evidence import Settled

if TYPE_CHECKING:
    from fuzz.worker import Worker
    from fuzz.world import World

Word: TypeAlias = Literal["approve", "reject", "settle"]


@dataclass(frozen=True, slots=True)
class Question:
    """A call that waits for a person, as it stood when somebody looked."""

    run_id: str
    call_id: str
    name: str  # of its tool
    batch_seq: int  # of the generation that asked for it
    key: str  # its idempotency key
    seq: int  # of the event that asks
    in_doubt: bool
    is_forked: bool  # the parent may start it at any moment


def waiting(world: World, in_doubt: bool = False) -> Question | None:
    """A call that a person has to decide upon; one that may have happened, if that is asked for."""
    world.ledger.refresh()
    for run_id in world.ledger.logs:
        for question in questions(world, run_id):
            if question.in_doubt or not in_doubt:
                return question
    return None


def questions(world: World, run_id: str) -> list[Question]:
    """The calls of a run that wait, as the ledger last read it."""
    batch = world.ledger.logs[run_id].state.batch
    if batch is None:
        return []
    return [
        Question(
            run_id,
            call.call_id,
            call.name,
            batch.seq,
            batch.key_of(run_id, call),
            batch.approvals[call.position].seq,
            batch.may_have_started(call),
            batch.origin is not None,
        )
        for call in batch.waiting
    ]


def truth(world: World, question: Question, otherwise: Word) -> Word:
    """What somebody says who looks first; `otherwise` is what they want of a call that has not happened.

    That a fork's call has not happened yet is no reason to begin it: the parent may do so the next moment. What a fork
    has begun, its parent knows nothing of, and is only told not to begin it.
    """
    if world.evidence.starts[question.key]:
        return "settle" if question.in_doubt else "reject"
    return "reject" if question.is_forked else otherwise


def say(
    place: Worker,
    word: Word,
    question: Question,
    args: dict[str, Any] | None = None,
    any_question: bool = False,
) -> asyncio.Task[Any]:
    """Let somebody decide upon a call: what was asked when they looked, or whatever is asked about it when their word
    arrives. Until it is known that the word was true when it was recorded, it counts as misleading."""
    world = place.world
    told = f"{question.name} happened, says {place.name} ({world.evidence.words})"
    world.evidence.words += 1
    if word == "settle":
        world.evidence.said_of(question.key, told)
    world.evidence.misled[question.key] += 1
    answers = None if any_question else question.seq
    work = _work(place, word, question, args, told, answers)
    task = place.begin(f"{word} {question.call_id} of", question.run_id, work)
    was_true = _is_true(world, word, question)
    task.add_done_callback(partial(_said, place, word, question, told, was_true))
    return task


def _work(
    place: Worker,
    word: Word,
    question: Question,
    args: dict[str, Any] | None,
    told: str,
    answers: int | None,
) -> Callable[[], Coroutine[Any, Any, None]]:
    agent, run_id, call_id = place.agent, question.run_id, question.call_id
    match word:
        case "approve":
            return lambda: agent.aapprove(run_id, call_id, args, question=answers)
        case "reject":
            return lambda: agent.areject(run_id, call_id, "no", question=answers)
        case "settle":
            return lambda: agent.asettle(run_id, call_id, told, place.name, question=answers)
        case other:
            assert_never(other)


def _said(
    place: Worker,
    word: Word,
    question: Question,
    told: str,
    was_true: bool,
    done: asyncio.Task[Any],
) -> None:
    evidence = place.world.evidence
    if was_true and _is_true(place.world, word, question):
        evidence.misled[question.key] -= 1
    is_settled = word == "settle" and not done.cancelled() and done.exception() is None
    if is_settled and not place.dead and place.world.disk.powered:
        settled = Settled(question.run_id, question.call_id, question.batch_seq, told)
        evidence.settled.append(settled)


def _is_true(world: World, word: Word, question: Question) -> bool:
    has_happened = bool(world.evidence.starts[question.key])
    match word:
        case "settle":
            return has_happened
        case "reject":
            return not has_happened
        case "approve":
            return not has_happened and not question.is_forked
        case other:
            assert_never(other)
