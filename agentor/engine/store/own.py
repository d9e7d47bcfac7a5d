"""What is made sure of with a store of somebody's own, whose methods are theirs.

They are plain functions, called on a thread. One that is `async def` would give a coroutine, which does nothing until
somebody awaits it, and nobody does: every event of a run would pass for saved.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from agentor.engine.events import Event
from agentor.engine.store import protocol, transacting
from agentor.engine.store.protocol import Store
from agentor.errors import AgentorError, ConfigError, StoreError

_Answer = TypeVar("_Answer")

_PROTOCOLS: Final[tuple[type, ...]] = (
    *(protocol.Store, protocol.AppendsMany, protocol.Submits, protocol.Creates, protocol.Forks),
    *(protocol.Leases, protocol.NamesHolder, protocol.Deletes, protocol.Tails, protocol.Peeks),
    *(protocol.Signals, protocol.KnowsAskers, protocol.TellsAsked),
    *(transacting.Transacts, transacting.Posts, transacting.ShowsLetters),
)
_IS_ASYNC: Final = "atail"  # made for `async for`
_INSTEAD: Final = (
    "agentor calls a store's methods as plain functions, on a thread, and what they return is their answer; nobody awaits it, "
    "so {}. Make it a plain `def`; an async driver is reached from there by "
    "asyncio.run_coroutine_threadsafe(..., its_loop).result()."
)


class _KeyedStoreError(StoreError, KeyError):
    """An unknown id is promised to be a KeyError, and this is how some stores say so."""

    __str__ = Exception.__str__  # KeyError would print the repr of the message


def verbs() -> Iterator[str]:
    """The methods that a store may offer us, but for the one that is to be awaited. Whoever made a store closes it."""
    for each in _PROTOCOLS:
        yield from (name for name in vars(each) if not name.startswith("_") and name != _IS_ASYNC)
    yield "runs"


def check_plain(store: object) -> None:
    """`ConfigError` if a method of the store is `async def`."""
    if found := [verb for verb in verbs() if _is_async(getattr(store, verb, None))]:
        named = ", ".join(f"{type(store).__name__}.{verb}" for verb in found)
        raise ConfigError(
            f"{named}: `async def`. {_INSTEAD.format('nothing would be saved or read')}"
        )


def answer_of(call: Callable[..., _Answer], *args: Any, **keywords: Any) -> _Answer:
    """What a store's method returns. `StoreError` if that is something to be awaited; a coroutine is closed."""
    value = call(*args, **keywords)
    if not (inspect.isawaitable(value) or inspect.isasyncgen(value)):
        return value
    if inspect.iscoroutine(value):
        value.close()
    name = getattr(call, "__qualname__", repr(call))
    raise StoreError(
        f"{name} returned a {type(value).__name__}. {_INSTEAD.format('nothing counts as done')}"
    )


def loaded(store: Store, run_id: str) -> list[Event]:
    """The log of a run. `StoreError` names the run if the store could not read it, whatever it raised of its own."""
    with failing_as_ours(f"run {run_id!r}: its log could not be read"):
        return answer_of(store.load, run_id)


@contextlib.contextmanager
def failing_as_ours(what: str) -> Iterator[None]:
    """What a store raises of its own is a `StoreError`, which says what could not be done and has it as its cause."""
    try:
        yield
    except AgentorError:
        raise
    except Exception as error:
        kind = _KeyedStoreError if isinstance(error, KeyError) else StoreError
        raise kind(
            f"{what} ({type(error).__name__}: {error}). Try again when the store is well."
        ) from error


def _is_async(method: Any) -> bool:
    call = getattr(type(method), "__call__", None)  # noqa: B004  # of an object that can be called
    return any(
        inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each)
        for each in (method, call)
    )
