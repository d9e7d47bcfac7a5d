"""Which call an idempotency key is of, as the log says."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentor.engine.events import Event
from agentor.engine.replay import replay
from tests.core.logs import raw_call

ASKED = [raw_call("a", "pay", "{}"), raw_call("b", "pay", "{}")]


def keys(run_id: str, log: list[Event]) -> list[str]:
    batch = replay(log).batch
    assert batch is not None
    return [batch.key_of(run_id, call) for call in batch.calls]


def log_of(nonce: str | None, *more: Event, **start: Any) -> list[Event]:
    begun = Event("run_start", messages=[], nonce=nonce, **start)
    return [begun, Event("generation", calls=ASKED), *more]


def test_a_key_names_the_run_the_generation_and_the_position_in_it() -> None:
    assert keys("r", log_of("n")) == ["r.n:2:0", "r.n:2:1"]


def test_a_log_without_nonces_keeps_the_keys_that_it_had() -> None:
    assert keys("r", log_of(None)) == ["r:2:0", "r:2:1"]


@given(st.lists(st.tuples(st.text("fg", min_size=1), st.text("nm", min_size=1)), max_size=4))
def test_an_inherited_call_has_the_key_of_the_run_it_was_opened_in_however_deep(
    forks: list[tuple[str, str]],
) -> None:
    parents = ["r", *(run_id for run_id, _ in forks)]
    branched = [
        Event("fork", forked_from=parent, nonce=nonce)
        for parent, (_, nonce) in zip(parents, forks, strict=False)
    ]
    assert keys(parents[-1], log_of("n", *branched)) == ["r.n:2:0", "r.n:2:1"]


def test_what_a_fork_asks_for_itself_has_keys_of_its_own() -> None:
    done = [Event("tool_result", call_id=call_id, result="ok") for call_id in ("a", "b")]
    own = Event("generation", calls=ASKED)
    forked = [*log_of("n", *done), Event("fork", forked_from="r", nonce="m"), own]
    assert keys("f", forked) == ["f.m:6:0", "f.m:6:1"]


def test_a_resume_changes_no_key() -> None:
    again = [Event("run_start", messages=[], settling=["a", "b"], nonce="other")]
    assert keys("r", log_of("n", *again)) == keys("r", log_of("n"))
    queued = [Event("run_start", messages=[], queued=True, nonce="n"), Event("run_start", kept=0)]
    assert keys("r", [*queued, Event("generation", calls=ASKED)]) == ["r.n:3:0", "r.n:3:1"]
