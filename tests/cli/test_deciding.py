"""`agentor pending`, `approve`, `reject` and `cancel`: people decide with a store and nothing else."""

from __future__ import annotations

import asyncio
import getpass
import threading
from pathlib import Path
from typing import Any

import apsw
import pytest
from stored_runs import BODIES, Program, read_json, write

from agentor import Agentor, FileStore, SQLiteStore, function_tool
from agentor.blocking import wait_for
from agentor.engine.events import Event
from agentor.engine.store import owner_id
from agentor.stopping import cancel_run
from agentor.testing import ScriptedModel, calls, says

NASTY = "A-17\x1b[2K\u202e\n\u200b[red]"


@function_tool(needs_approval=True)
def refund(order: str, amount: int) -> str:
    """Refund."""
    return f"refunded {amount} for {order}"


def desk(store_path: str, order: str = "A-17") -> Agentor:
    script = [
        calls(("refund", {"order": order, "amount": 40}), ("refund", {"order": "B", "amount": 1})),
        says("Refunded."),
    ]
    return Agentor("Desk", model=ScriptedModel.by_turn(script), tools=[refund], store=store_path)


def pause(store_path: str, run_id: str = "r", order: str = "A-17") -> None:
    agent = desk(store_path, order)
    assert agent.run("go", run_id=run_id).status == "paused"
    agent.close()


@pytest.fixture
def paused(place: Path, store_path: str) -> str:
    pause(store_path)
    write(store_path, "finished", BODIES)
    return store_path


def log(store_path: str, run_id: str = "r") -> list[Event]:
    store = FileStore(store_path) if store_path.endswith("/") else SQLiteStore(store_path)
    try:
        return store.load(run_id)
    finally:
        store.close()


def test_pending_shows_every_waiting_call_with_all_its_arguments(
    program: Program, paused: str
) -> None:
    pause(paused, "another")
    result = program("pending", "--store", paused)
    assert result.stdout.count('refund(order="A-17", amount=40)  since 20') == 2
    assert "run r  Desk" in result.stdout
    assert "run another  Desk" in result.stdout
    assert "finished" not in result.stdout
    assert result.exit_code == 0


def test_pending_as_json(program: Program, paused: str) -> None:
    first, second = read_json(program("pending", "--store", paused, "--json"))
    assert first.pop("since") == log(paused)[2].started_at
    nonce = log(paused)[0].nonce
    assert first == {
        "run_id": "r",
        "agent": "Desk",
        "call_id": "call_1",
        "name": "refund",
        "args": {"order": "A-17", "amount": 40},
        "reason": None,
        "in_doubt": False,
        "question": 3,
        "idempotency_key": f"r.{nonce}:2:0",
    }
    assert second["call_id"] == "call_2"


def test_pending_writes_out_what_cannot_be_seen_and_cuts_nothing(
    program: Program, place: Path
) -> None:
    pause("runs.db", order=NASTY + "x" * 3000)
    shown = program("pending").stdout
    assert r'order="A-17\u001b[2K\u202e\n\u200b[red]xxx' in shown
    assert "x" * 3000 + '", amount=40' in shown
    assert not {"\x1b", "\u202e", "\u200b"} & set(shown)


def test_nothing_pending_is_said(program: Program, stored: str) -> None:
    result = program("pending", "--store", stored)
    assert (result.stdout, result.exit_code) == ("No call waits for a decision.\n", 0)
    assert read_json(program("pending", "--store", stored, "--json")) == []


def test_pending_tells_of_damage_and_still_lists_the_others(program: Program, place: Path) -> None:
    pause("runs/")
    pause("runs/", "torn")
    path = place / "runs" / "torn.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], lines[1][:20] + "\n", *lines[2:]]))
    result = program("pending", "--store", "runs/")
    assert "run r  Desk" in result.stdout
    assert "run 'torn' is damaged at seq 2" in result.stderr
    assert result.exit_code == 1


