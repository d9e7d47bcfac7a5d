"""How the pieces of a streamed reply become one reply: a pure fold over decoded chunks.

Servers number, name and repeat their pieces in many ways, so every piece of a tool call is placed by one written
rule (`_Calls.at`). Empty and null never overwrite; fields that are not known are gathered and kept; text that
comes in pieces is kept in pieces until the end, so that a reply costs what it is long.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from agentor.engine import clock, strict_json
from agentor.engine.argument_text import ArgumentText
from agentor.engine.events import Usage
from agentor.engine.gather import Gathered
from agentor.engine.responses import ModelResponse, StreamChunk, ToolCall
from agentor.engine.usage import usage_of

REASONING_TEXT: Final = ("reasoning_content", "reasoning", "thinking", "reasoning_text")
CUT_OFF: Final = frozenset(
    {"length", "content_filter", "error"}
)  # reasons that no later one undoes
_READ_BY_US: Final = frozenset({"role", "content", "tool_calls", "function_call"})
_LEGACY: Final = object()  # the index of a `function_call`, which no numbered call shares


def assemble(
    chunks: Iterable[Mapping[str, Any]],
    tool_names: Collection[str] = (),
    new_id: Callable[[], str] = clock.new_id,
) -> ModelResponse:
    """The reply that these `chat.completion.chunk` objects make up.

    `tool_names` are the tools that were offered: a name that comes in pieces is joined only into one of them.
    A `finish_reason` of None in the result means that none was seen: the reply was cut.
    """
    assembly = Assembly(tool_names, new_id)
    for chunk in chunks:
        assembly.add(chunk)
    return assembly.response()


class Assembly:
    """A reply in the making. `add` chunks in order, then ask for the `response`."""

    def __init__(
        self, tool_names: Collection[str] = (), new_id: Callable[[], str] = clock.new_id
    ) -> None:
        self.finish_reason: str | None = None
        self._choice: object = None  # the index of the one choice that is followed
        self._began = False
        self._text = _Text()
        self._reasoning = _Text()
        self._reasoning_field: str | None = None
        self._calls = _Calls(tool_names, new_id)
        self._usage = Usage()
        self._extra = Gathered()

    def add(self, chunk: Mapping[str, Any]) -> StreamChunk | None:
        """Fold one chunk in; what it adds to the visible text, if anything."""
        self._count(chunk.get("usage"))
        if isinstance(groq := chunk.get("x_groq"), dict):
            self._count(groq.get("usage"))
        shown, thought = "", ""
        for choice in _dicts(chunk.get("choices")):
            if self._follows(choice):
                self._count(choice.get("usage"))
                text, reasoning = self._add_delta(self._delta(choice))
                shown, thought = shown + text, thought + reasoning
                self._finish(choice.get("finish_reason"))
        return _piece(shown, thought)

    def end(self) -> StreamChunk | None:
        """What was held back because its other half might still have come."""
        return _piece(self._text.end(), self._reasoning.end())

    def response(self) -> ModelResponse:
        """The whole reply as far as it came."""
        return ModelResponse(
            content=self._text.whole(),
            tool_calls=self._calls.settled(),
            usage=self._usage,
            reasoning=self._reasoning.whole() or _told(self._extra.value("reasoning_details")),
            finish_reason=self.finish_reason,
            extra=self._extra.said(),
        )

    def _follows(self, choice: Mapping[str, Any]) -> bool:
        index = choice.get("index") or 0
        if self._choice is None:
            self._choice = index
        return bool(index == self._choice)

    def _delta(self, choice: Mapping[str, Any]) -> Mapping[str, Any]:
        """The news in a choice. A whole `message` is news only when nothing came before it."""
        delta = choice.get("delta")
        if isinstance(delta, dict):
            self._began = self._began or bool(delta)
            return delta
        message = choice.get("message")
        if isinstance(message, dict) and not self._began:
            self._began = True
            return {**message, "tool_calls": _numbered(message.get("tool_calls"))}
        return {}

    def _add_delta(self, delta: Mapping[str, Any]) -> tuple[str, str]:
        text, reasoning = _content(delta.get("content"))
        thought = self._reasoning.add(reasoning)
        for call in _dicts(delta.get("tool_calls")):
            self._calls.add(call)
        if isinstance(legacy := delta.get("function_call"), dict):
            self._calls.add({"index": _LEGACY, "function": legacy})
        for name, value in delta.items():
            if name in _READ_BY_US or value is None:
                continue
            thought += self._add_reasoning(name, value)
            self._extra.add(name, value)
        return self._text.add(text), thought

    def _add_reasoning(self, name: str, value: Any) -> str:
        """Servers send the same reasoning under two names; the first name that says something is read."""
        if name not in REASONING_TEXT or not isinstance(value, str) or not value:
            return ""
        if self._reasoning_field is None:
            self._reasoning_field = name
        return self._reasoning.add(value) if name == self._reasoning_field else ""

    def _finish(self, reason: Any) -> None:
        if isinstance(reason, str) and reason and self.finish_reason not in CUT_OFF:
            self.finish_reason = reason

    def _count(self, counts: Any) -> None:
        """Counts replace: servers that send them on every chunk send the sum so far."""
        if counts and (usage := usage_of(counts)) != Usage():
            self._usage = usage


class _Text:
    """Text in pieces. Half a surrogate pair waits for its other half before it is shown."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._held = ""
        self._came = False

    def add(self, piece: str | None) -> str:
        if piece is None:
            return ""
        self._came = True
        piece = self._held + piece
        self._held = ""
        if piece and "\ud800" <= piece[-1] <= "\udbff":
            piece, self._held = piece[:-1], piece[-1]
        return self._show(piece)

    def end(self) -> str:
        held, self._held = self._held, ""
        return self._show(held)

    def whole(self) -> str | None:
        """None if no text came, "" if empty text did."""
        self.end()
        return "".join(self._pieces) if self._came else None

    def _show(self, piece: str) -> str:
        piece = strict_json.clean_text(piece)
        if piece:
            self._pieces.append(piece)
        return piece


