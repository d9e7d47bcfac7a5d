"""The only maker of what a provider sees, legal whatever it is given.

A `Transcript` is the conversation as it may be sent: every call answered exactly once, directly after its group and
in the order asked; unique ids; arguments that are a JSON object; one system message, in front; nothing empty.
What a model sent badly stays in its event. It is repaired on its way into the transcript and never sent again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from agentor.engine import strict_json
from agentor.engine.arguments import parse_arguments
from agentor.engine.events import Event, Message

UNANSWERED: Final = "No result was recorded for this call."
MAX_NESTING: Final = (
    128  # of arguments; deeper ones are a model gone astray, and harm readers downstream
)

SYSTEM_ROLES: Final = ("system", "developer")
_BAD_NAME: Final = re.compile(r"[^a-zA-Z0-9_-]")
_OWN_KEYS: Final = frozenset({"role", "content", "tool_calls", "tool_call_id", "name"})
_OWN_CALL_KEYS: Final = frozenset({"id", "type", "function"})


class Call(NamedTuple):
    """One call of a batch, as it is run and as it is sent back."""

    position: int  # in its batch, from 0
    call_id: str  # unique in the conversation
    received_id: str  # what the model called it; may be empty or doubled
    name: str  # what the model called the tool; may be empty
    arguments: str  # JSON text of an object, fit to be sent
    args: Mapping[str, Any]
    problem: str | None  # why the arguments cannot be used
    provider_fields: Mapping[str, Any]

    def to_message(self) -> dict[str, Any]:
        function = {"name": sent_name(self.name), "arguments": self.arguments}
        return {
            "id": self.call_id,
            "type": "function",
            "function": function,
            **self.provider_fields,
        }


class Transcript:
    """A conversation that may be sent as it stands; an immutable value that grows cheaply.

    Views share one growing list. Adding at its tip costs only what is added, however many older views there are;
    adding to an older view copies that view first. So folding n events costs O(n), and every prefix stays valid.
    """

    __slots__ = ("_length", "_shared")

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        """`messages` may be anything at all; the transcript is what can be said of it legally."""
        self._shared = _Shared()
        self._shared.add(_legal(messages), None)
        self._length = len(self._shared.messages)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Message]:
        return iter(self._shared.messages[: self._length])

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Transcript) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    @property
    def has_system(self) -> bool:
        return self._length > 0 and self._shared.messages[0]["role"] in SYSTEM_ROLES

    @property
    def last_answer(self) -> str | None:
        """What the assistant said, if the last word is its own: no request may end so."""
        if (
            not self._length
            or (last := self._shared.messages[self._length - 1])["role"] != "assistant"
        ):
            return None
        return (
            last["content"]
            if isinstance(last["content"], str)
            else strict_json.dumps(last["content"])
        )

    def with_group(
        self, message: Message, answers: Sequence[Message], source: str | None
    ) -> Transcript:
        """The transcript with an assistant message and the answers to its calls, which are legal already."""
        return self._grown([message, *answers], source)

    def extended(self, kept: int, messages: Sequence[Message]) -> Transcript:
        """The first `kept` messages, then `messages`, which may be anything."""
        if kept == self._length and all(_is_plain(message) for message in messages):
            return self._grown(_legal(messages), None) if messages else self
        rebuilt = Transcript([*self._shared.messages[:kept], *messages])
        rebuilt._shared.credit(self._shared.origins_until(self._length))
        return rebuilt

    def uses_id(self, call_id: str) -> bool:
        return self._shared.ids.get(call_id, self._length) < self._length

    def digest(self) -> str:
        """32 hexadecimal digits that two transcripts share only if their messages are equal."""
        return self._shared.digest(self._length)

    def request(self, source: str | None, after: int = 0) -> list[Message]:
        """A list of the messages for a model that talks to `source`: provider fields of other servers are left out.

        The list is the caller's, the messages are shared: treat them as read-only. `after`: without the first so many.
        """
        messages = self._shared.messages[after : self._length]
        if not self._shared.sources <= {source}:
            for index, origin in self._shared.origins.items():
                if after <= index < self._length and origin != source:
                    messages[index - after] = _without_provider_fields(messages[index - after])
        return messages

    def continues(self, earlier: Transcript) -> bool:
        """Whether it is known to begin with all of `earlier`."""
        return self._shared is earlier._shared and self._length >= earlier._length

    def is_sent_as(self, messages: list[Message]) -> bool:
        """Whether they are the messages, none left out or changed on the way. Quick if they are the very same objects."""
        if self._length != len(self._shared.messages):
            return False
        try:
            return messages == self._shared.messages
        except Exception:  # somebody has put in what cannot even be compared
            return False

    def _grown(self, messages: list[Message], source: str | None) -> Transcript:
        view = object.__new__(Transcript)
        shared = self._shared
        if len(shared.messages) != self._length:
            shared = shared.first(self._length)
        shared.add(messages, source)
        view._shared, view._length = shared, len(shared.messages)
        return view


class _Shared:
    """What the views of one conversation have in common: append-only."""

    __slots__ = ("digests", "ids", "messages", "origins", "sources")

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.ids: dict[str, int] = {}  # call id -> index of the message that asked
        self.origins: dict[int, str] = {}  # index -> the server whose fields it carries
        self.sources: set[str] = set()  # all of these servers
        self.digests: list[str] = [""]  # of the first i messages, as far as somebody asked

    def add(self, messages: Iterable[Message], source: str | None) -> None:
        for message in messages:
            index = len(self.messages)
            for call in message.get("tool_calls", ()):
                self.ids[call["id"]] = index
            if source is not None and _has_provider_fields(message):
                self.origins[index] = source
                self.sources.add(source)
            self.messages.append(message)

    def first(self, length: int) -> _Shared:
        copy = _Shared()
        copy.messages = self.messages[:length]
        copy.ids = {call_id: index for call_id, index in self.ids.items() if index < length}
        copy.origins = {index: source for index, source in self.origins.items() if index < length}
        copy.sources = set(copy.origins.values())
        copy.digests = self.digests[: length + 1]
        return copy

    def origins_until(self, length: int) -> dict[str, str]:
        """What is known of the first messages: the server of each that has fields of one, by what the message says."""
        return {
            strict_json.canonical(self.messages[index]): source
            for index, source in self.origins.items()
            if index < length
        }

    def credit(self, known: Mapping[str, str]) -> None:
        """Learn of messages that were said before where they came from: a list of messages does not tell."""
        for index, message in enumerate(self.messages if known else ()):
            said = strict_json.canonical(message) if _has_provider_fields(message) else ""
            if said in known:
                self.origins[index] = known[said]
                self.sources.add(known[said])

    def digest(self, length: int) -> str:
        for message in self.messages[len(self.digests) - 1 : length]:
            text = self.digests[-1] + strict_json.canonical(message)
            self.digests.append(strict_json.digest_of_text(text))
        return self.digests[length]


def build_request(transcript: Transcript, source: str | None = None) -> list[Message]:
    """The messages of the next model call. See `Transcript.request`."""
    return transcript.request(source)


def read_calls(event: Event, transcript: Transcript) -> tuple[Call, ...]:
    """The calls a generation asks for, each with an id that nothing else in the conversation has."""
    taken: set[str] = set()
    calls = []
    for position, raw in enumerate(event.calls or ()):
        call = _read_call(raw, position)
        call_id = call.received_id
        if not call_id or call_id in taken or transcript.uses_id(call_id):
            call_id = _fresh_id(
                len(transcript), position, lambda i: i in taken or transcript.uses_id(i)
            )
        taken.add(call_id)
        calls.append(_renamed(call, call_id))
    return tuple(calls)


def assistant_message(event: Event, calls: Sequence[Call]) -> Message:
    """What a generation adds to the conversation, provider fields included."""
    message: Message = {"role": "assistant", "content": event.text or ""}
    if calls:
        message["tool_calls"] = [call.to_message() for call in calls]
    for name, value in (event.provider_fields or {}).items():
        if name not in _OWN_KEYS and value is not None:
            message[name] = value
    return message


def tool_message(call: Call, text: str) -> Message:
    return {"role": "tool", "tool_call_id": call.call_id, "content": text}


def sent_name(name: str) -> str:
    """The tool's name in the form every provider accepts."""
    if name.isidentifier() and name.isascii() and len(name) <= 64:  # nearly all of them
        return name
    return _BAD_NAME.sub("_", name)[:64] or "unnamed"


