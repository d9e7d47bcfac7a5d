"""In the child: the user's functions that are no part of the agent.

Both are called as `function(store, scratch)`: the path of the run's SQLite file, and its directory for files.

    setup   before the agent is loaded, in the process that runs it and not in those that resume
    check   when all is over, in a process of its own, wherever the run was killed
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from agentor.beginning import runs_begun
from agentor.cli.loading import AppFailedError, is_file_name, load_module, split_name
from agentor.crashtest.orders import SCRATCH, STORE, Order
from agentor.engine.result_text import error_text, result_text
from agentor.errors import ConfigError
from agentor.inputs import no_store_is_opened

BEGUN: Final[list[str]] = []  # in this process: agents of runs that loading a module began


@functools.cache
def _module(place: str) -> ModuleType:
    imported = sys.modules.get(Path(place).stem)  # by the module of a `setup`, say
    if (
        imported is not None
        and os.path.realpath(getattr(imported, "__file__", None) or "") == place
    ):
        return imported
    with runs_begun() as begun:
        module = load_module(place)
    BEGUN.extend(begun)
    return module


def module_once(place: str) -> ModuleType:
    """A file that is named for several purposes, or imported before, is run once in a process."""
    return _module(os.path.realpath(place) if is_file_name(place) else place)


def prepare(order: Order) -> None:
    """Call `setup`, if there is one and this is the process for it. `AppFailedError` if it raises."""
    if order.setup is not None and order.process == 1:
        _call("setup", order.setup, order)


def finding(order: Order) -> str:
    """What `check` returns, in words. `AppFailedError` if it raises."""
    assert order.check is not None
    return result_text(_call("check", order.check, order))


def _call(role: str, name: str, order: Order) -> Any:
    function = _loaded(role, name)
    store, scratch = order.directory.resolve() / STORE, order.directory.resolve() / SCRATCH
    try:
        return function(store, scratch)
    except BaseException as error:  # also an exit of the user's
        traceback.print_exc()
        raise AppFailedError(f"{role} {name} raised {error_text(error)}") from error


def _loaded(role: str, name: str) -> Callable[[Path, Path], Any]:
    place, path = split_name(name, f"a function; write module.py:{role}")
    with no_store_is_opened():
        found: object = module_once(place)
    for part in path.split("."):
        found = getattr(found, part, None)
    if not callable(found) or inspect.iscoroutinefunction(found):
        raise ConfigError(
            f"{role}: {name} is no function `def {role}(store, scratch)`, which is called with two paths"
        )
    return found
