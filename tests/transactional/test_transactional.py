"""A transactional call: what its tool writes and its result are one commit, or there is neither."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import apsw
import pytest

from agentor import (
    Agentor,
    ConfigError,
    FileStore,
    LeaseLostError,
    MemoryStore,
    RunContext,
    SQLiteStore,
    StatementError,
    StoreError,
    function_tool,
)
from agentor.engine import clock
from agentor.engine.events import Event
from agentor.engine.replay import verify
from agentor.stopping import Stop, tell
from agentor.testing import ScriptedModel, calls, says
from tests.engine.agents import ThreeMethods, types
from tests.engine.leases import Later, force_takeover
from tests.store.store_disks import FaultyDisk
from tests.transactional.bank import look


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(path) as store:
        look(path, "CREATE TABLE note (text TEXT UNIQUE)")
        yield store


def tool(act: Callable[[RunContext], Any], name: str = "note", **options: Any) -> Any:
    def call(ctx: RunContext) -> Any:
        return act(ctx)

    made = function_tool(effect="transactional", name_override=name, description_override=name)
    decorated = made(call)
    return decorated if not options else _with(decorated, **options)


def _with(tool: Any, **options: Any) -> Any:
    return type(tool)(**{**tool.__dict__, **options})


def agent(store: Any, *tools: Any, batch: Any = None, **settings: Any) -> Agentor:
    asked = batch or [(each.name, {}) for each in tools]
    script = [calls(*asked), says("done")]
    return Agentor(
        "A", model=ScriptedModel.by_turn(script), tools=list(tools), store=store, **settings
    )


def write(ctx: RunContext, text: str = "a") -> str:
    ctx.db.execute("INSERT INTO note VALUES (?)", (text,))
    return "noted"


def results(events: list[Event]) -> list[tuple[Any, Any]]:
    return [(e.name, e.error or e.result) for e in events if e.type == "tool_result"]


def notes(path: Path) -> list[str]:
    return [text for (text,) in look(path, "SELECT text FROM note ORDER BY 1")]


def test_the_write_and_the_result_are_one_commit(store: SQLiteStore, path: Path) -> None:
    def see(ctx: RunContext) -> str:
        write(ctx)
        return f"others see {notes(path)}"  # through another connection

    before = store._writer.commits
    result = agent(store, tool(see)).run("go")
    assert results(result.events) == [("note", "others see []")]
    assert notes(path) == ["a"]
    assert [e.effect for e in result.tool_calls] == ["transactional"]
    assert types(store.load(result.run_id)) == types(result.events)
    # the lease, run_start, the generation with its call, the call, the answer, the lease again
    assert store._writer.commits - before == 6


def test_what_a_failing_tool_wrote_is_gone_and_its_failure_is_recorded(
    store: SQLiteStore, path: Path
) -> None:
    def fail(ctx: RunContext) -> None:
        write(ctx)
        ctx.outbox.put("mail", "never")
        raise RuntimeError("no")

    result = agent(store, tool(fail)).run("go")
    assert results(store.load(result.run_id)) == [("note", "RuntimeError: no")]
    assert notes(path) == []
    assert store.undelivered() == 0
    assert result.status == "completed"


def test_a_refused_statement_is_a_typed_error_and_the_tool_may_go_on(
    store: SQLiteStore, path: Path
) -> None:
    def try_twice(ctx: RunContext) -> str:
        write(ctx)
        try:
            ctx.db.executemany("INSERT INTO note VALUES (?)", [("b",), ("a",)])
        except StatementError as error:
            return f"{error.kind}: {error}"
        return "?"

    result = agent(store, tool(try_twice)).run("go")
    assert results(result.events) == [("note", "constraint: UNIQUE constraint failed: note.text")]
    assert notes(path) == ["a"]  # "b" was part of what was refused


@pytest.mark.parametrize(
    ("sql", "values", "kind"),
    [
        ("nonsense", (), "invalid"),
        ("SELECT * FROM nowhere", (), "invalid"),
        ("SELECT ?", (), "invalid"),
        ("SELECT ?", (object(),), "invalid"),
        ("SELECT ?", ("\ud800",), "invalid"),
        ("SELECT ?", (2**70,), "invalid"),
        ("SELECT ?", "text", "invalid"),
        ("SELECT ?", 5, "invalid"),
        (b"SELECT 1", (), "invalid"),
        ("INSERT INTO note VALUES ('a'), ('a')", (), "constraint"),
        ("INSERT OR ROLLBACK INTO note VALUES ('a'), ('a')", (), "ended"),
    ],
)
def test_whatever_is_wrong_with_a_statement_is_an_error_of_ours(
    store: SQLiteStore, path: Path, sql: Any, values: Any, kind: str
) -> None:
    seen: list[StatementError] = []

    def ask(ctx: RunContext) -> str:
        try:
            ctx.db.execute(sql, values)
        except StatementError as error:
            seen.append(error)
        return write(ctx)

    result = agent(store, tool(ask)).run("go")
    assert [error.kind for error in seen] == [kind]
    assert notes(path) == ([] if kind == "ended" else ["a"])
    [(_, told)] = results(result.events)
    assert told.startswith("StatementError: the transaction was rolled back") is (kind == "ended")


def test_rows_are_tuples_and_values_may_be_named(store: SQLiteStore) -> None:
    rows: list[Any] = []

    def ask(ctx: RunContext) -> None:
        rows.extend(ctx.db.execute("SELECT :a, :b", {"a": 1, "b": b"x"}))
        rows.extend(ctx.db.execute("SELECT ?, ?", (each for each in (1.5, None))))

    agent(store, tool(ask)).run("go")
    assert rows == [(1, b"x"), (1.5, None)]


def test_a_foreign_key_holds_at_once_or_at_the_end(store: SQLiteStore, path: Path) -> None:
    look(path, "CREATE TABLE now (text REFERENCES note (text))")
    look(
        path,
        "CREATE TABLE later (text REFERENCES note (text) DEFERRABLE INITIALLY DEFERRED)",
    )
    tools = [
        tool(lambda ctx: ctx.db.execute("INSERT INTO now VALUES ('x')"), "now"),
        tool(lambda ctx: ctx.db.execute("INSERT INTO later VALUES ('x')"), "later"),
    ]
    result = agent(store, *tools).run("go")
    assert [told for _, told in results(result.events)] == [
        "StatementError: FOREIGN KEY constraint failed",
        "StatementError: FOREIGN KEY constraint failed (a deferred one)",
    ]
    assert look(path, "SELECT * FROM now UNION SELECT * FROM later") == []


def test_several_calls_of_a_batch_take_turns_and_others_run_beside_them(
    store: SQLiteStore, path: Path
) -> None:
    @function_tool
    async def beside() -> str:
        """Something else."""
        return "ok"

    many = [tool(lambda ctx, n=n: write(ctx, f"{n}"), f"note_{n}") for n in range(5)]
    result = agent(store, *many[:3], beside, *many[3:]).run("go")
    assert sorted(results(result.events)) == [
        ("beside", "ok"),
        *((f"note_{n}", "noted") for n in range(5)),
    ]
    assert notes(path) == ["0", "1", "2", "3", "4"]
    assert verify(store.load(result.run_id)) == []


@pytest.mark.parametrize("fails", [False, True])
def test_an_atomic_batch_is_done_whole_or_not_at_all(
    store: SQLiteStore, path: Path, fails: bool
) -> None:
    def second(ctx: RunContext) -> str:
        write(ctx, "b")
        if fails:
            raise ValueError("no")
        return f"after {ctx.db.execute('SELECT count(*) FROM note')}"

    tools = [
        tool(lambda ctx: write(ctx, "a"), "first"),
        tool(second, "second"),
        tool(lambda ctx: write(ctx, "c"), "third"),
    ]
    result = agent(store, *tools, atomic_batches=True, max_tool_failures=1).run("go")
    if fails:
        assert results(result.events) == [
            ("first", "rolled back"), ("second", "ValueError: no"), ("third", "rolled back"),
        ]  # fmt: skip
        assert notes(path) == []
    else:
        assert results(result.events)[1] == ("second", "after [(2,)]")
        assert notes(path) == ["a", "b", "c"]


# The limit --------------------------------------------------------------------------------------------------------


def test_a_tool_that_takes_too_long_is_rolled_back_and_writes_nothing_later(
    store: SQLiteStore, path: Path
) -> None:
    may_end, ended = threading.Event(), threading.Event()
    late: list[str] = []

    def linger(ctx: RunContext) -> str:
        write(ctx)
        may_end.wait(30)
        try:
            write(ctx, "late")
        except StatementError as error:
            late.append(error.kind)
        ended.set()
        return "too late"

    result = agent(store, tool(linger), transaction_limit_s=0.05).run("go")
    may_end.set()
    assert ended.wait(30)
    assert results(result.events) == [
        ("note", "TimeoutError: no result within 0.05 s; what it wrote was rolled back")
    ]
    assert late == ["ended"]
    assert notes(path) == []


def test_an_endless_statement_is_interrupted(store: SQLiteStore, path: Path) -> None:
    endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT count(*) FROM n"

    def ask(ctx: RunContext) -> None:
        write(ctx)
        ctx.db.execute(endless)

    result = agent(store, tool(ask, timeout_s=0.05)).run("go")
    assert "0.05 s" in results(result.events)[0][1]
    assert notes(path) == []
    assert result.unsaved == 0


def test_the_store_gives_up_by_itself_when_nobody_commits(store: SQLiteStore, path: Path) -> None:
    transaction = store.transact("run", limit_s=0.02)
    transaction.begun.result()
    transaction.execute("INSERT INTO note VALUES ('a')", ())
    store.append("other", Event("message", text="waited"))  # nobody is held up for ever
    with pytest.raises(StatementError, match=r"open for 0\.02 s"):
        transaction.execute("SELECT 1", ())
    with pytest.raises(StatementError, match=r"open for 0\.02 s") as caught:
        transaction.commit([Event("message", text="no")]).result()
    assert caught.value.kind == "ended"
    assert (notes(path), store.load("run")) == ([], [])


# What the world does ----------------------------------------------------------------------------------------------


def test_without_the_lease_the_tool_is_not_started(
    store: SQLiteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody takes the run over between the claim of the call and its transaction."""
    transact = store.transact

    def late(run_id: str, *rest: Any) -> Any:
        force_takeover(store, run_id)
        return transact(run_id, *rest)

    monkeypatch.setattr(store, "transact", late)
    started: list[str] = []
    with pytest.raises(LeaseLostError):
        agent(store, tool(lambda ctx: started.append("note"))).run("go", run_id="run")
    assert started == []
    assert types(store.load("run"))[-1] == "tool_call"


