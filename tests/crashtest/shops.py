"""Agents that pay, well and badly. The payment service is a file, which survives the process as a service would.

Each agent is made when it is asked for: many processes load this module, and want one of them.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from agentor import (
    Agentor,
    DidNotHappen,
    FileStore,
    Happened,
    ModelSettings,
    RunContext,
    function_tool,
)
from agentor.engine.tools import Tool
from agentor.testing import ScriptedModel, calls, says

SERVICE = Path(os.environ.get("AGENTOR_CRASHTEST_DIR", "."))


def payments() -> list[str]:
    ledger = SERVICE / "payments.txt"
    return ledger.read_text().split("\n")[:-1] if ledger.exists() else []


def send(amount: int, key: str | None) -> str:
    with (SERVICE / "payments.txt").open("a") as ledger:
        ledger.write(f"{key} {amount}\n")
    return f"paid {amount}"


def look_up(ctx: RunContext):
    paid = [line for line in payments() if line.startswith(f"{ctx.idempotency_key} ")]
    return Happened("it was paid") if paid else DidNotHappen()


def pay(ctx: RunContext, amount: int) -> str:
    """Pay an amount."""
    return send(amount, ctx.idempotency_key)


def pay_new_keys_only(ctx: RunContext, amount: int) -> str:
    """Pay an amount, unless its key is known."""
    known = any(line.startswith(f"{ctx.idempotency_key} ") for line in payments())
    return f"paid {amount}" if known else send(amount, ctx.idempotency_key)


def model(*replies: object) -> ScriptedModel:
    """Its list is used up in one process: it works only because nobody asks it after the first run."""
    asked = Path(os.environ.get("AGENTOR_CRASHTEST_DIR", ".")) / "model_was_asked"

    def noted(reply: object):
        def answer(messages: object) -> object:
            asked.touch()
            return reply

        return answer

    return ScriptedModel([noted(reply) for reply in replies])


PAYS_ONCE = (calls(("pay", {"amount": 5})), says("Paid."))


def shop(tool: object, **settings: object) -> Agentor:
    return Agentor("Shop", model=model(*PAYS_ONCE), tools=[tool], **settings)  # type: ignore[arg-type]


class PaysInCall(Tool):
    """Its function is not what does the work."""

    async def call(self, args: Any, context: Any = None) -> str:
        return send(args["amount"], context.idempotency_key)


class Hides(Tool):
    """Whoever asks for its `call` gets one that nobody can watch."""

    def __getattribute__(self, name: str) -> Any:
        return partial(PaysInCall.call, self) if name == "call" else super().__getattribute__(name)


def of_kind(kind: type[Tool], **declared: Any) -> Tool:
    made = function_tool(pay, **declared)
    return kind(**{field.name: getattr(made, field.name) for field in fields(made) if field.init})


# Several calls at once, of functions of each kind ---------------------------------------------------------------------


@function_tool(effect="read")
async def search(query: str) -> str:
    """Search."""
    return f"three hits for {query}"


@function_tool(effect="read")
def now() -> float:
    """The time, which is another one each time."""
    return time.time()


@function_tool(effect="transactional")
def note(ctx: RunContext, text: str) -> str:
    """Write a note."""
    ctx.db.execute("CREATE TABLE IF NOT EXISTS note (text TEXT)")
    ctx.db.execute("INSERT INTO note VALUES (?)", (text,))
    return "noted"


@function_tool(effect="read")
def look(at: str) -> str:
    """Look at something until the note that was asked for beside it is committed."""
    while '"committed","number":3,"text":"tool_result note"' not in journal():
        time.sleep(0.002)
    return f"{at} looks well"


def journal() -> str:
    """What the crash test has noted of this run."""
    path = SERVICE.parent / "journal.jsonl"
    return path.read_text() if path.exists() else ""


# What is wrong otherwise ------------------------------------------------------------------------------------------

CART: list[str] = []


@function_tool(effect="idempotent")
def put(item: str) -> str:
    """Put something into the cart, which is a list in memory."""
    CART.append(item)
    return "put"


@function_tool(effect="read")
def cart() -> list[str]:
    """What is in the cart."""
    return CART


@function_tool(effect="read")
def stamp() -> float:
    """The time, for whoever asks first."""
    if (SERVICE / "stamped").exists():
        raise RuntimeError("stale")
    (SERVICE / "stamped").touch()
    return time.time()


def pay_and_raise(ctx: RunContext, amount: int) -> str:
    """Pay an amount, and fail to print the receipt."""
    send(amount, ctx.idempotency_key)
    raise RuntimeError("the printer is on fire")


def pay_and_clear(ctx: RunContext, amount: int) -> str:
    """Pay an amount, and leave nothing of what was asked."""
    ctx.args.clear()  # type: ignore[union-attr]
    return send(amount, ctx.idempotency_key)


@function_tool(effect="transactional", name_override="pay")
def order(ctx: RunContext, amount: int) -> str:
    """Write an order into a table of the shop's own."""
    ctx.db.execute("INSERT INTO orders VALUES (?)", (amount,))
    return "ordered"


