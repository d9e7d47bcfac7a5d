"""Short scripts in which a planted fault shows that random worlds would show only rarely. See `fuzz.canaries`."""

from __future__ import annotations

import random

from fuzz.script import Action, draw


def taken_over(seed: int) -> list[Action]:
    """A worker is suspended, and wakes while somebody takes its run over."""
    at = random.Random(f"{seed}/taken over").uniform(0.1, 10)
    return [
        Action(0.0, "start", {"worker": "w1", "run": "run", "turns": 6}),
        Action(at, "stall", {"worker": "w1", "seconds": 100.0, "until_taken": True}),
        Action(at + 31, "take_over", {"worker": "w2"}),
    ]


def looked_at_unsynced(seed: int) -> list[Action]:
    """A worker dies between a write and its sync, somebody loads the run, and the power goes."""
    at = random.Random(f"{seed}/looked at unsynced").uniform(0.1, 10)
    crash = {"worker": "w1", "where": "before a commit", "known_dead": True}
    return [
        Action(0.0, "start", {"worker": "w1", "run": "run", "turns": 6}),
        Action(at, "crash", crash),
        Action(at + 20, "power", {"call": "sync", "after": 1, "survival": "lost"}),
        Action(at + 21, "resume", {"worker": "w2", "run": "run"}),
    ]


def decided_again(seed: int) -> list[Action]:
    """After each decision somebody comes late with another one."""
    script = draw(seed)
    details = {"worker": "w3", "approve": False, "number": None, "second": None, "late": True}
    late = [Action(each.at_s + 0.5, "decide", details) for each in script if each.kind == "decide"]
    return sorted([*script, *late], key=lambda action: action.at_s)


def parent_deleted(seed: int) -> list[Action]:
    """A run is forked and then deleted."""
    at = random.Random(f"{seed}/parent deleted").uniform(30, 60)
    details = {"run": "run", "fork": "branch", "at": None, "says": "And then?"}
    return [
        Action(0.0, "start", {"worker": "w1", "run": "run", "turns": 2}),
        Action(at, "fork", {"worker": "w2", **details}),
        Action(at + 30, "delete", {"worker": "w1", "run": "run"}),
        Action(at + 40, "power", {"call": "write", "after": 1, "survival": "kept"}),
        Action(at + 41, "resume", {"worker": "w3", "run": "branch"}),
    ]


def forker_dies(seed: int) -> list[Action]:
    """A run that was left half-way is forked to be told something, and whoever does it dies on the way."""
    after_s = random.Random(f"{seed}/forker dies").uniform(0, 0.1)
    details = {"run": "run", "fork": "branch", "at": None, "says": "And then?"}
    return [
        Action(0.0, "start", {"worker": "w1", "run": "run", "turns": 8}),
        Action(3.0, "crash", {"worker": "w1", "where": "now", "known_dead": True}),
        Action(60.0, "fork", {"worker": "w2", **details}),
        Action(60.0 + after_s, "crash", {"worker": "w2", "where": "now", "known_dead": True}),
        Action(70.0, "resume", {"worker": "w3", "run": "branch"}),
    ]


def cancelled_elsewhere(seed: int) -> list[Action]:
    """A run is cancelled by somebody else than the one who works on it."""
    return [
        Action(0.0, "start", {"worker": "w1", "run": "run", "turns": 8}),
        Action(1.0, "cancel", {"worker": "w2", "run": "run"}),
    ]


def deleted(seed: int) -> list[Action]:
    """A run is deleted when it has ended."""
    return [
        Action(0.0, "start", {"worker": "w1", "run": "run", "turns": 2}),
        Action(100.0, "delete", {"worker": "w2", "run": "run"}),
    ]


def cancelled_after_a_death(seed: int) -> list[Action]:
    """A run is cancelled whose worker is dead, as nobody knows yet, and then somebody takes it up."""
    at = random.Random(f"{seed}/cancelled after a death").uniform(0.5, 5)
    return [
        Action(0.0, "start", {"worker": "w1", "run": "run", "turns": 8}),
        Action(at, "crash", {"worker": "w1", "where": "now", "known_dead": False}),
        Action(at + 1, "cancel", {"worker": "w2", "run": "run"}),
        Action(at + 40, "resume", {"worker": "w3", "run": "run"}),
    ]


def cancelled_and_looked_for(seed: int) -> list[Action]:
    """Somebody looks for work when a run has been cancelled."""
    return [*cancelled_elsewhere(seed), Action(100.0, "work", {"worker": "w3"})]


def cancelled_at_last(seed: int) -> list[Action]:
    """A run is cancelled when it has ended."""
    return [
        Action(0.0, "start", {"worker": "w1", "run": "run", "turns": 2}),
        Action(120.0, "cancel", {"worker": "w2", "run": "run"}),
    ]


def deleted_under_way(seed: int) -> list[Action]:
    """A run is deleted while somebody works on it."""
    at = random.Random(f"{seed}/deleted under way").uniform(1, 5)
    return [
        Action(0.0, "start", {"worker": "w1", "run": "run", "turns": 8}),
        Action(at, "delete", {"worker": "w2", "run": "run"}),
    ]


def pruned_half_way(seed: int) -> list[Action]:
    """Old runs are deleted when one of them has lost its worker."""
    return [
        Action(0.0, "start", {"worker": "w1", "run": "run", "turns": 8}),
        Action(3.0, "crash", {"worker": "w1", "where": "now", "known_dead": True}),
        Action(60.0, "prune", {"worker": "w2", "older_s": 10.0}),
    ]


def full_for_a_while(seed: int) -> list[Action]:
    """The disk is full in the middle of a run."""
    at = random.Random(f"{seed}/full for a while").uniform(0.5, 5)
    return [
        Action(0.0, "start", {"worker": "w1", "run": "run", "turns": 8}),
        Action(at, "disk_full", {"seconds": 60.0}),
    ]
