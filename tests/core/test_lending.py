"""A model gets a list of its own for each request, whatever it did with the one before; and a long run pays once."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentor.engine import lending
from agentor.engine.lending import Lending
from agentor.engine.request import Transcript

COUNTS_REFERENCES = lending._ALONE is not None


class Incomparable:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no")

    __hash__ = None  # type: ignore[assignment]


MISUSES: dict[str, Any] = {
    "nothing": lambda messages: None,
    "adds": lambda messages: messages.append({"role": "user", "content": "mine"}),
    "drops the last": lambda messages: messages.pop() if messages else None,
    "drops the first": lambda messages: messages.pop(0) if messages else None,
    "replaces one": lambda messages: messages.__setitem__(slice(0, 1), [{"role": "user"}]),
    "replaces one by what cannot be compared": lambda messages: messages.__setitem__(
        slice(0, 1), [Incomparable()]
    ),
    "turns round": lambda messages: messages.reverse(),
    "clears": lambda messages: messages.clear(),
}


def said(number: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": str(number)}]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(MISUSES)),
            st.booleans(),  # whether the model keeps its list
            st.integers(0, 2),  # messages that follow
            st.sampled_from([None, None, "a", "b"]),  # whom the next model talks to
            st.sampled_from(["grows", "grows", "branches", "begins anew"]),
        ),
        max_size=12,
    )
)
def test_every_request_is_exact_and_no_kept_list_ever_changes(steps: list[Any]) -> None:
    lent, transcript, numbers = Lending(), Transcript(said(-1)), iter(range(10_000))
    kept: list[tuple[list[Any], list[Any]]] = []
    for misuse, keeps, more, source, how in steps:
        request = lent.request(transcript, source)
        assert request == transcript.request(source)
        MISUSES[misuse](request)
        if keeps:
            kept.append((request, list(request)))
        del request
        for _ in range(more):
            answer = {"role": "assistant", "content": str(next(numbers)), "reasoning": "r"}
            transcript = transcript.with_group(answer, said(next(numbers)), source)
        if how == "branches":  # an older view is gone on from: a rewound batch
            transcript = transcript.extended(len(transcript) // 2, said(next(numbers)))
        elif how == "begins anew":
            transcript = Transcript(said(next(numbers)))
    for request, as_it_was in kept:
        assert len(request) == len(as_it_was)
        assert all(now is then for now, then in zip(request, as_it_was, strict=True))


@pytest.mark.parametrize("misuse", sorted(MISUSES))
def test_what_a_model_did_to_its_list_is_not_seen_in_the_next(misuse: str) -> None:
    lent, transcript = Lending(), Transcript([*said(0), *said(1)])
    MISUSES[misuse](lent.request(transcript, None))
    assert lent.request(transcript, None) == [*said(0), *said(1)]
    longer = transcript.extended(2, said(2))
    assert lent.request(longer, None) == [*said(0), *said(1), *said(2)]


def test_a_view_that_others_have_gone_on_from_is_sent_as_it_is() -> None:
    lent, transcript = Lending(), Transcript(said(0))
    lent.request(transcript, None)
    transcript.extended(1, said(1))
    assert lent.request(transcript, None) == said(0)


@pytest.mark.skipif(not COUNTS_REFERENCES, reason="this Python does not count references so")
def test_a_list_that_came_back_as_it_was_is_not_filled_again() -> None:
    lent, transcript = Lending(), Transcript(said(0))
    first = id(lent.request(transcript, None))
    for number in range(1, 5):
        transcript = transcript.extended(len(transcript), said(number))
        assert id(lent.request(transcript, None)) == first


@pytest.mark.skipif(not COUNTS_REFERENCES, reason="this Python does not count references so")
def test_the_count_is_right_however_often_the_code_has_run() -> None:
    """An interpreter that makes hot code quicker may count otherwise in it."""
    lent, transcript = Lending(), Transcript(said(0))
    for number in range(3_000):
        request = lent.request(transcript, None)
        transcript = transcript.extended(len(transcript), said(number))
        assert lent.request(transcript, None) is not request


def test_a_python_that_does_not_count_gets_a_new_list_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lending, "_ALONE", None)
    lent, transcript = Lending(), Transcript(said(0))
    assert lent.request(transcript, None) is not lent.request(transcript, None)
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    assert lending._count_alone() is None
