"""The way to the server and back: the openai client, one for each event loop, and the bytes of its answers.

The client sends, and repeats what HTTP says may be repeated. What it makes of a body is not used: it ends a cut
stream without an error and takes a page of HTML for an answer. So the bytes are read here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from agentor.engine import strict_json
from agentor.engine.loop_clients import LoopClients
from agentor.engine.redact import SECRETS, guard_loggers
from agentor.engine.settings import ModelSettings
from agentor.errors import ConfigError

if TYPE_CHECKING:
    from openai import AsyncOpenAI

OPENAI_URL: Final = "https://api.openai.com/v1"
TIMEOUT_S: Final = 600.0
CONNECT_TIMEOUT_S: Final = 10.0
MAX_RETRIES: Final = 2

ApiKey = str | Callable[[], Awaitable[str]]


@dataclass(slots=True)
class Incoming:
    """An answer that has begun: its body, as bytes or as decoded chunks, and what it took to get it."""

    pieces: AsyncGenerator[bytes | Mapping[str, Any], None]
    headers: Mapping[str, str]
    retries: int  # that the client made
    decoded: bool = False  # by a client of the user's, whose errors are its own


class Transport:
    """One server, one key. Clients are made when they are needed and closed with their event loop."""

    def __init__(
        self,
        api_key: ApiKey | None,
        base_url: str | None,
        client: Any,
        settings: ModelSettings,
    ) -> None:
        self._api_key = api_key
        self._base_url = base_url and _checked(base_url)
        self._given = client
        self._settings = settings
        self._clients = LoopClients()
        SECRETS.add(_secrets_of(api_key, base_url, settings))

    @property
    def source(self) -> str:
        """Which server, as host or host:port. Never credentials."""
        url = urlsplit(str(getattr(self._given, "base_url", None) or self._url()))
        host = url.hostname or "unknown"
        host = f"[{host}]" if ":" in host else host
        return host if url.port is None else f"{host}:{url.port}"

    @property
    def max_retries(self) -> int:
        if (wanted := self._settings.max_retries) is not None:
            return int(wanted)
        given = getattr(self._given, "max_retries", None)
        return given if isinstance(given, int) else MAX_RETRIES

    @property
    def timeout_s(self) -> float:
        return self._settings.timeout or TIMEOUT_S

    @contextlib.asynccontextmanager
    async def send(self, body: dict[str, Any], max_retries: int) -> AsyncIterator[Incoming]:
        """Send one request. Leaving the block closes the answer, read to its end or not.

        The openai package's own exceptions say that the server refused it or could not be reached.
        """
        client = await self._client()
        completions = client.chat.completions
        if not hasattr(completions, "with_streaming_response"):
            yield await _ask(completions, body)
            return
        if max_retries != getattr(client, "max_retries", None):
            client = client.with_options(max_retries=max_retries)
        async with contextlib.AsyncExitStack() as opened:
            response = await self._create(opened, client, body)
            pieces = response.http_response.aiter_bytes()
            await opened.enter_async_context(contextlib.aclosing(pieces))
            yield Incoming(pieces, response.headers, response.retries_taken)

    async def _create(
        self, opened: contextlib.AsyncExitStack, client: Any, body: dict[str, Any]
    ) -> Any:
        """Begin the request. Text that is no valid Unicode fails before it is sent; it is rare, so only then is
        the whole conversation gone through."""
        create = client.chat.completions.with_streaming_response.create
        options = self._options()
        try:
            return await opened.enter_async_context(create(**_arguments(body), **options))
        except UnicodeEncodeError:
            body = strict_json.clean(body)
            return await opened.enter_async_context(create(**_arguments(body), **options))

    async def aclose(self) -> None:
        """Close what was opened for the running event loop."""
        await self._clients.aclose()

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if self._settings.extra_headers:
            options["extra_headers"] = self._settings.extra_headers
        if self._given is None or self._sets_timeouts():
            import openai

            whole = self.timeout_s
            options["timeout"] = openai.Timeout(
                whole,
                connect=min(self._settings.connect_timeout or CONNECT_TIMEOUT_S, whole),
                read=min(self._settings.read_timeout or whole, whole),
            )
        return options

    def _sets_timeouts(self) -> bool:
        settings = self._settings
        return any((settings.timeout, settings.connect_timeout, settings.read_timeout))

    async def _client(self) -> Any:
        if self._given is not None:
            guard_loggers()
            SECRETS.add(_secrets_of_client(self._given))
            return self._given
        if (client := self._clients.get()) is None:
            # A second for the import and a tenth for the certificates are too long for an event loop.
            made = await asyncio.to_thread(self._make, self._key())
            client = await self._clients.keep(made)
        return client

    def _make(self, key: ApiKey) -> AsyncOpenAI:
        import openai

        guard_loggers()
        client = openai.AsyncOpenAI(api_key=key, base_url=self._url(), max_retries=self.max_retries)
        SECRETS.add(_secrets_of_client(client))
        client.chat.completions  # noqa: B018  # it is loaded when it is first asked for
        return client

    def _key(self) -> ApiKey:
        key = self._api_key or os.environ.get("OPENAI_API_KEY")
        if key:
            return _header_text(key) if isinstance(key, str) else _hidden(key)
        if self.source == "api.openai.com":
            raise ConfigError(
                "no API key for OpenAI: set the environment variable OPENAI_API_KEY or pass api_key=..., "
                "or pass base_url=... to use another server"
            )
        return "unused"  # the client insists on one; servers that need none ignore it

    def _url(self) -> str:
        return self._base_url or _checked(os.environ.get("OPENAI_BASE_URL") or OPENAI_URL)


def _checked(url: str) -> str:
    """The URL of a server, without telling what may be a password in it when it is none."""
    try:
        parts = urlsplit(url)
        port = 80 if parts.port is None else parts.port
        if parts.scheme in ("http", "https") and parts.hostname and port:
            return url
    except ValueError:
        pass
    raise ConfigError(
        "base_url must be like https://api.example.com/v1 or http://localhost:8000/v1"
    )


def _header_text(key: str) -> str:
    """The key without the line end that comes along from a file, if it can stand in a header at all."""
    key = key.strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigError("the API key holds characters that no key has; copy it again")
    return key


def _hidden(provider: Callable[[], Awaitable[str]]) -> Callable[[], Awaitable[str]]:
    """A provider of keys, each of which is kept secret from when it is known."""

    async def key() -> str:
        given = await provider()
        SECRETS.add([given])
        return given

    return key


def _arguments(body: dict[str, Any]) -> dict[str, Any]:
    """How the body is handed over: as `extra_body`, which goes out as it is. Walking through all messages to
    check what is checked already would cost more than sending them."""
    rest = {name: value for name, value in body.items() if name not in ("model", "stream")}
    arguments = {"model": body["model"], "messages": [], "extra_body": rest}
    return {**arguments, "stream": True} if body.get("stream") else arguments


async def _ask(completions: Any, body: dict[str, Any]) -> Incoming:
    """Ask a client that only looks like openai's: it gives objects, not bytes."""
    answer = await completions.create(**body)

    async def chunks() -> AsyncGenerator[bytes | Mapping[str, Any], None]:
        if not hasattr(answer, "__aiter__"):
            yield _as_dict(answer)
            return
        async for chunk in answer:
            yield _as_dict(chunk)

    return Incoming(chunks(), {}, 0, decoded=True)


def _as_dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else value.model_dump(exclude_unset=True)


def _secrets_of(api_key: ApiKey | None, base_url: str | None, settings: ModelSettings) -> list[str]:
    url = urlsplit(base_url or os.environ.get("OPENAI_BASE_URL") or "")
    texts = [api_key, os.environ.get("OPENAI_API_KEY"), *settings.extra_headers.values()]
    texts += [url.password, unquote(url.password or "")]
    return [text for text in texts if isinstance(text, str)]


def _secrets_of_client(client: Any) -> list[str]:
    headers = getattr(client, "_custom_headers", None)
    texts = [getattr(client, "api_key", None)]
    texts += headers.values() if isinstance(headers, Mapping) else ()
    return [text for text in texts if isinstance(text, str)]
