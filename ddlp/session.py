"""What lives from a loader's first batch to its close: the devices, the host memory, the background thread.

A session knows nothing of its loader, so that a loader that is dropped can be collected and its session closed.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import structlog

from ddlp.bridge import LoopThread, Stream
from ddlp.devices.base import Job
from ddlp.engine import Epoch, close_devices, open_devices
from ddlp.errors import BatchTimeout, ClosedError
from ddlp.memory import Arena
from ddlp.stats import LoaderStatistics
from ddlp.transport.choose import Carrier
from ddlp.types import Rates, Side

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ddlp.data.maker import Preparation
    from ddlp.data.sampling import ListedPlan, Plan
    from ddlp.devices.base import Device
    from ddlp.engine import Delivered
    from ddlp.policies.base import Policy
    from ddlp.queue import DualEndedQueue

# Starting processes and opening a data set takes longer than a batch may, however short that is meant to be.
OPEN_S = 60.0

log = structlog.get_logger("ddlp")


class Session:
    """Opened devices, epoch after epoch. `start` and `close` from the training loop's thread."""

    def __init__(
        self,
        preparation: Preparation,
        devices: Sequence[Device],
        policy: Policy,
        target: str,
        prefetch: int,
        timeout: float | None,
    ) -> None:
        self._preparation = preparation
        self._devices = list(devices)
        self._out: dict[str, str] = {}  # devices that are left out of the running epoch, and why
        self._policy = policy
        self._prefetch = prefetch
        self._timeout = timeout
        self._rates: dict[Side, Rates] = {}
        self._one_at_a_time = asyncio.Lock()
        self._running: asyncio.Task[None] | None = None
        self._closed = False
        self.arena = Arena()
        self._carrier = Carrier(self.arena, target)
        self.thread = LoopThread.acquire(self, self.aclose)

    def start(self, plan: Plan | ListedPlan, queue: DualEndedQueue, unpack: Callable[[Delivered], Any]) -> Stream:
        """Begin an epoch; it waits for the end of the one before, which must have been closed."""
        self.thread.check_process()
        # The engine bounds every batch by the timeout and makes it elsewhere when that is over. The loop's own wait is
        # the backstop behind it, so it leaves time for the second try.
        timeout = None if self._timeout is None else 2 * self._timeout + 1
        stream = Stream(self.thread, self._prefetch, timeout, unpack)
        stream.begin(self._run(stream, plan, queue))
        return stream

    def statistics(self, number: int, stream: Stream) -> LoaderStatistics:
        """What happened so far in the epoch `number` that `stream` carries."""
        return self.thread.ask(lambda: self._statistics(number, stream))

    def close(self) -> None:
        """End everything, and wait for it."""
        if self._closed or self.thread.pid != os.getpid():
            return
        if self.thread.is_current:  # in a finaliser: nobody may wait there
            self.drop()
            return
        self.thread.submit(self.aclose()).result()
        if self.thread.ending:
            self.thread.join()

    def drop(self) -> None:
        """`close` for a loader that was collected: nobody waits."""
        if not self._closed and self.thread.pid == os.getpid():
            self.thread.submit(self.aclose())

    async def aclose(self) -> None:
        """On the background loop: end the running epoch, then everything else; twice is fine."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._running is not None:
                self._running.cancel()
            async with self._one_at_a_time:
                await close_devices(self._devices)
                await self._carrier.aclose()
                self.arena.close()
        finally:
            self.thread.release(self)

    # --- on the background loop --------------------------------------------------------------------------------------

    async def _run(self, stream: Stream, plan: Plan | ListedPlan, queue: DualEndedQueue) -> None:
        error: BaseException | None = None
        try:
            async with self._one_at_a_time:
                await self._run_epoch(stream, plan, queue)
        except BaseException as caught:
            error = _single(caught)
            if isinstance(caught, asyncio.CancelledError):
                raise
        finally:
            stream.finish(error)

    async def _run_epoch(self, stream: Stream, plan: Plan | ListedPlan, queue: DualEndedQueue) -> None:
        if self._closed:
            raise ClosedError("the loader is closed")
        self._running = asyncio.current_task()
        try:
            epoch = await self._open_epoch(plan, queue)
            try:
                await stream.run(epoch)
            finally:
                await self._end_epoch(epoch, stream)
        finally:
            self._running = None

    async def _open_epoch(self, plan: Plan | ListedPlan, queue: DualEndedQueue) -> Epoch:
        job = Job(self._preparation, plan, self.arena, None if self._timeout is None else max(self._timeout, OPEN_S))
        lost = await open_devices(self._devices, job)
        for device, why in lost.items():
            log.warning("device left out of this epoch", device=device.name, why=str(why))
        self._out = {device.name: str(why) for device, why in lost.items()}
        opened = [device for device in self._devices if device not in lost]
        if not opened:
            raise ExceptionGroup("no device could be opened", list(lost.values()))
        layout = self._preparation.layout
        return Epoch(
            queue,
            opened,
            self._policy,
            self._carrier.carry,
            batch_nbytes=None if layout is None else layout.nbytes(plan.most_rows),
            timeout=self._timeout,
            rates=self._rates,
        )

    async def _end_epoch(self, epoch: Epoch, stream: Stream) -> None:
        self._rates = dict(epoch.rates)
        stream.clear()
        # A device that did not answer in time may be stuck for ever: it does not get another epoch.
        stuck = {lost.device for lost in epoch.lost if isinstance(lost.cause.__cause__, BatchTimeout)}
        await close_devices([device for device in self._devices if device.name in stuck])

    def _statistics(self, number: int, stream: Stream) -> LoaderStatistics:
        epoch = stream.epoch
        sides = [claim.side for claim in stream.handed]
        lost = {} if epoch is None else {device: str(cause) for device, cause in epoch.lost}
        return LoaderStatistics(
            epoch=number,
            batches=0 if epoch is None else len(epoch),
            delivered={side: sides.count(side) for side in Side},
            seconds=stream.seconds,
            wait_s=stream.wait_s,
            boundary=None if epoch is None else epoch.boundary,
            takeovers=0 if epoch is None else epoch.takeovers,
            failures=0 if epoch is None else epoch.failures,
            rates={side: Rates() for side in Side} if epoch is None else dict(epoch.rates),
            devices={device.name: device.statistics() for device in self._devices},
            lost={**self._out, **lost},
            transports=self._carrier.reasons(),
            host_bytes=self.arena.used_nbytes + self.arena.free_nbytes,
        )


def _single(error: BaseException) -> BaseException:
    """A group of one is that one: the training loop gets the type that it can name in an `except`."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        for note in getattr(error, "__notes__", ()):
            error.exceptions[0].add_note(note)
        error = error.exceptions[0]
    return error
