"""Sending runs somewhere to be looked at: off unless asked for, and never able to harm a run."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final, Protocol

from agentor.engine import events as ev
from agentor.engine.daemon_thread import in_thread
from agentor.engine.events import Event
from agentor.engine.outbox import Audience
from agentor.engine.result_text import error_text
from agentor.errors import ConfigError

logger = logging.getLogger("agentor")

EXPORT_LIMIT_S: Final = 30.0  # a tracer that hangs must not hang the run


class Collector(Protocol):
    """Gathers one run."""

    def handle(self, event: Event) -> None: ...


class Tracer(Protocol):
    """Makes a collector for each run, and sends it away when the run is over."""

    def collector(
        self,
        workflow_name: str,
        group_id: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Collector: ...

    def export(self, collector: Collector) -> None:
        """Called once for each run, on a worker thread, also when the run failed."""


# What a tracer that is called without `await` can only mean itself by. Ctrl-C is not among it.
ITS_OWN: Final = (Exception, SystemExit, asyncio.CancelledError)


class Traced:
    """An audience whose events a collector sees as well."""

    def __init__(self, audience: Audience, tracer: Tracer, collector: Collector) -> None:
        self._audience = audience
        self._tracer = tracer
        self._collector = collector

    @property
    def wants_text(self) -> bool:
        return self._audience.wants_text

    async def show(self, event: Event) -> None:
        if event.type != ev.TEXT_DELTA:
            try:
                self._collector.handle(event)
            except ITS_OWN as error:
                logger.warning("the tracer failed on a %s event (%s)", event.type, error)
        await self._audience.show(event)

    async def caught_up(self) -> None:
        await self._audience.caught_up()

    async def export(self) -> None:
        exporting = asyncio.ensure_future(in_thread(self._export, "trace"))
        await asyncio.wait({exporting}, timeout=EXPORT_LIMIT_S)
        if not exporting.done():
            logger.warning("the tracer takes more than %g s to export a run", EXPORT_LIMIT_S)
            exporting.cancel()

    def _export(self) -> None:
        try:
            self._tracer.export(self._collector)
        except BaseException as error:  # in a thread of its own nothing of it is meant for us
            logger.warning("the tracer failed to export a run (%s)", error_text(error))


def choose_tracer(asked: Any, configured: Tracer | None, enabled: bool) -> Tracer | None:
    """The tracer of one run. `asked`: None as configured, False never, True always, or a tracer for this run only."""
    if asked is None:
        return configured if enabled else None
    if asked is False:
        return None
    if asked is True:
        if configured is None:
            raise ConfigError(
                "tracing=True needs a tracer: Agentor(tracer=...) or tracing=<tracer>"
            )
        return configured
    if callable(getattr(asked, "collector", None)) and callable(getattr(asked, "export", None)):
        tracer: Tracer = asked
        return tracer
    raise ConfigError(
        f"tracing must be None, True, False or a tracer with collector() and export(), not {asked!r}"
    )


def traced(
    audience: Audience,
    tracer: Tracer | None,
    name: str,
    group_id: str | None,
    metadata: dict[str, Any] | None,
) -> Audience:
    """The audience, with a collector listening if there is a tracer and it works."""
    if tracer is None:
        return audience
    try:
        collector = tracer.collector(name, group_id=group_id, metadata=metadata)
    except ITS_OWN as error:
        logger.warning("the tracer made no collector (%s); this run is not traced", error)
        return audience
    return Traced(audience, tracer, collector)
