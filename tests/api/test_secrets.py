"""A key that the process was told stays out of every file, log record, error, event and trace, however a run fails."""

from __future__ import annotations

import asyncio
import io
import logging
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentor import Agentor, FileStore, ModelSettings, SQLiteStore, function_tool
from agentor.engine.models import ChatCompletionsModel
from agentor.testing import FakeServer, calls, error, faults, json_reply, says

KEY = "sk-canary-4f1d8c2b9e7a6053"
HEADER = "hdr-canary-77aa01be55cc90df"
ECHOED = (
    f"Incorrect API key provided: {KEY}. Header x-gateway: {HEADER}. Authorization: Bearer {KEY}"
)


@pytest.fixture
def spoken() -> Iterator[io.StringIO]:
    """Everything that any logger says at DEBUG, tracebacks included."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(logging.Formatter("%(name)s %(message)s %(args)s"))
    root, before = logging.getLogger(), logging.getLogger().level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield out
    root.removeHandler(handler)
    root.setLevel(before)


class Tracer:
    """Keeps as text what it is shown."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def collector(self, workflow_name: str, group_id: Any = None, metadata: Any = None) -> Tracer:
        return self

    def handle(self, event: Any) -> None:
        self.seen.append(event.to_json())

    def export(self, collector: Tracer) -> None:
        pass


def leaks(text: str) -> list[str]:
    """Where in a text a canary sits, with a little around it."""
    return [
        text[max(0, at - 80) : at + 60]
        for canary in (KEY, HEADER)
        for at in range(len(text))
        if text.startswith(canary, at)
    ]


def everything_said_of(caught: BaseException) -> str:
    parts = ["".join(traceback.format_exception(caught)), repr(caught), str(caught)]
    link: BaseException | None = caught
    while link is not None:
        parts += [
            repr(link.args),
            str(getattr(link, "body", "")),
            str(getattr(link, "message", "")),
        ]
        link = link.__cause__ or link.__context__
    return "\n".join(parts)


def bytes_under(path: Path) -> str:
    files = [file for file in path.rglob("*") if file.is_file()]
    return "\n".join(file.read_bytes().decode("latin-1") for file in files)