class _Call:
    """A tool call in the making."""

    def __init__(self, index: object, follows: _Call | None) -> None:
        self.index = index
        self.ids: list[str] = []  # as the server names it; the first is the one it answers to
        self.follows = follows  # the call it was told from by its name alone
        self.arguments = ArgumentText()
        self.extra = Gathered()
        self._names: list[str] = []

    def add_name(self, name: str) -> None:
        if not self._names or (self.arguments.empty and name != self._names[-1]):
            self._names.append(name)

    def name(self, offered: Collection[str]) -> str:
        """The pieces joined, if that is a tool; else the piece that is a tool; else the first."""
        whole = "".join(self._names)
        if whole in offered:
            return whole
        return next((name for name in self._names if name in offered), "".join(self._names[:1]))

    def awaits(self, name: str | None) -> bool:
        """Whether a name may still be its own: it has none yet, or all that came is the `{}` that some servers
        send ahead of the real arguments."""
        if not self._names:
            return True
        return self.arguments.placeholder and name in ("".join(self._names), *self._names)


class _Calls:
    """All calls of a reply, in the order they were opened."""

    def __init__(self, tool_names: Collection[str], new_id: Callable[[], str]) -> None:
        self._tool_names = frozenset(tool_names)
        self._new_id = new_id
        self._calls: list[_Call] = []
        self._by_id: dict[str, list[_Call]] = {}
        self._at_index: dict[object, _Call] = {}  # the newest call of each index

    def add(self, piece: Mapping[str, Any]) -> None:
        function = piece.get("function")
        if not isinstance(function, dict):
            function = {name: piece[name] for name in ("name", "arguments") if name in piece}
        call_id, index, name = _id(piece.get("id")), _index(piece), _name(function.get("name"))
        call = self.at(call_id, index, name)
        if call_id and call_id not in call.ids:
            call.ids.append(call_id)
            self._by_id.setdefault(call_id, []).append(call)
        if name:
            call.add_name(name)
        call.arguments.add(function.get("arguments"))
        for field, value in piece.items():
            if field not in ("id", "index", "type", "function", "name", "arguments"):
                call.extra.add(field, value)

    def at(self, call_id: str | None, index: object, name: str | None) -> _Call:
        """The call that a piece belongs to.

        A known id: that call, but at another index and with a name it is another call that was given the same
        id. A new id: a new call, even at a used index, if the piece has a name or the call open there is
        complete; else the call open there goes on under one more id. No id: the newest call at that index, or
        the newest of all; but a name, once that call is complete, opens the next one.
        """
        if call_id in self._by_id:
            return self._known(call_id, index, name)
        open_call = self._calls[-1] if self._calls else None
        if index is not None and index in self._at_index:
            open_call = self._at_index[index]
        elif index is not None and (call_id or name) and open_call and open_call.index is not None:
            return self._open(index)
        if open_call is None:
            return self._open(index)
        if not name and not (call_id and open_call.arguments.complete):
            return open_call
        if call_id:
            return self._open(index)
        if open_call.arguments.complete and not open_call.awaits(name):
            return self._open(index, follows=open_call)
        return open_call

    def _known(self, call_id: str, index: object, name: str | None) -> _Call:
        same_id = self._by_id[call_id]
        if index is not None:
            for call in reversed(same_id):
                if call.index == index:
                    return call
            if name and same_id[-1].index is not None:
                return self._open(index)
        return same_id[-1]

    def _open(self, index: object, follows: _Call | None = None) -> _Call:
        call = _Call(index, follows)
        self._calls.append(call)
        self._at_index[index] = call
        return call

    def settled(self) -> list[ToolCall]:
        taken: set[str] = set()
        settled: list[ToolCall] = []
        for call in self._calls:
            if self._repeats(call):
                continue
            call_id = next((each for each in call.ids[:1] if each not in taken), None)
            call_id = call_id or f"call_{self._new_id()}"
            taken.add(call_id)
            name = strict_json.clean_text(call.name(self._tool_names))
            settled.append(ToolCall(call_id, name, call.arguments.whole(), call.extra.said()))
        return settled

    def _repeats(self, call: _Call) -> bool:
        """A call told apart by its name alone is a repeat if it says nothing new."""
        before = call.follows
        if before is None or call.name(self._tool_names) != before.name(self._tool_names):
            return False
        return call.arguments.empty or call.arguments.whole() == before.arguments.whole()


