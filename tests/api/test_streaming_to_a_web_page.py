"""The server of docs/reading-a-run.md: a browser that goes away while the model thinks ends the run at once."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

from agentor import Agentor, MemoryStore
from agentor.testing import ScriptedModel

PAGE = (Path(__file__).parents[2] / "docs" / "reading-a-run.md").read_text()


class Thinking:
    """A model that never answers, and tells when it is asked and when it is let go."""

    def __init__(self) -> None:
        self.asked, self.let_go = asyncio.Event(), asyncio.Event()

    async def complete(self, *_: Any, **__: Any) -> Any:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.let_go.set()


def server_of_the_page(agent: Agentor) -> Any:
    code = re.search(r"```python\n(import contextlib\n.*?)```", PAGE, re.S)
    assert code is not None
    names: dict[str, Any] = {"agent": agent, "asyncio": asyncio}
    exec(code[1], names)
    return names["answer"]


async def test_the_run_of_a_browser_that_has_gone_is_let_go_and_can_be_resumed() -> None:
    model, store = Thinking(), MemoryStore()
    answer = server_of_the_page(Agentor("Ada", model=model, store=store))
    ended = asyncio.Event()

    async def served(*streams: Any) -> None:
        await answer(*streams)
        ended.set()

    async with asyncio.timeout(30), await asyncio.start_server(served, "127.0.0.1", 0) as server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        writer.write(b"GET /?ask=Hello HTTP/1.1\r\n\r\n")
        await model.asked.wait()
        writer.close()
        await model.let_go.wait()
        await ended.wait()
    [run_id] = store.list_runs()
    again = Agentor("Ada", model=ScriptedModel(["Here I am."]), store=store)
    assert (await again.aresume(run_id)).final_output == "Here I am."
