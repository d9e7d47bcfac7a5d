"""A strict reader of chat-completions requests: says in words what any server might refuse.

Servers differ in what they let pass, so a client that works with one breaks with the next. This checker is as
strict as all of them together, and shares no code with what builds agentor's requests.

    check_request(body)       a whole request body, parsed: [] when it is legal, else every breach
    check_messages(messages)  the conversation alone
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from agentor.testing.json_rules import impurities, read_strict
from agentor.testing.schema_rules import check_response_format, check_tools, is_name


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ROLE_KEYS: Final = {
    "system": _words("role content name"),
    "developer": _words("role content name"),
    "user": _words("role content name"),
    "assistant": _words("role content name tool_calls"),
    "tool": _words("role content name tool_call_id"),
}

# What a provider may put into an assistant message and wants, or at least takes, back.
PROVIDER_FIELDS: Final = _words(
    "annotations audio extra_content function_call reasoning reasoning_content reasoning_details refusal"
)
PROVIDER_CALL_FIELDS: Final = _words("extra_content provider_specific_fields")

_PART_TYPES: Final = {
    "system": ("text",),
    "developer": ("text",),
    "tool": ("text",),
    "user": ("text", "image_url", "input_audio", "file"),
    "assistant": ("text", "refusal"),
}

_BODY_KEYS: Final = _words(
    "audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens "
    "messages metadata modalities model n parallel_tool_calls prediction presence_penalty prompt_cache_key "
    "prompt_cache_retention reasoning_effort response_format safety_identifier seed service_tier stop store "
    "stream stream_options temperature tool_choice tools top_logprobs top_p user verbosity "
    "web_search_options"
)
# Settings of the best known servers beside OpenAI's own, which reach the body by way of `extra_body`.
_PROVIDER_BODY_KEYS: Final = _words(
    "cache_prompt chat_template_kwargs enable_thinking guided_json include_reasoning min_p min_tokens mirostat "
    "models provider reasoning repeat_penalty repetition_penalty thinking top_a top_k transforms"
)


def check_request(body: Any, *, allow: Collection[str] = ()) -> list[str]:
    """Every breach in a parsed request body; [] when it is legal.

    `allow` names further keys that the body, its messages and their tool calls may carry: those of a provider
    that this checker does not know.
    """
    if not isinstance(body, dict):
        return [f"the request is {type(body).__name__}, not an object"]
    if breaches := impurities(body):
        return breaches  # the rest may assume JSON
    return [*_check_settings(body, allow), *_check_conversation(body.get("messages"), allow)]


def check_messages(messages: Any, *, allow: Collection[str] = ()) -> list[str]:
    """Every breach in the messages of a request; [] when they are legal. `allow` as in `check_request`."""
    return impurities(messages, "messages") or list(_check_conversation(messages, allow))


def check_more(
    messages: list[Any], since: int, asked: set[str], allow: Collection[str]
) -> Iterator[str]:
    """Breaches in what comes after the first `since` messages, a legal request whose call ids are `asked`.

    Nothing if the whole is legal. Else something, in other words than those of `check_messages`.
    """
    new = messages[since:]
    yield from impurities(new, "messages")
    for message in new:
        yield from _check_message(message, "messages", allow)
    well_formed = [message if isinstance(message, dict) else {} for message in new]
    yield from _check_order([messages[0], *well_formed] if well_formed else messages[-1:])
    yield from _check_answers(well_formed, asked)


def _check_settings(body: Mapping[str, Any], allow: Collection[str]) -> Iterator[str]:
    for key in body:
        if key not in _BODY_KEYS | _PROVIDER_BODY_KEYS and key not in allow:
            yield f"unknown key {key!r}"
    if not isinstance(body.get("model"), str) or not body["model"]:
        yield "model: missing or empty"
    if not isinstance(body.get("stream", False), bool):
        yield "stream: not true or false"
    if "stream_options" in body and body.get("stream") is not True:
        yield "stream_options: only allowed with stream true"
    elif not isinstance(body.get("stream_options", {}), dict):
        yield "stream_options: not an object"
    yield from check_tools(body)
    if "response_format" in body:
        yield from check_response_format(body["response_format"], _prose(body.get("messages")))


def _prose(messages: Any) -> str:
    if not isinstance(messages, list):
        return ""
    return "\n".join(str(m.get("content")) for m in messages if isinstance(m, dict))


def _check_conversation(messages: Any, allow: Collection[str]) -> Iterator[str]:
    if not isinstance(messages, list) or not messages:
        yield "messages: missing or empty"
        return
    for index, message in enumerate(messages):
        yield from _check_message(message, f"messages[{index}]", allow)
    well_formed = [message if isinstance(message, dict) else {} for message in messages]
    yield from _check_order(well_formed)
    yield from _check_answers(well_formed, set())


def _check_order(messages: list[dict[str, Any]]) -> Iterator[str]:
    """Where the one system message stands, and who speaks last."""
    told = [
        i for i, message in enumerate(messages) if message.get("role") in ("system", "developer")
    ]
    if len(told) > 1:
        yield f"messages: {len(told)} system or developer messages, at {told}; only one is allowed"
    elif told and told[0] != 0:
        yield f"messages[{told[0]}]: the {messages[told[0]]['role']} message is not the first"
    if messages[-1].get("role") == "assistant":
        yield f"messages[{len(messages) - 1}]: a request may not end with an assistant message"


def _check_answers(messages: list[dict[str, Any]], asked: set[str]) -> Iterator[str]:
    """Each call id: used once, answered once, right behind its message, in the order asked. `asked`: used before."""
    waiting: list[Any] = []
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        if message.get("role") == "tool":
            yield from _check_answer(message.get("tool_call_id"), waiting, asked, path)
            continue
        yield from (f"{path}: comes before call {call_id!r} is answered" for call_id in waiting)
        waiting = call_ids_of(message)
        for call_id in waiting:
            if call_id in asked:
                yield f"{path}: call id {call_id!r} is used twice in this conversation"
            asked.add(call_id)
    yield from (f"messages: call {call_id!r} is never answered" for call_id in waiting)


def _check_answer(call_id: Any, waiting: list[Any], asked: set[str], path: str) -> Iterator[str]:
    if call_id in waiting:
        if waiting.index(call_id) > 0:
            yield f"{path}: answers {call_id!r} out of order, before {waiting[0]!r}"
        waiting.remove(call_id)
    elif isinstance(call_id, str) and call_id in asked:
        yield f"{path}: call {call_id!r} was answered before, or is not of the message just before"
    else:
        yield f"{path}: answers call {call_id!r}, which nobody made"


def call_ids_of(message: dict[str, Any]) -> list[str]:
    """The ids of the calls that a message makes."""
    made = message.get("tool_calls") if message.get("role") == "assistant" else None
    ids = (
        [call.get("id") for call in made if isinstance(call, dict)]
        if isinstance(made, list)
        else []
    )
    return [call_id for call_id in ids if isinstance(call_id, str) and call_id]


def _check_message(message: Any, path: str, allow: Collection[str]) -> Iterator[str]:
    if not isinstance(message, dict):
        yield f"{path}: {type(message).__name__} is not a message"
        return
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLE_KEYS:
        yield f"{path}.role: {role!r} is not one of {', '.join(_ROLE_KEYS)}"
        return
    known = _ROLE_KEYS[role] | (PROVIDER_FIELDS if role == "assistant" else frozenset())
    for key in message:
        if key not in known and key not in allow:
            yield f"{path}: unknown key {key!r} in a message of role {role}"
    if "name" in message and not (isinstance(message["name"], str) and message["name"]):
        yield f"{path}.name: not a non-empty string"
    if role == "assistant":
        yield from _check_assistant(message, path, allow)
        return
    yield from _check_content(message.get("content"), role, f"{path}.content")
    if role == "tool" and not (
        isinstance(message.get("tool_call_id"), str) and message["tool_call_id"]
    ):
        yield f"{path}.tool_call_id: missing or empty"


def _check_content(content: Any, role: str, path: str) -> Iterator[str]:
    if isinstance(content, str):
        return
    if not isinstance(content, list) or not content:
        yield f"{path}: {'null or missing' if content is None else repr(content)}; it is text or a list of parts"
        return
    for index, part in enumerate(content):
        yield from _check_part(part, role, f"{path}[{index}]")


def _check_part(part: Any, role: str, path: str) -> Iterator[str]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in _PART_TYPES[role]:
        yield f"{path}: a part of type {kind!r} is not allowed in a message of role {role}"
    elif kind in ("text", "refusal"):
        if not isinstance(part.get(kind), str):
            yield f"{path}.{kind}: missing or not a string"
    elif not isinstance(part.get(kind), dict) or not part[kind]:
        yield f"{path}.{kind}: missing or not an object"
    elif kind == "image_url" and not (isinstance(part[kind].get("url"), str) and part[kind]["url"]):
        yield f"{path}.image_url.url: missing or empty"


def _check_assistant(message: dict[str, Any], path: str, allow: Collection[str]) -> Iterator[str]:
    content, calls = message.get("content"), message.get("tool_calls")
    if "tool_calls" in message:
        if not isinstance(calls, list) or not calls:
            yield f"{path}.tool_calls: not a list with at least one call; leave it out when there is none"
        else:
            for index, call in enumerate(calls):
                yield from _check_call(call, f"{path}.tool_calls[{index}]", allow)
    if calls:
        if content is None:
            yield f'{path}.content: null or missing beside tool calls; some servers refuse that, send ""'
            return
    elif not content and not message.get("refusal"):
        yield f"{path}: an assistant message with neither content nor tool calls"
        return
    if content is not None:
        yield from _check_content(content, "assistant", f"{path}.content")


def _check_call(call: Any, path: str, allow: Collection[str]) -> Iterator[str]:
    if not isinstance(call, dict):
        yield f"{path}: {type(call).__name__} is not a tool call"
        return
    for key in call:
        if key not in {"id", "type", "function"} | PROVIDER_CALL_FIELDS and key not in allow:
            yield f"{path}: unknown key {key!r} in a tool call"
    if not isinstance(call.get("id"), str) or not call["id"]:
        yield f"{path}.id: missing or empty"
    if call.get("type") != "function":
        yield f'{path}.type: {call.get("type")!r} is not "function"'
    function = call.get("function")
    if not isinstance(function, dict):
        yield f"{path}.function: missing or not an object"
        return
    for key in function:
        if key not in {"name", "arguments"} and key not in allow:
            yield f"{path}.function: unknown key {key!r}"
    if not is_name(function.get("name")):
        yield f"{path}.function.name: {function.get('name')!r} does not match ^[a-zA-Z0-9_-]{{1,64}}$"
    yield from _check_arguments(function.get("arguments"), f"{path}.function.arguments")


def _check_arguments(arguments: Any, path: str) -> Iterator[str]:
    if not isinstance(arguments, str):
        yield f"{path}: {type(arguments).__name__} is not a string of JSON"
        return
    value, breaches = read_strict(arguments)
    yield from (f"{path}: {breach}" for breach in breaches)
    if not breaches and not isinstance(value, dict):
        yield f"{path}: {arguments[:40]!r} is JSON, but not an object"