def test_nobody_takes_a_run_over_while_its_transaction_is_open(path: Path) -> None:
    """The term is checked in the transaction: nobody can take the run over while it is open."""
    with SQLiteStore(path) as store, SQLiteStore(path, busy_timeout_s=0) as rival:
        lease = store.acquire("run", "me", 30.0)
        transaction = store.transact("run", lease)
        transaction.begun.result()
        with pytest.raises(StoreError, match="locked"):
            force_takeover(rival, "run")
        transaction.commit([Event("message", text="mine")]).result()
        force_takeover(rival, "run")
        assert types(store.load("run")) == ["message"]


def test_a_lease_lost_between_the_claim_and_the_transaction_stops_the_tool(
    store: SQLiteStore,
) -> None:
    lease = store.acquire("run", "me", 30.0)
    store.append_many("run", [Event("message", text="mine")], lease)
    force_takeover(store, "run")
    transaction = store.transact("run", lease)
    with pytest.raises(LeaseLostError):
        transaction.begun.result()
    with pytest.raises(StatementError):
        transaction.execute("SELECT 1", ())
    with pytest.raises(LeaseLostError):
        transaction.commit([]).result()


@pytest.mark.parametrize("durability", ["best_effort", "strict"])
def test_a_full_disk_leaves_neither_and_the_call_is_made_later(
    tmp_path: Path, durability: Any
) -> None:
    name = f"full-{durability}"
    disk = FaultyDisk(name)
    with SQLiteStore(tmp_path / "app.db", vfs=name) as store:
        transaction = store.transact("setup")
        transaction.execute("CREATE TABLE note (text TEXT)", ())
        transaction.commit([]).result()

        def fill(ctx: RunContext) -> str:
            told = write(ctx)
            disk.is_full = True
            return told

        with pytest.raises(StoreError, match="else it did not"):
            agent(store, tool(fill), durability=durability).run("go", run_id="run")
        disk.is_full = False
        assert types(store.load("run"))[-1] == "tool_call"
        assert _rows(store) == []
        with clock.installed(Later(3600)):  # the lease could not be given back
            result = agent(store, tool(write)).resume("run")
        assert (result.status, _rows(store)) == ("completed", [("a",)])