def _read_call(raw: Mapping[str, Any], position: int) -> Call:
    function = raw.get("function")
    function = function if isinstance(function, (dict, Mapping)) else {}
    name, text = function.get("name"), function.get("arguments")
    args, problem = parse_arguments(text)
    received = raw.get("id")
    call_id = strict_json.clean_text(received) if isinstance(received, str) else ""
    sendable = isinstance(text, str) and problem is None and text.strip() and _is_clean(text)
    return Call(
        position,
        call_id,
        call_id,
        strict_json.clean_text(name) if isinstance(name, str) else "",
        str(text) if sendable else strict_json.dumps(args),
        args,
        problem,
        {} if raw.keys() <= _OWN_CALL_KEYS else _others(raw),
    )


def _others(raw: Mapping[str, Any]) -> dict[str, Any]:
    """What is neither ours nor a place in a stream."""
    ours = _OWN_CALL_KEYS | {"index"}
    return {key: value for key, value in raw.items() if key not in ours and value is not None}


def _is_clean(text: str) -> bool:
    """No lone surrogate, written out or as an escape that the arguments' reader would have replaced."""
    escapes = "\\" in text and "\\ud" in text.lower()
    return not escapes and strict_json.clean_text(text) == text


def _renamed(call: Call, call_id: str) -> Call:
    if call.call_id == call_id:
        return call
    return call._replace(call_id=call_id)


def _fresh_id(group: int, position: int, is_taken: Any) -> str:
    """An id of ours for a call that has none of its own; the same at every replay."""
    call_id = f"call_{group}_{position}"
    while is_taken(call_id):
        call_id += "_"
    return call_id


