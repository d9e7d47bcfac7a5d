"""Whatever the provider does to a run: the log says so, holds no secret, and a resume completes it."""

from __future__ import annotations

from typing import Any

import pytest
from test_broken_replies import BROKEN, HTTP_ERRORS

from agentor import Agentor, MemoryStore, ModelSettings, function_tool
from agentor.testing import FakeServer, calls, faults, json_reply

KEY = "sk-canary-of-a-run-4e1b"
FAULTS: dict[str, Any] = {
    **BROKEN,
    **{f"http {number}": reply for number, (reply, _, _) in enumerate(HTTP_ERRORS)},
    "cut in the middle of a call": faults.cut(calls(("add", {"n": 1}, "b")), after_bytes=90),
    "the key in an error": json_reply({"error": {"message": f"bad key {KEY}", "code": 401}}, 401),
    "the key in a page": json_reply(f"<html>{KEY}</html>"),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_run_that_a_fault_ended_is_resumed_to_its_end(fault: Any) -> None:
    added: list[int] = []

    @function_tool
    def add(n: int) -> int:
        """Add a number."""
        added.append(n)
        return n

    store = MemoryStore()
    with FakeServer([calls(("add", {"n": 1}, "a")), fault, "Done."]) as server:
        agent = Agentor(
            "adder",
            tools=[add],
            store=store,
            api_key=KEY,
            base_url=server.base_url,
            model_settings=ModelSettings(max_retries=0, read_timeout=5),
        )
        with pytest.raises(Exception) as caught:  # noqa: PT011  # each fault has its own
            agent.run("Add one.", run_id="r")
        assert "r" in "".join(caught.value.__notes__)
        assert store.load("r")[-1].status == "failed"
        assert store.load("r")[-1].error
        assert agent.resume("r").final_output == "Done."
        agent.close()
    assert added == [1]
    told = "".join(event.to_json() for event in store.load("r")) + str(caught.value)
    assert KEY not in told
