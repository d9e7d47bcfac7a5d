"""What an agent is, as far as a run depends on it: kept in the log, and compared when the run is resumed.

Old runs meet new code. The first segment of a run that meets a definition carries it whole; later ones carry only its
digest. Headers and extra bodies of requests are left out: they may hold secrets.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from agentor.engine import events as ev
from agentor.engine import strict_json
from agentor.engine.events import Event
from agentor.engine.tools import Tool

Definition = dict[str, Any]


def describe(
    instructions: str | None,
    model: str,
    tools: Mapping[str, Tool],
    output: Mapping[str, Any] | None,
    settings: Mapping[str, Any],
) -> Definition:
    """The definition as a value of strict JSON."""
    described: Definition = strict_json.clean(
        {
            "instructions": instructions,
            "model": model,
            "tools": {name: _tool(tool) for name, tool in tools.items()},
            "output": output,
            "settings": {name: _plain(value) for name, value in settings.items()},
        }
    )
    return described


def definition_in(events: Iterable[Event]) -> tuple[str | None, Definition | None]:
    """The digest and the text of the definition that a log's last segment ran with; None what it does not say."""
    bodies: dict[str, Definition] = {}
    digest = None
    for event in events:
        if event.type == ev.RUN_START:
            digest = event.definition
            if digest is not None and event.defined is not None:
                bodies[digest] = event.defined
    return digest, bodies.get(digest) if digest is not None else None


def changes(before: Definition, after: Definition) -> list[str]:
    """What is different, in lines a person can read; [] if nothing is."""
    lines = _value("model", before.get("model"), after.get("model"))
    lines += _text("instructions", before.get("instructions"), after.get("instructions"))
    lines += _tools(before.get("tools") or {}, after.get("tools") or {})
    lines += _text("output_type", _pretty(before.get("output")), _pretty(after.get("output")))
    old, new = before.get("settings") or {}, after.get("settings") or {}
    for name in sorted({*old, *new}):
        lines += _value(f"setting {name}", old.get(name), new.get(name))
    return lines


def _tool(tool: Tool) -> dict[str, Any]:
    function = tool.to_openai()["function"]
    if tool.effect not in (None, "read"):
        function["effect"] = tool.effect
    if tool.needs_approval:
        function["needs_approval"] = True
    return {key: value for key, value in function.items() if key != "name"}


def _plain(value: Any) -> Any:
    try:
        return strict_json.clean(value)
    except (TypeError, ValueError):
        return str(type(value).__name__)


def _tools(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    lines = [f"tool {name} was removed" for name in old if name not in new]
    lines += [f"tool {name} was added" for name in new if name not in old]
    for name in old:
        if name in new:
            lines += _text(f"tool {name}", _pretty(old[name]), _pretty(new[name]))
    return lines


def _pretty(value: Any) -> str | None:
    """One fact a line, so that a diff shows just what changed."""
    return None if value is None else "\n".join(_facts(value, ""))


def _facts(value: Any, path: str) -> Iterable[str]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _facts(item, f"{path}.{key}" if path else str(key))
    else:
        yield f"{path} = {strict_json.dumps(value)}"


def _value(what: str, old: Any, new: Any) -> list[str]:
    if old == new:
        return []
    return [f"{what}: {strict_json.dumps(old)} -> {strict_json.dumps(new)}"]


def _text(what: str, old: str | None, new: str | None) -> list[str]:
    if old == new:
        return []
    lines = difflib.unified_diff(
        (old or "").splitlines(), (new or "").splitlines(), n=0, lineterm=""
    )
    return [
        f"{what}:",
        *(f"  {line}" for line in lines if not line.startswith(("---", "+++", "@@"))),
    ]
