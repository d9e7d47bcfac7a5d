"""The measures, in the order of the table: which trials each needs, and the rows they make."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from bench.peers import NAMES, PEERS
from bench.rows import Row, Target, at_least, at_most
from bench.sizes import Sizes
from bench.trials import Failed, Lab, Trial, trial

SLOW_SYNC_MS: Final = 2
PROCESSES: Final = 4


@dataclass(frozen=True)
class Measure:
    name: str
    title: str
    run: Callable[[Lab, Sizes], None]
    rows: Callable[[Lab, Sizes], Iterator[Row]]


def _ours(turns: int, **more: Any) -> Trial:
    return trial("ours", "run", turns=turns, **more)


def _versus(
    lab: Lab,
    row: tuple[str, str],
    figure: str,
    unit: str,
    pair: tuple[Trial, Trial],
    target: Target | None,
    higher_is_better: bool = False,
) -> Row:
    """Ours beside a peer's: how many times better ours is."""
    ours, theirs = pair
    peer = NAMES[theirs.subject]
    try:
        mine, other = lab.median(ours, figure), lab.median(theirs, figure)
    except Failed as failure:
        return Row(*row, peer=peer, target=target, problem=str(failure))
    ratio = mine / other if higher_is_better else other / mine
    spread = lab.spread(ours, figure)
    return Row(*row, mine, unit, peer, other, ratio, target, spread=spread)


def _alone(
    lab: Lab, row: tuple[str, str], of: Trial, figure: str, unit: str, target: Target | None = None
) -> Row:
    try:
        mine, spread = lab.median(of, figure), lab.spread(of, figure)
        return Row(*row, mine, unit, target=target, spread=spread)
    except Failed as failure:
        return Row(*row, target=target, problem=str(failure))


def _within(
    lab: Lab, row: tuple[str, str], pair: tuple[Trial, Trial], target: Target | None
) -> Row:
    """Ours beside the floor: how many times as long it takes."""
    ours, floor = pair
    peer = NAMES[floor.subject]
    try:
        mine, other = lab.median(ours, "seconds"), lab.median(floor, "seconds")
    except Failed as failure:
        return Row(*row, peer=peer, target=target, problem=str(failure))
    return Row(
        *row, mine, "s", peer, other, mine / other, target, spread=lab.spread(ours, "seconds")
    )


def _share(
    row: tuple[str, str],
    part: Callable[[], float],
    whole: Callable[[], float],
    target: Target | None,
    unit: str,
) -> Row:
    """One figure of ours over another."""
    try:
        mine, other = part(), whole()
    except Failed as failure:
        return Row(*row, target=target, problem=str(failure))
    return Row(*row, mine, unit, None, other, mine / other, target)


# One durable run ---------------------------------------------------------------------------------------------------


def _race_runs(lab: Lab, sizes: Sizes) -> None:
    for turns, times in zip(sizes.runs, (sizes.times, sizes.times_slow), strict=True):
        ours = _ours(turns)
        floor = trial("bare_apsw", "run", ours, turns=turns)
        lab.race([ours, floor, *_peers(turns)], times)


def _peers(turns: int) -> list[Trial]:
    return [trial(subject, "run", turns=turns) for subject in PEERS]


def _run_rows(lab: Lab, sizes: Sizes) -> Iterator[Row]:
    for turns, least in zip(sizes.runs, (8, 15), strict=True):
        ours = _ours(turns)
        for peer in _peers(turns):
            # A session keeps the conversation and no run, so nothing is asked of the comparison.
            target = None if peer.subject == "openai_session" else at_least(least, "x")
            yield _versus(
                lab, ("run", f"one run, {turns:,} turns"), "seconds", "s", (ours, peer), target
            )
        floor = trial("bare_apsw", "run", ours, turns=turns)
        row = ("run", f"one run, {turns:,} turns, over the floor")
        yield _within(lab, row, (ours, floor), at_most(2, "x"))


def _slow(turns: int) -> tuple[Trial, Trial]:
    ours = _ours(turns, sync_ms=SLOW_SYNC_MS)
    return ours, trial("bare_apsw", "run", ours, turns=turns, sync_ms=SLOW_SYNC_MS)


def _slow_many(sizes: Sizes) -> tuple[Trial, Trial]:
    ours, theirs = _many(sizes, sync_ms=SLOW_SYNC_MS)
    return ours, theirs