def make_orders(store: Path, scratch: Path) -> None:
    """A setup: the tables of the shop's own, and a stock."""
    with closing(sqlite3.connect(store)) as db:
        db.execute("CREATE TABLE orders (amount INTEGER)")
    (scratch / "stock.txt").write_text(os.environ["AGENTOR_CRASHTEST_DIR"])


def break_down(store: Path, scratch: Path) -> None:
    raise SystemExit("no disk")


def paid(store: Path, scratch: Path) -> list[str]:
    """A check: the amounts that the payment service saw."""
    assert store.exists()
    assert scratch == SERVICE.resolve()
    return [line.partition(" ")[2] for line in payments()]


def paid_at_most_once(store: Path, scratch: Path) -> None:
    assert len(payments()) <= 1, f"paid {len(payments())} times"


def paid_never(store: Path, scratch: Path) -> None:
    assert not payments(), "somebody paid"


def fail_in_silence(store: Path, scratch: Path) -> None:
    os._exit(9)


def key_of_the_payment(store: Path, scratch: Path) -> list[str]:
    return payments()  # which has the keys, and they are of the run


def exits() -> None:
    """End the process."""
    os._exit(7)


def pay_and_be_killed(ctx: RunContext, amount: int) -> str:
    """Pay an amount; in the process that is to be killed after that, somebody else is quicker."""
    paid = send(amount, ctx.idempotency_key)
    if SERVICE.parent.name == "before-commit-3" and len(payments()) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return paid


def leaves() -> None:
    """Start a process that goes on by itself, in a session of its own."""
    started = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    (SERVICE / "new").write_text(f"{os.getpid()} {started.pid}")
    (SERVICE / "new").rename(SERVICE / "pids")


def waits() -> None:
    """Start such a process, and never come back."""
    leaves()
    threading.Event().wait()


def murders() -> None:
    """End whoever started this process, and go on."""
    (SERVICE / "pids").write_text(str(os.getpid()))
    os.kill(os.getppid(), signal.SIGKILL)
    threading.Event().wait()


def busy_agent() -> Agentor:
    asked = (
        calls(("search", {"query": "tea"}), ("note", {"text": "tea"}), ("pay", {"amount": 5})),
        calls(("now", {})),
        says("All done."),
    )
    paying = function_tool(pay, effect="once", reconcile=look_up)
    return Agentor(
        "Busy",
        instructions="Be quick.",
        model=model(*asked),
        tools=[search, note, now, paying],
        store=str(SERVICE / "own.db"),
    )


def noting_agent() -> Agentor:
    """It gives a batch up that has a committed result in it."""
    asked = (calls(("note", {"text": "tea"}), ("look", {"at": "tea"})), says("Noted."))
    settings: Any = {"store": str(SERVICE / "own.db"), "half_finished": "rewind"}
    return Agentor("Noting", model=model(*asked), tools=[note, look], **settings)


def forgetful_agent() -> Agentor:
    asked = (calls(("put", {"item": "tea"})), calls(("cart", {})), says("Tea."))
    return Agentor("Forgetful", model=model(*asked), tools=[put, cart])


