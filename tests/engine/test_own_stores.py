"""What is made sure of with a store of somebody's own: methods that would have to be awaited, and errors of their own."""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from agentor import (
    Agentor,
    ConfigError,
    LogCorruptError,
    MemoryStore,
    StoreError,
)
from agentor.asked import asked_now, asked_of
from agentor.engine.events import Event
from agentor.engine.holding import hold
from agentor.engine.lease import Keeper
from agentor.engine.recorder import Recorder
from agentor.engine.store import fork_run, own, protocol, transacting
from agentor.engine.store.transacting import Letter
from agentor.testing import ScriptedModel
from tests.engine.agents import ANSWER, ThreeMethods, agent

OFFERED = [
    name
    for module in (protocol, transacting)
    for each in vars(module).values()
    if getattr(each, "_is_runtime_protocol", False) and each is not protocol.Closes
    for name in vars(each)
    if not name.startswith("_") and name != "atail"
]


def test_every_verb_that_a_store_may_offer_is_looked_at() -> None:
    assert sorted({*OFFERED, "runs"}) == sorted(own.verbs())


async def _coroutine(*args: Any) -> list[Any]:
    return []


async def _generator(*args: Any) -> Any:
    yield


class _Called:
    async def __call__(self, *args: Any) -> None: ...


ASYNC = [_coroutine, _generator, functools.partial(_coroutine, 1), _Called()]


@pytest.mark.parametrize("method", ASYNC, ids=["def", "generator", "partial", "object"])
@pytest.mark.parametrize("verb", [*own.verbs()])
def test_an_agent_is_not_built_with_a_store_that_has_an_async_method(
    verb: str, method: Any
) -> None:
    store = ThreeMethods()
    setattr(store, verb, method)
    with pytest.raises(ConfigError, match=rf"ThreeMethods\.{verb}: `async def`.* plain `def`"):
        Agentor("A", model=ScriptedModel([]), store=store)


def test_all_async_methods_of_a_store_are_named_at_once() -> None:
    class Async:
        async def append(self, run_id: str, event: Event) -> None: ...

        async def load(self, run_id: str) -> list[Event]:
            return []

        def list_runs(self) -> list[str]:
            return []

    with pytest.raises(ConfigError, match=r"Async\.append, Async\.load: `async def`"):
        Agentor("A", model=ScriptedModel([]), store=Async())  # type: ignore[arg-type]


def test_a_store_may_follow_its_runs_and_be_closed_in_a_coroutine() -> None:
    class Followed(ThreeMethods):
        async def atail(self, run_id: str | None = None) -> Any:
            yield

        async def close(self) -> None: ...

    assert agent(Followed()).run("go").final_output == ANSWER


# A plain method that returns something to be awaited ----------------------------------------------------------------


class Promises:
    """Verbs of a store that give a coroutine each time, which nobody awaits."""

    def __init__(self, store: Any, *verbs: str) -> None:
        self.made: list[Coroutine[Any, Any, None]] = []
        for verb in verbs:
            setattr(store, verb, self._give)

    def _give(self, *args: Any, **keywords: Any) -> Any:
        self.made.append(_coroutine())
        return self.made[-1]

    @property
    def were_refused(self) -> bool:
        states = {inspect.getcoroutinestate(each) for each in self.made}
        return states == {inspect.CORO_CLOSED}


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("verb", ["append", "append_many", "submit"])
def test_nothing_counts_as_saved_that_was_only_promised(
    verb: str, blocking: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store: Any = ThreeMethods()
    promises, store.blocking = Promises(store, verb), blocking
    result = agent(store).run("go")
    assert (result.final_output, result.unsaved) == (ANSWER, len(result.events))
    assert promises.were_refused
    assert "returned a coroutine" in caplog.text
    with pytest.raises(StoreError, match=r"could not be saved \(.*_give returned a coroutine\. "):
        agent(store, durability="strict").run("go")
    assert promises.were_refused
    assert store.list_runs() == []


async def _resumed(store: Any) -> Any:
    return await agent(store).aresume("r")


async def _begun(store: Any) -> Any:
    return await Recorder(store, "r").begin(1.0)


def _handed(*letter: Any) -> None: ...


async def _delivered(store: Any) -> Any:
    """A letter, by a store that has just this one."""
    for verb in ("claim_letter", "letter_delivered", "letter_failed", "undelivered"):
        if not hasattr(store, verb):
            setattr(store, verb, lambda *args: Letter(1, "r", "k", None, "key", 1, "claim"))
    return await agent(store).adeliver(_handed, until_idle=True)


REFUSING: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "load": _resumed,
    "acquire": _resumed,
    "peek": _resumed,
    "fork": lambda store: agent(store).afork("r"),
    "runs": lambda store: agent(store).awork(until_idle=True),
    "transact": _begun,
    "claim_letter": _delivered,
    "letter_delivered": _delivered,
}