def _dicts(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        return [value]
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _numbered(calls: Any) -> list[dict[str, Any]]:
    """The calls of a whole message: each is a call of its own, whatever numbers and ids it has."""
    return [{**call, "index": place} for place, call in enumerate(_dicts(calls))]


def _id(value: Any) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return strict_json.clean_text(value) if isinstance(value, str) and value else None


def _index(piece: Mapping[str, Any]) -> object:
    index = piece.get("index")
    return index if index is _LEGACY or isinstance(index, int) else None


def _name(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _content(content: Any) -> tuple[str | None, str | None]:
    """Text and reasoning of a `content`, which is a string or a list of parts."""
    if isinstance(content, str):
        return content, None
    text, thought = "", ""
    for part in _dicts(content):
        if part.get("type") == "thinking":
            thought += _content(part.get("thinking"))[0] or ""
        elif isinstance(part.get("text"), str):
            text += part["text"]
    return text or None, thought or None


def _told(details: Any) -> str | None:
    """The readable part of `reasoning_details`."""
    texts = (item.get("text") or item.get("summary") for item in _dicts(details))
    return "".join(text for text in texts if isinstance(text, str)) or None


def _piece(text: str, reasoning: str) -> StreamChunk | None:
    if not text and not reasoning:
        return None
    return StreamChunk(delta=text or None, reasoning_delta=reasoning or None)
