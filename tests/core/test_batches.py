"""A batch of calls while answers are missing: who waits, who may run, what a resume may give up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentor.engine import strict_json
from agentor.engine.batch import CONSENT_STAYS, DECLARED, Approval, Batch, opened
from agentor.engine.decide import AskModel, CallTools, Finish, decide
from agentor.engine.events import Event
from agentor.engine.replay import RunState, evolve, replay
from agentor.engine.request import Transcript, read_calls
from tests.core.logs import JSON, raw_call
from tests.core.wide_logs import wide_logs

OPENING = [{"role": "user", "content": "u"}]
ASKED = [
    Event("run_start", messages=OPENING),
    Event("generation", calls=[raw_call("a", "pay", "{}"), raw_call("b", "look", "{}")]),
]


def test_a_batch_that_a_generation_opens_is_one_that_is_constructed_of_the_same() -> None:
    calls = read_calls(ASKED[1], Transcript())
    short = opened(2, {"role": "assistant"}, calls, "host", "length", "n", True)
    plain = Batch(*(2, {"role": "assistant"}, calls, "host", "length"), nonce="n", by_own_ids=True)
    assert short == plain
    assert repr(short) == repr(plain)


def batch_after(*events: Event) -> Batch:
    batch = replay([*ASKED, *events]).batch
    assert batch is not None
    return batch


def ids(calls: Any) -> list[str]:
    return [call.call_id for call in calls]


def consent(status: str | None, call_id: str = "a", **fields: Any) -> Event:
    return Event("approval", call_id=call_id, status=status, **fields)


def started(call_id: str, **fields: Any) -> Event:
    return Event("tool_call", call_id=call_id, **fields)


def answered(call_id: str, **fields: Any) -> Event:
    return Event("tool_result", call_id=call_id, **({"result": "ok"} | fields))


@pytest.mark.parametrize("status", ["asked", None])
def test_a_call_that_waits_for_a_person_parks_the_run_once_nothing_else_is_left(
    status: str | None,
) -> None:
    asked = consent(status, reason="over 100", by="policy")
    batch = batch_after(asked)
    assert batch.approvals == {0: Approval("asked", "policy", "over 100", None, seq=3)}
    assert (ids(batch.waiting), ids(batch.ready)) == (["a"], ["b"])
    state = replay([*ASKED, asked])
    assert decide(state, 9) == CallTools(batch, batch.calls[1:])
    state = evolve(state, answered("b"))
    assert decide(state, 9) == Finish("paused")
    assert ids(batch_after(asked, consent("approved")).ready) == ["a", "b"]


def test_consent_is_used_up_by_the_start_it_was_given_for() -> None:
    given_for = consent("approved", args={"sum": 5}, by="Ada")
    batch = batch_after(consent("asked"), given_for, started("b"), started("a", effect="once"))
    assert batch.started == {0, 1}
    assert batch.approvals == {}
    assert batch.edited == {0: {"sum": 5}}
    assert batch.effects == {0: "once"}
    assert ids(batch.in_doubt) == ["a", "b"]
    again = batch_after(started("a"), consent("approved", args={"sum": 6}), started("a"))
    assert (again.approvals, again.edited) == ({}, {0: {"sum": 6}})
    unused = batch_after(consent("approved"), consent("asked", "b"), started("a"))
    assert (unused.approvals, unused.edited) == ({1: Approval("asked", seq=4)}, {})


def test_the_arguments_of_a_call_are_those_a_person_gave_last_also_when_it_is_asked_about_again() -> (
    None
):
    written = Event("generation", calls=[raw_call("a", "pay", '{"sum": 9}')])

    def args_after(*events: Event) -> dict[str, Any]:
        batch = replay([ASKED[0], written, *events]).batch
        assert batch is not None
        return batch.args_of(batch.calls[0])

    edit = consent("approved", args={"sum": 5})
    assert args_after(consent("asked"), consent("approved")) == {"sum": 9}
    assert args_after(consent("asked"), edit) == {"sum": 5}
    again = [edit, started("a"), consent("asked")]
    assert args_after(*again) == args_after(*again, consent("approved")) == {"sum": 5}
    assert args_after(*again, Event("fork", forked_from="p")) == {"sum": 5}
    assert args_after(*again, consent("approved", args={})) == {}


def test_only_an_answer_of_its_own_closes_a_call() -> None:
    batch = batch_after(started("a"), answered("b"))
    assert batch.answers == {1: "ok"}
    assert (ids(batch.missing), ids(batch.in_doubt)) == (["a"], ["a"])
    assert batch_after(answered("b"), answered("b", result="late")).answers == {1: "ok"}
    late = batch_after(answered("b"), consent("asked", "b"))
    assert (late.approvals, late.approving) == ({}, False)


@given(wide_logs())
def test_what_speaks_of_no_open_call_is_kept_and_means_nothing(log: list[Event]) -> None:
    state = replay(log)
    for event_type in ("approval", "tool_call", "tool_result", "cancel"):
        after = evolve(state, Event(event_type, call_id="nobody", result="x", status="asked"))
        assert after.seq == state.seq + 1
        assert {**after.__dict__, "seq": 0} == {**state.__dict__, "seq": 0}


def test_a_doubled_id_is_answered_in_the_order_asked() -> None:
    doubled = Event("generation", calls=[raw_call("c", "f", "{}"), raw_call("c", "g", "{}")])
    log = [ASKED[0], doubled, *(started("c", effect=e) for e in ("once", "read"))]
    batch = replay(log).batch
    assert batch is not None
    assert (batch.started, batch.effects) == ({0, 1}, {0: "once", 1: "read"})
    told = replay([*log, answered("c", result="1"), answered("c", result="2")]).messages
    assert [message["content"] for message in told[2:]] == ["1", "2"]


@pytest.mark.parametrize("position", range(3))
@pytest.mark.parametrize("event_type", ["tool_call", "tool_result", "approval"])
def test_what_is_said_twice_of_a_call_is_said_of_no_other_with_the_same_id_from_the_model(
    event_type: str, position: int
) -> None:
    raw = [raw_call("c", name, "{}") for name in ("pay", "look", "send")]
    log = [ASKED[0], Event("generation", calls=raw, digest="d")]
    batch = replay(log).batch
    assert batch is not None
    call_id = batch.calls[position].call_id
    closed = [answered(call_id)] if event_type == "approval" else []
    event = Event(event_type, call_id=call_id, status="asked", result="x", effect="once")
    for said in ([event], [event, event], [Event("run_start", settling=[]), event, event]):
        batch = replay([*log, *closed, *said]).batch
        assert batch is not None
        touched = {*batch.started, *batch.answers, *batch.approvals, *batch.effects}
        assert touched == {position}


def test_a_second_start_of_a_call_uses_up_the_consent_to_it_and_no_others() -> None:
    raw = [raw_call("c", name, "{}") for name in ("pay", "send")]
    log = [ASKED[0], Event("generation", calls=raw, digest="d")]
    again = [started("c"), consent("asked", "c"), consent("approved", "c"), started("c")]
    batch = replay([*log, *again]).batch
    assert batch is not None
    assert (batch.started, batch.approvals) == ({0}, {})


def test_a_second_claim_says_what_that_start_was_and_the_stricter_word_counts() -> None:
    log = [ASKED[0], Event("generation", calls=[raw_call("a", "pay", "{}")], digest="d")]
    for first, second, said in (
        ("transactional", "once", "once"),
        ("once", "transactional", "once"),
        ("idempotent", "read", "idempotent"),
        (None, "read", "read"),
    ):
        batch = replay([*log, started("a", effect=first), started("a", effect=second)]).batch
        assert batch is not None
        assert (batch.started, batch.effects) == ({0}, {0: said})


def test_a_claim_that_says_why_its_call_is_not_started_counts_as_no_start() -> None:
    batch = batch_after(started("a", error="unknown tool 'pay'", effect="once"))
    assert (batch.refused, batch.started, batch.effects) == ({0}, set(), {})
    assert ids(batch.missing) == ["a", "b"]
    assert batch.in_doubt == ()


def test_a_claim_that_is_none_counts_as_an_event_like_any_other() -> None:
    state = replay([*ASKED, started("a", error="no such tool")])
    assert (state.seq, evolve(state, answered("a")).seq) == (3, 4)


def test_in_an_older_log_a_start_of_what_was_started_says_nothing_new_unless_it_was_consented_to() -> (
    None
):
    batch = batch_after(started("a"), consent("approved", "b"), started("a", effect="once"))
    assert (batch.effects, batch.approvals.keys()) == ({}, {1})


def test_a_decision_keeps_the_arguments_that_it_names() -> None:
    batch = batch_after(consent("approved", args={"sum": 5}))
    assert batch.approvals[0].args == {"sum": 5}


def test_what_a_person_has_consented_to_is_known_after_its_start_and_not_in_a_fork() -> None:
    batch = batch_after(
        consent("asked"), consent("approved"), started("a"), consent("rejected", "b")
    )
    assert (batch.consented, batch.approvals.keys()) == ({0}, {1})
    assert batch.forked("p").consented == set()


def test_who_settles_an_older_log_names_its_calls_by_the_ids_they_have_now() -> None:
    raw = [raw_call("c", name, "{}") for name in ("pay", "send")]
    log = [ASKED[0], Event("generation", calls=raw), started("c")]
    batch = replay([*log, Event("run_start", settling=["c"]), started("c")]).batch
    assert batch is not None
    assert batch.started == {0}


def test_calls_without_an_id_are_answered_by_events_without_one() -> None:
    nameless = Event("generation", calls=[raw_call("", "f", "{}")])
    state = replay([ASKED[0], nameless, Event("tool_result", call_id="", result="1")])
    assert state.messages[-1]["content"] == "1"
    assert state.messages[-1]["tool_call_id"] != ""


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"result": "sunny"}, "sunny"),
        ({"result": "", "error": "E: no"}, ""),
        ({"result": None, "error": "E: no"}, "Error: E: no"),
        ({"result": None}, ""),
    ],
)
def test_the_model_is_told_the_result_or_else_the_error(fields: dict[str, Any], told: str) -> None:
    messages = replay([*ASKED, answered("a", **fields), answered("b")]).messages
    assert [message["content"] for message in messages] == ["u", "", told, "ok"]


@pytest.mark.parametrize("effect", [None, "read", *sorted(DECLARED)])
def test_a_started_effect_makes_the_whole_batch_settle(effect: str | None) -> None:
    settles = effect in DECLARED
    assert batch_after(started("a", effect=effect)).settles({}) == settles
    assert batch_after(started("a")).settles({"pay": effect, "look": None}) == settles
    assert not batch_after().settles({"pay": effect})  # nothing was started
    assert not batch_after(started("b")).settles({"pay": effect})


@pytest.mark.parametrize("status", ["asked", "approved", "rejected"])
def test_a_batch_that_a_person_was_asked_about_settles(status: str) -> None:
    assert batch_after(consent(status)).settles({})
    assert batch_after(consent(status), started("a")).settles({})


def test_a_settled_batch_goes_on_and_what_was_said_since_follows_its_answers() -> None:
    more = [{"role": "user", "content": text} for text in ("one", "two")]
    resumed = [Event("run_start", kept=1, messages=[message], settling=["a"]) for message in more]
    log = [*ASKED, answered("b"), *resumed]
    state = replay(log)
    assert state.batch is not None
    assert ids(state.batch.missing) == ["a"]
    assert state.messages == OPENING
    told = [message["content"] for message in evolve(state, answered("a")).messages]
    assert told == ["u", "", "ok", "ok", "one", "two"]
    assert isinstance(decide(evolve(state, answered("a")), 9), AskModel)


def test_settling_without_an_open_batch_only_adds_what_is_said() -> None:
    said = [{"role": "user", "content": "more"}]
    log = [ASKED[0], Event("run_start", kept=1, messages=said, settling=[])]
    assert replay(log).messages == [*OPENING, *said]
    assert replay([*ASKED, Event("run_start", kept=1, messages=said)]).batch is None


def test_a_batch_remembers_the_run_it_was_opened_in_through_forks_of_forks() -> None:
    assert batch_after().origin is None
    forks = [Event("fork", forked_from=run_id) for run_id in ("parent", "child")]
    assert batch_after(*forks).origin == "parent"
    assert [*map(ids, (batch_after().in_doubt, batch_after(*forks).in_doubt))] == [[], ["a", "b"]]
    state = replay([*ASKED, *forks])
    assert state.forked_from == "child"
    assert replay([ASKED[0], *forks]).batch is None


def test_a_reply_that_was_cut_off_says_so_to_its_batch() -> None:
    def cut(reason: str) -> str | None:
        state: RunState = replay([ASKED[0], ASKED[1].with_(finish_reason=reason, source="s")])
        assert state.batch is not None
        assert (state.batch.seq, state.batch.source) == (2, "s")
        return state.batch.cut

    assert [cut(r) for r in ("length", "content_filter", "error")] == [
        "length",
        "content_filter",
        "error",
    ]
    assert [cut(r) for r in ("stop", "tool_calls")] == [None, None]


def test_consent_that_is_not_used_up_stays_with_the_run_it_was_given_in() -> None:
    decided = [consent("approved", by="Ada", args={"sum": 5}), consent("rejected", "b", by="Bob")]
    fork = Event("fork", forked_from="parent")
    batch = batch_after(*decided, fork)
    assert batch.approvals == {
        0: Approval("asked", reason=CONSENT_STAYS, seq=5),  # the fork is what asks
        1: Approval("rejected", by="Bob", seq=4),
    }
    assert ids(batch.waiting) == ["a"]
    own = batch_after(*decided, fork, consent("approved"))
    assert own.approval_of(own.calls[0]) == "approved"
    assert batch_after(*decided, fork, consent("approved"), fork).waiting == own.calls[:1]


@pytest.mark.parametrize("effect", [None, "read", *sorted(DECLARED)])
def test_a_batch_that_the_parent_may_yet_start_settles_in_a_fork(effect: str | None) -> None:
    fork = Event("fork", forked_from="parent")
    assert batch_after(fork).settles({"pay": effect}) == (effect in DECLARED)


# Logs that name their calls as the model did ----------------------------------------------------------------------

RECEIVED_IDS = st.lists(
    st.sampled_from(["c", "c", "d", "", "", "call_1_0", "call_1_1", "call_1_2"]),
    min_size=2,
    max_size=4,
)


def asked(received: list[str], names: list[str]) -> Event:
    """A generation without a digest, as logs are that can only have the model's own ids; each call with args of its own."""
    together = enumerate(zip(received, names, strict=True))
    return Event("generation", calls=[raw_call(i, n, f'{{"no": {at}}}') for at, (i, n) in together])


