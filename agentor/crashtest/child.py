"""What one process of a crash test does: load the user's agent, watch it, run or resume it, say what came of it.

It is a program of its own, and the only part that has the user's code in it.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

from agentor.agent import Agentor
from agentor.cli.loading import HINT, AppFailedError, load_agent
from agentor.crashtest.functions import BEGUN, finding, module_once, prepare
from agentor.crashtest.journal import Journal
from agentor.crashtest.orders import (
    JOURNAL,
    SCRATCH,
    SCRATCH_VARIABLE,
    STORE,
    Ending,
    Order,
    Outcome,
)
from agentor.crashtest.replaying import ReplayingModel, read_replies
from agentor.crashtest.watching import Watch, WatchedStore, watch_tools
from agentor.engine.asking import name_of, source_of
from agentor.engine.events import PendingCall, RunResult
from agentor.engine.redact import SECRETS
from agentor.engine.result_text import error_text
from agentor.engine.store.missing import MissingStore
from agentor.errors import AgentorError, ConfigError, RunNotFoundError
from agentor.inputs import no_store_is_opened


def perform(order: Order) -> None:
    """Do what is ordered, and write the outcome, if the process lives so long."""
    scratch = order.directory / SCRATCH
    scratch.mkdir(exist_ok=True)
    os.environ[SCRATCH_VARIABLE] = str(scratch.resolve())
    sys.argv = [order.target]
    outcome = _outcome(order) if order.check is None else _checked(order)
    sys.stdout.flush()
    sys.stderr.flush()
    outcome.write(order.outcome)


def _outcome(order: Order) -> Outcome:
    try:
        prepare(order)
        with no_store_is_opened():  # it gets one of the test's own
            agent = load_agent(order.target, module_once)
    except AppFailedError as error:
        traceback.print_exc()
        return Outcome("not loaded", _unhinted(error))
    except ConfigError as error:
        return Outcome("config", _told(error))
    own_store = _name_of_store(agent.store)
    effects: dict[str, str | None] = {name: tool.effect for name, tool in agent.tools.items()}
    ending: Ending = "ended"
    error_told = ""
    try:
        _run_or_resume(_watched(agent, order), order)
    except RunNotFoundError:
        ending = "no run"
    except ConfigError as error:
        ending, error_told = "config", _told(error)
    except BaseException as error:  # also an exit of the user's: it is told as what it is
        traceback.print_exc()
        ending, error_told = "raised", _told(error, order.run_id)
    keyless = [
        name
        for name, tool in agent.tools.items()
        if tool.effect == "idempotent" and tool.context_param is None
    ]
    return Outcome(
        *(ending, error_told, agent.name, effects, own_store),
        keyless=keyless,
        begun=len(BEGUN),
    )


def _checked(order: Order) -> Outcome:
    try:
        return Outcome("ended", found=SECRETS.hide(finding(order)))
    except AppFailedError as error:
        return Outcome("raised", _unhinted(error))
    except ConfigError as error:
        return Outcome("config", _told(error))


def _name_of_store(store: object) -> str | None:
    if isinstance(store, MissingStore):
        return "FileStore" if store.is_directory else "SQLiteStore"
    return None if store is None else type(store).__name__


def _unhinted(error: AppFailedError) -> str:
    """Without the hint at an option that a crash test does not have for it: the output of the process is kept."""
    return _told(error).replace(f" {HINT}", "").removesuffix(".")


def _told(error: BaseException, run_id: str = "") -> str:
    """With its notes, but for the one that says how the run goes on: nobody will."""
    text = str(error) if isinstance(error, AgentorError) else error_text(error)
    notes = (note for note in getattr(error, "__notes__", ()) if not run_id or run_id not in note)
    return SECRETS.hide(" ".join([text, *notes]))


def _watched(agent: Agentor, order: Order) -> Agentor:
    """The agent on a store of the test's own, with everything it does told to a watch."""
    watch = Watch(Journal(order.directory / JOURNAL, order.process), order.dies_at)
    settings: dict[str, Any] = {}
    if isinstance(lease_ttl_s := getattr(agent.store, "lease_ttl_s", None), int | float):
        settings["lease_ttl_s"] = lease_ttl_s
    agent.store = WatchedStore(str(order.directory / STORE), watch, **settings)
    watch_tools(agent.tools, watch)
    if order.replies is not None:
        model, source = name_of(agent.model), source_of(agent.model)
        agent.model = ReplayingModel(read_replies(order.replies), model, source)
    return agent


def _run_or_resume(agent: Agentor, order: Order) -> None:
    if order.process == 1:
        result = agent.run(order.input, run_id=order.run_id, tracing=False)
    else:
        result = _resume(agent, order)
    while order.approves and (waiting := _undecided(result)):
        for call in waiting:
            agent.approve(order.run_id, call, by="crashtest")
        result = _resume(agent, order)


def _resume(agent: Agentor, order: Order) -> RunResult:
    # The lease of the one that was killed is free at once only where the system tells of dead processes.
    return agent.resume(order.run_id, tracing=False, wait=order.timeout_s)


def _undecided(result: RunResult) -> list[PendingCall]:
    """The calls that a person could simply consent to: not those in doubt, which may have happened."""
    return [call for call in result.pending if call.reason is None]
