"""Finding the agent that a command names: `app.py:agent`, or `package.module:agent`.

The file or module is run as Python would import it: its own directory (or the current one) is where it finds its
neighbours, and what stands under `if __name__ == "__main__":` does not run.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

import click
from click.core import ParameterSource

from agentor.agent import Agentor
from agentor.beginning import runs_begun
from agentor.cli.options import store_option
from agentor.cli.plain import one_line
from agentor.cli.stores import DEFAULT_STORE, existing_store, made_store, note_own
from agentor.cli.wording import counted
from agentor.engine.store.missing import MissingStore
from agentor.errors import AgentorError, ConfigError
from agentor.inputs import no_store_is_made, stores_may_fail

agent_argument = click.argument("target", metavar="APP")
agent_store_option = store_option(
    "Where the runs are: a SQLite file, or a directory of JSONL files.  "
    "[default: the agent's own store; runs.db if it has none]"
)


ONCE: Final = 'put what is to happen once under `if __name__ == "__main__":`'
HINT: Final = "--debug shows where it did"


class AppFailedError(AgentorError):
    """The user's own module raised while it was imported; the cause is chained."""


@contextlib.contextmanager
def agent_with_store(
    target: str, store_path: str | None, make_store: bool = False
) -> Iterator[Agentor]:
    """The agent, with its own store unless the command names one or it has none. A store is made only if asked for."""
    asked_for = click.get_current_context().get_parameter_source("store_path")
    is_named = asked_for is ParameterSource.COMMANDLINE
    makes_own = contextlib.nullcontext() if make_store and not is_named else no_store_is_made()
    with makes_own, stores_may_fail() as failed, runs_begun() as begun:
        agent = load_agent(target)
    if begun:
        place, _ = split_name(target, "an agent")
        words = f"Loading {place} begins {counted(len(begun), 'run')}, and every command loads it: {ONCE}."
        click.echo(one_line(words, 500), err=True)
    own = agent.store.path if isinstance(agent.store, MissingStore) else None
    for unopened in failed:
        if unopened.path != own:  # of another agent, which a tool of this one may ask
            unopened.refuse()
    if agent.store is not None and not is_named:
        if own is None:
            note_own(agent.store)
            yield agent
            return
        store_path = own  # refused as if the command had named it
    opened = made_store if make_store else existing_store
    with opened(store_path or DEFAULT_STORE) as store:
        agent.store = store
        yield agent


def load_agent(target: str, load: Callable[[str], ModuleType] | None = None) -> Agentor:
    """The agent that `target` names; `load` loads its module.

    `ConfigError` if there is no such file, module or attribute, or if it is no `Agentor`; `AppFailedError` if the
    module itself raises.
    """
    place, name = split_name(target, "an agent; write app.py:agent or package.module:agent")
    return _pick((load or load_module)(place), place, name)


def split_name(target: str, what: str) -> tuple[str, str]:
    """The place and the name in it: "app.py:agent" is "app.py" and "agent"."""
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise ConfigError(f"{target!r} does not name {what}")
    return place, name


def load_module(place: str) -> ModuleType:
    """The module of a file, or of that name. Errors: as `load_agent`."""
    with runs_begun() as begun:
        try:
            return _from_file(Path(place)) if is_file_name(place) else _from_module(place)
        except AppFailedError as error:
            if begun:
                error.add_note(f"It had begun a run by then, as it does for every command: {ONCE}")
            raise


def is_file_name(place: str) -> bool:
    return place.endswith(".py") or os.sep in place


def _from_file(path: Path) -> ModuleType:
    if not os.path.isfile(path):
        raise ConfigError(f"there is no file {str(path)!r} (looked in {os.getcwd()})")
    own = path.resolve().parent if path.name == "__init__.py" else path  # or the package it is
    _look_first_in(own.resolve().parent)
    name = own.stem if own.stem not in sys.modules else f"{own.stem} (app)"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{str(path)!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = (
        module  # before it runs: dataclasses and pydantic look their module up there
    )
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _failed(str(path), error) from error
    return module


def _from_module(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(f"{name!r} is neither a file that ends in .py nor the name of a module")
    _look_first_in(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigError(
                f"there is no module {error.name!r}; for a file write {name.replace('.', '/')}.py:agent"
            ) from None
        raise _failed(name, error) from error
    except (Exception, SystemExit) as error:
        raise _failed(name, error) from error


def _look_first_in(directory: Path) -> None:
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))


def _failed(place: str, error: BaseException) -> AppFailedError:
    said = f"{type(error).__name__}: {error}".removesuffix(": ").removesuffix(".")
    return AppFailedError(f"{place} raised {said}. {HINT}")


def _pick(module: ModuleType, place: str, name: str) -> Agentor:
    found: object = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ConfigError(f"{place} has no {name!r}. {_agents_in(module)}") from None
    if not isinstance(found, Agentor):
        raise ConfigError(
            f"{place}:{name} is of type {type(found).__name__}, not an Agentor. {_agents_in(module)}"
        )
    return found


def _agents_in(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, Agentor)]
    return f"Its agents: {', '.join(names)}." if names else "It defines no agent at top level."