def begun(received: list[str], names: list[str], at: int) -> Event:
    return started(received[at], name=names[at], args={"no": at}, effect=f"of {at}")


def told(received: list[str], names: list[str], at: int) -> Event:
    return answered(received[at], name=names[at], result=f"result {at}")


def holds(log: list[Event], began: list[int], ended: list[int]) -> None:
    """The log says of these calls that they were started and answered, and of no others."""
    state, number = replay(log), len(log[1].calls or [])
    if len(ended) == number:
        assert [m["content"] for m in state.messages[2:]] == [f"result {i}" for i in range(number)]
        return
    assert state.batch is not None
    assert state.batch.effects == {at: f"of {at}" for at in began}
    assert state.batch.started == set(began)
    assert state.batch.answers == {at: f"result {at}" for at in ended}


@given(RECEIVED_IDS, st.data())
def test_in_an_older_log_each_start_and_each_result_is_of_the_tool_that_it_names(
    received: list[str], data: st.DataObject
) -> None:
    names = ["pay", "look", "book", "send"][: len(received)]
    log, began, ended = [ASKED[0], asked(received, names)], list[int](), list[int]()
    for at in data.draw(st.permutations([*range(len(received))] * 2)):
        done, says = (ended, told) if at in began else (began, begun)
        done.append(at)
        said = says(received, names, at)
        log += [said] * data.draw(st.integers(1, 2))  # what is said twice is said of no other
        holds(log, began, ended)


