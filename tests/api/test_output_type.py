"""A typed answer: what the provider is told, what is asked again, and what happens when it still does not fit."""

from __future__ import annotations

import dataclasses
import enum
import json
from typing import Any, Literal, TypedDict

import pytest
from pydantic import BaseModel, Field

from agentor import Agentor, ConfigError, ModelError, OutputMismatchError, function_tool
from agentor.engine.store import final_event, is_complete
from agentor.testing import FakeServer, ScriptedModel, calls, says


class City(BaseModel):
    name: str
    population: int | None = None


class Country(BaseModel):
    name: str
    capital: City
    cities: list[City] = Field(default_factory=list)


class Tree(BaseModel):
    value: int
    children: list[Tree]


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


class Report(BaseModel):
    mood: Mood
    kind: Literal["short", "long"]
    city: City | None


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Typed(TypedDict):
    a: int
    b: str


class OpenDict(BaseModel):
    counts: dict[str, int]


class NestedOpenDict(BaseModel):
    inner: list[OpenDict]


class BareDict(BaseModel):
    anything: dict


GOOD = '{"name": "Norway", "capital": {"name": "Oslo", "population": 700000}, "cities": []}'
BAD = '{"name": "Norway"}'


def objects(schema: Any) -> list[dict[str, Any]]:
    if isinstance(schema, list):
        return [found for item in schema for found in objects(item)]
    if not isinstance(schema, dict):
        return []
    own = [schema] if schema.get("type") == "object" or "properties" in schema else []
    return own + [found for item in schema.values() for found in objects(item)]


@pytest.mark.parametrize("wanted", [City, Country, Tree, Report, Point, Typed])
def test_the_provider_is_told_a_closed_schema(wanted: Any) -> None:
    model = ScriptedModel([RuntimeError("stop")])
    with pytest.raises(RuntimeError):
        Agentor("A", model=model, output_type=wanted).run("hi")
    told = model.requests[0].response_format
    assert told is not None
    assert told["type"] == "json_schema"
    spec = told["json_schema"]
    assert spec["strict"] is True
    assert spec["schema"]["type"] == "object"
    for part in objects(spec["schema"]):
        assert part["additionalProperties"] is False
        assert part["required"] == list(part["properties"])


def test_definitions_that_are_referred_to_are_there() -> None:
    model = ScriptedModel([says(GOOD)])
    Agentor("A", model=model, output_type=Country).run("hi")
    schema = model.requests[0].response_format["json_schema"]["schema"]  # type: ignore[index]
    text = json.dumps(schema)
    assert "#/$defs/City" in text
    assert "City" in schema["$defs"]


@pytest.mark.parametrize(
    ("wanted", "answer", "value"),
    [
        (City, '{"name": "Oslo"}', City(name="Oslo")),
        (
            Country,
            GOOD,
            Country(name="Norway", capital=City(name="Oslo", population=700000), cities=[]),
        ),
        (
            Tree,
            '{"value": 1, "children": [{"value": 2, "children": []}]}',
            Tree(value=1, children=[Tree(value=2, children=[])]),
        ),
        (
            Report,
            '{"mood": "good", "kind": "long", "city": null}',
            Report(mood=Mood.GOOD, kind="long", city=None),
        ),
        (Point, '{"x": 1, "y": 2}', Point(1, 2)),
        (Typed, '{"a": 1, "b": "x"}', {"a": 1, "b": "x"}),
        (City, '```json\n{"name": "Oslo"}\n```', City(name="Oslo")),
        (City, '  {"name": "Oslo"}\n', City(name="Oslo")),
    ],
)
def test_the_answer_is_an_instance_of_the_type(
    store: Any, wanted: Any, answer: str, value: Any
) -> None:
    agent = Agentor("A", model=ScriptedModel([says(answer)]), output_type=wanted, store=store)
    result = agent.run("hi")
    assert result.final_output == value
    assert type(result.final_output) is type(value)
    assert agent.resume(result.run_id).final_output == value
    assert agent.fork(result.run_id).final_output == value


@pytest.mark.parametrize("wanted", [OpenDict, NestedOpenDict, BareDict, dict, dict[str, int]])
def test_a_type_with_open_keys_is_refused_when_the_agent_is_built(wanted: Any) -> None:
    with pytest.raises(ValueError, match="output_type") as caught:
        Agentor("A", model=ScriptedModel([]), output_type=wanted)
    assert isinstance(caught.value, ConfigError)


def test_the_refusal_of_an_open_type_names_the_field() -> None:
    with pytest.raises(ConfigError, match="counts"):
        Agentor("A", model=ScriptedModel([]), output_type=NestedOpenDict)


@pytest.mark.parametrize("wanted", [int, list[int], "City", City(name="x"), object()])
def test_what_cannot_be_a_closed_object_is_refused_when_the_agent_is_built(wanted: Any) -> None:
    with pytest.raises(ConfigError):
        Agentor("A", model=ScriptedModel([]), output_type=wanted)