def test_what_was_approved_and_rejected_is_what_the_resume_goes_by(
    program: Program, paused: str
) -> None:
    said = program("approve", "r", "call_1", "--by", "ada", "--store", paused)
    assert said.stdout == 'approved by ada: refund(order="A-17", amount=40)\n'
    assert said.exit_code == 0
    said = program("reject", "r", "call_2", "--reason", "not B", "--by", "ada", "--store", paused)
    assert said.stdout == 'rejected by ada: refund(order="B", amount=1)\n'
    agent = desk(paused)
    result = agent.resume("r")
    agent.close()
    told = [message["content"] for message in result.messages if message["role"] == "tool"]
    assert told == ["refunded 40 for A-17", "Error: ada did not approve this call: not B"]


@pytest.fixture
def in_doubt(store_path: str) -> str:
    """A run whose first call was started with consent, by a process that died."""
    pause(store_path, "whole")
    agent = desk(store_path)
    agent.approve("whole", "call_1")
    agent.resume("whole")
    assert agent.store is not None
    events = agent.store.load("whole")
    claim = next(event.seq for event in events if event.type == "tool_call")
    for event in events[:claim]:
        agent.store.append("r", event)
    assert agent.resume("r").status == "paused"
    agent.close()
    return store_path


def test_a_call_in_doubt_that_did_happen_is_settled_with_its_result(
    program: Program, in_doubt: str
) -> None:
    listed = program("pending", "--store", in_doubt)
    assert "If it did: agentor settle RUN CALL --question N --result TEXT" in listed.stderr
    words = ("settle", "r", "call_1", "--result", "refunded, 4711", "--by", "ada")
    said = program(*words, "--store", in_doubt)
    assert said.stdout == 'settled by ada: refund(order="A-17", amount=40)\n'
    late = program(*words, "--store", in_doubt)
    assert "was settled by ada already; calls that wait: call_2" in late.stderr
    assert (late.stdout, late.exit_code) == ("", 1)
    shown = program("show", "r", "--store", in_doubt).stdout
    assert "refund (call_1) by ada: it had happened" in shown
    assert "refunded, 4711" in shown


def test_a_settled_run_is_exported_moved_and_verified_like_any_other(
    program: Program, in_doubt: str, place: Path
) -> None:
    program("settle", "r", "call_1", "--result", "refunded, 4711", "--store", in_doubt)
    program("reject", "r", "call_2", "--reason", "no", "--store", in_doubt)
    agent = desk(in_doubt)
    assert agent.store is not None
    agent.store.append("r", Event("stop"))  # and whoever took it first was stopped
    assert agent.resume("r").final_output == "Refunded."
    agent.close()
    for words in (
        ("verify", "--store", in_doubt),
        ("export", "tables.db", "--run", "r", "--store", in_doubt),
        ("export", "moved", "--jsonl", "--run", "r", "--store", in_doubt),
        ("import", "moved", "--store", "elsewhere.db"),
        ("verify", "--store", "elsewhere.db"),
    ):
        result = program(*words)
        assert result.exit_code == 0, result.output
    assert log("elsewhere.db") == log(in_doubt)
    [row] = apsw.Connection("tables.db").execute(
        "SELECT result, error FROM tool_calls WHERE call_id = 'call_1'"
    )
    assert row == ("refunded, 4711", None)


def test_a_call_that_never_started_is_not_settled(program: Program, paused: str) -> None:
    before = log(paused)
    result = program("settle", "r", "call_1", "--result", "refunded", "--store", paused)
    assert "was never started" in result.stderr
    assert result.exit_code == 1
    assert program("settle", "r", "call_1", "--store", paused).exit_code == 2  # without a result
    assert log(paused) == before


def test_a_decision_is_recorded_with_the_login_name_unless_another_is_given(
    program: Program, paused: str
) -> None:
    told = read_json(program("approve", "r", "call_1", "--store", paused, "--json"))
    assert told == {
        "run_id": "r",
        "call_id": "call_1",
        "name": "refund",
        "args": {"order": "A-17", "amount": 40},
        "status": "approved",
        "by": getpass.getuser(),
    }
    assert log(paused)[-1].by == getpass.getuser()