@given(RECEIVED_IDS, st.data())
def test_in_an_older_log_calls_of_one_tool_are_told_apart_by_their_arguments_and_by_what_runs(
    received: list[str], data: st.DataObject
) -> None:
    names = ["pay"] * len(received)
    log, done = [ASKED[0], asked(received, names)], list[int]()
    for at in data.draw(st.permutations(range(len(received)))):
        log.append(begun(received, names, at))
        holds(log, [*done, at], done)
        log.append(told(received, names, at))
        done.append(at)
        holds(log, done, done)


@given(RECEIVED_IDS, st.permutations(range(4)))
def test_in_an_older_log_arguments_tell_whatever_order_the_calls_of_one_tool_begin_in(
    received: list[str], order: list[int]
) -> None:
    names, began = ["pay"] * len(received), [at for at in order if at < len(received)]
    log = [ASKED[0], asked(received, names)]
    for count, at in enumerate(began, 1):
        log.append(begun(received, names, at))
        holds(log, began[:count], [])


@pytest.mark.parametrize("name", [None, "somebody"])
def test_an_event_of_an_older_log_that_names_no_tool_of_its_batch_is_of_the_first_that_is_open(
    name: str | None,
) -> None:
    log = [ASKED[0], asked(["c", "d", "c"], ["pay", "look", "send"])]
    for positions in ([0], [0, 2], [0, 2]):
        log.append(started("c", name=name, args={"no": 7}))
        batch = replay(log).batch
        assert batch is not None
        assert batch.started == set(positions)