def _slow_peer(turns: int) -> Trial:
    return trial("agentor_0_1", "run", turns=turns, sync_ms=SLOW_SYNC_MS)


def _race_slow(lab: Lab, sizes: Sizes) -> None:
    lab.race([*_slow(sizes.runs[0]), _slow_peer(sizes.runs[0])], sizes.times_slow)
    lab.race(_slow_many(sizes), 1)


def _slow_rows(lab: Lab, sizes: Sizes) -> Iterator[Row]:
    turns = sizes.runs[0]
    row = ("slow-commit", f"one run, {turns:,} turns, over the floor")
    yield _within(lab, row, _slow(turns), at_most(1.3, "x"))
    row = ("slow-commit", f"one run, {turns:,} turns")
    yield _versus(lab, row, "seconds", "s", (_slow(turns)[0], _slow_peer(turns)), None)
    runs, turns = sizes.many
    row = ("slow-commit", f"{runs} concurrent runs x {turns} turns")
    pair = _slow_many(sizes)
    yield _versus(lab, row, "events_per_s", "events/s", pair, None, higher_is_better=True)


# Many runs at once -------------------------------------------------------------------------------------------------


def _many(sizes: Sizes, **more: Any) -> tuple[Trial, Trial]:
    runs, turns = sizes.many
    return (
        trial("ours", "concurrent", runs=runs, turns=turns, **more),
        trial("agentor_0_1", "concurrent", runs=runs, turns=turns, **more),
    )


def _race_many(lab: Lab, sizes: Sizes) -> None:
    lab.race(_many(sizes), sizes.times_slow)


def _many_rows(lab: Lab, sizes: Sizes) -> Iterator[Row]:
    runs, turns = sizes.many
    row = ("concurrent", f"{runs} concurrent runs x {turns} turns")
    pair = _many(sizes)
    yield _versus(lab, row, "events_per_s", "events/s", pair, at_least(10, "x"), True)
    yield _alone(lab, row, pair[0], "events_per_commit", "events/commit", at_least(20))


# What a run takes on disk ------------------------------------------------------------------------------------------


def _race_bytes(lab: Lab, sizes: Sizes) -> None:
    lab.race([_ours(sizes.runs[0]), *_peers(sizes.runs[0])], 1)
    lab.race([_ours(1), _ours(sizes.runs[1]), _ours(sizes.long)], 1)


def _bytes_rows(lab: Lab, sizes: Sizes) -> Iterator[Row]:
    middle, long = _ours(sizes.runs[1]), _ours(sizes.long)
    for of, turns in ((middle, sizes.runs[1]), (long, sizes.long)):
        row = ("bytes", f"{turns:,} turns, over the JSON of its events")
        size, json_size = _figure(lab, of, "bytes"), _figure(lab, of, "json_bytes")
        yield _share(row, size, json_size, at_most(1.6, "x"), "bytes")
    growth = sizes.long / sizes.runs[1]
    name = (
        f"{sizes.long:,} turns and {growth:g} times {sizes.runs[1]:,}, the larger over the smaller"
    )
    whole, expected = _figure(lab, long, "bytes"), _figure(lab, middle, "bytes")
    yield _apart(name, whole, lambda: expected() * growth, at_most(1.05, "x"))
    fixed = _figure(lab, _ours(1), "bytes")
    name = "the same, each less what a file of one turn takes"
    yield _apart(name, lambda: whole() - fixed(), lambda: (expected() - fixed()) * growth, None)
    for peer in _peers(sizes.runs[0]):
        row = ("bytes", f"{sizes.runs[0]:,} turns")
        yield _versus(lab, row, "bytes", "bytes", (_ours(sizes.runs[0]), peer), None)


def _apart(
    name: str, one: Callable[[], float], other: Callable[[], float], target: Target | None
) -> Row:
    """Two sizes that should be the same, above or below: the larger over the smaller."""
    larger, smaller = (lambda pick=pick: pick(one(), other()) for pick in (max, min))
    return _share(("bytes", name), larger, smaller, target, "bytes")


def _figure(lab: Lab, of: Trial, name: str) -> Callable[[], float]:
    return lambda: lab.median(of, name)


