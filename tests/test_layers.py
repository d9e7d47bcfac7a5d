"""The drawing of the house, as a test: imports point down, each outside package has one door, import is cheap.

A new module is placed by adding it to FLOORS. If a module fits on no floor, the drawing comes first.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "agentor"

CORE = (
    "arguments",
    "argument_faults",
    "schema_faults",
    "events",
    "replay",
    "decide",
    "request",
    "staged",
    "batch",
    "contradictions",
    "ending",
)
MODEL_EDGE = (
    *("models", "settings", "transport", "redact", "failure", "adapt", "wire"),
    *("exchange", "patience", "reply"),
    *(
        "assembly",
        "argument_text",
        "gather",
        "sse",
        "usage",
        "exchange",
        "patience",
        "loop_clients",
    ),
)
TOOL_EDGE = (
    *("tools", "tool_signature", "tool_schema", "tool_fields", "tool_perform", "typed_dicts"),
    *("strict_schema", "docstrings", "run_context", "result_text", "effects", "db"),
)
# From the ground up. A name covers the module and everything inside it, unless a longer name says otherwise.
FLOORS = {
    "floor": [
        *(
            "agentor.errors",
            "agentor.commands",
            "agentor.engine.clock",
            "agentor.engine.strict_json",
        ),
        "agentor.engine.interrupts",
    ],
    "core": [f"agentor.engine.{name}" for name in CORE],
    "edges": [
        *(
            f"agentor.engine.{name}"
            for name in (
                *("responses", "store", "recorder", "committed", "lease", "holding"),
                "daemon_thread",
            )
        ),
        *(f"agentor.engine.{name}" for name in ("budget", "price_table")),
        *(f"agentor.engine.{name}" for name in MODEL_EDGE),
        *(f"agentor.engine.{name}" for name in TOOL_EDGE),
    ],
    "shell": [
        f"agentor.engine.{name}"
        for name in ("runner", "asking", "lending", "outbox", "calling", "transact")
    ],
    "facade": [
        *("agentor.agent", "agentor.launch", "agentor.blocking", "agentor.streaming"),
        "agentor.delivery",
        *("agentor.output", "agentor.tracing", "agentor.consent", "agentor.definition"),
        *(
            "agentor.plan",
            "agentor.opening",
            "agentor.driving",
            "agentor.stopping",
            "agentor.asked",
            "agentor.amended",
            "agentor.recorded",
            "agentor.worker",
            "agentor.inputs",
            "agentor.building",
            "agentor.decisions",
            "agentor.beginning",
            "agentor.fallbacks",
        ),
    ],
    "readers": [
        f"agentor.{name}" for name in ("export", "viewer", "server", "testing", "demo", "crashtest")
    ],
    "doors": [
        "agentor.cli",
        "agentor.__main__",
        "agentor.demo.weather",  # a user's program
        *(
            f"agentor.crashtest.{name}" for name in ("child", "functions", "fork_server")
        ),  # programs of their own
    ],
}
# Packages that only say what is inside them: found by exact name, so that a new module must be placed.
SIGNPOSTS = {"agentor": "doors", "agentor.engine": "shell"}

# Who may import what from outside, by the beginning of the module's name.
ONE_DOOR = {
    "apsw": ("agentor.engine.store.sqlite",),
    "openai": ("agentor.engine.transport",),
    "httpx": ("agentor.engine.transport",),
    "httpx2": ("agentor.engine.transport",),
    "click": ("agentor.cli",),
    "rich": ("agentor.cli", "agentor.demo"),
    "sqlite_utils": ("agentor.export",),
    "genai_prices": ("agentor.engine.price_table",),
    "sqlite3": ("agentor.export",),
    "fastapi": ("agentor.server",),
    "starlette": ("agentor.server",),
    "uvicorn": ("agentor.server",),
    "opentelemetry": ("agentor.tracing",),
    "time": ("agentor.engine.clock",),
    "random": ("agentor.engine.clock",),
    "secrets": ("agentor.engine.clock",),
}
WORDS_FOR_CLOCK = {
    "uuid": {"uuid1", "uuid4", "uuid6", "uuid7"},  # but not the type UUID
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
    "asyncio": {"sleep"},
    "os": {"urandom"},
}
HEAVY = (
    *("openai", "apsw", "sqlite_utils", "click", "rich", "fastapi", "opentelemetry", "sqlite3"),
    "genai_prices",
)
NO_NAMES = {"utils", "util", "helpers", "helper", "common", "base", "types", "manager"}


@dataclass(frozen=True)
class Import:
    module: str  # that imports
    target: str  # that is imported
    line: int

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


def source_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    return {module_name(path): path for path in source_files()}


def runtime_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those under `if TYPE_CHECKING:`, which exist for the type checker only."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for other in node.orelse:
                yield from runtime_nodes(other)
            continue
        yield node
        yield from runtime_nodes(node)


def imports_of(module: str, path: Path) -> Iterator[Import]:
    for node in runtime_nodes(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(module, alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            origin = absolute_origin(module, path, node)
            for alias in node.names:
                inner = f"{origin}.{alias.name}"
                yield Import(module, inner if inner in modules() else origin, node.lineno)


def absolute_origin(module: str, path: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    up = node.level - (path.name == "__init__.py")
    package = ".".join(module.split(".")[: len(module.split(".")) - up])
    return f"{package}.{node.module}" if node.module else package


@cache
def all_imports() -> list[Import]:
    return [found for name, path in modules().items() for found in imports_of(name, path)]


def floor_of(module: str) -> str | None:
    if module in SIGNPOSTS:
        return SIGNPOSTS[module]
    covering = {
        name: floor
        for floor, names in FLOORS.items()
        for name in names
        if module == name or module.startswith(f"{name}.")
    }
    return covering[max(covering, key=len)] if covering else None


def test_every_module_has_its_floor() -> None:
    homeless = [name for name in modules() if floor_of(name) is None]
    assert not homeless, f"place these in FLOORS: {homeless}"


def test_imports_point_down_only() -> None:
    height = {floor: index for index, floor in enumerate(FLOORS)}
    upwards = [
        str(found)
        for found in all_imports()
        if (target := floor_of(found.target))
        and (source := floor_of(found.module))
        and height[target] > height[source]
    ]
    assert not upwards, "\n".join(upwards)


def test_no_two_modules_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {name: set() for name in modules()}
    for found in all_imports():
        if found.target in graph and found.target != found.module:
            graph[found.module].add(found.target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as circle:
        pytest.fail(" -> ".join(circle.args[1]))


@pytest.mark.parametrize("package", ONE_DOOR)
def test_an_outside_package_has_one_door(package: str) -> None:
    strays = [
        str(found)
        for found in all_imports()
        if found.target.split(".")[0] == package and not found.module.startswith(ONE_DOOR[package])
    ]
    assert not strays, "\n".join(strays)


def test_only_the_clock_asks_for_the_time_or_for_chance() -> None:
    strays = [
        f"{module}:{node.lineno} {ast.unparse(node)}"
        for module, path in modules().items()
        if module != "agentor.engine.clock"
        for node in ast.walk(ast.parse(path.read_text()))
        if asks_outside_the_clock(node)
    ]
    assert not strays, "\n".join(strays)


def asks_outside_the_clock(node: ast.AST) -> bool:
    match node:
        case ast.ImportFrom(module=module, names=names):
            return any(alias.name in WORDS_FOR_CLOCK.get(module or "", ()) for alias in names)
        case ast.Call(func=ast.Attribute(value=owner, attr=name)):
            told = ast.unparse(owner).split(".")[-1]
            nothing = ast.unparse(node) == "asyncio.sleep(0)"  # lets others run, takes no time
            return name in WORDS_FOR_CLOCK.get(told, ()) and not nothing
    return False


def test_no_file_is_named_after_nothing() -> None:
    assert not [name for name in modules() if name.split(".")[-1] in NO_NAMES]


def test_importing_agentor_loads_no_heavy_package() -> None:
    code = f"import sys, agentor; print([m for m in {HEAVY!r} if m in sys.modules])"
    assert run_python(code).strip() == "[]"


@pytest.mark.slow
def test_importing_agentor_takes_less_than_a_tenth_of_a_second() -> None:
    """Of the processor, which others may want too; the quickest of several fresh interpreters."""
    code = "import time; t = time.process_time(); import agentor; print(time.process_time() - t)"
    assert min(float(run_python(code)) for _ in range(5)) < 0.1


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


def test_no_two_test_files_have_one_name() -> None:
    """They are no packages, so pytest would refuse to collect the second."""
    names = Counter(path.name for path in Path(__file__).parent.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
