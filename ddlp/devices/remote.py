"""The base of devices whose work is done by agents: who is asked for what, and what becomes of the answers.

A claim becomes a batch of one or more parts (rows lo..hi). Parts wait in one line and go to the agent with the least to
do, two at most to each, so that none is idle while an answer travels. A batch keeps its slot until every agent that was
asked for a part has answered: only then nobody writes there any more.
"""

from __future__ import annotations

import asyncio
import multiprocessing.process
import weakref
from abc import abstractmethod
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from ddlp.devices.base import Device, DeviceStatistics
from ddlp.devices.process import END_S
from ddlp.errors import BatchFailed, ClosedError, DdlpError, DeviceLost, StoreFull, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddlp.agent.protocol import Made, Open, Opened, Welcome
    from ddlp.devices.base import Job
    from ddlp.devices.connection import Ask
    from ddlp.devices.process import AgentProcess
    from ddlp.memory import Slot
    from ddlp.types import BatchRef, Claim

PARTS_EACH = 2  # that an agent has at most: one to work on, one to go on with
_GIVE_UP_S = 5.0  # on processes that do not even end when they are killed


class Batch:
    """A claim that agents work on, in `parts`; `done` when all of them are made, or when one has failed."""

    def __init__(self, claim: Claim, job: Job, rows: int, parts: Sequence[tuple[int, int]]) -> None:
        self.claim = claim
        self.job = job
        self.rows = rows
        self.parts = parts
        self.slot: Slot | None = None
        self.asked: list[tuple[AgentProcess, Ask]] = []
        self.made: list[Made] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def add(self, made: Made) -> None:
        self.made.append(made)
        if len(self.made) == len(self.parts) and not self.done.done():
            self.done.set_result(None)

    def fail(self, error: BaseException) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # seen, even if whoever waits is cancelled at this moment

    def forget(self) -> None:
        """Nobody wants it any more."""
        self.done.cancel()
        for agent, ask in self.asked:
            agent.connection.forget(ask)