def _rows(store: SQLiteStore) -> list[Any]:
    transaction = store.transact("look")
    try:
        return transaction.execute("SELECT text FROM note", ())
    finally:
        transaction.abort()


async def test_a_cancelled_run_takes_back_what_its_tool_was_writing(
    store: SQLiteStore, path: Path
) -> None:
    written, may_end = threading.Event(), threading.Event()

    def linger(ctx: RunContext) -> None:
        write(ctx)
        written.set()
        may_end.wait(30)

    run = asyncio.create_task(agent(store, tool(linger)).arun("go", run_id="run"))
    await asyncio.to_thread(written.wait, 30)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    may_end.set()
    assert types(store.load("run"))[-1] == "tool_call"
    assert notes(path) == []
    result = await agent(store, tool(write)).aresume("run", wait=True)  # till its thread has ended
    assert (result.status, notes(path)) == ("completed", ["a"])


async def test_a_cancel_that_meets_the_commit_finds_the_result_recorded_and_shown(
    store: SQLiteStore, path: Path
) -> None:
    """Whoever stops a run just then goes on from what is in the log, the transfer included."""
    mine = agent(store, tool(write))
    committing, held = held_commits(store)

    async def read() -> list[Event]:
        stream = mine.astream("go", run_id="run")
        return [event async for event in stream if event.type != "text_delta"]

    reading = asyncio.create_task(read())
    await committing.wait()
    await mine.acancel("run")
    for _ in range(50):  # turns of the loop, until the cancel has reached the call
        await asyncio.sleep(0)
    held.set_result(None)
    shown = await reading
    assert shown[-1].status == "cancelled"
    assert notes(path) == ["a"]
    assert results(store.load("run")) == [("note", "noted")]
    assert shown == store.load("run")


