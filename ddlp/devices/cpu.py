"""The host's own cores: worker processes that write batches in place into shared memory."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import sys
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ddlp.agent.protocol import Open
from ddlp.data.python import why_unpicklable
from ddlp.data.room import cores
from ddlp.devices.base import Capabilities
from ddlp.devices.process import AgentProcess
from ddlp.devices.remote import PARTS_EACH, AgentDevice
from ddlp.devices.tuning import Tuner
from ddlp.errors import UsageError
from ddlp.memory import share
from ddlp.types import BatchRef, Side

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddlp.devices.base import Job
    from ddlp.devices.remote import Batch
    from ddlp.memory import Shared, Slot

PART_S = 0.004  # of work that makes up for the messages of a part
IN_TRAINING = 3  # batches that the training loop and its prefetching hold, as a rule
ENOUGH_NBYTES = 128 << 20  # of finished batches; more would only take memory
_FIRST_GUESS = 1 << 20  # bytes of a batch without a fixed form, before any was made


class CpuPool(AgentDevice):
    """`workers` processes (default: one per available core), optionally confined to the cores `cpus`.

    Cores are available as far as the process may run on them, and as its control groups allow it so much time. With
    "auto" the number of workers, at most one per available core, is found by measuring while they work: see `Tuner`.

    A batch with a fixed form is divided among the workers when that makes it ready sooner, the first one included; any
    other is made whole by one worker. `store_bytes` bounds finished batches; without it their number is bounded, and
    where that is more than enough, their bytes.
    `name` is unique among a loader's devices.

    Raises:
        UsageError: a number is out of range.
    """

    def __init__(
        self,
        workers: int | Literal["auto"] | None = None,
        cpus: Sequence[int] | None = None,
        store_bytes: int | None = None,
        name: str = "cpu0",
    ) -> None:
        most = cores(cpus) if workers is None or workers == "auto" else workers
        if not hasattr(most, "__index__") or most < 1:
            raise UsageError(f"CpuPool needs at least one worker, or 'auto': workers={workers!r}, cpus={cpus}")
        super().__init__(name, most)
        self._most = most
        self._tuner = Tuner(most) if workers == "auto" else None
        self._cpus = cpus
        self._store_bytes = store_bytes
        self._shared: Shared | None = None
        self._largest = _FIRST_GUESS

    @property
    def capabilities(self) -> Capabilities:
        # Enough claims that no worker runs dry while one of them has the answer of a small batch on its way.
        depth = self._most + min(self._most, PARTS_EACH)
        batches = depth + self._most + IN_TRAINING
        if self._job is not None and self._job.preparation.layout is not None:
            # Large batches are divided among the workers, so fewer of them keep everyone busy.
            nbytes = self._job.preparation.layout.nbytes(self._job.plan.most_rows)
            batches = min(batches, max(IN_TRAINING + PARTS_EACH, ENOUGH_NBYTES // max(1, nbytes)))
        return Capabilities(Side.HEAD, depth, store_bytes=self._store_bytes, store_batches=batches, lands="slot")

    @property
    def workers(self) -> int:
        """How many work at present."""
        return self._workers

    async def _prepare(self, job: Job) -> Open:
        if self._shared is None:
            self._shared = await asyncio.to_thread(_shared, job)
        return Open(python=True)

    def _spawn(self, job: Job, number: int) -> AgentProcess:
        shared = self._shared
        assert shared is not None
        arguments = [f"--slots={job.arena.fd}", f"--job={shared.fd},{shared.nbytes}", f"--worker={number}"]
        if self._cpus is not None:
            arguments.append(f"--cpus={','.join(map(str, self._cpus))}")
        if shared.names_main:
            arguments.append(f"--main={msgspec.json.encode(_main_module(job)).decode()}")
        fds = (job.arena.fd, shared.fd, *job.preparation.fds)
        return AgentProcess(self.name, number, arguments, fds, lease=job.arena.lease, trusted=True)

    async def _adapt(self, job: Job) -> None:
        if self._tuner is None:
            return
        self._workers = self._tuner.workers
        for agent in self._alive()[self._tuner.wanted :]:
            if not agent.connection.busy:
                self._retire(agent)
        try:
            await self._complete(job, self._tuner.wanted)
        except OSError:
            self._tuner = None  # there is no room for more processes: it stays with those that it has

    async def _complete(self, job: Job, wanted: int) -> None:
        """Start workers that were never there, or were retired.

        Those that have died come back at the next `open`: what kills workers shall not get one after the other.
        """
        while missing := set(range(wanted)) - {agent.number for agent in self._agents}:
            await self._add(job, min(missing))

    def _parts(self, job: Job, rows: int) -> Sequence[tuple[int, int]]:
        count = 1 if job.preparation.layout is None else min(self._workers, rows, self._worth())
        ends = [rows * k // count for k in range(count + 1)]
        return list(itertools.pairwise(ends))

    def _worth(self) -> int:
        """How many parts are worth their messages, by the mean time of a batch so far."""
        if not self._done.made:
            return self._workers
        return max(1, math.ceil(self._done.made_s / self._done.made / PART_S))

    def _lease(self, batch: Batch) -> Slot:
        layout = batch.job.preparation.layout
        return batch.job.arena.lease(self._largest if layout is None else layout.nbytes(batch.rows))

    def _ref(self, batch: Batch) -> BatchRef:
        if self._tuner is not None and len(self._working()) == self._tuner.workers:  # and not while one still starts
            self._tuner.made(asyncio.get_running_loop().time())
        layout = batch.job.preparation.layout
        whole = batch.made[0]
        nbytes = sum(made.nbytes for made in batch.made)
        self._largest = max(self._largest, nbytes)
        return BatchRef(
            batch.claim,
            self.name,
            batch.asked[0][1].slot,
            (whole.leaves or ()) if layout is None else layout.leaves(batch.rows),
            nbytes,
            whole.skeleton,
            made_s=max(made.made_s for made in batch.made),
            cpu_s=sum(made.cpu_s for made in batch.made),
        )

    def _discard(self, ref: BatchRef) -> None:
        assert self._job is not None
        self._job.arena.recycle(ref.place)

    def _clean_up(self) -> None:
        if self._shared is not None:
            self._shared.close()


def _shared(job: Job) -> Shared:
    """The preparation in a memory file. Raises UsageError naming what workers cannot be given."""
    try:
        return share(job.preparation)
    except Exception as error:
        names = ("dataset", "recipe", "collate_fn", "worker_init_fn")
        reasons = [why_unpicklable(getattr(job.preparation, name), name) for name in names]
        reason = next(filter(None, reasons), str(error))
        raise UsageError(
            f"not picklable, so worker processes cannot have it: {reason}. Define functions and classes at the top"
            " level of a module; open files and connections in the worker, when the first sample is asked for"
        ) from error


def _main_module(job: Job) -> dict[str, Any]:
    """How a worker imports the main module, in the words of `multiprocessing.spawn.prepare`."""
    main = sys.modules["__main__"]
    spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return {"sys_argv": sys.argv, "init_main_from_name": spec.name}
    if path is not None:
        return {"sys_argv": sys.argv, "init_main_from_path": os.path.abspath(path)}
    raise UsageError(
        f"{job.preparation!r:.200} uses what is defined in this session, which worker processes cannot import: move it"
        " to a module"
    )
