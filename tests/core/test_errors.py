"""An error says which run, which seq and what to do next; and carries the facts."""

from __future__ import annotations

import os

import pytest

from agentor import errors
from agentor.engine.store.owner import owner_id
from agentor.engine.store.protocol import Removed


def gone(*run_ids: str) -> Removed:
    return Removed(list(run_ids), [], 0, 0)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errors.SequenceConflictError("r", 3), "run 'r': seq 3 is taken or leaves a gap. Another"),
        (errors.SequenceConflictError("r", 3, 2), "leaves a gap; the next is 2. Another worker"),
        (errors.LogCorruptError("r", 3, "a hole"), "run 'r' is damaged at seq 3: a hole."),
        (errors.LogCorruptError(None, None, "no text"), "log is damaged: no text."),
        (errors.RunNotFoundError("r"), "no run 'r' in this store; `agentor runs`"),
        (errors.RunExistsError("r"), "run 'r' already exists; choose another id"),
        (errors.RunExistsError("r", "a copy"), "run 'r' already exists: a copy; choose another id"),
        (errors.LeaseHeldError("r", "7@host/x", 1.0), "another worker has run 'r' (7@host)"),
        (errors.LeaseHeldError("r", None, None), "another worker has run 'r' (unknown)"),
        (errors.LeaseLostError("r"), "the lease on run 'r' was lost. This worker has stopped"),
        (errors.LeaseLostError("r", "b"), "was lost; it is now held by b. This worker"),
        (errors.StoreClosedError("runs.db"), "runs.db: this store is closed; open a new one"),
        (errors.UnfinishedDeleteError(gone("r"), "full."), "run 'r' is deleted, but the step"),
        (errors.UnfinishedDeleteError(gone(*"ab"), ""), "2 runs are deleted ('a', 'b'), but"),
        (errors.UnfinishedDeleteError(gone(*"abcdef"), "full."), "('a', 'b', 'c', 'd', 'e', ...)"),
        (
            errors.UnfinishedDeleteError(gone("r"), "full."),
            "next delete or prune goes on with that. full.",
        ),
        (errors.AskedAgainError("r", "c", 7), "asked about again, at seq 7: look at what waits"),
        (errors.StatementError("no table"), "no table"),
        (errors.ModelError("busy", retryable=True), "busy"),
    ],
)
def test_the_text_of_an_error_names_the_run_and_the_way_out(
    error: errors.AgentorError, words: str
) -> None:
    assert words in str(error)


def test_a_run_that_this_very_process_has_is_not_said_to_be_another_workers() -> None:
    own = errors.LeaseHeldError("r", owner_id(), 1.0)
    assert own.is_own
    assert f"this process itself works on run 'r' ({os.getpid()}@" in str(own)
    assert not errors.LeaseHeldError("r", f"{os.getpid()}@elsewhere/x", 1.0).is_own


def test_errors_carry_their_facts() -> None:
    conflict = errors.SequenceConflictError("r", 3, 2)
    assert (conflict.run_id, conflict.seq, conflict.expected) == ("r", 3, 2)
    damage = errors.LogCorruptError("r", 3, "a hole")
    assert (damage.run_id, damage.seq, damage.reason) == ("r", 3, "a hole")
    for error in (errors.LeaseHeldError("r", "b", 1.0), errors.LeaseLostError("r", "b", 1.0)):
        assert (error.run_id, error.owner, error.expires_at) == ("r", "b", 1.0)
    again = errors.AskedAgainError("r", "c", 7)
    assert (again.run_id, again.call_id, again.question) == ("r", "c", 7)
    assert errors.RunNotFoundError("r").run_id == errors.RunExistsError("r").run_id == "r"
    removed = gone("r")
    assert errors.UnfinishedDeleteError(removed, "full").removed is removed
    assert errors.StatementError("x").kind == "failed"
    assert errors.StatementError("x", "constraint").kind == "constraint"
    assert not errors.ModelError("x").retryable


def test_errors_can_be_caught_as_what_python_programs_expect() -> None:
    expected = {
        errors.RunNotFoundError: KeyError,
        errors.RunExistsError: ValueError,
        errors.OutputMismatchError: ValueError,
        errors.ConfigError: ValueError,
    }
    for ours, theirs in expected.items():
        assert issubclass(ours, theirs)
        assert issubclass(ours, errors.AgentorError)