FAILURES: dict[str, Any] = {
    "the key is refused, and echoed": lambda: error(401, ECHOED, code="invalid_api_key"),
    "the request is refused, and its headers echoed": lambda: error(400, ECHOED),
    "an error with status 200": lambda: faults.error_with_200(ECHOED),
    "an error that is no JSON": lambda: json_reply(ECHOED, 403),
    "overloaded": lambda: error(503, ECHOED),
    "a page": lambda: faults.html(),
    "a broken body": lambda: faults.cut(says(ECHOED), after_bytes=40),
    "cut off": lambda: says(None, finish_reason="length"),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("kind", ["file", "sqlite"])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_failing_run_tells_the_key_and_the_headers_to_nobody(
    tmp_path: Path, spoken: io.StringIO, failure: str, kind: str, streamed: bool
) -> None:
    store: Any = FileStore(tmp_path / "runs") if kind == "file" else SQLiteStore(tmp_path / "r.db")
    tracer = Tracer()
    with FakeServer(lambda request: FAILURES[failure](), strict=False) as server:
        agent = Agentor(
            "A",
            base_url=server.base_url,
            api_key=KEY,
            store=store,
            tracer=tracer,
            enable_tracing=True,
            model_settings=ModelSettings(extra_headers={"X-Gateway": HEADER}, max_retries=0),
        )
        way = (
            (lambda: asyncio.run(_read(agent))) if streamed else lambda: agent.run("hi", run_id="r")
        )
        with pytest.raises(Exception) as caught:  # noqa: PT011  - each failure has its own type
            way()
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
        assert server.requests[0].headers["x-gateway"] == HEADER
    log = "\n".join(event.to_json() for event in store.load("r"))
    shown = repr(agent) + repr(agent.model) + repr(vars(agent)["_spec"])
    agent.close()
    assert leaks(everything_said_of(caught.value)) == []
    assert leaks(log) == []
    assert leaks(spoken.getvalue()) == []
    assert leaks("\n".join(tracer.seen)) == []
    assert leaks(bytes_under(tmp_path)) == []
    assert leaks(shown) == []


async def _read(agent: Agentor) -> None:
    async for _ in agent.astream("hi", run_id="r"):
        pass
    await agent.model.aclose()  # type: ignore[attr-defined]


def test_a_run_that_succeeds_tells_the_key_to_nobody(tmp_path: Path, spoken: io.StringIO) -> None:
    with FakeServer([says("Hello.")]) as server:
        agent = Agentor(
            "A",
            base_url=server.base_url,
            api_key=KEY,
            store=str(tmp_path / "r.db"),
            model_settings=ModelSettings(extra_headers={"X-Gateway": HEADER}),
        )
        result = agent.run("hi")
        agent.close()
    assert spoken.getvalue()  # the alarm can ring at all
    assert leaks(spoken.getvalue() + repr(result) + bytes_under(tmp_path)) == []


def test_the_key_of_the_environment_is_as_secret_as_one_that_is_passed(
    tmp_path: Path, spoken: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with FakeServer([error(401, ECHOED.replace(HEADER, ""))], strict=False) as server:
        agent = Agentor("A", base_url=server.base_url, store=FileStore(tmp_path))
        with pytest.raises(Exception, match="401") as caught:
            agent.run("hi")
        agent.close()
    assert leaks(everything_said_of(caught.value) + spoken.getvalue() + bytes_under(tmp_path)) == []


def test_a_key_that_a_function_gives_is_as_secret_as_a_text(
    tmp_path: Path, spoken: io.StringIO
) -> None:
    late = "sk-canary-late-0a1b2c3d4e5f"

    async def key() -> str:
        return late

    with FakeServer([error(401, f"Incorrect API key: {late}")], strict=False) as server:
        model = ChatCompletionsModel("m", api_key=key, base_url=server.base_url)
        agent = Agentor("A", model=model, store=FileStore(tmp_path))
        with pytest.raises(Exception, match="401") as caught:
            agent.run("hi")
        assert server.requests[0].headers["authorization"] == f"Bearer {late}"
        agent.close()
    told = everything_said_of(caught.value) + spoken.getvalue() + bytes_under(tmp_path)
    assert late not in told


def test_a_password_in_the_base_url_is_told_to_nobody(tmp_path: Path, spoken: io.StringIO) -> None:
    password = "pw-canary-5e4d3c2b1a"
    with FakeServer([error(503, "down"), error(400, "no")], strict=False) as server:
        url = server.base_url.replace("http://", f"http://user:{password}@")
        settings = ModelSettings(max_retries=1)
        agent = Agentor(
            "A", base_url=url, api_key=KEY, store=FileStore(tmp_path), model_settings=settings
        )
        with pytest.raises(Exception, match="no") as caught:
            agent.run("hi")
        agent.close()
    told = everything_said_of(caught.value) + spoken.getvalue() + bytes_under(tmp_path)
    assert password not in told


FAILING_TOOLS: dict[str, Callable[[], str]] = {}


def failing(name: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
    def keep(function: Callable[[], str]) -> Callable[[], str]:
        FAILING_TOOLS[name] = function
        return function

    return keep


@failing("an error that quotes the request")
def _quotes() -> str:
    raise RuntimeError(f"GET /x failed; sent Authorization: Bearer {KEY}")


@failing("an error whose cause quotes the request")
def _cause() -> str:
    try:
        raise RuntimeError(f"sent Bearer {KEY}")
    except RuntimeError as error:
        raise ValueError("the gateway refused") from error


@pytest.mark.parametrize("name", FAILING_TOOLS)
def test_a_tool_that_fails_with_the_key_in_its_error_leaks_it_nowhere(
    tmp_path: Path, spoken: io.StringIO, name: str
) -> None:
    tracer = Tracer()
    tool = function_tool(name_override="fetch", description_override="Fetch.")(FAILING_TOOLS[name])
    with FakeServer([calls(("fetch", {})), says("done")]) as server:
        agent = Agentor(
            "A",
            base_url=server.base_url,
            api_key=KEY,
            tools=[tool],
            store=FileStore(tmp_path),
            tracer=tracer,
            enable_tracing=True,
        )
        result = agent.run("hi")
        agent.close()
    assert leaks(bytes_under(tmp_path)) == []
    assert leaks(repr(result)) == []
    assert leaks("\n".join(tracer.seen)) == []
    assert leaks(spoken.getvalue()) == []


def test_a_model_of_ones_own_that_fails_with_the_key_in_its_error_leaks_it_into_no_store_or_log(
    tmp_path: Path, spoken: io.StringIO
) -> None:
    class Gateway(ChatCompletionsModel):
        async def complete(self, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError(f"gateway says no to {KEY}")

    agent = Agentor("A", model=Gateway("m", api_key=KEY), store=FileStore(tmp_path))
    with pytest.raises(RuntimeError):
        agent.run("hi")
    assert leaks(bytes_under(tmp_path) + spoken.getvalue()) == []


def test_a_failing_tracer_that_quotes_the_key_leaks_it_into_no_log(
    tmp_path: Path, spoken: io.StringIO
) -> None:
    class Leaky(Tracer):
        def handle(self, event: Any) -> None:
            raise RuntimeError(f"POST failed with {KEY}")

        def export(self, collector: Tracer) -> None:
            raise RuntimeError(f"POST failed with {KEY}")

    with FakeServer([says("Hello.")]) as server:
        agent = Agentor("A", base_url=server.base_url, api_key=KEY, tracer=Leaky())
        assert agent.run("hi", tracing=True).final_output == "Hello."
        agent.close()
    assert leaks(spoken.getvalue()) == []


def test_a_failing_store_that_quotes_the_key_leaks_it_into_no_log(spoken: io.StringIO) -> None:
    from tests.engine.agents import ThreeMethods

    class Leaky(ThreeMethods):
        def append(self, run_id: str, event: Any) -> None:
            raise OSError(f"PUT failed with Bearer {KEY}")

    with FakeServer([says("Hello.")]) as server:
        agent = Agentor("A", base_url=server.base_url, api_key=KEY, store=Leaky())
        assert agent.run("hi").unsaved == 4
        agent.close()
    assert leaks(spoken.getvalue()) == []
