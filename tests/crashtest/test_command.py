"""The verb: its exit codes, its JSON, its JUnit XML, and how it says what is wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from agentor.cli import main

SHOPS = Path(__file__).with_name("shops.py")


def run(name: str, *words: str) -> Result:
    target = f"{SHOPS}:{name}"
    return CliRunner().invoke(main, ["crashtest", target, "--input", "Buy tea.", *words])


@pytest.mark.slow
def test_an_unsafe_agent_is_exit_code_1_and_all_of_it_is_in_the_json_and_the_xml(
    tmp_path: Path,
) -> None:
    xml = tmp_path / "crashes.xml"
    done = run("undeclared", "--json", "--at", "before commit 3", "--junit", str(xml))
    assert done.exit_code == 1
    report = json.loads(done.stdout)
    (case,) = report["cases"]
    assert (report["safe"], case["verdict"]) == (False, "unsafe")
    assert case["again"] == [
        {"tool": "pay", "args": '{"amount":5}', "effect": None, "starts": 2, "harmful": True}
    ]
    (test,) = ElementTree.fromstring(xml.read_text()).findall("testcase")
    assert test.get("name") == "before commit 3 (tool_result pay)"
    failure = test.find("failure")
    assert failure is not None
    assert "would silently run twice" in (failure.get("message") or "")
    assert "declare what a second start would do" in (failure.text or "")


@pytest.mark.slow
def test_a_call_in_doubt_is_exit_code_0_and_is_told(tmp_path: Path) -> None:
    done = run("blind", "--at", "before commit 3", "--keep", str(tmp_path / "kept"))
    assert done.exit_code == 0
    assert "in doubt, and told so: pay" in done.stdout
    assert {each.name for each in (tmp_path / "kept").iterdir()} == {
        *("first", "second", "before-commit-3", "replies.jsonl")
    }


@pytest.mark.slow
def test_an_agent_that_fails_without_a_crash_is_exit_code_1_and_one_line() -> None:
    done = run("failing")
    assert done.exit_code == 1
    assert done.stderr == (
        "Error: the uninterrupted run failed: ConnectionError: the provider is down\n"
    )


@pytest.mark.slow
def test_no_such_agent_is_wrong_usage() -> None:
    done = run("nobody")
    assert done.exit_code == 2
    assert "has no 'nobody'" in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--at", "after lunch"], "'after lunch' names no moment: write 'before commit 3'"),
        (["--kills", "3"], "--kills"),
        (["--timeout", "0"], "--timeout"),
        (["--junit", "no/such/place.xml"], "there is no such directory"),
        (["--keep", str(SHOPS.parent)], "is not empty; name a new directory"),
    ],
)
def test_options_that_cannot_be_meant_are_wrong_usage(words: list[str], told: str) -> None:
    done = run("chatting", *words)
    assert done.exit_code == 2
    assert told in done.stderr


@pytest.mark.slow
def test_ctrl_c_ends_it_and_leaves_no_process(tmp_path: Path) -> None:
    """The tool of this agent never returns; its process would outlive us if nobody ended it."""
    command = [sys.executable, "-m", "agentor", "crashtest", f"{SHOPS}:waiting", "--input", "Wait."]
    kept = tmp_path / "kept"
    with subprocess.Popen([*command, "--keep", str(kept)], stderr=subprocess.PIPE) as program:
        pid = kept / "first" / "scratch" / "pid"
        while not (pid.exists() and (written := pid.read_text())):
            assert program.poll() is None
        child = int(written)
        program.send_signal(signal.SIGINT)
        _, told = program.communicate()
    assert program.returncode == 130
    assert b"no process of it is left" in told
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
