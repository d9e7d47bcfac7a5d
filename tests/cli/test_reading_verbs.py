"""`agentor runs`, `show` and `verify`: what they tell, and that they change nothing."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import apsw
import pytest
from stored_runs import BODIES, Program, read_json, write

VERBS = [("runs",), ("show", "killed"), ("verify",)]


def test_runs_lists_each_run_with_its_status(program: Program, stored: str) -> None:
    result = program("runs", "--store", stored)
    heading, finished, killed = result.stdout.splitlines()
    assert heading.split()[:5] == ["run", "status", "agent", "turns", "tokens"]
    assert finished.split()[:6] == ["finished", "completed", "Weather", "Agent", "2", "30"]
    assert killed.split()[:6] == ["killed", "unfinished", "Weather", "Agent", "1", "15"]
    assert "2.5 s" in finished
    assert result.exit_code == 0


def test_runs_as_json_holds_what_a_program_needs(program: Program, stored: str) -> None:
    finished, killed = read_json(program("runs", "--store", stored, "--json"))
    assert (finished["run_id"], finished["status"], finished["turns"]) == (
        "finished",
        "completed",
        2,
    )
    assert finished["usage"]["total_tokens"] == 30
    assert (finished["started_at"], finished["ended_at"]) == (1_780_000_000.0, 1_780_000_002.5)
    assert (killed["status"], killed["ended_at"]) == ("unfinished", None)


def test_runs_shows_the_newest_and_says_how_many_are_older(program: Program, stored: str) -> None:
    result = program("runs", "--store", stored, "--limit", "1")
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["run", "killed"]
    assert "1 older run is not shown" in result.stderr


def test_what_is_not_listed_is_told_and_for_programs_all_is(
    program: Program, store_path: str
) -> None:
    for number in range(52):
        write(store_path, f"r{number:02}", BODIES)
    words = ("runs", "--store", store_path)
    for_people = program(*words)
    assert len(for_people.stdout.splitlines()) == 1 + 50
    assert "2 older runs are not shown (--limit)" in for_people.stderr
    for_programs = program(*words, "--json")
    assert [row["run_id"] for row in read_json(for_programs)] == [f"r{n:02}" for n in range(52)]
    assert for_programs.stderr == ""
    cut = program(*words, "--json", "--limit", "51")
    assert len(read_json(cut)) == 51
    assert "1 older run is not shown" in cut.stderr
    found = program(*words, "--agent", "Weather Agent", "--limit", "3")
    assert "older runs are not shown" in found.stderr


def test_runs_names_the_parent_of_a_fork(program: Program, stored: str) -> None:
    write(stored, "branch", [*BODIES, {"type": "fork", "forked_from": "finished", "forked_at": 7}])
    row = read_json(program("runs", "--store", stored, "--json"))[-1]
    assert (row["forked_from"], row["forked_at"]) == ("finished", 7)
    assert "parent    finished at seq 7" in program("show", "branch", "--store", stored).stdout


def test_runs_of_an_empty_store_says_so(program: Program, store_path: str) -> None:
    write(store_path, "none", [])
    assert program("runs", "--store", store_path).stdout == "There is no run in this store yet.\n"
    assert read_json(program("runs", "--store", store_path, "--json")) == []


def test_show_tells_the_story_and_what_a_resume_would_do(program: Program, stored: str) -> None:
    result = program("show", "killed", "--store", stored)
    assert "status    unfinished" in result.stdout
    assert "user             How is Rome?" in result.stdout
    assert 'call             get_weather(city="Rome")' in result.stdout
    assert "get_weather gave sunny in Rome" in result.stdout
    assert "resume    asks the model; no tool runs again" in result.stdout
    assert result.exit_code == 0


def test_show_events_prints_the_log_one_event_a_line(program: Program, stored: str) -> None:
    lines = program("show", "killed", "--events", "--store", stored).stdout.splitlines()
    log = [json.loads(line) for line in lines]
    assert [event["type"] for event in log] == [
        "run_start",
        "generation",
        "tool_call",
        "tool_result",
    ]
    assert [event["seq"] for event in log] == [1, 2, 3, 4]


def test_show_as_json_holds_the_row_and_the_events(program: Program, stored: str) -> None:
    shown = read_json(program("show", "finished", "--store", stored, "--json"))
    assert shown["status"] == "completed"
    assert shown["resume"].startswith("nothing")
    assert [event["seq"] for event in shown["events"]] == [1, 2, 3, 4, 5, 6, 7]


def test_what_a_tool_says_cannot_touch_the_terminal(program: Program, stored: str) -> None:
    evil = [*BODIES[:3], BODIES[3] | {"result": "\x1b]0;pwned\x07[red]\x1b[2Jcleared[/red]"}]
    write(
        stored, "evil", [*evil, {"type": "run_end", "status": "failed\x1b[31m", "error": "\x1bcx"}]
    )
    for words in [("show", "evil"), ("runs",), ("verify",)]:
        assert "\x1b" not in program(*words, "--store", stored).output
    assert "gave [red]cleared[/red]" in program("show", "evil", "--store", stored).stdout


def test_verify_finds_nothing_wrong_with_good_logs(program: Program, stored: str) -> None:
    result = program("verify", "--store", stored)
    assert result.stdout == "2 runs checked: all is well.\n"
    assert result.exit_code == 0


def test_verify_can_look_at_one_run(program: Program, stored: str) -> None:
    assert program("verify", "killed", "--store", stored).stdout == "1 run checked: all is well.\n"


def test_verify_tells_of_events_that_are_not_what_they_should_be(
    program: Program, stored: str
) -> None:
    write(stored, "odd", [BODIES[0], BODIES[1] | {"digest": "0" * 32}, {"type": "teleport"}])
    result = program("verify", "--store", stored)
    assert "run odd: seq 2: the conversation is not the one" in result.stdout
    assert "run odd: seq 3: an event of the unknown type 'teleport'" in result.stdout
    assert "3 runs checked: 1 with problems." in result.stdout
    assert result.exit_code == 1


def test_a_damaged_run_is_told_once_and_named_once(program: Program, place: Path) -> None:
    write("runs.db", "torn", BODIES)
    with contextlib.closing(apsw.Connection("runs.db")) as db:
        trigger = "SELECT sql FROM sqlite_schema WHERE name = 'agentor_events_no_update'"
        restoring = str(db.execute(trigger).get)
        db.execute("DROP TRIGGER agentor_events_no_update")
        db.execute("UPDATE agentor_events SET body = '[1]' WHERE seq = 2")
        db.execute(restoring)
    told = program("verify").stdout
    assert told.count("torn") == told.count("damaged") == 1
    assert "run torn: damaged at seq 2: an event is an object" in told
    assert "agentor verify" not in told
    exported = program("export", "out.db").stderr
    assert exported.startswith("run torn: damaged at seq 2: ")
    assert exported.count("torn") == 1


def test_verify_tells_of_a_copy_that_was_broken_off(program: Program, place: Path) -> None:
    """It came from a store that copies event by event, and was moved here."""
    mark = {"copy": {"run": "r", "of": "p", "events": 4}}
    write("runs.db", "r", [BODIES[0] | mark, *BODIES[1:2]])
    result = program("verify")
    assert result.exit_code == 1
    assert "run r: it is a copy of run 'p' that was broken off after 2 of 4 events" in result.stdout


def test_verify_as_json_names_each_problem_and_its_run(program: Program, stored: str) -> None:
    write(stored, "odd", [BODIES[0], {"type": "teleport"}])
    found = read_json(program("verify", "--store", stored, "--json"))
    assert (found["ok"], found["runs"]) == (False, 3)
    assert [problem["run_id"] for problem in found["problems"]] == ["odd"]


def test_a_torn_line_in_the_middle_damages_that_run_only(program: Program, place: Path) -> None:
    write("runs/", "whole", BODIES)
    write("runs/", "torn", BODIES)
    path = place / "runs" / "torn.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:3], lines[3][:20] + "\n", *lines[4:]]))
    verified = program("verify", "--store", "runs/")
    assert "run torn:" in verified.stdout
    assert "seq 4" in verified.stdout
    assert verified.exit_code == 1
    shown = program("show", "torn", "--store", "runs/")
    assert shown.stderr.startswith("Error: run 'torn' is damaged at seq 4")
    assert shown.exit_code == 1
    rows = read_json(program("runs", "--store", "runs/", "--json"))
    assert sorted((row["run_id"], row["status"]) for row in rows) == [
        ("torn", "damaged"),
        ("whole", "completed"),
    ]


def test_an_unreadable_line_of_an_old_log_is_told_by_verify(program: Program, place: Path) -> None:
    (place / "runs").mkdir()
    lines = [json.dumps(body) for body in BODIES]
    (place / "runs" / "old.jsonl").write_text(
        "\n".join([*lines[:5], '{"type": "mess', *lines[5:], ""])
    )
    result = program("verify", "--store", "runs/")
    assert "run old: line 6 cannot be read" in result.stdout
    assert result.exit_code == 1


def test_verify_asks_sqlite_itself_whether_the_file_is_whole(program: Program, place: Path) -> None:
    write("runs.db", "run", BODIES)
    content = bytearray((place / "runs.db").read_bytes())
    content[-4096:-4088] = b"\xff" * 8  # the head of a page
    (place / "runs.db").write_bytes(content)
    result = program("verify", "--store", "runs.db")
    assert result.exit_code == 1
    assert "runs.db" in result.output or "the store" in result.output


@pytest.mark.parametrize("words", VERBS)
@pytest.mark.parametrize("missing", ["nowhere.db", "nowhere/", "no/such/dir/runs.db"])
def test_a_missing_store_is_an_error_and_is_not_created(
    program: Program, place: Path, words: tuple[str, ...], missing: str
) -> None:
    before = sorted(place.rglob("*"))
    result = program(*words, "--store", missing)
    assert f"there is no store at '{missing}'" in result.stderr
    assert result.exit_code == 2
    assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize(
    "words", [*VERBS, ("import", "log.jsonl"), ("rehearse", "app.py:agent")], ids=" ".join
)
def test_a_file_that_is_no_database_is_wrong_usage_as_a_missing_store_is(
    program: Program, place: Path, words: tuple[str, ...]
) -> None:
    text = "not a database, just a long enough text " * 50
    (place / "notes.txt").write_text(text)
    (place / "log.jsonl").write_text("")
    result = program(*words, "--store", "notes.txt")
    assert "no SQLite database" in result.stderr
    assert result.exit_code == 2
    assert (place / "notes.txt").read_text() == text


@pytest.mark.parametrize("words", VERBS)
def test_a_database_without_runs_is_an_error_and_stays_as_it_is(
    program: Program, place: Path, words: tuple[str, ...]
) -> None:
    with contextlib.closing(apsw.Connection("shop.db")) as connection:
        connection.execute("CREATE TABLE orders (number INTEGER)")
    (place / "empty.db").touch()
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    for name in ("shop.db", "empty.db"):
        result = program(*words, "--store", name)
        assert f"'{name}' holds no runs" in result.stderr
        assert result.exit_code == 2
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before


@pytest.mark.parametrize("verb", ["show", "verify"])
def test_an_unknown_run_is_an_error_of_one_line(program: Program, stored: str, verb: str) -> None:
    result = program(verb, "unknown", "--store", stored)
    assert result.stderr.startswith("Error: no run 'unknown' in this store")
    assert len(result.stderr.splitlines()) == 1
    assert result.exit_code == 1


@pytest.mark.parametrize("verb", ["show", "verify"])
def test_a_bad_run_id_is_wrong_usage(program: Program, stored: str, verb: str) -> None:
    result = program(verb, "../etc/passwd", "--store", stored)
    assert result.stderr.startswith("Error: bad run id '../etc/passwd'")
    assert result.exit_code == 2


def test_the_store_is_found_by_the_environment_and_by_default(
    program: Program, place: Path
) -> None:
    write("elsewhere.db", "there", BODIES)
    write("runs.db", "here", BODIES)
    (there,) = read_json(program("runs", "--json", env={"AGENTOR_STORE": "elsewhere.db"}))
    (here,) = read_json(program("runs", "--json"))
    assert (there["run_id"], here["run_id"]) == ("there", "here")


def test_debug_gives_the_error_itself(program: Program, stored: str) -> None:
    with pytest.raises(KeyError, match="no run 'unknown'"):
        program("show", "unknown", "--store", stored, "--debug")


def test_reading_changes_no_event(program: Program, stored: str, place: Path) -> None:
    before = program("show", "killed", "--events", "--store", stored).stdout
    for words in VERBS:
        program(*words, "--store", stored)
    assert program("show", "killed", "--events", "--store", stored).stdout == before


def test_a_terminal_that_lacks_a_character_gets_a_question_mark(stored: str) -> None:
    write(stored, "foreign", [*BODIES[:3], BODIES[3] | {"result": "22°C, 晴れ"}])
    done = subprocess.run(
        [sys.executable, "-m", "agentor", "show", "foreign", "--store", stored],
        capture_output=True, env=os.environ | {"PYTHONIOENCODING": "ascii"}, check=True, timeout=60,
    )  # fmt: skip
    assert b"gave 22?C, ??\n" in done.stdout


def test_a_fork_begins_when_it_is_branched_off(program: Program, stored: str) -> None:
    """Not weeks before, with its parent, whose time it did not take."""
    words = ("fork", "app.py:agent", "finished", "Like a pirate", "--id", "pirate")
    assert program(*words, "--store", stored).exit_code == 0
    assert (
        program("fork", "app.py:agent", "finished", "--id", "copy", "--store", stored).exit_code
        == 0
    )
    rows = {row["run_id"]: row for row in read_json(program("runs", "--store", stored, "--json"))}
    for fork in ("pirate", "copy"):
        shown = read_json(program("show", fork, "--store", stored, "--json"))
        assert shown["started_at"] > BODIES[0]["started_at"] + 1
        assert rows[fork]["started_at"] == pytest.approx(shown["started_at"], abs=60)
    took = rows["pirate"]["ended_at"] - rows["pirate"]["started_at"]
    assert took == pytest.approx(0, abs=60)
    assert "took      0 ms" in program("show", "copy", "--store", stored).stdout


def test_an_unfinished_run_says_how_long_it_has_taken_so_far(program: Program, stored: str) -> None:
    assert " days so far\n" in program("show", "killed", "--store", stored).stdout
    (line,) = [
        each for each in program("runs", "--store", stored).stdout.splitlines() if "killed" in each
    ]
    assert line.endswith(" days so far")


def test_damaged_runs_can_be_asked_for_in_a_directory_wherever_the_damage_stands(
    program: Program, place: Path
) -> None:
    for run_id in ("whole", "in the head", "in the end"):
        write("runs/", run_id.replace(" ", "-"), BODIES)
    for run_id, at in (("in-the-head", 1), ("in-the-end", -2)):
        path = place / "runs" / f"{run_id}.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        lines[at] = lines[at][:9] + "\n"
        path.write_text("".join(lines))
    for more in ((), ("--agent", "Weather Agent")):  # whose a damaged run is, nobody knows
        rows = read_json(
            program("runs", "--status", "damaged", *more, "--json", "--store", "runs/")
        )
        assert sorted(row["run_id"] for row in rows) == ["in-the-end", "in-the-head"]
    assert "in-the-end" in program("runs", "--status", "damaged", "--store", "runs/").stdout


def test_of_a_store_that_reads_no_logs_damaged_runs_cannot_be_asked(
    program: Program, place: Path
) -> None:
    write("runs.db", "whole", BODIES)
    result = program("runs", "--status", "damaged")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "`agentor verify` reads them" in result.stderr


def test_runs_can_be_told_by_status_and_agent(program: Program, stored: str) -> None:
    write(stored, "other", [BODIES[0] | {"agent": "Other"}, *BODIES[1:]])

    def told(*words: str) -> list[str]:
        rows = read_json(program("runs", *words, "--json", "--store", stored))
        return [row["run_id"] for row in rows]

    assert told("--status", "completed") == ["finished", "other"]
    assert told("--status", "unfinished") == ["killed"]
    assert told("--agent", "Other") == ["other"]
    assert told("--agent", "Other", "--status", "unfinished") == []
    assert told("--status", "completed", "--limit", "1") == ["other"]
    result = program("runs", "--status", "completed", "--limit", "1", "--store", stored)
    assert "not shown (--limit)." in result.stderr
    assert program("runs", "--agent", "X", "--store", stored).stdout == "There is no such run.\n"