@pytest.mark.parametrize("verb", REFUSING)
async def test_a_verb_that_only_promises_is_an_error_of_the_store(verb: str) -> None:
    store: Any = MemoryStore()
    store.append("r", Event("run_start", messages=[{"role": "user", "content": "go"}]))
    before, promises = store.load("r"), Promises(store, verb)
    with pytest.raises(StoreError, match=r"returned a coroutine.* plain `def`"):
        await REFUSING[verb](store)
    assert promises.were_refused
    assert MemoryStore.load(store, "r") == before


@pytest.mark.parametrize("verb", ["list_runs", "append"])
def test_a_fork_by_verbs_that_only_promise_is_refused(verb: str) -> None:
    store: Any = ThreeMethods()
    store.append("r", Event("run_start", messages=[], seq=1))
    promises = Promises(store, verb)
    with pytest.raises(StoreError, match="returned a coroutine"):
        fork_run(store, "r", "fork")
    assert promises.were_refused
    assert list(store.runs) == ["r"]


@pytest.mark.parametrize("takes", ["", "at", "at, event", "at, event, of"])
def test_a_fork_that_is_only_promised_is_refused_whatever_it_takes(takes: str) -> None:
    store: Any = ThreeMethods()
    store.append("r", Event("run_start", messages=[], seq=1))
    made: dict[str, Any] = {}
    names = "".join(f", {name}=None" for name in takes.split(", ") if name)
    exec(f"def fork(src, dst{names}):\n    return later()", {"later": _coroutine}, made)
    store.fork = made["fork"]
    with pytest.raises(StoreError, match="fork returned a coroutine"):
        fork_run(store, "r", "copy")
    assert list(store.runs) == ["r"]


async def test_a_failed_letter_that_is_only_promised_to_be_noted_is_an_error() -> None:
    store: Any = MemoryStore()
    promises = Promises(store, "letter_failed")

    def refuse(*letter: Any) -> None:
        raise ValueError("not today")

    store.claim_letter = lambda ttl_s: Letter(1, "r", "k", None, "key", 1, "claim")
    store.letter_delivered = store.undelivered = lambda *args: 0
    with pytest.raises(StoreError, match="returned a coroutine"):
        await agent(store).adeliver(refuse, until_idle=True)
    assert promises.were_refused


@pytest.mark.parametrize("look", [asked_of, asked_now])
@pytest.mark.parametrize("verbs", [["runs_asked", "asked"], ["asked"], ["asked_by"]])
async def test_a_question_whose_answer_is_only_promised_is_not_taken_for_none(
    look: Any, verbs: list[str]
) -> None:
    store: Any = MemoryStore()
    store.ask("r", "cancel", "Ada")
    promises = Promises(store, *verbs)
    if verbs == ["asked"]:
        store.asked_by = lambda *args: None
    with pytest.raises(StoreError, match="returned a coroutine"):
        await look(store, "r", "cancel")
    assert promises.were_refused


async def test_a_cancel_that_is_only_promised_to_be_put_is_not_said_to_be_asked() -> None:
    store: Any = MemoryStore()
    store.append("r", Event("run_start", messages=[{"role": "user", "content": "go"}]))
    store.acquire("r", "somebody else", 30.0)
    promises = Promises(store, "ask")
    with pytest.raises(StoreError, match="returned a coroutine"):
        await agent(store).acancel("r")
    assert promises.were_refused


