"""A fork that is copied event by event may be broken off anywhere: what is left is no run, says so, and can be finished."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentor import Agentor, LogCorruptError, MemoryStore, RunExistsError, SQLiteStore
from agentor.engine.events import COPY, Event
from agentor.engine.replay import verify
from agentor.engine.store import fork_run
from agentor.export.jsonl import export_runs, import_runs
from tests.engine.agents import STORES, ThreeMethods, types, without_times
from tests.engine.test_inherited_batches import Till, cut

LENGTH = 5  # of the parent: its second call was started and has no result


class Died(Exception):
    pass


class Dying(ThreeMethods):
    """Its process dies in the place of the append after so many."""

    left = 10**9

    def append(self, run_id: str, event: Event) -> None:
        if self.left == 0:
            raise Died
        self.left -= 1
        super().append(run_id, event)


def broken(copied: int, **options: Any) -> tuple[Till, Dying]:
    """A run `p` that is half done, and `f`, of which so many events were copied."""
    store = Dying()
    till = cut(store, LENGTH, **options)
    store.left = copied
    with pytest.raises(Died):
        fork_run(store, "p", "f")
    store.left = 10**9
    return till, store


TAKING_IT_FOR_A_RUN: dict[str, Callable[[Agentor], Any]] = {
    "resume": lambda agent: agent.resume("f"),
    "result": lambda agent: agent.result("f"),
    "plan": lambda agent: agent.plan("f"),
    "fork": lambda agent: agent.fork("f"),
    "cancel": lambda agent: agent.cancel("f"),
    "approve": lambda agent: agent.approve("f", "call_1"),
    "settle": lambda agent: agent.settle("f", "call_1", "paid"),
}


@pytest.mark.parametrize("copied", range(1, LENGTH + 1))
@pytest.mark.parametrize("verb", TAKING_IT_FOR_A_RUN)
def test_a_copy_that_was_broken_off_is_refused_by_name_and_nothing_of_it_runs(
    copied: int, verb: str
) -> None:
    till, store = broken(copied)
    before = store.load("f")
    said = rf"'f' is damaged at seq {copied}: it is a copy of run 'p' .* {copied} of 5 events"
    with pytest.raises(LogCorruptError, match=said):
        TAKING_IT_FOR_A_RUN[verb](till.agent)
    assert store.load("f") == before
    assert not till.starts
    assert till.model.requests == []


@pytest.mark.parametrize("copied", range(LENGTH + 1))
def test_forking_the_same_run_under_the_same_id_again_finishes_the_copy(copied: int) -> None:
    till, store = broken(copied)
    whole = cut(ThreeMethods(), LENGTH)
    expected = whole.agent.fork("p", fork_id="f")
    fork = till.agent.fork("p", fork_id="f")
    assert list(map(without_times, fork.events)) == list(map(without_times, expected.events))
    assert till.starts == whole.starts
    assert [e.to_dict() for e in fork.events[:LENGTH]] == [e.to_dict() for e in store.load("p")]
    assert store.load("f")[:LENGTH] == store.load("p")  # the mark is no part of what happened
    assert verify(store.load("f")) == []
    assert types(store.load("f")).count("fork") == 1


class WritesAndDies(Dying):
    """Its process dies when the event is written and nobody has heard of it: the next one writes it again."""

    def append(self, run_id: str, event: Event) -> None:
        if self.left == 0:
            ThreeMethods.append(self, run_id, event)
        super().append(run_id, event)


@pytest.mark.parametrize("copied", range(LENGTH))
def test_a_copy_that_holds_an_event_twice_is_finished_as_well(copied: int) -> None:
    store = WritesAndDies()
    till = cut(store, LENGTH)
    store.left = copied
    with pytest.raises(Died):
        fork_run(store, "p", "f")
    store.left = 10**9
    store.runs["f"] += store.runs["f"]  # and what is there was once more written
    with pytest.raises(LogCorruptError, match=f"broken off after {copied + 1} of {LENGTH} events"):
        till.agent.result("f")
    fork_run(store, "p", "f")
    log = till.agent.result("f").events
    assert [e.to_dict() for e in log[:LENGTH]] == [e.to_dict() for e in store.load("p")]
    assert types(log[LENGTH:]) == ["fork"]


def test_a_copy_is_finished_as_far_as_it_was_to_go_although_its_parent_has_gone_on() -> None:
    till, store = broken(2)
    till.agent.resume("p")
    fork_run(store, "p", "f")
    assert types(store.load("f")) == [*types(store.load("p"))[:LENGTH], "fork"]
    assert store.load("f")[-1].forked_at == LENGTH


@pytest.mark.parametrize("copied", range(1, LENGTH + 1))
def test_the_next_run_of_the_parents_id_does_not_finish_a_copy(copied: int) -> None:
    till, store = broken(copied)
    first, *others = store.load("p")
    store.runs["p"] = [event.to_json() for event in (first.with_(nonce="another"), *others)]
    before = store.load("f")
    for fork in (lambda: fork_run(store, "p", "f"), lambda: till.agent.fork("p", fork_id="f")):
        with pytest.raises(RunExistsError):
            fork()
    assert store.load("f") == before


def test_only_the_same_fork_finishes_a_copy() -> None:
    till, store = broken(2)
    for event in Till(MemoryStore()).agent.run("go").events:
        store.append("other", event)
    before = store.load("f")
    for parent, at in (("other", None), ("p", 4)):
        with pytest.raises(RunExistsError):
            fork_run(store, parent, "f", at)
    assert store.load("f") == before
    fork_run(store, "p", "f", LENGTH)
    with pytest.raises(RunExistsError):  # it is whole
        fork_run(store, "p", "f")
    assert till.agent.resume("f").status == "completed"


def made_anew(store: Dying) -> None:
    del store.runs["p"]
    cut(store, LENGTH)


def restored_from_before(store: Dying) -> None:
    del store.runs["p"][LENGTH - 1 :]


@pytest.mark.parametrize("copied", range(1, LENGTH + 1))
@pytest.mark.parametrize("changed", [made_anew, restored_from_before])
def test_a_copy_is_not_finished_with_the_events_of_another_run_or_of_less_than_it_was_to_hold(
    copied: int, changed: Callable[[Dying], None]
) -> None:
    till, store = broken(copied)
    changed(store)
    before = store.load("f")
    said = rf"'f' already exists: .* {copied} of 5 events of a run 'p' that has been deleted since"
    for forking in (lambda: fork_run(store, "p", "f"), lambda: till.agent.fork("p", fork_id="f")):
        with pytest.raises(RunExistsError, match=said):
            forking()
    assert store.load("f") == before
    assert not till.starts
    del store.runs["f"]
    fork_run(store, "p", "f")
    assert [e.to_dict() for e in store.load("p")] == [
        e.to_dict() for e in till.agent.result("f").events[:-1]
    ]


async def test_a_worker_leaves_a_broken_copy_alone_and_says_why() -> None:
    till, store = broken(3)
    report = await till.agent.awork(until_idle=True, max_attempts=2, backoff_s=0.0, poll_s=0.0)
    assert report.finished == {"p": "completed"}
    assert "is a copy of run 'p' that was broken off" in report.failed["f"]
    assert len(store.load("f")) == 3
    assert not [key for key in till.starts if key.startswith("f:")]


def test_a_fork_of_a_finished_copy_is_no_broken_copy_wherever_it_branches_off() -> None:
    source = ThreeMethods()
    till = cut(source, LENGTH)
    till.agent.fork("p", fork_id="f")
    log = source.load("f")
    assert COPY in log[0].extra
    for store in (source, MemoryStore()):
        if store is not source:
            for event in log:
                store.append("f", event)
        agent = Till(store).agent
        for at in (1, LENGTH, LENGTH + 1, len(log)):
            fork_run(store, "f", f"g{at}", at)
            assert agent.resume(f"g{at}").status == "completed"


def test_a_broken_copy_is_still_one_after_it_was_moved_to_another_store(tmp_path: Any) -> None:
    _, broken_store = broken(3)
    with SQLiteStore(tmp_path / "runs.db") as store:
        for event in broken_store.load("f"):
            store.append("f", event)
        with pytest.raises(LogCorruptError, match="was broken off after 3 of 5"):
            Till(store).agent.resume("f")


@pytest.mark.parametrize(
    "mark", ["p", 3, None, [], {"run": "p"}, {"run": "p", "of": 1, "events": "x"}]
)
def test_a_field_of_that_name_which_says_something_else_means_nothing(mark: Any) -> None:
    store = ThreeMethods()
    till = cut(store, LENGTH)
    log = store.load("p")
    store.runs["p"] = [e.with_(extra={COPY: mark} if e.seq == 1 else {}).to_json() for e in log]
    assert till.agent.resume("p").status == "completed"


@pytest.mark.parametrize("copied", range(1, 7))
def test_a_part_of_a_run_whose_tools_are_harmless_is_a_run_and_copies_of_it_bear_no_mark(
    copied: int,
) -> None:
    store = Dying()
    till = cut(store, 7, effect=None)  # as far as both its calls are answered, and the model asked
    fork_run(store, "p", "whole")
    *events, fork = store.runs["whole"]
    assert (events, Event.from_json(fork).type) == (store.runs["p"], "fork")
    store.left = copied
    with pytest.raises(Died):
        fork_run(store, "p", "f")
    store.left = 10**9
    assert till.agent.resume("f").status == "completed"
    assert verify(store.load("f")) == []


def test_a_run_with_an_open_batch_is_marked_whatever_its_log_says_of_its_tools() -> None:
    store = ThreeMethods()
    cut(store, 2)  # its calls are not claimed, and their tool declares an effect
    fork_run(store, "p", "f")
    assert COPY in store.load("f")[0].extra


FORKING_IT: dict[str, Callable[[Any], Any]] = {
    "fork_run": lambda store: fork_run(store, "f", "g"),
    "fork_run at": lambda store: fork_run(store, "f", "g", 2),
    "the store's fork": lambda store: store.fork("f", "g"),
    "the store's fork at": lambda store: store.fork("f", "g", at=2),
}


@pytest.mark.parametrize("way", FORKING_IT)
@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("name", ["f", "another name"])
def test_whoever_forks_a_broken_copy_is_refused_in_every_store_and_gets_nothing(
    tmp_path: Path, kind: str, way: str, name: str
) -> None:
    _, dying = broken(3)
    store = STORES[kind](tmp_path)
    if not hasattr(store, "fork") and "store's" in way:
        pytest.skip("it has none")
    part = dying.load("f")
    if name != "f":  # as who renames the file of an export
        part[0] = part[0].with_(extra={COPY: {**part[0].extra[COPY], "run": name}})
    for event in part:
        store.append("f", event)
    with pytest.raises(LogCorruptError, match="'f' is damaged at seq 3: it is a copy of run 'p'"):
        FORKING_IT[way](store)
    assert store.list_runs() == ["f"]
    assert store.load("f") == part


@pytest.mark.parametrize("kind", STORES)
def test_a_whole_copy_can_be_forked_and_its_forks_too(tmp_path: Path, kind: str) -> None:
    source, store = ThreeMethods(), STORES[kind](tmp_path)
    cut(source, LENGTH).agent.fork("p", fork_id="f")
    for event in source.load("f"):
        store.append("f", event)
    for parent, child in (("f", "g"), ("g", "h"), ("h", "i")):
        fork_run(store, parent, child, 3)
        assert types(store.load(child)) == [*types(source.load("f"))[:3], "fork"]
    assert Till(store).agent.resume("i").status == "completed"


def test_the_broken_copy_of_a_copy_is_finished_by_forking_that_copy_again() -> None:
    store = Dying()
    till = cut(store, LENGTH)
    fork_run(store, "p", "f")
    store.left = 2
    with pytest.raises(Died):
        fork_run(store, "f", "g")
    store.left = 10**9
    with pytest.raises(LogCorruptError, match=r"it is a copy of run 'f' .* 2 of 6 events"):
        till.agent.resume("g")
    fork_run(store, "f", "g")
    assert types(store.load("g"))[LENGTH:] == ["fork", "fork"]


def test_the_copy_of_a_marked_copy_bears_no_mark_if_a_part_of_it_could_not_harm() -> None:
    store = ThreeMethods()
    cut(store, 7, effect=None)
    fork_run(store, "p", "asked", messages=[{"role": "user", "content": "and now?"}])
    assert COPY in store.load("asked")[0].extra
    fork_run(store, "asked", "copy", 7)
    assert store.runs["copy"][:7] == store.runs["p"]


@pytest.mark.parametrize("name", ["f", "renamed"])
def test_a_broken_copy_is_left_out_of_exports_and_imports_and_named(
    tmp_path: Path, name: str
) -> None:
    _, store = broken(3)
    exported = export_runs(store, tmp_path / "out")
    assert exported.runs == ["p"]
    assert [each.run_id for each in exported.damaged] == ["f"]
    assert "broken off after 3 of 5" in exported.damaged[0].problem
    file = tmp_path / f"{name}.jsonl"
    file.write_text("".join(f"{body}\n" for body in store.runs["f"]), "utf-8")
    target = MemoryStore()
    imported = import_runs(target, [file])
    assert target.list_runs() == []
    assert [name] == [each.run_id for each in imported.damaged]
    assert "seq 3: it is a copy of run 'p'" in imported.damaged[0].problem
