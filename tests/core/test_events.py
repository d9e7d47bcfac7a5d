"""Events are values: equal by content, written and read without loss."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentor.engine import strict_json
from agentor.engine.events import Event, RunResult, Usage
from agentor.engine.strict_json import (
    canonical,
    clean,
    copied,
    digest,
    dumps,
    has_large,
    in_ascii,
    loads,
)
from tests.core.logs import JSON, logs, old_log


@given(logs())
def test_a_log_survives_writing_and_reading(log: list[Event]) -> None:
    assert [Event.from_json(event.to_json()) for event in log] == log


def test_a_log_of_the_first_version_survives_writing_and_reading() -> None:
    assert [Event.from_dict(event.to_dict()) for event in old_log()] == old_log()


@given(st.dictionaries(st.text().filter(lambda key: key not in Event.__dataclass_fields__), JSON))
def test_unknown_fields_survive_a_round_trip(extra: dict[str, Any]) -> None:
    body = {"type": "from_the_future", "text": "x", **extra}
    event = Event.from_dict(body)
    assert event.to_dict() == body
    assert Event.from_json(event.to_json()).extra == extra


def test_only_what_is_set_is_written() -> None:
    assert Event("message", text="hi", seq=3).to_dict() == {
        "type": "message",
        "text": "hi",
        "seq": 3,
    }


def test_fields_that_are_not_set_are_none() -> None:
    event = Event.from_dict({"type": "message"})
    fields = [
        field.name for field in dataclasses.fields(Event) if field.name not in ("type", "extra")
    ]
    assert [getattr(event, name) for name in fields] == [None] * len(fields)
    assert [getattr(Event, name) for name in fields] == [None] * len(fields)
    assert event.extra == {}


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ([], "object"),
        ("text", "object"),
        ({}, "needs a type"),
        ({"type": 3}, "'type' cannot be int"),
        ({"type": "generation", "usage": "many"}, "'usage' cannot be str"),
        ({"type": "generation", "calls": ["x"]}, "'calls' must hold objects"),
        ({"type": "generation", "calls": {}}, "'calls' cannot be dict"),
        ({"type": "run_start", "messages": [1]}, "'messages' must hold objects"),
        ({"type": "run_start", "kept": "2"}, "'kept' cannot be str"),
        ({"type": "message", "seq": "1"}, "'seq' cannot be str"),
    ],
)
def test_what_is_no_event_is_refused_with_the_reason(body: Any, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        Event.from_dict(body)


@pytest.mark.parametrize("text", ["", "{", "nul", "[1", "\x00"])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Event.from_json(text)


def test_events_are_immutable_and_equal_by_content() -> None:
    event = Event("message", text="hi")
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.text = "ho"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        object.__setattr__(event, "messages", [])
    assert event == Event("message", text="hi") != Event("message", text="ho")
    assert len({event, Event("message", text="hi")}) == 1
    assert event != "message"
    assert event.with_(text="ho") == Event("message", text="ho")
    assert event.text == "hi"


def test_what_json_cannot_say_is_refused_when_it_is_written() -> None:
    with pytest.raises(ValueError, match="JSON"):
        Event("tool_call", args={"x": float("nan")}).to_json()
    with pytest.raises(TypeError):
        Event("tool_call", args={"x": object()}).to_json()


def test_messages_may_be_found_when_they_are_asked_for() -> None:
    asked = []

    def find() -> list[dict[str, Any]]:
        asked.append(1)
        return [{"role": "user", "content": "hi"}]

    event = Event("generation", text="x", messages=find)  # type: ignore[arg-type]
    assert "messages" not in event.to_dict()
    assert event == Event("generation", text="x")
    assert asked == []
    assert event.with_(seq=1).messages == [{"role": "user", "content": "hi"}]


def test_usage_adds_up_and_reads_what_it_wrote() -> None:
    usage = Usage(3, 4, 7) + Usage(1, 1, 2, cached_tokens=1, reasoning_tokens=1)
    assert usage == Usage(4, 5, 9, 1, 1)
    assert Usage.from_dict(usage.to_dict()) == usage
    assert Usage.from_dict(
        {"input_tokens": "3", "prompt_tokens": 4, "output_tokens": 2.0}
    ) == Usage(0, 2, 0)
    assert Usage(1, 2, 3).to_dict() == {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}


@given(st.lists(st.integers(0, 9), max_size=5))
def test_a_usage_is_made_of_its_counts_by_place_or_by_name_and_never_changes(
    counts: list[int],
) -> None:
    names = [each.name for each in dataclasses.fields(Usage)]
    said = dict(zip(names, counts, strict=False))
    usage = Usage(*counts)
    assert dataclasses.asdict(usage) == dict.fromkeys(names, 0) | said
    assert usage == Usage(**said) == Usage.from_dict(said) == dataclasses.replace(usage)
    with pytest.raises(dataclasses.FrozenInstanceError):
        usage.input_tokens = 1  # type: ignore[misc]
    with pytest.raises(TypeError, match=r"Usage.__init__\(\) got an unexpected .*'prompt_tokens'"):
        Usage(prompt_tokens=1)  # type: ignore[call-arg]


def test_a_result_prints_as_its_answer_and_shows_itself_briefly() -> None:
    result = RunResult("Sunny.", events=[Event("tool_call", name="x"), Event("message")])
    assert str(result) == "Sunny."
    assert str(RunResult()) == ""
    assert len(repr(result)) < 150
    assert [event.name for event in result.tool_calls] == ["x"]


@given(JSON)
def test_clean_values_are_left_as_they_are(value: Any) -> None:
    assert clean(value) == value
    assert loads(dumps(clean(value))) == value


def test_text_is_made_valid_and_values_strict() -> None:
    assert clean("a\ud83d\ude00b\ud800c\udc00") == "a😀b�c�"
    assert clean((1, (2,))) == [1, [2]]
    assert clean({2: "a", None: "b", True: "c", "\ud800": 1}) == {
        "2": "a",
        "null": "b",
        "true": "c",
        "�": 1,
    }
    assert clean([float("nan"), float("-inf")]) == ["nan", "-inf"]


def test_what_cannot_be_json_is_named() -> None:
    with pytest.raises(TypeError, match="set is not a JSON value"):
        clean({"x": set()})
    with pytest.raises(TypeError, match="cannot be a JSON key"):
        clean({(1, 2): 1})
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="nested too deeply"):
        clean(endless)


def test_lone_surrogates_that_older_writers_stored_are_read() -> None:
    assert loads('"a\\ud800b"') == "a�b"
    assert loads("[NaN, -Infinity]") == ["NaN", "-Infinity"]
    with pytest.raises(ValueError, match="deep"):
        loads("[" * 100_000 + "]" * 100_000)


@pytest.mark.parametrize("number", ["1e400", "-1E+0400", "9" * 400 + ".5"])
def test_a_number_too_large_for_a_float_is_written_back_as_one(number: str) -> None:
    text = f'{{"type":"x","y":[{number},"\\\\\\"Infinity NaN\\\\"],"Infinity":"é"}}'
    large = "-1e999" if number.startswith("-") else "1e999"
    event = Event.from_json(text)
    assert event.to_json() == text.replace(number, large)
    assert Event.from_json(event.to_json()) == event
    assert canonical(event.to_dict()) == canonical(loads(event.to_json()))
    assert in_ascii(event.to_dict()) == json.dumps(json.loads(text)).replace(
        "-Infinity," if "-" in large else "Infinity,", f"{large},", 1
    )
    assert has_large(event.to_dict())
    assert not has_large(loads(text.replace(number, "1e308")))


@pytest.mark.parametrize("write", [dumps, canonical, in_ascii])
def test_what_no_number_says_is_refused_beside_one_that_is_too_large(write: Any) -> None:
    with pytest.raises(ValueError, match="NaN"):
        write([float("inf"), float("nan")])
    endless: list[Any] = [float("inf")]
    endless.append(endless)
    with pytest.raises(ValueError, match="Circular"):
        write(endless)


def test_arguments_that_are_no_object_are_kept_as_older_writers_stored_them() -> None:
    body = {"type": "tool_call", "name": "f", "args": [1, 2]}
    assert Event.from_dict(body).args is None
    assert Event.from_dict(body).to_dict() == body


def test_an_integer_that_few_can_read_is_refused_at_the_door() -> None:
    with pytest.raises(ValueError, match="too many digits"):
        clean({"n": 10**5000})


def test_a_field_that_is_null_is_not_set() -> None:
    body = dict.fromkeys(("text", "args", "usage", "messages", "seq"))
    assert Event.from_dict({"type": "message", **body}) == Event("message")


def test_an_event_is_made_of_a_type_and_known_fields_in_their_order() -> None:
    assert Event("message", "hi") == Event(type="message", text="hi")
    for args, fields, fault in (
        (("message",), {"colour": 1}, "colour"),
        ((), {"text": "hi"}, "no type"),
        (("message",) * 99, {}, "of its own"),
    ):
        with pytest.raises(TypeError, match=fault):
            Event(*args, **fields)  # type: ignore[arg-type]


def test_an_event_shows_what_is_set() -> None:
    assert repr(Event("message", text="hi")) == "Event(type='message', text='hi')"


def test_what_could_not_be_read_again_is_named_before_it_is_written() -> None:
    usage = Event("generation", usage=Usage(1, 2, 3), messages=list)  # type: ignore[arg-type]
    assert usage.checked() is usage
    for fields, fault in (
        ({"text": 1}, "'text' cannot be int"),
        ({"usage": {}}, "'usage' cannot be dict"),
    ):
        with pytest.raises(ValueError, match=fault):
            Event("generation", **fields).checked()  # type: ignore[arg-type]


@given(JSON, st.booleans(), st.booleans())
def test_json_is_written_as_the_plain_encoder_writes_it_with_and_without_its_own_in_c(
    value: Any, sort_keys: bool, has_c: bool
) -> None:
    form = {"ensure_ascii": False, "separators": (",", ":"), "sort_keys": sort_keys}
    with pytest.MonkeyPatch.context() as patch:
        if not has_c:
            patch.setattr(json.encoder, "c_make_encoder", None)
        encode = strict_json.encoding(**form)
        assert encode(value) == json.JSONEncoder(**form).encode(value)
        with pytest.raises(ValueError, match="not JSON compliant"):
            encode([value, float("nan")])


@pytest.mark.parametrize("write", [dumps, canonical])
def test_what_contains_itself_is_told_from_what_is_nested_too_deeply(write: Any) -> None:
    endless: dict[str, Any] = {}
    endless["again"] = [endless]
    with pytest.raises(ValueError, match="Circular"):
        write(endless)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(RecursionError):
        write(deep)


@given(JSON)
def test_a_copy_is_equal_and_shares_nothing_that_can_be_changed(value: Any) -> None:
    copy = copied(value)
    assert dumps(copy) == dumps(value)
    assert _containers(copy).isdisjoint(_containers(value))


def _containers(value: Any) -> set[int]:
    """The ids of all objects and lists in a value."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    own = {id(value)} if isinstance(value, dict | list) else set()
    return own.union(*map(_containers, inner))


@given(JSON, JSON)
def test_a_digest_is_shared_by_equal_values_only(one: Any, other: Any) -> None:
    assert digest(one) == digest(loads(dumps(one)))
    assert (digest(one) == digest(other)) == (canonical(one) == canonical(other))
    assert len(digest(one)) == 32


def test_a_value_of_a_kind_of_its_own_becomes_the_plain_one() -> None:
    class Text(str):
        __slots__ = ()

    class Object(dict[str, Any]):
        pass

    cleaned = clean(Object({Text("a\ud800"): Text("b")}))
    assert cleaned == {"a�": "b"}
    [(key, value)] = cleaned.items()
    assert (type(cleaned), type(key), type(value)) == (dict, str, str)
    assert type(next(iter(clean({Text("a"): 1})))) is str


def test_an_event_whose_extra_is_empty_is_one_without() -> None:
    assert Event("message", extra={}) == Event("message")
    assert "extra" not in Event("message", extra={}).__dict__