async def test_a_lease_whose_renewal_or_release_is_only_promised_is_neither(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store: Any = MemoryStore()
    lease = store.acquire("r", "me", 0.01)
    promises = Promises(store, "renew", "release")
    tool = threading.Thread(target=lambda: None)
    with caplog.at_level(logging.WARNING):
        tool.start()
        hold(store, lease, [tool])
        for holder in [each for each in threading.enumerate() if each.name == "agentor-hold-r"]:
            holder.join()
    assert promises.were_refused
    assert "could not be held or released (Promises._give returned a coroutine" in caplog.text


@pytest.mark.parametrize("verb", ["holder", "release"])
async def test_what_an_acquire_that_failed_may_have_granted_is_not_given_back_by_a_promise(
    verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    store: Any = MemoryStore()
    granted = store.acquire

    def deaf(*args: Any) -> Any:
        granted(*args)
        store.acquire = granted
        raise StoreError("no answer")

    store.acquire, promises = deaf, Promises(store, verb)
    with caplog.at_level(logging.DEBUG), pytest.raises(StoreError, match="no answer"):
        await Keeper(store, "r").acquire()
    assert promises.were_refused
    assert "what was granted, if it was: Promises._give returned a coroutine" in caplog.text


# What a store raises of its own -------------------------------------------------------------------------------------


class Unreadable(ThreeMethods):
    """A store that fails to read."""

    error: Exception | None = None

    def load(self, run_id: str) -> list[Event]:
        if self.error is not None:
            raise self.error
        return super().load(run_id)


OWN_ERRORS = [OSError(5, "Input/output error"), RuntimeError("no route"), ValueError("no JSON")]
READERS: list[Callable[[Agentor], Any]] = [
    lambda mine: mine.run("go", run_id="r"),
    lambda mine: mine.resume("r"),
    lambda mine: mine.fork("r"),
    lambda mine: mine.result("r"),
    lambda mine: mine.plan("r"),
    lambda mine: mine.cancel("r"),
    lambda mine: mine.approve("r", "call_1"),
    lambda mine: mine.enqueue("go", run_id="r"),
    lambda mine: fork_run(mine.store, "r"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("error", OWN_ERRORS, ids=repr)
@pytest.mark.parametrize("read", READERS)
def test_a_log_that_its_store_cannot_read_is_a_store_error_that_names_the_run(
    read: Callable[[Agentor], Any], error: Exception
) -> None:
    store = Unreadable()
    mine = agent(store)
    mine.run("go", run_id="r")
    before, store.error = store.runs["r"].copy(), error
    with pytest.raises(StoreError, match="run 'r': its log could not be read") as caught:
        read(mine)
    assert caught.value.__cause__ is error
    assert str(error) in str(caught.value)
    assert store.runs == {"r": before}


def test_an_id_that_a_store_does_not_know_stays_a_key_error_when_the_store_says_so() -> None:
    store = Unreadable()
    store.error = KeyError("nobody")
    with pytest.raises(KeyError, match=r"^run 'nobody': its log could not be read") as caught:
        agent(store).resume("nobody")
    assert isinstance(caught.value, StoreError)


def test_what_a_store_says_in_our_words_is_left_as_it_is() -> None:
    store = Unreadable()
    store.error = LogCorruptError("r", 3, "a hole")
    with pytest.raises(LogCorruptError) as caught:
        agent(store).resume("r")
    assert caught.value is store.error


async def test_a_worker_looks_again_later_at_a_run_that_a_store_could_not_read() -> None:
    store = Unreadable()
    mine = agent(store)
    await mine.aenqueue("go", run_id="r")
    errors: list[Exception | None] = [OSError(5, "Input/output error"), KeyError("r")]

    class Recovers(Unreadable):
        def load(self, run_id: str) -> list[Event]:
            if errors:
                raise errors.pop()  # type: ignore[misc]
            return super().load(run_id)

    store.__class__ = Recovers
    report = await mine.awork(until_idle=True, poll_s=0.001)
    assert report.finished == {"r": "completed"}


class LeaselessNow(MemoryStore):
    def acquire(self, run_id: str, owner: str, ttl_s: float) -> Any:
        raise ConnectionError("no route")


def test_a_lease_that_a_store_fails_to_grant_is_refused_in_our_words() -> None:
    store = LeaselessNow()
    store.append("r", Event("run_start", messages=[{"role": "user", "content": "go"}]))
    with pytest.raises(StoreError, match="run 'r': its lease could not be had") as caught:
        agent(store).resume("r")
    assert isinstance(caught.value.__cause__, ConnectionError)
    result = agent(store).run("go")  # nobody can contend for a new run
    assert (result.final_output, result.unsaved) == (ANSWER, len(result.events))
