"""`python -m fuzz`: play worlds and judge them. Exit code 0: all is well; 1: an invariant broke, or a canary was silent."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from fuzz import campaign, disk_cases
from fuzz.campaign import Failure, Tally
from fuzz.script import draw

SMOKE_WORLDS: Final = 300
SMOKE_SEED: Final = 1


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    seed = options.seed
    if seed is None:
        fixed = options.smoke or options.canary or options.disk
        seed = SMOKE_SEED if fixed else random.SystemRandom().randrange(1_000_000_000)
    say: Callable[[str], None] = (lambda text: None) if options.json else print
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
    script = draw(seed)
    if options.only is not None:
        kept = [int(number) for number in options.only.split(",") if number.isdigit()]
        script = [script[number] for number in kept]
    for number, action in enumerate(script):
        say(f"  {number:2}  {action}")
    outcome = campaign.play(seed, script, trace=say if options.trace else None)
    say(f"history {outcome.digest}")
    tally = Tally()
    tally.add(outcome)
    return tally


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
    for action in failure.script:
        say(f"  {action}")
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
        found = [(case, [disk_cases.visit(case, options.at)]) for _, case in numbered]
    else:
        found = list(campaign.visit_in_parallel([case for _, case in numbered]))
    failed = []
    for (number, case), (_, visits) in zip(numbered, found, strict=True):
        say(f"  {number:2}  {case}: {len(visits)} calls visited")
        for visit in [each for each in visits if each.breaches]:
            say(f"failed: {visit.breaches[0]}")
            say(f"replay: python -m fuzz --disk --case {number} --at {visit.at}")
            failed.append({"case": str(case), "number": number, "at": visit.at})
    total = sum(len(visits) for _, visits in found)
    say(f"cases={len(found)} visits={total} failed={len(failed)}")
    return (1 if failed else 0), {"cases": len(found), "visits": total, "failed": failed}


def _canaries(seed: int, say: Callable[[str], None]) -> tuple[int, dict[str, Any]]:
    rang = campaign.rings(seed)
    for name, outcome in rang.items():
        how = (
            "SILENT" if outcome is None else f"rang in world {outcome.seed}: {outcome.breaches[0]}"
        )
        say(f"canary {name}: {how}")
    seeds = {name: None if outcome is None else outcome.seed for name, outcome in rang.items()}
    return (0 if all(rang.values()) else 1), {"canaries": seeds}


if __name__ == "__main__":
    sys.exit(main())
