"""One simulated process: an event loop, a store, an agent. It can be killed, suspended, woken and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from agentor import Agentor, AgentorError
from agentor.engine.events import GENERATION, TEXT_DELTA, Event
from agentor.engine.recorder import Durability
from agentor.engine.run_context import RunContext
from agentor.engine.store.protocol import Lease
from agentor.errors import LeaseError, ModelError, SequenceConflictError, StatementError, StoreError
from fuzz import threads
from fuzz.evidence import ITERATIONS_TO_NOTICE, Act, Delivered, Refused, Shown, Told
from fuzz.file_store import SteppedFileStore
from fuzz.loop import ProcessLoop
from fuzz.model import SeededModel
from fuzz.observed import CommitPoint
from fuzz.stepped_store import SteppedStore
from fuzz.threads import ProcessEnded
from fuzz.tool_start import batch_seq, tool_start
from fuzz.tools import PAYMENTS, PLAIN_TOOLS, TOOL_TIMEOUT_S, TOOLS

if TYPE_CHECKING:
    from fuzz.world import World

_run_id: contextvars.ContextVar[str] = contextvars.ContextVar("run_id")  # what a task works on
_operation: contextvars.ContextVar[str] = contextvars.ContextVar("operation")  # and in whose name

BUSY_S: Final = 10.0  # that a write waits for other processes
LOCK_LOOK_S: Final = 0.1
TAKEN: Final = (None, "failed", "paused")  # statuses of runs that a worker may take up

CrashPoint: TypeAlias = (
    CommitPoint | Literal["before a payment", "after a payment", "in a write", "before a sync"]
)

SKEW_MAX_S: Final = (
    1.4  # how wrong a wall clock may be: two of them together stay within the margin of a lease
)


LOCKED: Final = "beyond busy_timeout_s"


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """A model call or a tool call that has begun and not ended."""

    run_id: str
    what: str
    call_id: str = ""
    batch_seq: int = 0


class Worker:
    """A process of the simulated machine. `name` is unique: a worker that comes back after a crash is another one."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.rng = random.Random(f"{world.seed}/{name}")
        self.dead = False
        self.known_dead = False  # once dead, others on this machine can see that it is
        self.dies_at: CrashPoint | None = None
        self.terms: dict[str, int] = {}  # of the leases it was given
        self.unsaved: set[str] = set()  # runs of which a save has failed
        self._stopped: set[str] = set()  # of them, those that it has not taken up again since
        self._faults_before = -1 if world.has_fault_now else world.fault_count()
        self.woken_at = -1_000_000  # iteration of its loop
        self._awake_since = 0.0  # virtual time
        self._began: dict[str, float] = {}  # runs it is at work on, and since when
        self.wakes_when_taken = False
        self._acts: list[_UnderWay] = []
        self._operations: list[asyncio.Task[Any]] = []
        self.loop = ProcessLoop(world.timeline, name, self._store_delay_s)
        self.loop.skew_s = self.rng.uniform(-SKEW_MAX_S, SKEW_MAX_S)
        self.store = self._opened()
        self.durability: Durability = self.rng.choice(("strict", "best_effort"))
        self.agent = Agentor(
            "Simulated",
            "You are kind.",
            model=SeededModel(self, self.rng),
            tools=TOOLS if world.files is None else PLAIN_TOOLS,
            store=self.store,
            context=self,
            durability=self.durability,
            tool_timeout_s=TOOL_TIMEOUT_S,
            max_turns=self.rng.choice((3, 8)),
            max_tool_failures=3,
        )

    def _opened(self) -> SteppedStore | SteppedFileStore:
        world = self.world
        if world.files is not None:
            return SteppedFileStore(world.path, self)
        return SteppedStore(
            world.path,
            self.loop,
            self._store_delay_s,
            self,
            vfs=world.disk.vfs_name,
            **world.store_options,
        )

    # Its life -------------------------------------------------------------------------------------------------------

    def begin(
        self, what: str, run_id: str, work: Callable[[], Coroutine[Any, Any, Any]]
    ) -> asyncio.Task[Any]:
        """Start an operation of the agent in this process."""
        context = contextvars.copy_context()
        context.run(_operation.set, what)
        task = self.loop.create_task(work(), name=run_id, context=context)
        self._operations.append(task)
        task.add_done_callback(lambda done: self._ended(f"{what} {run_id}", done))
        return task

    @property
    def runs(self) -> list[str]:
        """The ids of the runs it works on, or is about to."""
        return [*self._began, *(task.get_name() for task in self._operations if not task.done())]

    def holds(self, run_id: str) -> bool:
        """Whether it has a run that it was given a lease on."""
        return not self.dead and run_id in self._began and run_id in self.terms

    @property
    def busy(self) -> bool:
        return bool(self.loop.threads) or any(not task.done() for task in self._operations)

    def die(self) -> None:
        """From now on nothing it does reaches anybody; the world takes it away after this step."""
        self.dead = self.world.somebody_died = True

    def kill(self) -> None:
        """It is gone, whatever it was doing; nothing it does while it unwinds reaches anybody."""
        self.dead = True
        self.store.kill()
        self.loop.end()
        if self.world.files is not None:
            self.world.files.killed(self)

    def stop(self) -> None:
        """Cancel what it does, in an orderly way. `finished` says when it is done."""
        for task in self._operations:
            task.cancel()

    def suspend(self) -> None:
        self.loop.suspended = True

    def wake(self) -> None:
        if self.loop.suspended and not self.dead:
            self.loop.suspended = self.wakes_when_taken = False
            self.woken_at = self.loop.iterations
            self._awake_since = self.world.timeline.now

    def _store_delay_s(self) -> float:
        if self.world.disk_is_slow and self.rng.random() < 0.3:
            return self.rng.uniform(1, 40)
        return self.rng.expovariate(100)

    def _ended(self, what: str, task: asyncio.Task[Any]) -> None:
        self._operations.remove(task)
        if self.dead:
            return
        self.world.counts[f"{what.split()[0]} tried"] += 1
        if task.cancelled():
            self.world.note(self, what, "cancelled")
        elif (error := task.exception()) is None:
            self.world.counts[f"{what.split()[0]} done"] += 1
            self.world.finished(self, what, task.result())
        else:
            self.world.note(self, what, type(error).__name__)
            if not self._is_expected(error):
                self.world.evidence.surprises.append(f"{self.name} {what}: {error!r}")

    # What it sees of the store (Observer) -----------------------------------------------------------------------------

    def appended(self, run_id: str, events: Sequence[Event], lease: Lease | None) -> None:
        if not self.dead and self.world.disk.powered:
            term = None if lease is None else lease.term
            self.world.evidence.append(self.name, run_id, list(events), term)

    def loaded(self, run_id: str, events: Sequence[Event]) -> None:
        if not self.dead and self.world.disk.powered:
            for event in events:
                assert event.seq is not None
                loaded = self.world.evidence.loaded
                loaded.setdefault((run_id, event.seq), event.to_json())

    def not_appended(self, run_id: str, error: BaseException, events: Sequence[Event] = ()) -> None:
        if isinstance(error, StatementError):  # a tool's own, whose transaction is taken back
            return
        if not isinstance(error, LeaseError | SequenceConflictError):
            self.unsaved.add(run_id)
            if events:  # and not a lease that another operation asked for
                self._stopped.add(run_id)
        elif run_id not in self.unsaved and not self.dead and self.world.disk.powered:
            refused = [Refused(run_id, e.seq, e.to_json(), self.name) for e in events if e.seq]
            self.world.evidence.refused += refused

    def asked(self, run_id: str, known: int) -> None:
        if not self.dead and self.world.disk.powered:
            self.world.cancel_asked(run_id, known)

    def event_count(self, run_id: str) -> int:
        self.world.ledger.refresh()
        log = self.world.ledger.logs.get(run_id)
        if log is None:
            return 0
        is_open = log.state.status in (*TAKEN, "max_turns")
        return len(log.events) if is_open else log.before_its_end()

    def granted(self, lease: Lease) -> None:
        self.terms[lease.run_id] = lease.term
        self.world.granted(self, lease)

    def deleting(self, run_ids: Iterable[str] | None) -> None:
        if run_ids is None:
            self.world.ledger.refresh()
            run_ids = self.world.ledger.logs
        self.world.evidence.deleting.update(run_ids)
        self.world.look_at_files(run_ids)

    def deleted(self, run_ids: Iterable[str], pruned: bool = False) -> None:
        if not self.dead and self.world.disk.powered:
            evidence = self.world.evidence
            evidence.deleted.update(run_ids)
            marked = [evidence.marked[run_id] for run_id in run_ids if run_id in evidence.marked]
            evidence.deletions += marked
            if pruned:
                evidence.pruned += marked

    def forked(self, src_run_id: str, dst_run_id: str, at: int | None) -> None:
        if not self.dead and self.world.disk.powered:
            self.world.forked(src_run_id, dst_run_id, at)

    def wait_for_lock(self) -> None:
        waited_s = 0.0
        while waited_s < BUSY_S and self.world.is_locked_by_another(self):
            threads.sleep(LOCK_LOOK_S)
            waited_s += LOCK_LOOK_S

    def at_commit(self, point: CommitPoint) -> None:
        if self.dies_at == point:
            self.die()
        if self.dead:
            raise ProcessEnded

    # What it does ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def working_on(self, run_id: str) -> Iterator[None]:
        """A run is live in this process, in the task that is running."""
        _run_id.set(run_id)
        self._stopped.discard(run_id)
        self._began[run_id] = self.world.timeline.now
        if _operation.get() == "work":
            self._taken(run_id)
        try:
            yield
        finally:
            self._began.pop(run_id, None)

    def _taken(self, run_id: str) -> None:
        """A run was chosen by a worker that looks for work."""
        self.world.ledger.refresh()
        log = self.world.ledger.logs.get(run_id)
        is_open = log is None or log.state.status in TAKEN
        if not (is_open or self.dead or self.has_just_woken):
            assert log is not None
            taken = f"{self.name} has taken {run_id}, which is {log.state.status}"
            self.world.evidence.taken_ends.append(taken)

    @contextlib.contextmanager
    def asking(self, messages: list[dict[str, Any]]) -> Iterator[int]:
        """A model is asked; the number of the request."""
        number = self.world.evidence.requested(messages)
        if not self.dead and not self.has_just_woken:
            self.world.evidence.asked(_run_id.get(), messages)
        with self._acting(_UnderWay(_run_id.get(), "model call")):
            yield number

    @contextlib.contextmanager
    def using(self, ctx: RunContext, name: str, number: int) -> Iterator[None]:
        """A tool is at work, with this argument."""
        if name in PAYMENTS and self.dies_at == "before a payment":
            self.die()
        if not self.dead and self.world.disk.powered:
            started = tool_start(self, ctx, name, {"number": number})
            self.world.evidence.started(started)
        if name in PAYMENTS and self.dies_at == "after a payment":
            self.die()
        what = f"tool call {ctx.call_id}"
        with self._acting(_UnderWay(str(ctx.run_id), what, str(ctx.call_id), batch_seq(ctx))):
            yield

    def _is_expected(self, error: BaseException) -> bool:
        if type(error) is StoreError:  # and not one that speaks of a run
            if LOCKED in str(error):
                return True  # by the tools of another worker, one transaction after the other
            return self.world.fault_count() > self._faults_before or self.world.has_fault_now
        if isinstance(error, AgentorError | ModelError):
            return True
        return isinstance(error, RuntimeError) and str(error) == "no route"

    def acts_on(self, run_id: str) -> list[str]:
        """What it is doing in a run that it should not be doing if somebody else has the run."""
        if self.dead or self.loop.suspended or self.has_just_woken:
            return []
        acts = [act for act in self._acts if act.run_id == run_id and not self._is_given_up(act)]
        return [f"{act.what} of {self.name}" for act in acts]

    def _is_given_up(self, act: _UnderWay) -> bool:
        """Whether it is a tool call that has its result already: its time was over, and its thread goes on unheard."""
        self.world.ledger.refresh()
        log = self.world.ledger.logs.get(act.run_id)
        return log is not None and act.call_id != "" and log.has_result(act.batch_seq, act.call_id)

    @property
    def has_just_woken(self) -> bool:
        """It was suspended, and has not had the time to notice what it missed."""
        return self._iterations_awake() <= ITERATIONS_TO_NOTICE

    def _iterations_awake(self) -> int:
        return self.loop.iterations - self.woken_at

    @contextlib.contextmanager
    def _acting(self, act: _UnderWay) -> Iterator[None]:
        if not self.dead and self.world.disk.powered:
            self._acted(act.run_id, act.what)
        self._acts.append(act)
        try:
            yield
        finally:
            self._acts.remove(act)

    def _acted(self, run_id: str, what: str) -> None:
        standing = self.world.ledger.standing(run_id)
        self.world.look_for_cancel(run_id, standing)
        others = [each for each in self.world.workers.values() if each is not self]
        self.world.evidence.acts.append(
            Act(
                worker=self.name,
                run_id=run_id,
                what=what,
                term=self.terms.get(run_id),
                standing=standing,
                cancel_heard_s=self._heard_s(run_id, standing.cancel_asked_at),
                unsaved=run_id in self.unsaved,
                should_have_stopped=self.durability == "strict" and run_id in self._stopped,
                iterations_awake=self._iterations_awake(),
                beside=()
                if self.has_just_woken
                else tuple(act for each in others for act in each.acts_on(run_id)),
            )
        )

    def _heard_s(self, run_id: str, asked_at: float | None) -> float:
        """For how long it could have known of a question to a run that it works on."""
        now = self.world.timeline.now
        if asked_at is None:
            return 0.0
        return now - max(asked_at, self._awake_since, self._began.get(run_id, now))

    # What its readers see ---------------------------------------------------------------------------------------------

    async def read_stream(self, text: str, run_id: str) -> None:
        """Start a run and read it as it comes, slowly, and perhaps not to its end."""
        streamed = ""
        async with contextlib.aclosing(self.agent.astream(text, run_id=run_id)) as events:
            async for event in events:
                if event.type == TEXT_DELTA:
                    streamed += event.text or ""
                elif event.type == GENERATION:
                    self.world.evidence.told.append(Told(run_id, streamed, event.text or ""))
                    streamed = ""
                self._see(run_id, event)
                if not self.world.calm:
                    await asyncio.sleep(self.rng.expovariate(5.0))
                    if self.rng.random() < 0.02:
                        return

    def _see(self, run_id: str, event: Event) -> None:
        if self.dead or event.seq is None or not self.world.disk.powered:
            return
        self.world.ledger.refresh()
        log = self.world.ledger.logs.get(run_id)
        if log is None and run_id in self.world.evidence.deleting:
            return  # whoever reads slowly still reads a run that is gone
        found = log.bodies[event.seq - 1] if log and len(log.bodies) >= event.seq else None
        self.world.evidence.shown.append(
            Shown(run_id, event.seq, found == event.to_json(), run_id in self.unsaved)
        )

    async def receive(self, kind: str, payload: Any, key: str) -> None:
        """Be handed a letter, at times in vain, at times without being able to say so."""
        if not self.world.calm:
            await asyncio.sleep(self.rng.expovariate(1.0))
            if self.rng.random() < 0.2:
                raise RuntimeError("no route")
        if not self.dead and self.world.disk.powered:
            self.world.evidence.letters.append(Delivered(key, payload["run"]))
        if not self.world.calm:
            await asyncio.sleep(self.rng.expovariate(1.0))
