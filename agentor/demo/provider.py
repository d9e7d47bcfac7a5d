"""A stand-in for an OpenAI-compatible provider: no network, no key, and the patience to wait for a kill."""

from __future__ import annotations

from agentor.testing.answers import Answer, calls, says
from agentor.testing.completions import Request
from agentor.testing.faults import Fault, held
from agentor.testing.replies import Gate
from agentor.testing.server import FakeServer

ANSWER = "The weather in London is sunny with a temperature of 22°C."
FORKED_ANSWER = "Arr! The sun be blazin' over London town, at 22 degrees!"


def weather_provider(gate: Gate) -> FakeServer:
    """A server that asks for the weather once and tells it. It keeps no state but the gate.

    The reply to a tool's result waits at `gate`: the client that comes there has its result on disk, since the engine
    writes before it asks on.
    """

    def answer(request: Request) -> Answer | Fault:
        if request.messages[-1]["role"] == "tool":
            return held(says(ANSWER), gate)
        if any(message["role"] == "tool" for message in request.messages):
            return says(FORKED_ANSWER)
        return calls(("get_weather", {"city": "London"}))

    return FakeServer(answer)
