"""Whoever has read a run acts on that run or on none, also when its id has changed hands since: the next run of the same
script says the same, call for call, and only how it began tells the two apart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentor import Agentor, MemoryStore, RunNotFoundError, function_tool, launch, stopping
from agentor.consent import decide_call
from agentor.engine import clock
from agentor.engine.events import Event
from agentor.engine.replay import replay
from agentor.engine.store import fork_run
from agentor.recorded import Recorded, identity, recorded, reread
from agentor.stopping import LetGo, Stop, Stopper, cancel_run, end_run, tell
from agentor.testing import ScriptedModel, calls, says
from tests.engine.agents import STORES, ThreeMethods
from tests.engine.test_deciding_at_once import Checking
from tests.engine.test_reused_ids import WhileWeWait, delete

GONE = ["the run {} that was meant was deleted; another may have its id by now"]
STOP = Stop("cancelled", "Cancelled.", "Ada")


def gone(run_id: str) -> list[str]:
    return [note.format(run_id) for note in GONE]


def played() -> list[Event]:
    """A log with a settled call, one that was started again and a question, as the script has it, whoever runs it."""

    @function_tool(effect="idempotent")
    def pay(to: str) -> str:
        """Pay."""
        return "paid"

    @function_tool(needs_approval=True)
    def ship(to: str) -> str:
        """Ship."""
        return "shipped"

    script = [calls(("pay", {"to": "ada"})), calls(("ship", {"to": "ada"})), says("done")]
    till = Agentor("A", model=ScriptedModel.by_turn(script), tools=[pay, ship], store=MemoryStore())
    [waits] = till.run("go", run_id="x").pending
    till.approve("x", waits, by="ada")
    return till.resume("x").events


FORKED = Event("fork", forked_from="parent", started_at=1.0)
BIRTHS: dict[str, Callable[[list[Event], str], list[Event]]] = {
    "nonce": lambda log, which: [log[0].with_(nonce=which), *log[1:]],
    "question, in an older log": lambda log, which: [
        log[0].with_(nonce=None, messages=[{"role": "user", "content": which}]),
        *log[1:],
    ],
    "fork": lambda log, which: [*log[:3], FORKED.with_(nonce=which, forked_at=3), *log[3:]],
    "fork, in an older log": lambda log, which: [
        log[0].with_(nonce=None),
        *log[1:3],
        FORKED.with_(forked_at=3, started_at=float(len(which))),
        *log[3:],
    ],
}


def written(store: Any, run_id: str, events: list[Event]) -> None:
    for seq, event in enumerate(events, 1):
        store.append(run_id, event.with_(seq=seq))


@pytest.mark.parametrize("birth", BIRTHS)
def test_another_run_of_the_same_script_never_passes_for_the_one_that_was_read(
    store: Any, birth: str
) -> None:
    log = played()
    mine, others = (BIRTHS[birth](log, which) for which in ("one", "another"))
    for length in range(1, len(log) + 1):
        written(store, "x", mine[:length])
        known = asyncio.run(recorded(store, "x"))
        assert asyncio.run(reread(store, "x", known))[1] == known[1]
        delete(store, "x")
        if mine[:length] != others[:length]:  # else nobody can tell, and it does not matter
            written(store, "x", others[:length])
        with pytest.raises(RunNotFoundError) as error:
            asyncio.run(reread(store, "x", known))
        assert error.value.__notes__ == gone("x")
        if store.load("x"):
            delete(store, "x")


@pytest.mark.parametrize("birth", BIRTHS)
def test_a_run_that_has_gone_on_is_read_as_it_is_now(store: Any, birth: str) -> None:
    log = BIRTHS[birth](played(), "one")
    written(store, "x", log[:4])
    known = asyncio.run(recorded(store, "x"))
    for seq, event in enumerate(log[4:], 5):
        store.append("x", event.with_(seq=seq))
        known = asyncio.run(reread(store, "x", known))
        assert known[0] == replay(store.load("x"), "x")


def test_a_run_that_is_as_it_was_is_not_read_again(store: Any) -> None:
    if isinstance(store, ThreeMethods):
        pytest.skip("it can say nothing about a run but all of it")
    written(store, "x", played())
    known = asyncio.run(recorded(store, "x"))
    assert asyncio.run(reread(store, "x", known)) is known


async def test_a_worker_that_waited_makes_no_call_of_another_run_that_stands_at_the_same_call(
    store: Any,
) -> None:
    if isinstance(store, ThreeMethods):
        pytest.skip("a store without leases keeps nobody apart")
    keys: list[str] = []
    up_to_the_call = played()[:3]
    assert up_to_the_call[-1].type == "tool_call"
    mine, others = (BIRTHS["nonce"](up_to_the_call, which) for which in "12")
    lease = store.acquire("x", "somebody", 30.0)
    store.append_many("x", mine, lease)

    @function_tool(effect="idempotent")
    def pay(to: str) -> str:
        """Pay."""
        keys.append(to)
        return "paid"

    def swap() -> None:
        store.release(lease)
        store.delete("x")
        written(store, "x", others)

    till = Agentor("A", model=ScriptedModel([says("done")]), tools=[pay], store=store)
    with clock.installed(WhileWeWait(swap)), pytest.raises(RunNotFoundError):
        await asyncio.wait_for(till.aresume("x", wait=5), 30)
    assert keys == []
    assert [event.type for event in store.load("x")] == [event.type for event in others]


# Cancels ----------------------------------------------------------------------------------------------------------


class Hands:
    """Two runs of one script, "x" by turns, both held by somebody else: the second follows at a chosen call of the store."""

    def __init__(self, store: Any, verb: str, number: int) -> None:
        self.store, self.left, self.real = store, number, getattr(store, verb)
        self.first, self.second = (BIRTHS["nonce"](played()[:3], which) for which in "12")
        self.lease = store.acquire("x", "somebody", 30.0)
        store.append_many("x", self.first, self.lease)
        setattr(store, verb, self.called)

    def called(self, *args: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            self.change()
        return self.real(*args)

    def change(self) -> None:
        self.store.release(self.lease)
        self.store.delete("x")
        written(self.store, "x", self.second)
        self.lease = type(self.store).acquire(self.store, "x", "somebody else", 30.0)


@pytest.mark.parametrize(
    ("verb", "number"), [("acquire", 1), ("ask", 1), ("acquire", 2), ("answered", 1)]
)
async def test_a_cancel_of_a_run_that_was_deleted_is_not_asked_of_the_next_run_of_its_id(
    store: Any, verb: str, number: int
) -> None:
    if isinstance(store, ThreeMethods):
        pytest.skip("nobody can be asked")
    hands = Hands(store, verb, number)
    if verb == "answered":  # it has ended by itself, and is deleted when the question is taken back
        end = Event("run_end", status="completed")
        ask = store.ask

        def ends_then(*args: Any) -> None:
            ask(*args)
            store.append_many("x", [end], hands.lease)
            store.release(hands.lease)

        store.ask = ends_then
    with pytest.raises(RunNotFoundError) as error:
        await cancel_run(store, "x", "Ada")
    assert error.value.__notes__ == gone("x")
    assert store.asked("x") == []
    assert store.load("x")[0].nonce == "2"
    assert len(store.load("x")) == len(hands.second)


async def test_a_question_of_somebody_elses_to_the_next_run_stays_when_the_first_is_known_to_be_gone(
    store: Any,
) -> None:
    if isinstance(store, ThreeMethods):
        pytest.skip("nobody can be asked")
    hands = Hands(store, "acquire", 1)
    change = hands.change

    def asked_by_bob() -> None:
        change()
        store.ask("x", "cancel", "Bob")

    hands.change = asked_by_bob  # type: ignore[method-assign]
    with pytest.raises(RunNotFoundError):
        await cancel_run(store, "x", "Ada")
    assert (store.asked("x"), store.asked_by("x", "cancel")) == (["cancel"], "Bob")


async def test_a_run_of_this_process_hears_no_word_that_was_meant_for_the_run_before_it(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(store, "x", BIRTHS["nonce"](played()[:3], "1"))
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def reply(messages: Any) -> Any:
        begun.set()
        await may_end.wait()
        return says("done")

    mine = Agentor("A", model=ScriptedModel(reply), store=store)
    runs: list[asyncio.Task[Any]] = []

    async def read_and_overtaken(store: Any, run_id: str) -> Recorded:
        known = await recorded(store, run_id)
        delete(store, "x")
        runs.append(asyncio.create_task(mine.arun("go", run_id="x")))
        await begun.wait()
        return known

    monkeypatch.setattr(stopping, "recorded", read_and_overtaken)
    with pytest.raises(RunNotFoundError):
        await cancel_run(store, "x", "Ada")
    may_end.set()
    assert (await runs[0]).status == "completed"


async def test_a_word_for_a_run_is_heard_by_it_and_by_a_run_of_an_older_log() -> None:
    store = MemoryStore()
    for nonce, heard in (("1", True), (None, True), ("2", False)):
        stopper = Stopper(store, "x", nonce=nonce)
        waiting = asyncio.ensure_future(stopper.wait())
        await asyncio.sleep(0)
        assert tell(store, "x", LetGo(), "1") == heard
        assert tell(store, "x", LetGo())
        await asyncio.wait_for(waiting, 10)


# Forks ------------------------------------------------------------------------------------------------------------


class ForksWithoutOf(MemoryStore):
    """A fork and its event are one write, of whatever run has the id."""

    def fork(
        self, src_run_id: str, dst_run_id: str, *, at: int | None = None, event: Event | None = None
    ) -> None:
        super().fork(src_run_id, dst_run_id, at=at, event=event)


class CopiesInOneStep(MemoryStore):
    def fork(self, src_run_id: str, dst_run_id: str) -> None:  # type: ignore[override]
        super().fork(src_run_id, dst_run_id)


FORKING: dict[str, Callable[[Path], Any]] = STORES | {
    "one write without of": lambda path: ForksWithoutOf(),
    "one step": lambda path: CopiesInOneStep(),
}


def before_it_forks(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
    def forked(*args: Any, **options: Any) -> str:
        happens()
        return fork_run(*args, **options)

    monkeypatch.setattr(launch, "fork_run", forked)


@pytest.mark.parametrize("kind", FORKING)
@pytest.mark.parametrize("birth", BIRTHS)
@pytest.mark.parametrize("how", [{}, {"at": 2}, {"input": "go on"}])
async def test_a_fork_is_of_the_run_that_was_looked_at_or_of_none(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    birth: str,
    how: dict[str, Any],
) -> None:
    store, log = FORKING[kind](tmp_path), played()
    mine, others = (BIRTHS[birth](log, which) for which in ("one", "another"))
    written(store, "x", mine)

    def swap() -> None:
        delete(store, "x")
        written(store, "x", others)

    model = ScriptedModel([says("ok")])
    agent = Agentor("A", model=model, store=store, on_change="adopt")
    before_it_forks(monkeypatch, swap)
    with pytest.raises(RunNotFoundError) as error:
        await agent.afork("x", how.get("input"), fork_id="f", at=how.get("at"))
    assert error.value.__notes__ == gone("x")
    assert store.list_runs() == ["x"]
    assert model.requests == []
    before_it_forks(monkeypatch, lambda: None)
    forked = await agent.afork("x", how.get("input"), fork_id="f", at=how.get("at"))
    assert forked.status == "completed"
    if hasattr(store, "close"):
        store.close()


async def test_a_run_in_flight_is_forked_as_far_as_it_has_come_by_then(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = BIRTHS["nonce"](played(), "1")
    written(store, "x", log[:-1])
    before_it_forks(monkeypatch, lambda: store.append("x", log[-1].with_(seq=len(log))))
    agent = Agentor("A", model=ScriptedModel([says("ok")]), store=store, on_change="adopt")
    await agent.afork("x", "go on", fork_id="f")
    assert next(e.forked_at for e in store.load("f") if e.type == "fork") == len(log)


async def test_a_copy_whose_id_is_anothers_before_it_is_read_is_told_as_gone(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = played()
    written(store, "x", log)

    def forked(*args: Any, **options: Any) -> str:
        made = fork_run(*args, **options)
        delete(store, "f")
        written(store, "f", BIRTHS["fork"](log, "another"))
        return made

    monkeypatch.setattr(launch, "fork_run", forked)
    agent = Agentor("A", model=ScriptedModel([]), store=store)
    with pytest.raises(RunNotFoundError) as error:
        await agent.afork("x", fork_id="f")
    assert error.value.__notes__[0] == gone("f")[0]


# Where nothing but the seq keeps two apart -------------------------------------------------------------------------


APPROVAL = Event("approval", status="approved", by="Ada")
ACTS: dict[str, Callable[[Any, str, Recorded], Any]] = {
    "end": lambda store, call_id, known: end_run(store, "x", STOP, known),
    "decide": lambda store, call_id, known: decide_call(store, "x", call_id, APPROVAL, known=known),
}


@pytest.mark.parametrize("birth", BIRTHS)
@pytest.mark.parametrize("act", ACTS)
async def test_who_finds_his_seq_taken_by_another_run_of_the_id_does_not_go_on_with_that(
    birth: str, act: str
) -> None:
    store, log = Checking(), played()
    mine, others = (BIRTHS[birth](log, which) for which in ("one", "another"))
    length = next(seq for seq, event in enumerate(mine, 1) if event.status == "asked")
    call_id = str(mine[length - 1].call_id)
    written(store, "x", mine[:length])

    def swap() -> None:
        del store.runs["x"]
        written(store, "x", others[: length + 1])

    known = await recorded(store, "x")
    store.let_in(swap)
    with pytest.raises(RunNotFoundError) as error:
        await ACTS[act](store, call_id, known)
    assert error.value.__notes__ == gone("x")
    assert len(store.load("x")) == length + 1


def test_the_identity_is_the_same_however_much_of_the_run_is_known() -> None:
    log = played()
    for birth in BIRTHS.values():
        one, another = birth(log, "one"), birth(log, "another")
        assert {identity(one[:length]) for length in range(4, len(one) + 1)} == {identity(one)}
        assert identity(one) != identity(another)