# Loading -----------------------------------------------------------------------------------------------------------


def _loads(turns: int) -> list[Trial]:
    subjects = ("agentor_0_1", "langgraph_saver", "openai_session")
    return [trial(peer, "load", trial(peer, "run", turns=turns)) for peer in subjects]


def _our_load(turns: int) -> Trial:
    return trial("ours", "load", _ours(turns))


def _race_loads(lab: Lab, sizes: Sizes) -> None:
    lab.race([_our_load(sizes.runs[1]), *_loads(sizes.runs[1])], sizes.times)
    lab.race([_our_load(sizes.long)], sizes.times)


def _load_rows(lab: Lab, sizes: Sizes) -> Iterator[Row]:
    middle = sizes.runs[1]
    for turns, limit_s in ((middle, 0.040), (sizes.long, 0.500)):
        row = ("load", f"load + replay, {turns:,} turns")
        yield _alone(lab, row, _our_load(turns), "load_replay_s", "s", at_most(limit_s, "s"))
    for peer in _loads(middle):
        row = ("load", f"load + replay, {middle:,} turns")
        target = at_least(50, "x") if peer.subject == "agentor_0_1" else None
        pair = (_our_load(middle), peer)
        yield _versus(lab, row, "load_replay_s", "s", pair, target)


# Forking -----------------------------------------------------------------------------------------------------------


def _our_fork(turns: int) -> Trial:
    return trial("ours", "fork", _ours(turns))


def _their_fork(turns: int) -> Trial:
    return trial("agentor_0_1", "fork", trial("agentor_0_1", "run", turns=turns))


def _race_forks(lab: Lab, sizes: Sizes) -> None:
    middle = sizes.runs[1]
    lab.race([_our_fork(middle), _their_fork(middle), _our_fork(sizes.long)], sizes.times_slow)


def _fork_rows(lab: Lab, sizes: Sizes) -> Iterator[Row]:
    middle, long = _our_fork(sizes.runs[1]), _our_fork(sizes.long)
    row = ("fork", f"fork of a run of {sizes.long:,} turns")
    yield _alone(lab, row, long, "seconds", "s", at_most(0.005, "s"))
    yield _alone(lab, row, long, "bytes_per_fork", "bytes", at_most(8000, "bytes"))
    row = ("fork", f"time at {sizes.long:,} turns over {sizes.runs[1]:,}")
    seconds = _figure(lab, long, "seconds"), _figure(lab, middle, "seconds")
    yield _share(row, *seconds, at_most(1.5, "x"), "s")
    row = ("fork", f"fork of a run of {sizes.runs[1]:,} turns")
    yield _versus(lab, row, "seconds", "s", (middle, _their_fork(sizes.runs[1])), None)


# The engine itself -------------------------------------------------------------------------------------------------


def _engine(sizes: Sizes) -> Trial:
    return trial("ours", "engine", turns=sizes.long)


def _race_engine(lab: Lab, sizes: Sizes) -> None:
    lab.race([_engine(sizes)], sizes.times)


def _engine_rows(lab: Lab, sizes: Sizes) -> Iterator[Row]:
    of = _engine(sizes)
    row = ("engine", "engine time per turn, without a store")
    yield _alone(lab, row, of, "turn_s", "s", at_most(200e-6, "s"))
    row = ("engine", f"turn {sizes.long:,} over turn 10")
    late, early = _figure(lab, of, "late_s"), _figure(lab, of, "early_s")
    yield _share(row, late, early, at_most(1.5, "x"), "s")


# Memory ------------------------------------------------------------------------------------------------------------


def _memory_sizes(sizes: Sizes) -> tuple[int, int, int]:
    return sizes.long // 10, sizes.long // 2, sizes.long


def _race_memory(lab: Lab, sizes: Sizes) -> None:
    lab.race([_ours(turns) for turns in _memory_sizes(sizes)], 1)