def test_a_user_without_a_name_decides_as_a_number(
    program: Program, paused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert program("approve", "r", "call_1", "--store", paused).exit_code == 0
    assert (log(paused)[-1].by or "").startswith("uid ")


def test_arguments_can_be_changed(program: Program, paused: str) -> None:
    words = ("approve", "r", "call_1", "--args", '{"order": "A-17", "amount": 20}')
    assert "amount=20" in program(*words, "--store", paused).stdout
    assert log(paused)[-1].args == {"order": "A-17", "amount": 20}


@pytest.mark.parametrize("args", ["[1]", "{", "20", '{"amount": 20'])
def test_arguments_that_are_no_object_are_wrong_usage(
    program: Program, paused: str, args: str
) -> None:
    result = program("approve", "r", "call_1", "--args", args, "--store", paused)
    assert result.exit_code == 2
    assert log(paused)[-1].type == "run_end"


def test_only_the_first_of_two_decisions_counts(program: Program, paused: str) -> None:
    assert program("approve", "r", "call_1", "--by", "ada", "--store", paused).exit_code == 0
    late = program("reject", "r", "call_1", "--reason", "no", "--store", paused)
    assert "was approved by ada already; calls that wait: call_2" in late.stderr
    assert (late.stdout, late.exit_code) == ("", 1)
    assert log(paused)[-1].status == "approved"


@pytest.mark.parametrize("run_id", ["r", "finished"])
def test_a_decision_on_a_call_that_does_not_wait_is_refused(
    program: Program, paused: str, run_id: str
) -> None:
    result = program("approve", run_id, "call_9", "--store", paused)
    assert "does not wait for a decision" in result.stderr
    assert result.exit_code == 1


@pytest.mark.parametrize(
    "words", [("approve",), ("reject", "--reason", "no"), ("settle", "--result", "yes")]
)
def test_unknown_and_impossible_runs(program: Program, paused: str, words: tuple[str, ...]) -> None:
    verb, *options = words
    unknown = program(verb, "unknown", "call_1", *options, "--store", paused)
    assert unknown.stderr.startswith("Error: no run 'unknown'")
    assert unknown.exit_code == 1
    assert program(verb, "../r", "call_1", *options, "--store", paused).exit_code == 2
    assert program("reject", "r", "call_1", "--store", paused).exit_code == 2  # without a reason


DECISIONS = [
    ("approve",),
    ("approve", "--question", "5"),
    ("approve", "--args", '{"order": "A", "amount": 2}'),
    ("reject", "--reason", "x"),
    ("reject", "--reason", "x", "--give-up"),
    ("settle", "--result", "x"),
]


@pytest.mark.parametrize("words", DECISIONS, ids=" ".join)
@pytest.mark.parametrize("is_under_way", [False, True])
def test_a_decision_while_a_worker_is_busy_is_refused(
    program: Program, place: Path, words: tuple[str, ...], is_under_way: bool
) -> None:
    """Whatever the log says of the call by then: that it waits, or that it was started and nobody was ever asked."""
    if is_under_way:
        write("runs.db", "r", [*BODIES[:2], {**BODIES[2], "effect": "once"}])
    else:
        pause("runs.db")
    before = log("runs.db")
    verb, *options = words
    with SQLiteStore("runs.db") as store:
        store.acquire("r", owner_id(), 30)
        result = program(verb, "r", "c1" if is_under_way else "call_1", *options)
    assert result.stderr == "Error: a worker is busy with run 'r': try again when it pauses\n"
    assert result.exit_code == 1
    assert log("runs.db") == before


def test_the_commands_that_decide_name_the_store(program: Program, paused: str) -> None:
    hints = program("pending", "--store", paused).stderr
    assert hints.count("agentor ") == hints.count(f" --store {paused}") == 2
    goes_on = program("approve", "r", "call_1", "--store", paused).stderr
    assert goes_on.endswith(f"agentor resume APP r --store {paused}\n")


def test_cancel_ends_a_run_that_nobody_works_on(program: Program, stored: str) -> None:
    result = program("cancel", "killed", "--by", "ada", "--store", stored)
    assert (result.stdout, result.exit_code) == ("Run killed is cancelled.\n", 0)
    cancel, end = log(stored, "killed")[-2:]
    assert (cancel.type, cancel.by, end.status) == ("cancel", "ada", "cancelled")
    shown = program("show", "killed", "--store", stored).stdout
    assert "cancel           asked for by ada" in shown
    assert "goes on from where it stood" in shown


@pytest.mark.parametrize("run_id", ["finished", "killed"])
def test_cancel_of_a_run_that_has_ended_is_exit_code_1(
    program: Program, stored: str, run_id: str
) -> None:
    program("cancel", "killed", "--store", stored)
    before = len(log(stored, run_id))
    result = program("cancel", run_id, "--store", stored)
    assert (result.stderr, result.exit_code) == (f"Run {run_id} had ended already.\n", 1)
    assert len(log(stored, run_id)) == before


def test_cancel_asks_the_worker_that_has_the_run(program: Program, place: Path) -> None:
    write("runs.db", "killed", BODIES[:4])
    with SQLiteStore("runs.db") as store:
        store.acquire("killed", owner_id(), 30)
        result = program("cancel", "killed", "--json")
        assert read_json(result) == {"run_id": "killed", "outcome": "asked"}
        assert store.asked("killed") == ["cancel"]
    assert len(log("runs.db", "killed")) == 4


def test_cancel_from_the_command_line_ends_a_model_call_under_way(
    program: Program, place: Path
) -> None:
    asked = threading.Event()

    async def hang(messages: Any) -> Any:
        asked.set()
        await asyncio.get_running_loop().create_future()

    agent = Agentor("A", model=ScriptedModel(hang), store="runs.db")
    results: list[Any] = []
    working = threading.Thread(target=lambda: results.append(agent.run("go", run_id="r")))
    working.start()
    assert asked.wait(30)
    told = read_json(program("cancel", "r", "--by", "ada", "--json"))
    assert told["outcome"] == "asked"
    working.join(30)
    agent.close()
    assert [result.status for result in results] == ["cancelled"]
    assert "cancel           asked for by ada" in program("show", "r").stdout


def test_a_run_that_ends_before_its_cancel_gets_the_lease_keeps_its_end(place: Path) -> None:
    """Whoever cancels looks first, then takes the run; in between its worker may have finished it."""
    write("runs.db", "r", BODIES[:4])
    with SQLiteStore("runs.db") as store:
        acquire = store.acquire

        def acquire_late(*words: Any) -> Any:
            for body in BODIES[4:]:
                store.append("r", Event.from_dict(body))
            return acquire(*words)

        store.acquire = acquire_late  # type: ignore[method-assign]
        assert wait_for(lambda: cancel_run(store, "r", None)) == "over"
        assert store.load("r")[-1].status == "completed"


def test_a_call_that_waits_again_is_shown_with_the_arguments_that_a_person_gave_it(
    program: Program, paused: str
) -> None:
    """It was approved with others, started, and its process died."""
    changed = {"order": "A-17", "amount": 5}
    words = ("approve", "r", "call_1", "--args", '{"order": "A-17", "amount": 5}')
    assert program(*words, "--store", paused).exit_code == 0
    with desk(paused) as agent:
        assert agent.store is not None
        agent.store.append("r", Event("tool_call", name="refund", call_id="call_1", args=changed))
        agent.store.append("r", Event("approval", status="asked", name="refund", call_id="call_1"))
        agent.store.append("r", Event("run_end", status="paused"))
    first, _ = read_json(program("pending", "--store", paused, "--json"))
    assert (first["args"], first["in_doubt"]) == (changed, True)
    words = ("approve", "r", "call_1", "--question", str(first["question"]), "--by", "bob")
    told = program(*words, "--store", paused)
    assert told.stdout == 'approved by bob: refund(order="A-17", amount=5)\n'


@pytest.fixture
def asked_again(store_path: str) -> tuple[str, str]:
    """The store, and the question about `refund` that waits since its process has died."""
    pause(store_path)
    with desk(store_path) as agent:
        assert agent.store is not None
        agent.approve("r", "call_1")
        agent.store.append("r", Event("tool_call", name="refund", call_id="call_1"))
        agent.store.append("r", Event("approval", status="asked", name="refund", call_id="call_1"))
        agent.store.append("r", Event("run_end", status="paused"))
    return store_path, str(log(store_path)[-2].seq)


@pytest.mark.parametrize("named", [(), ("--question", "3")], ids=["the call alone", "the first"])
def test_consent_is_not_given_to_a_question_that_may_not_have_been_seen(
    program: Program, asked_again: tuple[str, str], named: tuple[str, ...]
) -> None:
    store, question = asked_again
    before = log(store)
    told = program("approve", "r", "call_1", *named, "--store", store)
    assert (told.exit_code, told.stdout) == (1, "")
    assert f"asked about again, at seq {question}" in told.stderr
    assert f"decide with --question {question}" in told.stderr
    assert log(store) == before
    assert f"question {question}" in program("pending", "--store", store).stdout
    words = ("approve", "r", "call_1", "--question", question)
    consented = program(*words, "--store", store)
    assert consented.exit_code == 0
    assert "may have taken effect before, and is started once more" in consented.stderr


@pytest.mark.parametrize("verb", [("reject", "--reason", "no"), ("settle", "--result", "done")])
def test_refusals_and_facts_go_for_whatever_waits_unless_they_name_a_question(
    program: Program, asked_again: tuple[str, str], verb: tuple[str, ...]
) -> None:
    store, _ = asked_again
    name, *rest = verb
    late = program(name, "r", "call_1", *rest, "--question", "3", "--store", store)
    assert (late.exit_code, "asked about again" in late.stderr) == (1, True)
    assert program(name, "r", "call_1", *rest, "--store", store).exit_code == 0


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (
            '{"order": "A", "amout": 20}',
            "amout: there is no such argument; there are order, amount",
        ),
        ('{"order": "A", "amount": 20, "to": "me"}', "to: there is no such argument"),
        ('{"amount": 20}', "order: is required"),
        ('{"order": "A", "amount": "much"}', 'amount: must be an integer, not "much"'),
        ('{"order": null, "amount": 20}', "order: must be a string, not null"),
    ],
)
def test_arguments_that_do_not_fit_the_tool_in_the_log_are_refused_and_nothing_is_written(
    program: Program, paused: str, args: str, told: str
) -> None:
    before = log(paused)
    refused = program("approve", "r", "call_1", "--args", args, "--store", paused)
    assert "the arguments do not fit the tool 'refund'" in refused.stderr
    assert told in refused.stderr
    assert "They replace all that the model gave" in refused.stderr
    assert refused.exit_code == 2
    assert log(paused) == before


def test_a_log_that_does_not_tell_of_the_tool_takes_any_arguments(
    program: Program, place: Path
) -> None:
    pause("runs.db", "told")
    start, *others = log("runs.db", "told")
    with SQLiteStore("runs.db") as store:
        store.append_many("r", [start.with_(definition=None, defined=None), *others])
    given = program("approve", "r", "call_1", "--args", '{"amout": 20}')
    assert given.exit_code == 0
    assert log("runs.db")[-1].args == {"amout": 20}


def test_an_approved_call_can_be_given_up_by_who_says_so(program: Program, paused: str) -> None:
    program("approve", "r", "call_1", "--by", "ada", "--store", paused)
    words = ("reject", "r", "call_1", "--reason", "a mistake", "--by", "bob", "--store", paused)
    assert program(*words).exit_code == 1
    given_up = program(*words, "--give-up")
    assert given_up.stdout == 'rejected by bob: refund(order="A-17", amount=40)\n'
    assert [event.status for event in log(paused)[-2:]] == ["approved", "rejected"]
    again = program(*words, "--give-up")
    assert "was rejected by bob already" in again.stderr
    assert again.exit_code == 1