def held_commits(store: SQLiteStore, is_done: bool = True) -> tuple[asyncio.Event, Future[None]]:
    """Set when a commit is on the disk, or was to be; and what the worker waits for to hear of it."""
    transact, committing, held = store.transact, asyncio.Event(), Future[None]()

    def watched(*args: Any) -> Any:
        transaction = transact(*args)
        commit = transaction.commit

        def commit_and_hold(events: Any) -> Future[None]:
            if is_done:
                commit(events).result()
            committing.set()
            return held

        transaction.commit = commit_and_hold  # type: ignore[method-assign]
        return transaction

    store.transact = watched  # type: ignore[method-assign]
    return committing, held


@pytest.mark.parametrize("committed", [True, False])
async def test_what_was_given_beside_a_commit_that_failed_as_the_run_was_cancelled_is_not_recorded(
    store: SQLiteStore, path: Path, committed: bool
) -> None:
    async def look_up() -> str:
        return "seen"

    plain = function_tool(name_override="look_up", description_override="Look up.")(look_up)
    mine = agent(store, tool(write), plain)
    committing, held = held_commits(store, committed)
    run = asyncio.create_task(mine.arun("go", run_id="run"))
    await committing.wait()
    run.cancel()
    for _ in range(50):
        await asyncio.sleep(0)
    held.set_exception(StoreError("disk I/O error"))
    with pytest.raises(asyncio.CancelledError):
        await run
    log = store.load("run")
    assert results(log) == [("note", "noted")] * committed
    assert verify(log) == []


async def test_what_a_failed_call_wrote_is_gone_and_its_failure_shown_if_the_run_is_cancelled_then(
    store: SQLiteStore, path: Path
) -> None:
    def fail(ctx: RunContext) -> None:
        write(ctx)
        tell(store, "run", Stop("cancelled", "Cancelled."))
        raise RuntimeError("no")

    stream = agent(store, tool(fail)).astream("go", run_id="run")
    shown = [event async for event in stream if event.type != "text_delta"]
    assert shown == store.load("run")
    assert notes(path) == []


