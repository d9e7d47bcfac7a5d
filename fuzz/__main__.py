"""`python -m fuzz`: play worlds and judge them. Exit code 0: all is well; 1: an invariant broke, or a canary was silent."""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

try:
    from fuzz import campaign, disk_cases, invariants
    from fuzz.campaign import Failure, Tally
    from fuzz.script import Action, draw
except ModuleNotFoundError as missing:
    sys.exit(
        f"python -m fuzz needs {missing.name}, which this Python does not have. In a checkout, `make quick` sets up "
        "everything; then it is: .venv/bin/python -m fuzz"
    )

SMOKE_WORLDS: Final = 300
SMOKE_SEED: Final = 1
NOBODY_READS: Final = 141  # what shells say of a program that SIGPIPE ended
INTERRUPTED: Final = 130  # and SIGINT


def main(arguments: Sequence[str] | None = None) -> int:
    options = _checked(parser(), arguments)
    seed = options.seed
    if seed is None:
        fixed = options.smoke or options.canary or options.disk
        seed = SMOKE_SEED if fixed else random.SystemRandom().randrange(1_000_000_000)
    say: Callable[[str], None] = (lambda text: None) if options.json else partial(print, flush=True)
    say(f"seed {seed}")
    started = time.monotonic()
    if options.canary:
        code, report = _canaries(seed, say)
    elif options.disk:
        code, report = _disk(options, say)
    else:
        code, report = _worlds(seed, options, say)
    took_s = time.monotonic() - started
    if options.json:
        print(json.dumps({"seed": seed, **report, "took_s": round(took_s, 3)}, indent=2))
    say(f"took {took_s:.1f} s")
    say("all is well" if code == 0 else "NOT well: see above")
    say(f"seed {seed}")
    return code


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    made.add_argument("--seed", type=int, help="the first world; alone: only this world")
    how_many = made.add_mutually_exclusive_group()
    how_many.add_argument("--minutes", type=float, help="play worlds for so long")
    how_many.add_argument("--worlds", type=int, help="play so many worlds")
    how_many.add_argument(
        "--smoke", action="store_true", help=f"{SMOKE_WORLDS} worlds, always the same ones"
    )
    how_many.add_argument(
        "--canary", action="store_true", help="plant faults: 0 only if each alarm rings"
    )
    how_many.add_argument(
        "--disk", action="store_true", help="one script, with a fault at every call of the disk"
    )
    made.add_argument("--case", type=int, help="with --disk: only this case")
    made.add_argument("--at", type=int, help="with --disk --case: only this call")
    made.add_argument("--only", help="with --seed: these actions of its script, e.g. 0,3,7")
    made.add_argument("--trace", action="store_true", help="with --seed: tell what happens")
    made.add_argument("--json", action="store_true", help="one JSON object instead of text")
    return made


def _checked(
    reader: argparse.ArgumentParser, arguments: Sequence[str] | None
) -> argparse.Namespace:
    """The options, unless one of them would do nothing, or names what is not there."""
    options = reader.parse_args(arguments)
    several = options.minutes is not None or options.worlds is not None
    several = several or options.smoke or options.canary or options.disk
    if several and (options.trace or options.only is not None):
        reader.error("--trace and --only are about one world: give --seed and nothing else")
    if options.only is not None:
        if options.seed is None:
            reader.error("--only names actions of a script: say whose, with --seed")
        _check_only(reader, options)
    if options.worlds is not None and options.worlds < 1:
        reader.error(f"--worlds {options.worlds}: nothing would be played, and so nothing found")
    if options.minutes is not None and not options.minutes > 0:
        reader.error(
            f"--minutes {options.minutes:g}: nothing would be played, and so nothing found"
        )
    if options.case is not None or options.at is not None:
        _check_case(reader, options)
    return options


