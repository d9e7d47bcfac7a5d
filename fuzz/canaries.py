"""Faults planted on purpose: an alarm that never rings proves nothing.

Each canary takes one protection away from the real code and says which invariant must notice.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final
from unittest import mock

from agentor.engine.staged import Staged
from agentor.engine.store import sqlite_leases
from fuzz.invariants import (
    acknowledged_appends_survive,
    nobody_acts_beside_another,
    old_terms_append_nothing,
    tools_start_after_their_claim,
)
from fuzz.script import Action, draw
from fuzz.world import World


@dataclass(frozen=True)
class Canary:
    """`planted` is in force while a world is played; `rings` names the invariants of which one must be broken."""

    name: str
    rings: frozenset[str]
    planted: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    store_options: dict[str, Any] = field(default_factory=dict)
    script: Callable[[int], list[Action]] = draw


@contextlib.contextmanager
def _no_fence() -> Iterator[None]:
    """The store no longer compares the term of an append with the lease."""
    with mock.patch.object(sqlite_leases, "check", return_value=None):
        yield


def _taken_over(seed: int) -> list[Action]:
    """A worker is suspended, and wakes while somebody takes its run over."""
    at = random.Random(f"{seed}/taken over").uniform(0.1, 10)
    return [
        Action(0.0, "start", {"worker": "w1", "run": "run", "turns": 6}),
        Action(at, "stall", {"worker": "w1", "seconds": 100.0, "until_taken": True}),
        Action(at + 31, "take_over", {"worker": "w2"}),
    ]


@contextlib.contextmanager
def _everybody_counts_as_dead() -> Iterator[None]:
    """A lease is given to whoever asks, as if its holder were gone."""
    with mock.patch.object(World, "is_gone", return_value=True):
        yield


@contextlib.contextmanager
def _act_before_writing() -> Iterator[None]:
    """Tools start from a batch that is not recorded yet."""
    real = Staged.add

    def without_claims(self: Any, event: Any) -> None:
        if event.type != "tool_call":
            real(self, event)

    with mock.patch.object(Staged, "add", without_claims):
        yield


ALL: Final = (
    Canary(
        "no fence", frozenset({old_terms_append_nothing.__name__}), _no_fence, script=_taken_over
    ),
    Canary(
        "synchronous=NORMAL",
        frozenset({acknowledged_appends_survive.__name__}),
        store_options={"synchronous": "NORMAL"},
    ),
    Canary(
        "leases for everybody",
        frozenset({nobody_acts_beside_another.__name__}),
        _everybody_counts_as_dead,
    ),
    Canary(
        "no claim before a tool",
        frozenset({tools_start_after_their_claim.__name__}),
        _act_before_writing,
    ),
)