def failing_commit(store: SQLiteStore, committed: bool) -> Callable[..., Any]:
    """In place of `store.transact`: the commit fails, before or after it is done."""
    transact, failed = store.transact, Future[None]()
    failed.set_exception(StoreError("disk I/O error"))

    def failing(*args: Any) -> Any:
        transaction = transact(*args)
        commit = transaction.commit

        def commit_and_fail(events: Any) -> Future[None]:
            if committed:
                commit(events).result()
            return failed

        transaction.commit = commit_and_fail  # type: ignore[method-assign]
        return transaction

    return failing


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("durability", ["best_effort", "strict"])
def test_once_a_commit_has_failed_nothing_that_was_asked_for_beside_it_begins_or_is_recorded(
    store: SQLiteStore, path: Path, committed: bool, durability: Any
) -> None:
    started: list[str] = []

    def other(ctx: RunContext) -> str:
        started.append("other")
        return write(ctx, "b")

    async def look_up() -> str:
        started.append("look up")
        return "seen"

    plain = function_tool(name_override="look_up", description_override="Look up.")(look_up)
    tools = tool(write), tool(other, "other"), plain
    mine, transact = agent(store, *tools, durability=durability), store.transact
    store.transact = failing_commit(store, committed)  # type: ignore[method-assign]
    with pytest.raises(StoreError, match="whether it happened is in the log"):
        mine.run("go", run_id="run")
    assert started == ["look up"]
    assert results(store.load("run")) == [("note", "noted")] * committed
    store.transact = transact  # type: ignore[method-assign]
    assert mine.resume("run").status == "completed"
    assert notes(path) == ["a", "b"]


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("settings", [{}, {"durability": "strict"}])
def test_a_commit_that_fails_says_that_the_log_knows_whether_it_happened(
    store: SQLiteStore, path: Path, committed: bool, settings: Any
) -> None:
    mine, transact = agent(store, tool(write), **settings), store.transact
    store.transact = failing_commit(store, committed)  # type: ignore[method-assign]
    with pytest.raises(StoreError, match="whether it happened is in the log") as caught:
        mine.run("go", run_id="run")
    assert "did not happen" not in str(caught.value)
    assert notes(path) == ["a"] * committed
    assert results(store.load("run")) == [("note", "noted")] * committed
    store.transact = transact  # type: ignore[method-assign]
    assert mine.resume("run").status == "completed"
    assert notes(path) == ["a"]


def test_a_call_that_could_not_be_begun_is_known_not_to_have_happened(
    store: SQLiteStore, path: Path
) -> None:
    mine, transact = agent(store, tool(write)), store.transact

    def failing(*args: Any) -> Any:
        transaction = transact(*args)
        transaction.begun.result()
        transaction.begun = Future[None]()
        transaction.begun.set_exception(StoreError("disk I/O error"))
        transaction.abort()
        return transaction

    store.transact = failing  # type: ignore[method-assign]
    with pytest.raises(StoreError, match=r"could not be begun .* so it did not happen"):
        mine.run("go", run_id="run")
    assert notes(path) == []


# Never in doubt ---------------------------------------------------------------------------------------------------


def half_finished(store: SQLiteStore, effect: str | None = "transactional") -> None:
    log = agent(None, function_tool(lambda: "x", name_override="note")).run("go").events[:3]
    log[2] = log[2].with_(effect=effect)
    assert types(log) == ["run_start", "generation", "tool_call"]
    store.append_many("run", log)


def test_a_call_without_a_result_did_not_happen_so_it_is_made(
    store: SQLiteStore, path: Path
) -> None:
    half_finished(store)
    mine = agent(store, tool(write))
    plan = mine.plan("run")
    assert (plan.to_run, plan.in_doubt, plan.waiting) == (("call_1",), (), ())
    result = mine.resume("run")
    assert results(result.events) == [("note", "noted")]
    assert notes(path) == ["a"]


def test_a_call_that_did_not_happen_waits_for_the_consent_that_todays_code_wants(
    store: SQLiteStore, path: Path
) -> None:
    half_finished(store)
    mine = agent(store, tool(write, needs_approval=lambda ctx, args: True), on_change="adopt")
    assert mine.plan("run").waiting == ("call_1",)
    assert mine.resume("run").status == "paused"
    assert notes(path) == []
    mine.approve("run", "call_1")
    assert results(mine.resume("run").events) == [("note", "noted")]
    assert notes(path) == ["a"]