class AgentDevice(Device):
    """`workers` agents, all alike, that start at the first `open` and end at `aclose`; each `open` replaces dead ones.

    A driver says how an agent is started, where a batch goes, and how a finished one is referred to.
    """

    def __init__(self, name: str, workers: int) -> None:
        super().__init__()
        self.name = name
        self._workers = workers
        self._agents: list[AgentProcess] = []  # all that were ever started, but for
        self._retired: list[AgentProcess] = []  # those that were ended because they were not needed
        self._job: Job | None = None
        self._line: deque[tuple[Batch, tuple[int, int]]] = deque()
        self._done = DeviceStatistics()

    def statistics(self) -> DeviceStatistics:
        """What was done so far. Claims that were given up count as late once they are answered, and as nothing else."""
        late = sum(agent.connection.late for agent in (*self._agents, *self._retired))
        restarts = len(self._agents) - len({agent.number for agent in self._agents})
        return msgspec.structs.replace(self._done, late=late, restarts=restarts)

    # --- what a driver says ------------------------------------------------------------------------------------------

    @abstractmethod
    async def _prepare(self, job: Job) -> Open:
        """Make ready what starting agents takes; what each of them is to open."""

    @abstractmethod
    def _spawn(self, job: Job, number: int) -> AgentProcess:
        """Start agent `number`."""

    def _check(self, job: Job, welcome: Welcome, opened: Opened) -> None:
        """Raises DataError when what the agent has found is not what the job is about."""

    def _parts(self, _job: Job, rows: int) -> Sequence[tuple[int, int]]:
        """How a batch of so many rows is divided."""
        return ((0, rows),)

    def _lease(self, _batch: Batch) -> Slot | None:
        """Where the batch goes; None for the agent's own store. Raises OSError without memory."""
        return None

    @abstractmethod
    def _ref(self, batch: Batch) -> BatchRef:
        """Refer to a batch whose parts are all made."""

    async def _adapt(self, job: Job) -> None:
        """Called while a batch is being made: agents may be added and retired. Returns soon, and never fails."""

    def _clean_up(self) -> None:
        """Remove what `_prepare` has made; all agents have ended."""

    # --- opening and closing -----------------------------------------------------------------------------------------

    async def _open(self, job: Job) -> None:
        _check_not_importing_main()
        self._check_same(job)
        missing = set(range(self._workers)) - {agent.number for agent in self._alive()}
        if missing:
            await self._start(job, sorted(missing))
        self._job = job

    def _check_same(self, job: Job) -> None:
        if self._job is None or (job.preparation is self._job.preparation and job.arena is self._job.arena):
            return
        raise UsageError(f"{self.name} works for another loader already: give each loader devices of its own")

    async def _start(self, job: Job, numbers: Sequence[int]) -> None:
        """Start these agents at the same time. However this fails, they end."""
        description = await self._prepare(job)
        started = []
        try:
            async with asyncio.timeout(job.timeout_s):
                for number in numbers:
                    started.append(self._spawn(job, number))
                for agent in started:
                    await agent.connect(description)
                for agent in started:
                    self._check(job, *await agent.connection.opened())
        except BaseException as error:
            for agent in started:
                agent.end(ClosedError(f"{agent.connection.name} was given up: {self.name} did not open"))
            if isinstance(error, TimeoutError):
                late = [agent.connection.name for agent in started if not agent.connection.is_open]
                raise DeviceLost(f"{', '.join(late)} did not open the data set within {job.timeout_s} s") from error
            raise
        finally:
            self._agents += started
        for agent in started:
            weakref.finalize(self, agent.hang_up)  # for a device that is dropped without aclose

    async def _aclose(self) -> None:
        why = ClosedError(f"{self.name} is closed")
        ending = [agent.end(why) for agent in (*self._agents, *self._retired)]
        self._fail_line(why)
        try:
            if ending:
                await asyncio.wait(ending, timeout=END_S + _GIVE_UP_S)
        finally:
            self._clean_up()

    def _alive(self) -> list[AgentProcess]:
        return [agent for agent in self._agents if agent.connection.why_lost is None]

    def _working(self) -> list[AgentProcess]:
        """Those that are asked: of more than there should be, the others rest."""
        return [agent for agent in self._agents if agent.connection.is_open][: self._workers]

    async def _add(self, job: Job, number: int) -> None:
        """Start one more agent, which is asked from when it has opened the data set on; if it never does, then never.

        Raises:
            OSError: it cannot be started.
        """
        description = await self._prepare(job)
        agent = self._spawn(job, number)
        self._agents.append(agent)
        weakref.finalize(self, agent.hang_up)
        try:
            await agent.connect(description)
        except BaseException:
            self._retire(agent)
            raise

    def _retire(self, agent: AgentProcess) -> None:
        """End an agent that has nothing to do."""
        self._agents.remove(agent)
        self._retired.append(agent)
        agent.end(ClosedError(f"{agent.connection.name} is not needed any more"))

    # --- making batches ----------------------------------------------------------------------------------------------

    async def _preprocess(self, claim: Claim) -> BatchRef:
        if self._job is None:
            raise UsageError(f"{self.name} was not opened")
        rows = self._job.plan.rows(claim.index)
        batch = Batch(claim, self._job, rows, self._parts(self._job, rows))
        self._line.extend((batch, part) for part in batch.parts)
        self._dispatch()
        try:
            await self._adapt(self._job)
            await batch.done
        except BaseException as error:
            batch.forget()
            if not isinstance(error, asyncio.CancelledError):
                self._count(failed=1)
            raise
        ref = self._ref(batch)
        self._count(made=1, made_s=sum(made.made_s for made in batch.made), cpu_s=ref.cpu_s, nbytes=ref.nbytes)
        return ref

    def _dispatch(self) -> None:
        """Give parts to agents, as far as they can have more."""
        while self._line:
            working = self._working()
            if not working:
                self._fail_line(self._agents[-1].connection.why_lost or DeviceLost(f"{self.name} has no agent"))
                return
            agent = min(working, key=lambda agent: agent.connection.busy)
            if agent.connection.busy >= PARTS_EACH:
                return
            batch, part = self._line.popleft()
            if not batch.done.done():
                self._ask(agent, batch, part)

    def _ask(self, agent: AgentProcess, batch: Batch, part: tuple[int, int]) -> None:
        try:
            batch.slot = batch.slot or self._lease(batch)
        except OSError as error:
            batch.fail(StoreFull(f"{self.name}: no host memory for {batch.claim}: {error}"))
            return
        ask = agent.connection.make(batch.job.plan, batch.claim.index, *part, batch.slot)
        batch.asked.append((agent, ask))
        ask.answer.add_done_callback(partial(self._answered, batch, part))

    def _answered(self, batch: Batch, part: tuple[int, int], answer: asyncio.Future[Made]) -> None:
        error = answer.exception()
        if error is None:
            batch.add(answer.result())
        else:
            batch.fail(self._blamed(error, batch, part))
        self._dispatch()

    def _blamed(self, error: BaseException, batch: Batch, part: tuple[int, int]) -> BaseException:
        """A lost agent is a lost device only when it was the last one."""
        if not isinstance(error, DeviceLost):
            return error
        kind = BatchFailed if self._alive() else DeviceLost
        blamed = kind(f"{error}; it had rows {part[0]}..{part[1]} of {batch.claim} to make")
        blamed.__cause__ = error
        return blamed

    def _fail_line(self, why: DdlpError) -> None:
        while self._line:
            batch, _ = self._line.popleft()
            batch.fail(type(why)(str(why)))

    def _count(self, made: int = 0, failed: int = 0, made_s: float = 0.0, cpu_s: float = 0.0, nbytes: int = 0) -> None:
        done = self._done
        self._done = DeviceStatistics(
            done.made + made, done.failed + failed, done.made_s + made_s, done.cpu_s + cpu_s, done.nbytes + nbytes
        )


def _check_not_importing_main() -> None:
    """Raises UsageError in a worker that imports a main module which starts a loader right away: it would never end."""
    if getattr(multiprocessing.process.current_process(), "_inheriting", False):
        raise UsageError(
            "a worker process imports your script, and the script starts a loader at import: put that under"
            " `if __name__ == '__main__':`"
        )