def _is_plain(message: Message) -> bool:
    """Whether a message can be added at the end without looking at those before it."""
    if message.get("role") == "user":
        return True
    return message.get("role") == "assistant" and not (
        message.get("tool_calls") or message.get("function_call")
    )


def _has_provider_fields(message: Message) -> bool:
    return not _OWN_KEYS.issuperset(message) or any(
        not _OWN_CALL_KEYS.issuperset(call) for call in message.get("tool_calls", ())
    )


def _without_provider_fields(message: Message) -> Message:
    kept = {key: value for key, value in message.items() if key in _OWN_KEYS}
    if "tool_calls" in kept:
        kept["tool_calls"] = [
            {key: value for key, value in call.items() if key in _OWN_CALL_KEYS}
            for call in kept["tool_calls"]
        ]
    return kept


# Making any list of messages legal -------------------------------------------------------------------------------

_Place: TypeAlias = tuple[Call, list[Message]]  # a call without an answer, the answers of its group


def _legal(messages: Iterable[Message]) -> list[Message]:
    """The legal conversation nearest to `messages`."""
    system: list[Message] = []
    rest: list[Message] = []
    open_calls: dict[str, list[_Place]] = {}  # received id -> where its answers go, in order
    groups: dict[int, list[Message]] = {}  # index in rest -> answers
    taken: set[str] = set()
    for raw in messages:
        message = _tidied(raw) if isinstance(raw, dict) else {}
        match message.get("role"):
            case "system" | "developer":
                system.append(message)
            case "user":
                rest.append(message)
            case "assistant" if message.get("tool_calls"):
                calls = _unique_calls(message["tool_calls"], len(rest), taken)
                answers = [tool_message(call, UNANSWERED) for call in calls]
                groups[len(rest)] = answers
                open_calls |= _places(calls, answers)
                message["tool_calls"] = [call.to_message() for call in calls]
                rest.append(message)
            case "assistant" if message["content"]:
                rest.append(message)
            case "tool" if places := open_calls.get(message.get("tool_call_id", "")):
                call, answers = places.pop(_meant(message, places))
                answers[call.position] = {**message, "tool_call_id": call.call_id}
    legal = [_merged(system)] if system else []
    for index, message in enumerate(rest):
        legal.append(message)
        legal.extend(groups.get(index, ()))
    return legal


def _places(calls: Sequence[Call], answers: list[Message]) -> dict[str, list[_Place]]:
    places: dict[str, list[_Place]] = {}
    for call in calls:
        places.setdefault(call.received_id, []).append((call, answers))
    return places


def _meant(message: Message, places: Sequence[_Place]) -> int:
    """Which place an answer is for, of those with its id: that of the tool it names, or the first."""
    names = [call.name for call, _ in places]
    return names.index(message["name"]) if message.get("name") in names else 0


def _tidied(raw: Message) -> Message:
    """One message with the fields its role needs, clean and without empty ones."""
    message: Message = {
        key: value for key, value in strict_json.clean(raw).items() if value is not None
    }
    if "function_call" in message:  # the form that tool_calls replaced
        message.setdefault("tool_calls", [{"id": "", "function": message.pop("function_call")}])
    if message.get("role") == "function":
        message = {"role": "tool", "tool_call_id": "", "content": message.get("content")}
    message["content"] = _content(message.get("content"))
    if not isinstance(message.get("name", ""), str):
        message.pop("name")
    if message.get("role") != "assistant" or not _are_calls(message.get("tool_calls")):
        message.pop("tool_calls", None)
    if message.get("role") != "tool":
        message.pop("tool_call_id", None)
    return message


def _content(content: Any) -> Any:
    """Text, or a list of typed parts; anything else as text."""
    if content is None or content == []:
        return ""
    if isinstance(content, str) or (isinstance(content, list) and all(map(_is_part, content))):
        return content
    return strict_json.dumps(content)


def _is_part(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("type"), str)


def _are_calls(calls: Any) -> bool:
    return isinstance(calls, list) and bool(calls) and all(isinstance(call, dict) for call in calls)


def _unique_calls(raw_calls: list[dict[str, Any]], group: int, taken: set[str]) -> list[Call]:
    calls = []
    for position, raw in enumerate(raw_calls):
        call = _read_call(raw, position)
        call_id = call.received_id
        if not call_id or call_id in taken:
            call_id = _fresh_id(group, position, taken.__contains__)
        taken.add(call_id)
        calls.append(_renamed(call, call_id))
    return calls


def _merged(system: list[Message]) -> Message:
    """One system message that says what all of them said."""
    if len(system) == 1:
        return system[0]
    texts = [message["content"] for message in system]
    if all(isinstance(text, str) for text in texts):
        return {**system[0], "content": "\n\n".join(text for text in texts if text)}
    parts = [
        part
        for text in texts
        for part in (text if isinstance(text, list) else [{"type": "text", "text": text}])
    ]
    return {**system[0], "content": parts}