def test_a_call_started_by_a_tool_that_was_not_transactional_then_may_have_happened(
    store: SQLiteStore, path: Path
) -> None:
    half_finished(store, effect="once")
    mine = agent(store, tool(write), on_change="adopt")
    assert mine.plan("run").in_doubt == ("call_1",)
    result = mine.resume("run")
    assert results(result.events) == [("note", "outcome unknown")]
    assert notes(path) == []


def test_a_call_started_as_transactional_did_not_happen_whatever_the_tool_says_today(
    store: SQLiteStore,
) -> None:
    half_finished(store)

    @function_tool(effect="once", name_override="note")
    def once() -> str:
        """Note."""
        return "done now"

    mine = agent(store, once, on_change="adopt")
    assert mine.plan("run").to_run == ("call_1",)
    assert results(mine.resume("run").events) == [("note", "done now")]


# Declarations -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda p: None, lambda p: MemoryStore(), FileStore, lambda p: ThreeMethods()])  # fmt: skip
def test_a_store_that_cannot_do_it_is_refused_when_the_agent_is_built(
    make: Any, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="'note' is transactional"):
        agent(make(tmp_path / "runs"), tool(write))


def test_an_async_tool_and_one_without_a_context_are_refused_when_they_are_declared() -> None:
    with pytest.raises(ConfigError, match="not async"):

        @function_tool(effect="transactional")
        async def waits(ctx: RunContext) -> str:
            """Wait."""
            return ""

    with pytest.raises(ConfigError, match="needs a parameter"):

        @function_tool(effect="transactional")
        def cannot_write() -> str:
            """Nothing."""
            return ""


def test_a_limit_that_would_cost_others_their_lease_is_refused(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "app.db", lease_ttl_s=4.0) as store:
        agent(store, tool(write))  # the default gives way
        with pytest.raises(ConfigError, match=r"transaction_limit_s is 3 s.* 2 s"):
            agent(store, tool(write), transaction_limit_s=3)
        with pytest.raises(ConfigError, match="timeout_s of tool 'note'"):
            agent(store, tool(write, timeout_s=3.0))
        with pytest.raises(ConfigError, match="above 0"):
            agent(store, tool(write), transaction_limit_s=0)


def test_ctx_db_elsewhere_says_whom_it_is_for(store: SQLiteStore) -> None:
    @function_tool
    def plain(ctx: RunContext) -> None:
        """Not transactional."""
        ctx.db.execute("SELECT 1")

    @function_tool
    def sends(ctx: RunContext) -> None:
        """Not transactional."""
        ctx.outbox.put("mail", 1)

    result = agent(store, plain, sends).run("go")
    told = dict(results(result.events))
    assert told["plain"].startswith("ConfigError: ctx.db is for a tool declared with effect=")
    assert told["sends"].startswith("ConfigError: ctx.outbox is for a tool declared with effect=")


def test_a_plain_function_that_turns_out_async_is_told_so(store: SQLiteStore, path: Path) -> None:
    def sneaky(ctx: RunContext) -> Any:
        async def later() -> None:
            write(ctx)

        return later()

    result = agent(store, tool(sneaky)).run("go")
    assert "event loop" in results(result.events)[0][1]
    assert notes(path) == []


def test_a_hook_of_the_program_that_fails_harms_no_other_run(store: SQLiteStore) -> None:
    """One transaction that SQLite gives up takes nobody else's append with it."""
    transaction = store.transact("run")
    transaction.begun.result()
    others = [store.submit(f"r{n}", [Event("message", text="x")]) for n in range(3)]
    with contextlib.suppress(StatementError):
        transaction.execute("INSERT OR ROLLBACK INTO note VALUES ('a'), ('a')", ())
    for other in others:
        other.result()
    with pytest.raises(StatementError):
        transaction.commit([Event("message")]).result()
    assert store.list_runs() == ["r0", "r1", "r2"]


def test_closing_the_store_waits_for_the_transaction_and_commits_it(path: Path) -> None:
    with SQLiteStore(path) as store:
        transaction = store.transact("run")
        transaction.execute("CREATE TABLE note (text)", ())
        done = transaction.commit([Event("message", text="x")])
    done.result()
    assert isinstance(apsw.Connection(str(path)).execute("SELECT * FROM note").fetchall(), list)
    with pytest.raises(StoreError, match="closed"):
        store.transact("run")