def calling(function: Any) -> Agentor:
    """An agent that does nothing but call one function, or tool."""
    name = getattr(function, "name", None) or function.__name__
    replies = calls((name, {})), "Done."
    return Agentor("Calling", model=model(*replies), tools=[function])


AGENTS: dict[str, Callable[[], Agentor]] = {
    "undeclared": lambda: shop(pay),
    "in_call": lambda: shop(of_kind(PaysInCall)),
    "hiding": lambda: shop(of_kind(Hides, effect="read")),
    "reading": lambda: shop(function_tool(pay, effect="read")),
    "idempotent": lambda: shop(
        function_tool(pay_new_keys_only, name_override="pay", effect="idempotent"),
        store=FileStore(SERVICE / "own"),
    ),
    "reconciled": lambda: shop(function_tool(pay, effect="once", reconcile=look_up)),
    "blind": lambda: shop(function_tool(pay, effect="once")),
    "lying": lambda: shop(function_tool(pay, effect="once", reconcile=lambda ctx: DidNotHappen())),
    "clearing": lambda: shop(
        function_tool(
            pay_and_clear,
            name_override="pay",
            effect="once",
            reconcile=lambda ctx: DidNotHappen(),
        )
    ),
    "claiming": lambda: shop(
        function_tool(pay, effect="once", reconcile=lambda ctx: Happened("paid 5"))
    ),
    "raising": lambda: shop(
        function_tool(
            pay_and_raise,
            name_override="pay",
            effect="once",
            reconcile=lambda ctx: DidNotHappen(),
        )
    ),
    "parking": lambda: shop(function_tool(pay, effect="once", on_doubt="park")),
    "unreachable": lambda: shop(
        function_tool(pay, effect="once", on_doubt="park", reconcile=lambda ctx: 1 // 0)
    ),
    "affirming": lambda: shop(function_tool(pay, effect="once", reconcile=lambda ctx: True)),
    "approving": lambda: shop(function_tool(pay, effect="once", needs_approval=True)),
    "rewinding": lambda: shop(function_tool(pay, effect="idempotent"), half_finished="rewind"),
    "steady": lambda: Agentor(
        "Steady",
        model=ScriptedModel.by_turn(PAYS_ONCE),
        tools=[function_tool(pay, effect="read")],
    ),
    "bought": lambda: Agentor(
        "Bought", model="some-model", tools=[function_tool(pay, effect="read")]
    ),
    "busy": busy_agent,
    "noting": noting_agent,
    "forgetful": forgetful_agent,
    "stamping": lambda: Agentor(
        "Stamping", model=model(calls(("stamp", {})), says("Stamped.")), tools=[stamp]
    ),
    "hunted": lambda: shop(function_tool(pay_and_be_killed, name_override="pay")),
    "deaf": lambda: shop(function_tool(pay, effect="idempotent")),
    "tableless": lambda: shop(order, store=str(SERVICE / "own.db")),
    "mistaken": lambda: Agentor(
        "Mistaken",
        model=model(calls(("pay", {"sum": "x"}), ("nosuch", {})), says("Well.")),
        tools=[pay],
    ),
    "quitting": lambda: calling(exits),
    "waiting": lambda: calling(waits),
    "leaving": lambda: calling(function_tool(leaves, effect="read")),
    "murdering": lambda: calling(murders),
    "unplugged": lambda: Agentor(
        "Unplugged",
        model="some-model",
        base_url="http://127.0.0.1:9/v1",
        api_key="none",
        model_settings=ModelSettings(max_retries=0),
    ),
    "failing": lambda: Agentor("Failing", model=model(ConnectionError("the provider is down"))),
    "chatting": lambda: Agentor("Chatting", model=model("Hello.")),
    "fickle": lambda: Agentor("Fickle", model=ScriptedModel(lambda messages: str(time.time()))),
}


def __getattr__(name: str) -> Agentor:
    if name not in AGENTS:
        raise AttributeError(name)
    return AGENTS[name]()
