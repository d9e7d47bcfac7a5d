"""The real client package, pointed at a fake server."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from agentor.testing import FakeServer

ASKED: list[Any] = [{"role": "user", "content": "How is London?"}]


@dataclass
class Client:
    """What a user of the openai package sees of a server. No retries, unless a test is about them."""

    api: openai.OpenAI
    http_port: int

    def whole(self, messages: Any = ASKED, **more: Any) -> Any:
        return self.api.chat.completions.create(model="test-model", messages=messages, **more)

    def chunks(self, messages: Any = ASKED, **more: Any) -> list[Any]:
        options = {"include_usage": True}
        return list(self.whole(messages, stream=True, stream_options=options, **more))

    def text(self, **more: Any) -> str:
        """The streamed text, joined."""
        return "".join(c.choices[0].delta.content or "" for c in self.chunks(**more) if c.choices)

    def post(
        self, body: bytes | str, path: str = "/v1/chat/completions"
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and bytes, with no package between."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=30)
        try:
            connection.request("POST", path, body)
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()


@pytest.fixture(scope="session")
def api() -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="test", base_url="http://127.0.0.1:9/v1", max_retries=0) as client:
        yield client


@pytest.fixture
def client_of(api: openai.OpenAI) -> Callable[[FakeServer], Client]:
    def connect(server: FakeServer) -> Client:
        port = urlsplit(server.base_url).port
        assert port is not None
        return Client(api.with_options(base_url=server.base_url), port)

    return connect
