"""Idempotency keys against a service of its own process-independent memory: what a retry means, over real HTTP."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.request import Request, urlopen

import pytest

from agentor import Agentor, DidNotHappen, Happened, RunContext, function_tool
from agentor.testing import ScriptedModel, calls, says
from tests.engine.agents import ThreeMethods


class Service(ThreadingHTTPServer):
    """Adds to a counter, once for each key, and remembers what it answered."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.total = 0
        self.answers: dict[str, str] = {}
        self.asked: Counter[str] = Counter()
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        key = self.headers["Idempotency-Key"]
        amount = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["amount"]
        with self.server.lock:
            self.server.asked[key] += 1
            if key not in self.server.answers:
                self.server.total += amount
                self.server.answers[key] = f"total {self.server.total}"
        self._say(self.server.answers[key])

    def do_GET(self) -> None:
        self._say(self.server.answers.get(self.path.strip("/"), ""))

    def _say(self, text: str) -> None:
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def paying(service: Service, effect: str, store: Any) -> Agentor:
    def ask_service(ctx: RunContext) -> Any:
        with urlopen(service.url + str(ctx.idempotency_key)) as reply:
            answer = reply.read().decode()
        return Happened(answer) if answer else DidNotHappen()

    options: dict[str, Any] = {"reconcile": ask_service} if effect == "once" else {}

    @function_tool(effect=effect, **options)  # type: ignore[arg-type]
    def add(ctx: RunContext, amount: int) -> str:
        """Add to the counter."""
        request = Request(
            service.url,
            data=json.dumps({"amount": amount}).encode(),
            headers={"Idempotency-Key": str(ctx.idempotency_key)},
        )
        with urlopen(request) as reply:
            return str(reply.read().decode())

    script = [calls(("add", {"amount": 3}), ("add", {"amount": 4})), says("done")]
    return Agentor("A", model=ScriptedModel.by_turn(script), tools=[add], store=store)


@pytest.mark.parametrize("effect", ["idempotent", "once"])
@pytest.mark.parametrize("length", range(4, 8))
def test_whatever_is_lost_of_the_log_the_service_counts_each_call_once(
    service: Service, store: Any, effect: str, length: int
) -> None:
    log = paying(service, effect, None).run("go").events
    service.total, service.answers, service.asked = 0, {}, Counter()
    first = paying(service, effect, ThreeMethods())
    run = first.run("go", run_id="r")
    assert service.total == 7
    for event in run.events[:length]:  # the process died here; the service knows of both calls
        store.append("r", event)
    result = paying(service, effect, store).resume("r")
    assert result.final_output == "done"
    assert service.total == 7
    assert len(service.answers) == 2
    if effect == "once":
        assert set(service.asked.values()) == {1}
    assert len(log) == len(run.events)