@pytest.mark.parametrize("bad", [BAD, "Oslo, of course!", "[]", '{"name": 1, "capital": "Oslo"}'])
def test_an_answer_that_does_not_fit_is_asked_for_again_once(store: Any, bad: str) -> None:
    model = ScriptedModel([says(bad), says(GOOD)])
    agent = Agentor("A", model=model, output_type=Country, store=store)
    result = agent.run("Norway?")
    assert (result.final_output.capital.name, result.status) == ("Oslo", "completed")
    *_, said, correction = model.requests[1].messages
    assert said == {"role": "assistant", "content": bad}
    assert correction["role"] == "user"
    assert "Country" in correction["content"]


def test_the_correction_names_the_field_that_does_not_fit() -> None:
    model = ScriptedModel([says(BAD), says(GOOD)])
    Agentor("A", model=model, output_type=Country).run("Norway?")
    assert "capital" in model.requests[1].messages[-1]["content"]


def test_a_second_misfit_fails_the_run_and_says_so(store: Any) -> None:
    model = ScriptedModel([says(BAD), says("still prose")])
    agent = Agentor("A", model=model, output_type=Country, store=store)
    with pytest.raises(OutputMismatchError) as caught:
        agent.run("Norway?", run_id="r")
    assert isinstance(caught.value, ModelError)
    assert isinstance(caught.value, ValueError)
    assert any("r" in note for note in caught.value.__notes__)
    assert len(model.requests) == 2
    end = final_event(store.load("r"))
    assert end is not None
    assert (end.status, end.text) == ("failed", None)
    assert end.error
    assert not is_complete(store.load("r"))
    assert all(event.type != "message" for event in store.load("r"))


def test_a_later_resume_asks_the_correction_again(store: Any) -> None:
    model = ScriptedModel([says(BAD), says(BAD), says(GOOD)])
    agent = Agentor("A", model=model, output_type=Country, store=store)
    with pytest.raises(OutputMismatchError):
        agent.run("Norway?", run_id="r")
    result = agent.resume("r")
    assert result.final_output.name == "Norway"
    assert model.requests[2].messages[-1]["role"] == "user"
    assert "Country" in model.requests[2].messages[-1]["content"]


@pytest.mark.parametrize("length", range(1, 4))
def test_a_run_killed_around_its_correction_is_finished(store: Any, length: int) -> None:
    whole = Agentor("A", model=ScriptedModel([says(BAD), says(GOOD)]), output_type=Country)
    for event in whole.run("Norway?").events[:length]:
        store.append("r", event)
    model = ScriptedModel.by_turn([says(BAD), says(GOOD)])
    result = Agentor("A", model=model, output_type=Country, store=store).resume("r")
    assert result.final_output.name == "Norway"


def test_a_typed_agent_uses_its_tools_first() -> None:
    @function_tool
    def capital_of(country: str) -> str:
        """Find a capital."""
        return "Oslo"

    model = ScriptedModel([calls(("capital_of", {"country": "Norway"})), says(GOOD)])
    result = Agentor("A", model=model, tools=[capital_of], output_type=Country).run("Norway?")
    assert result.final_output.capital.name == "Oslo"
    assert all(request.response_format for request in model.requests)


def test_the_shape_goes_over_http_and_back() -> None:
    with FakeServer([says(GOOD)]) as server:
        agent = Agentor("A", base_url=server.base_url, api_key="test", output_type=Country)
        assert agent.run("Norway?").final_output.capital.name == "Oslo"
        assert server.requests[0].response_format is not None


def test_a_server_without_schemas_still_gives_a_checked_instance() -> None:
    replies = [says(BAD), says(GOOD)]
    with FakeServer(
        lambda request: replies[request.turn], refuses=["response_format"], strict=False
    ) as server:
        agent = Agentor("A", base_url=server.base_url, api_key="test", output_type=Country)
        assert agent.run("Norway?").final_output.capital.name == "Oslo"


def test_a_model_with_a_two_argument_complete_works_while_no_output_type_is_set() -> None:
    class Old:
        async def complete(self, messages: Any, tools: Any = None) -> Any:
            from agentor.engine.models import ModelResponse

            return ModelResponse(content="Hello.")

    assert str(Agentor("A", model=Old()).run("hi")) == "Hello."  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Agentor("A", model=Old(), output_type=City).run("hi")  # type: ignore[arg-type]


def test_the_run_out_of_turns_on_a_correction_is_max_turns_without_output() -> None:
    agent = Agentor("A", model=ScriptedModel([says(BAD)]), output_type=Country, max_turns=1)
    result = agent.run("Norway?")
    assert (result.status, result.final_output) == ("max_turns", None)


def test_a_plain_text_type_is_the_same_as_none() -> None:
    model = ScriptedModel([says("Oslo")])
    assert Agentor("A", model=model, output_type=str).run("hi").final_output == "Oslo"
    assert model.requests[0].response_format is None