def _check_only(reader: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    count = len(draw(options.seed))
    words = [] if options.only == "none" else options.only.split(",")
    if wrong := [word for word in words if not (word.isdecimal() and int(word) < count)]:
        reader.error(
            f"--only {options.only}: the script of seed {options.seed} has no action {wrong[0]!r}, only 0 to {count - 1}"
        )


def _check_case(reader: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if not options.disk or options.case is None:
        reader.error("--at goes with --case, and --case with --disk")
    if not 0 <= options.case < len(disk_cases.ALL):
        reader.error(f"--case {options.case}: there are the cases 0 to {len(disk_cases.ALL) - 1}")
    if options.at is not None and options.at < 1:
        reader.error(f"--at {options.at}: calls are counted from 1")


def _worlds(
    seed: int, options: argparse.Namespace, say: Callable[[str], None]
) -> tuple[int, dict[str, Any]]:
    if options.smoke:
        tally = campaign.play_in_parallel(seed, worlds=SMOKE_WORLDS)
    elif options.minutes is not None:
        tally = campaign.play_in_parallel(seed, seconds=60 * options.minutes)
    elif options.worlds is not None:
        tally = campaign.play_in_parallel(seed, worlds=options.worlds)
    else:
        tally = _one_world(seed, options, say)
    return _told(tally, whole=options.only is None, say=say)


def _one_world(seed: int, options: argparse.Namespace, say: Callable[[str], None]) -> Tally:
    numbered = _numbered(seed, options.only)
    for number, action in numbered:
        say(f"  {number:2}  {action}")
    script = [action for _, action in numbered]
    outcome = campaign.play(seed, script, trace=say if options.trace else None)
    say(f"history {outcome.digest}")
    tally = Tally()
    tally.add(outcome)
    return tally


def _numbered(seed: int, only: str | None) -> list[tuple[int, Action]]:
    """What is played, with its places in the whole script; "none" stands for no action at all."""
    script = list(enumerate(draw(seed)))
    if only is None:
        return script
    return [script[int(number)] for number in only.split(",") if number != "none"]


def _told(tally: Tally, whole: bool, say: Callable[[str], None]) -> tuple[int, dict[str, Any]]:
    """Tell what came of it; failures with the least script that fails, and how to see it again."""
    report = campaign.summary(tally)
    report["failures"] = []
    for outcome in sorted(tally.failed, key=lambda each: each.seed)[: campaign.FAILURES_SHOWN]:
        say(f"world {outcome.seed} failed:")
        for breach in outcome.breaches[:10]:
            say(f"  {breach}")
        if whole:
            failure = campaign.explained(outcome)
            _tell_failure(failure, say)
            report["failures"].append(_as_json(failure))
    faults = ",".join(
        f"{kind.replace(' ', '-')}:{count}" for kind, count in report["faults"].items()
    )
    say(f"worlds={report['worlds']} crashes={report['crashes']} faults={faults or 'none'}")
    return (1 if tally.failed else 0), report


def _tell_failure(failure: Failure, say: Callable[[str], None]) -> None:
    say(f"shrunk from {failure.actions} actions to {len(failure.script)}:")
    for number, action in zip(failure.kept, failure.script, strict=True):
        say(f"  {number:2}  {action}")
    say(f"replay: {failure.command}")


def _as_json(failure: Failure) -> dict[str, Any]:
    return {
        "seed": failure.seed,
        "breaches": [str(breach) for breach in failure.breaches],
        "script": [str(action) for action in failure.script],
        "command": failure.command,
    }


def _disk(options: argparse.Namespace, say: Callable[[str], None]) -> tuple[int, dict[str, Any]]:
    numbered = list(enumerate(disk_cases.ALL))
    if options.case is not None:
        numbered = [numbered[options.case]]
    if options.at is not None:
        found = iter([(case, [disk_cases.visit(case, options.at)]) for _, case in numbered])
    else:
        found = campaign.visit_in_parallel([case for _, case in numbered])
    failed: list[dict[str, Any]] = []
    total = 0
    for (number, case), (_, visits) in zip(numbered, found, strict=True):  # told as they come
        total += len(visits)
        say(f"  {number:2}  {case}: {len(visits)} calls visited")
        for visit in [each for each in visits if each.breaches]:
            say(f"failed: {visit.breaches[0]}")
            say(f"replay: python -m fuzz --disk --case {number} --at {visit.at}")
            failed.append({"case": str(case), "number": number, "at": visit.at})
        if options.at is not None and not visits[0].happened:
            say(
                f"failed: the script makes fewer calls of {case.call!r} than {options.at}: nothing was tried"
            )
            failed.append({"case": str(case), "number": number, "at": options.at})
    say(f"cases={len(numbered)} visits={total} failed={len(failed)}")
    return (1 if failed else 0), {"cases": len(numbered), "visits": total, "failed": failed}


def _canaries(seed: int, say: Callable[[str], None]) -> tuple[int, dict[str, Any]]:
    rang = campaign.rings(seed)
    for canary, outcome in rang.items():
        how = "SILENT" if outcome is None else f"rang in world {outcome.seed}"
        say(f"canary {canary.name}: {how}")
        for name in sorted(canary.rings):
            said = [] if outcome is None else [x for x in outcome.breaches if x.invariant == name]
            say(f"  {said[0] if said else name}")
    unwatched = {each.__name__ for each in invariants.ALL}.difference(
        *(each.rings for each in rang)
    )
    say(f"canaries={len(rang)} invariants={len(invariants.ALL)} without_canary={len(unwatched)}")
    seeds = {each.name: None if found is None else found.seed for each, found in rang.items()}
    return (0 if all(rang.values()) else 1), {
        "canaries": seeds,
        "invariants": {each.name: sorted(each.rings) for each in rang},
        "without_canary": sorted(unwatched),
    }


def run() -> int:
    """`main`, which ends without a word when nobody reads what it prints any more, as programs do that SIGPIPE ends, and
    with one when it is interrupted."""
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOBODY_READS
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return code


if __name__ == "__main__":
    sys.exit(run())
