"""Letters: committed with the call's result, delivered at least once, under one key, by whoever claims them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentor import Agentor, ConfigError, MemoryStore, RunContext, SQLiteStore, function_tool
from agentor.engine import clock
from agentor.testing import ScriptedModel, calls, says
from tests.engine.leases import Later
from tests.transactional.bank import look


@function_tool(effect="transactional")
def send(ctx: RunContext, to: list[str]) -> str:
    """Send mails."""
    return " ".join(ctx.outbox.put("mail", {"to": each}) for each in to)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "app.db") as store:
        yield store


def sender(store: Any, *to: str) -> Agentor:
    script = [calls(("send", {"to": list(to)})), says("sent")]
    return Agentor("Post", model=ScriptedModel.by_turn(script), tools=[send], store=store)


class Receiver:
    """Fails the first `fails` times."""

    def __init__(self, fails: int = 0) -> None:
        self.got: list[tuple[str, Any, str]] = []
        self.fails = fails

    def __call__(self, kind: str, payload: Any, key: str) -> None:
        self.got.append((kind, payload["to"], key))
        if len(self.got) <= self.fails:
            raise ConnectionError("the mail server is down")


def test_letters_are_delivered_in_order_with_the_keys_of_their_call(store: SQLiteStore) -> None:
    agent, receiver = sender(store, "ada", "bob", "cy"), Receiver()
    result = agent.run("go", run_id="run")
    assert agent.deliver(receiver) == 3
    key = f"run.{result.events[0].nonce}:2:0"
    keys = [key, f"{key}#2", f"{key}#3"]
    assert receiver.got == [
        ("mail", to, key) for to, key in zip(("ada", "bob", "cy"), keys, strict=True)
    ]
    assert next(e.result for e in result.events if e.type == "tool_result") == " ".join(keys)
    assert (agent.deliver(receiver), store.undelivered()) == (0, 0)


async def test_a_handler_may_be_async(store: SQLiteStore) -> None:
    got: list[str] = []

    async def handler(kind: str, payload: Any, key: str) -> None:
        await asyncio.sleep(0)
        got.append(key)

    agent = sender(store, "ada")
    result = await agent.arun("go", run_id="run")
    assert await agent.adeliver(handler) == 1
    assert got == [f"run.{result.events[0].nonce}:2:0"]


def test_a_letter_that_fails_is_tried_again_later_and_later_under_the_same_key(
    store: SQLiteStore,
) -> None:
    agent, receiver = sender(store, "ada", "bob"), Receiver(fails=1)
    agent.run("go", run_id="run")
    assert agent.deliver(receiver) == 1  # bob's; ada's waits and holds nobody up
    assert agent.deliver(receiver) == 0
    row = "SELECT attempts, claim, error FROM agentor_outbox"
    assert look(Path(store.path), row) == [(1, None, "ConnectionError: the mail server is down")]
    with clock.installed(Later(1.5)):
        receiver.fails = 3
        assert agent.deliver(receiver) == 0
    with clock.installed(Later(2.5)):
        assert agent.deliver(receiver) == 0  # not due: the second pause is twice the first
        assert len(receiver.got) == 3
    with clock.installed(Later(5)):
        assert agent.deliver(receiver) == 1
    assert [to for _, to, _ in receiver.got] == ["ada", "bob", "ada", "ada"]
    assert len({key for _, to, key in receiver.got if to == "ada"}) == 1


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(3)])
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_handlers_own_end_is_a_failed_attempt_and_not_the_deliverers(
    store: SQLiteStore, is_async: bool, error: BaseException
) -> None:
    got: list[str] = []

    def handler(kind: str, payload: Any, key: str) -> None:
        got.append(payload["to"])
        if payload["to"] == "ada":
            raise error

    async def handling(kind: str, payload: Any, key: str) -> None:
        handler(kind, payload, key)

    agent = sender(store, "ada", "bob")
    await agent.arun("go", run_id="run")
    assert await agent.adeliver(handling if is_async else handler) == 1
    assert got == ["ada", "bob"]
    [(attempts, claim, told)] = look(
        Path(store.path), "SELECT attempts, claim, error FROM agentor_outbox"
    )
    assert (attempts, claim) == (1, None)
    assert type(error).__name__ in told


def test_a_deliverer_that_dies_leaves_its_letter_to_another(store: SQLiteStore) -> None:
    agent, receiver = sender(store, "ada"), Receiver()
    agent.run("go")
    lost = store.claim_letter(60.0)
    assert lost is not None
    assert agent.deliver(receiver) == 0  # somebody has it
    with clock.installed(Later(61)):
        assert agent.deliver(receiver) == 1
    store.letter_delivered(lost)  # too late to mean anything
    store.letter_failed(lost, 0, "late")
    assert store.undelivered() == 0


def test_a_claim_that_has_changed_hands_decides_nothing(store: SQLiteStore) -> None:
    sender(store, "ada").run("go")
    first = store.claim_letter(1.0)
    with clock.installed(Later(2)):
        second = store.claim_letter(60.0)
    assert first is not None
    assert second is not None
    assert (first.attempts, second.attempts) == (1, 2)
    store.letter_delivered(first)
    assert store.undelivered() == 1
    store.letter_delivered(second)
    assert store.undelivered() == 0


async def test_deliverers_side_by_side_share_the_letters(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "app.db") as one, SQLiteStore(tmp_path / "app.db") as two:
        names = [f"n{number}" for number in range(20)]
        await sender(one, *names).arun("go")
        receiver = Receiver()
        agents = [sender(one), sender(two), sender(one)]
        counts = await asyncio.gather(*(agent.adeliver(receiver) for agent in agents))
        assert sum(counts) == 20
        assert sorted(to for _, to, _ in receiver.got) == sorted(names)


async def test_a_deliverer_goes_on_until_it_is_cancelled(store: SQLiteStore) -> None:
    agent, receiver = sender(store, "ada"), Receiver()
    looked = asyncio.Event()
    may_look = asyncio.Event()

    class Waiting(Later):
        async def sleep(self, seconds: float) -> None:
            looked.set()
            await may_look.wait()
            may_look.clear()

    with clock.installed(Waiting(0)):
        delivering = asyncio.create_task(agent.adeliver(receiver, until_idle=False))
        await looked.wait()
        assert receiver.got == []
        looked.clear()
        transaction = store.transact("run")
        await asyncio.to_thread(transaction.put, "mail", '{"to": "ada"}', "key")
        await asyncio.wrap_future(transaction.commit([]))
        may_look.set()
        await looked.wait()
        delivering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await delivering
    assert [to for _, to, _ in receiver.got] == ["ada"]


@pytest.mark.parametrize("payload", [object(), {1, 2}])
def test_a_payload_that_is_no_json_fails_the_call(store: SQLiteStore, payload: Any) -> None:
    @function_tool(effect="transactional")
    def bad(ctx: RunContext) -> None:
        """Send what cannot be written."""
        ctx.outbox.put("mail", payload)

    script = [calls(("bad", {})), says("?")]
    agent = Agentor("Post", model=ScriptedModel.by_turn(script), tools=[bad], store=store)
    [error] = [e.error for e in agent.run("go").events if e.type == "tool_result"]
    assert str(error).startswith("ConfigError: the payload of a 'mail' letter is no JSON")
    assert store.undelivered() == 0


def test_without_an_outbox_there_is_nothing_to_deliver() -> None:
    for store in (None, MemoryStore()):
        with pytest.raises(ConfigError, match="no outbox"):
            Agentor("Post", model=ScriptedModel([]), store=store).deliver(print)
