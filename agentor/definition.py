"""What an agent is, as far as a run depends on it: kept in the log, and compared when the run is resumed.

Old runs meet new code. The first segment of a run that meets a definition carries it whole; later ones carry only its
digest. Headers and extra bodies of requests are left out: they may hold secrets.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Change:
    """One part of an agent that is not what it was when the run last began or went on.

    `part`: "agent" (its name), "model", "instructions", "tool", "output_type" or "setting"; "unknown" if the log does not
    say what was changed. `name`: of the tool or setting. `before` and `after` are values of JSON: None where there was, or
    is, nothing. `str(change)` tells it in lines to read.
    """

    part: str
    name: str | None = None
    before: Any = field(default=None, hash=False)
    after: Any = field(default=None, hash=False)

    def __str__(self) -> str:
        what = f"{self.part} {self.name}" if self.name else self.part
        match self.part:
            case "unknown":
                return "the agent is not the one it was; the log does not say how"
            case "tool" if self.before is None or self.after is None:
                return f"{what} was {'added' if self.before is None else 'removed'}"
            case "instructions":
                return _difference(what, self.before, self.after)
            case "tool" | "output_type":
                return _difference(what, _pretty(self.before), _pretty(self.after))
        return f"{what}: {strict_json.dumps(self.before)} -> {strict_json.dumps(self.after)}"


def changes(before: Definition, after: Definition) -> list[Change]:
    """What is different; [] if nothing is."""
    found = [
        Change(part, None, before.get(part), after.get(part)) for part in ("model", "instructions")
    ]
    found += _by_name("tool", before.get("tools") or {}, after.get("tools") or {})
    found.append(Change("output_type", None, before.get("output"), after.get("output")))
    found += _by_name("setting", before.get("settings") or {}, after.get("settings") or {})
    return [change for change in found if change.before != change.after]


def left_alone(changed: Iterable[Change], agent: str) -> str | None:
    """Why a worker of an agent that has changed so does not take a run by itself; None if it does.

    Prompts, models and further tools come with every deploy. A run whose tools are gone is more likely another agent's, of
    the same name, and to finish it without them would look like success.
    """
    lost = [str(c.name) for c in changed if c.part == "tool" and c.after is None]
    if not lost:
        return None
    return (
        f"it has been working with tools that this agent does not have ({', '.join(lost)}). If another agent called "
        f"{agent!r} began it, give each a name of its own. If the tools were removed on purpose, resume it by hand, or "
        "build the agent with on_change='adopt'"
    )


def _by_name(part: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    return [Change(part, name, old.get(name), new.get(name)) for name in {**old, **new}]


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


def _pretty(value: Any) -> str | None:
    """One fact a line, so that a diff shows just what changed."""
    return None if value is None else "\n".join(_facts(value, ""))


def _facts(value: Any, path: str) -> Iterable[str]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _facts(item, f"{path}.{key}" if path else str(key))
    else:
        yield f"{path} = {strict_json.dumps(value)}"


def _difference(what: str, old: str | None, new: str | None) -> str:
    lines = difflib.unified_diff(
        (old or "").splitlines(), (new or "").splitlines(), n=0, lineterm=""
    )
    shown = (f"  {line}" for line in lines if not line.startswith(("---", "+++", "@@")))
    return "\n".join([f"{what}:", *shown])
