"""An OpenAI-compatible server on loopback, for tests and demos: scripted, strict, and able to fail in every way.

    with FakeServer([calls(("get_weather", {"city": "London"})), "Sunny in London."]) as server:
        agent = Agentor("weather", tools=[get_weather], base_url=server.base_url, api_key="test")
        agent.run("How is London?")

Every request is read by `check_request`. A breach is answered with 400, and when the block ends it is an
`AssertionError`, so that no test passes on a request that only a lenient server takes.
`python -m agentor.testing.server` runs one that answers questions about the weather.
"""

from __future__ import annotations

import argparse
import asyncio
import hmac
import re
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, TypeAlias

from agentor.engine.events import Message
from agentor.testing.answers import Answer, calls, says
from agentor.testing.checker import check_request
from agentor.testing.completions import Request, completion, models_body
from agentor.testing.connection import Connection
from agentor.testing.faults import Fault
from agentor.testing.json_rules import read_strict
from agentor.testing.replies import Reply, error, json_reply
from agentor.testing.script import Script, by_turn, is_function

Sent: TypeAlias = str | Answer | Reply | Fault
Behaviour: TypeAlias = Callable[[Request], Sent]

_CHAT: Final = "/v1/chat/completions"
ASKED_FOR: Final = "get_weather"  # by the stand-in of `python -m agentor.testing.server`


