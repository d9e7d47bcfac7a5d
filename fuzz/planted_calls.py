"""Faults to plant in what becomes of calls, each while the block lasts. See `fuzz.canaries`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from agentor.engine import calling
from agentor.engine.batch import Batch
from agentor.engine.calling import Calling, Fate
from agentor.engine.replay import RunState
from agentor.engine.request import Call
from agentor.engine.runner import Runner
from agentor.opening import Opening


@contextlib.contextmanager
def half_finished_is_given_up() -> Iterator[None]:
    """A resume gives a half-finished batch up whatever its tools declare."""

    def settles(self: Opening, batch: Batch | None) -> bool:
        return batch is not None and batch.approving

    with mock.patch.object(Opening, "settles", settles):
        yield


@contextlib.contextmanager
def best_effort_is_enough() -> Iterator[None]:
    """A tool with consequences starts although its claim could not be saved."""
    with mock.patch.object(Runner, "_check_claimed"):
        yield


@contextlib.contextmanager
def changes_are_ignored() -> Iterator[None]:
    """A tool is given what the model asked for, whatever a person has made of it."""

    def asked_for(self: Batch, call: Call) -> dict[str, Any]:
        return dict(call.args)

    with mock.patch.object(Batch, "args_of", asked_for):
        yield


@contextlib.contextmanager
def forks_have_keys_of_their_own() -> Iterator[None]:
    """A fork's key of a call is another than its parent's."""
    real = Batch.key_of

    def own(self: Batch, run_id: str, call: Call) -> str:
        return f"{run_id}.{real(self, run_id, call)}"

    with mock.patch.object(Batch, "key_of", own):
        yield


@contextlib.contextmanager
def refused_is_started() -> Iterator[None]:
    """A call that a person has refused is claimed and started."""
    real = Calling.fate

    def consenting(self: Calling, state: RunState, batch: Batch, call: Call) -> Fate:
        fate = real(self, state, batch, call)
        return "claim" if fate == "rejected" else fate

    with mock.patch.object(Calling, "fate", consenting):
        yield


@contextlib.contextmanager
def reconciled_in_other_words() -> Iterator[None]:
    """What `reconcile` gives as a call's result is replaced."""
    with mock.patch.object(calling, "result_text", return_value="done"):
        yield