def test_the_result_of_an_older_log_goes_to_a_call_that_was_started() -> None:
    log = [ASKED[0], asked(["c", "c"], ["pay", "pay"]), begun(["c", "c"], ["pay", "pay"], 1)]
    batch = replay([*log, answered("c", name="pay", result="paid")]).batch
    assert batch is not None
    assert batch.answers == {1: "paid"}


def test_consent_in_an_older_log_may_change_the_arguments_and_is_still_to_the_call_it_names() -> (
    None
):
    log = [ASKED[0], asked(["c", "c"], ["look", "pay"])]
    batch = replay([*log, consent("approved", "c", name="pay", args={"no": 0})]).batch
    assert batch is not None
    assert batch.edited == {1: {"no": 0}}


def test_a_log_without_digests_may_name_its_calls_by_the_ids_they_have_here() -> None:
    log = [ASKED[0], asked(["c", "c"], ["pay", "look"])]
    own = started("call_1_1", name="look", args={"no": 1})
    for said, positions in (([own], {1}), ([own, own], {1})):
        batch = replay([*log, *said]).batch
        assert batch is not None
        assert batch.started == positions


@given(JSON)
def test_a_copy_of_json_is_equal_and_shares_nothing_that_can_be_changed(value: Any) -> None:
    def containers(inside: Any) -> set[int]:
        parts = list(inside.values()) if isinstance(inside, dict) else inside
        own = {id(inside)} if isinstance(inside, dict | list) else set()
        return own.union(*map(containers, parts)) if isinstance(parts, list) else own

    copy = strict_json.copied(value)
    assert strict_json.canonical(copy) == strict_json.canonical(value)
    assert containers(copy).isdisjoint(containers(value))


@pytest.mark.parametrize("edited", [None, {"to": ["Ada"]}])
def test_what_is_done_to_the_arguments_of_a_call_reaches_nobody_else(edited: Any) -> None:
    asked = [ASKED[0], Event("generation", calls=[raw_call("a", "pay", '{"to":["Ada"]}')])]
    batch = replay([*asked, consent("approved", args=edited)]).batch
    assert batch is not None
    batch.args_of(batch.calls[0])["to"].append("Eve")
    assert batch.args_of(batch.calls[0]) == {"to": ["Ada"]}