class FakeServer:
    """A server in a thread of its own, from `start()` to `close()`, or for a `with` block.

    A reply is a text, `says(...)`, `calls(...)`, a `Reply`, one of the `faults`, or a function of the `Request`
    that gives one of these. A list is given out one reply per request; a function in its place answers every
    request, and so does `by_turn`. Functions run on the server's thread, one at a time.

    `strict=False` keeps breaches (they are still answered 400) from failing the block, `check=False` does not
    look for any. `allow` names further keys of requests and messages. `refuses` names keys that this server
    answers with 400 although they are legal, as many a real one does. With an `api_key` any other is a 401.
    """

    def __init__(
        self,
        replies: Iterable[Sent | Behaviour] | Behaviour = (),
        *,
        strict: bool = True,
        check: bool = True,
        allow: Iterable[str] = (),
        refuses: Iterable[str] = (),
        api_key: str | None = None,
        models: Sequence[str] = ("test-model",),
        port: int = 0,
    ) -> None:
        self.requests: list[Request] = []
        self.breaches: list[str] = []
        self.script_errors: list[str] = []  # the script ended too early, or a function of it failed
        self.models = list(models)
        self._script = Script(replies)
        self._strict = strict
        self._check = check
        self._allow = frozenset(allow)
        self._refuses = frozenset(refuses)
        self._api_key = api_key
        self._port = port
        self._changed = threading.Condition()
        self._connections: set[Connection] = set()
        self._thread: threading.Thread | None = None

    @classmethod
    def by_turn(cls, replies: Sequence[Sent | Behaviour], **settings: Any) -> FakeServer:
        """The first reply answers a conversation without an assistant message, the second one with one ...

        The place in the script is read off the request, not counted, so runs may go side by side, be resumed,
        and ask the same turn again.
        """
        return cls(by_turn(replies, lambda request: request.turn), **settings)

    # -- life

    def start(self) -> FakeServer:
        """Listen. Requests may be sent as soon as this returns."""
        self._socket = socket.create_server(("127.0.0.1", self._port))
        self._port = self._socket.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._live, name="fake-server", daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop listening and drop every connection, those held at a gate included. Twice is once."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            thread.join()

    def _live(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        server = await self._loop.create_server(self._connect, sock=self._socket)
        try:
            await self._stopping.wait()
        finally:
            server.close()
            await self._drop_connections()

    def _connect(self) -> Connection:
        return Connection(self._respond, self._finished, self._connections)

    async def _drop_connections(self) -> None:
        await asyncio.gather(*(connection.drop() for connection in list(self._connections)))

    def __enter__(self) -> FakeServer:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        told = self._told()
        if told and error is not None:
            error.add_note(told)
        elif told and self._strict:
            raise AssertionError(told)

    def _told(self) -> str:
        found = [*self.breaches, *self.script_errors]
        return "the fake server refused:\n- " + "\n- ".join(found) if found else ""

    # -- what a test sees

    @property
    def base_url(self) -> str:
        """`http://127.0.0.1:<port>/v1`; the port is known once the server has started."""
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def left(self) -> int:
        """How many replies of the list are not given yet; 0 when a function answers."""
        return self._script.left

    def add(self, *replies: Sent | Behaviour) -> None:
        """Append to the list of replies."""
        self._script.add(replies)

    def wait_for(self, condition: Callable[[FakeServer], bool], timeout_s: float = 30.0) -> None:
        """Block until `condition(server)` is true, looking again whenever a request comes or is finished.

        `TimeoutError` if that does not happen.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self), timeout_s):
                raise TimeoutError(
                    f"not so within {timeout_s} s; {len(self.requests)} requests have come"
                )

    # -- answering; all of it on the server's thread

    def _finished(self, request: Request) -> None:
        with self._changed:
            self._changed.notify_all()

    def _respond(self, request: Request) -> Reply:
        path = request.path.partition("?")[0]
        if not self._may(request):
            return error(401, "Incorrect API key provided", code="invalid_api_key")
        if (request.method, path) == ("POST", _CHAT):
            return self._chat(request)
        if (request.method, path) == ("GET", "/v1/models"):
            return json_reply(models_body(self.models))
        status = 405 if path in (_CHAT, "/v1/models") else 404
        return error(status, f"no {request.method} {path} here")

    def _may(self, request: Request) -> bool:
        sent = request.headers.get("authorization", "").encode("latin-1")
        return self._api_key is None or hmac.compare_digest(
            sent, f"Bearer {self._api_key}".encode()
        )

    def _chat(self, request: Request) -> Reply:
        request.body, request.breaches = _read(request.raw)
        if self._check and not request.breaches:
            request.breaches = check_request(request.body, allow=self._allow)
        with self._changed:
            self.requests.append(request)
            request.number = len(self.requests)
            self._changed.notify_all()
        if request.breaches:
            self.breaches += [f"request {request.number}: {breach}" for breach in request.breaches]
            return error(400, "; ".join(request.breaches))
        if refused := sorted(self._refuses & _keys(request)):
            return error(
                400, f"Unrecognized request argument supplied: {refused[0]}", param=refused[0]
            )
        return self._scripted(request)

    def _scripted(self, request: Request) -> Reply:
        try:
            return as_reply(self._script.next(), request)
        except Exception as problem:
            told = f"request {request.number}: {problem!r}"
            self.script_errors.append(told)
            return error(400, f"the script of the fake server: {told}")


def as_reply(sent: Any, request: Request) -> Reply:
    """What a script may hold, as the reply to a given request."""
    match sent:
        case Reply():
            return sent
        case Fault():
            return sent.change(as_reply(sent.reply, request))
        case str():
            return completion(says(sent), request)
        case Answer():
            return completion(sent, request)
    if is_function(sent):
        return as_reply(sent(request), request)
    raise TypeError(f"a reply is a text, says(...), calls(...), a Reply or a fault, not {sent!r}")


def _read(raw: bytes) -> tuple[Any, list[str]]:
    try:
        return read_strict(raw.decode())
    except UnicodeDecodeError as problem:
        return None, [f"the body is not UTF-8 ({problem})"]


def _keys(request: Request) -> set[str]:
    """Every key that a server could stumble over: of the body and of its messages."""
    holders = [request.body, *request.messages]
    return {key for holder in holders if isinstance(holder, dict) for key in holder}


def weather(messages: Sequence[Message], offered: Collection[str] = (ASKED_FOR,)) -> Answer:
    """A little model that keeps no state: asks `get_weather` for the city of "... in Paris?", then tells the result. It asks
    for nothing that the request does not offer."""
    last = messages[-1] if messages else {}
    text = str(last.get("content") or "")
    if last.get("role") == "tool":
        return says(f"Here is the weather: {text}")
    if ASKED_FOR not in offered:
        return says(f"Nobody gave me {ASKED_FOR}, so I cannot look the weather up.")
    city = re.search(r"\bin ([A-Z]\w*(?: [A-Z]\w*)*)", text)
    return calls((ASKED_FOR, {"city": city[1] if city else "London"}))


def offered_names(request: Request) -> list[str]:
    """The functions that a request offers to the model."""
    tools = request.body.get("tools") if isinstance(request.body, dict) else None
    return [tool["function"]["name"] for tool in tools or []]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m agentor.testing.server", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    chosen = parser.parse_args(arguments)
    server = FakeServer(
        lambda request: weather(request.messages, offered_names(request)), port=chosen.port
    ).start()
    print(server.base_url, flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        server.close()


if __name__ == "__main__":
    main()