def _memory_rows(lab: Lab, sizes: Sizes) -> Iterator[Row]:
    small, middle, long = (_figure(lab, _ours(n), "rss_mb") for n in _memory_sizes(sizes))
    row = ("memory", f"peak memory of a run of {sizes.long:,} turns")
    yield _alone(lab, row, _ours(sizes.long), "rss_mb", "MB", at_most(200, "MB"))
    row = ("memory", "growth over the second half, over that of the first (linear: 1)")
    first_turns = (sizes.long // 2 - sizes.long // 10) / (sizes.long - sizes.long // 2)
    yield _share(
        row,
        lambda: max(0.0, long() - middle()) * first_turns,
        lambda: max(0.1, middle() - small()),
        at_most(1.5, "x"),
        "MB",
    )


# Several processes -------------------------------------------------------------------------------------------------


def _group(lab: Lab, sizes: Sizes, processes: int, time: int) -> list[Trial]:
    path = str(lab.folder / f"shared-{processes}-{time}.db")
    ids = [f"run-{i}" for i in range(processes)]
    return [trial("ours", "append", path=path, run_id=i, turns=sizes.processes) for i in ids]


def _race_processes(lab: Lab, sizes: Sizes) -> None:
    for time in range(sizes.times_slow):
        for processes in (1, PROCESSES):
            of = trial("ours", "appending", processes=processes)
            lab.told(f"{of.name}")
            try:
                found = lab.together(_group(lab, sizes, processes, time))
            except Failed as failure:
                lab.failures[of] = str(failure)
                return
            seconds = max(each["end"] for each in found) - min(each["begin"] for each in found)
            events = sum(each["events"] for each in found)
            lab.measured.setdefault(of, []).append(
                {"events_per_s": events / seconds, "events": events}
            )


def _processes_rows(lab: Lab, sizes: Sizes) -> Iterator[Row]:
    one, several = (trial("ours", "appending", processes=n) for n in (1, PROCESSES))
    row = ("processes", f"{PROCESSES} processes appending to one file, over one")
    together, alone = _figure(lab, several, "events_per_s"), _figure(lab, one, "events_per_s")
    yield _share(row, together, alone, at_least(1, "x"), "events/s")


# Each store --------------------------------------------------------------------------------------------------------

_STORES: Final = ("sqlite", "file", "memory")


def _on(store: str, turns: int) -> Trial:
    return _ours(turns) if store == "sqlite" else _ours(turns, store=store)


def _read_back(kind: str, store: str, turns: int) -> Trial:
    more = {"turns": turns} if kind == "resume" else {}
    return trial("ours", kind, _on(store, turns), store=store, **more)


def _race_stores(lab: Lab, sizes: Sizes) -> None:
    for turns in sizes.stores:
        lab.race([_on(store, turns) for store in _STORES], sizes.times_slow)
        durable = _STORES[:2]  # memory is read back by the process that wrote it
        reads = [_read_back(kind, s, turns) for kind in ("load", "resume") for s in durable]
        lab.race(reads, sizes.times_slow)


def _stores_rows(lab: Lab, sizes: Sizes) -> Iterator[Row]:
    for turns in sizes.stores:
        for store in _STORES:
            row = ("stores", f"{store}, {turns:,} turns: ")
            read = _on(store, turns) if store == "memory" else None
            load = read or _read_back("load", store, turns)
            resume = read or _read_back("resume", store, turns)
            yield _alone(lab, (row[0], row[1] + "run"), _on(store, turns), "seconds", "s")
            if store != "memory":
                yield _alone(lab, (row[0], row[1] + "size"), _on(store, turns), "bytes", "bytes")
            yield _alone(lab, (row[0], row[1] + "load"), load, "load_s", "s")
            yield _alone(lab, (row[0], row[1] + "replay"), load, "replay_s", "s")
            yield _alone(lab, (row[0], row[1] + "resume"), resume, "resume_s", "s")


MEASURES: Final = (
    Measure("run", "One durable run", _race_runs, _run_rows),
    Measure("slow-commit", f"Where a sync costs {SLOW_SYNC_MS} ms more", _race_slow, _slow_rows),
    Measure("concurrent", "Many runs at once", _race_many, _many_rows),
    Measure("bytes", "Bytes on disk", _race_bytes, _bytes_rows),
    Measure("load", "Loading a run", _race_loads, _load_rows),
    Measure("fork", "Forking a run", _race_forks, _fork_rows),
    Measure("engine", "The engine itself", _race_engine, _engine_rows),
    Measure("memory", "Memory", _race_memory, _memory_rows),
    Measure("processes", "Several processes", _race_processes, _processes_rows),
    Measure("stores", "Each store", _race_stores, _stores_rows),
)
