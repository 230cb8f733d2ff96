"""A device at work in one epoch, as the engine sees it: room, pace, and what it is making. No tasks and no clock."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from ddlp.errors import UsageError
from ddlp.meter import Meter

if TYPE_CHECKING:
    from ddlp.devices.base import Device
    from ddlp.errors import DeviceLost
    from ddlp.types import Claim


class Line:
    """Those who wait for something that others make happen; nobody in it polls."""

    __slots__ = ("_futures",)

    def __init__(self) -> None:
        self._futures: deque[asyncio.Future[None]] = deque()

    async def wait(self, until: float | None = None) -> None:
        """Wait to be woken, or until the loop's time is `until`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        timer = None if until is None else loop.call_at(until, _wake, future)
        self._futures.append(future)
        try:
            await future
        finally:
            if timer is not None:
                timer.cancel()
            if future in self._futures:
                self._futures.remove(future)

    def wake_one(self) -> None:
        while self._futures:
            future = self._futures.popleft()
            if not future.done():
                future.set_result(None)
                return

    def wake_all(self) -> None:
        while self._futures:
            _wake(self._futures.popleft())


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Work:
    """A claim that a device is making, in the scope that can call it off."""

    __slots__ = ("called_off", "claim", "scope", "started")

    def __init__(self, claim: Claim, started: float, scope: asyncio.Timeout) -> None:
        self.claim = claim
        self.started = started
        self.scope = scope
        self.called_off = False

    def call_off(self, now: float) -> None:
        """End the work; its claim must already be void."""
        self.called_off = True
        if not self.scope.expired():
            self.scope.reschedule(now)


class Post:
    """One device: `capacity` finished or unfinished batches at most, None without bound."""

    def __init__(self, device: Device, batch_nbytes: int | None) -> None:
        self.device = device
        self.side = device.capabilities.side
        self.depth = max(1, device.capabilities.depth)
        self.capacity = _capacity(device, batch_nbytes)
        self.held = 0  # claims of this device that are not settled, and so hold a place in its store
        self.meter = Meter()
        self.works: dict[int, Work] = {}  # by ticket, in claim order
        self.first_since = 0.0  # when the first of `works` became the first: nothing before it keeps it waiting
        self.watch: asyncio.TimerHandle | None = None  # looks whether the first is late
        self.waiting = Line()  # producers without room
        self.cause: DeviceLost | None = None  # why it is gone

    @property
    def name(self) -> str:
        return self.device.name

    @property
    def pace(self) -> float:
        """Seconds per batch; 0 while unknown."""
        return self.meter.make_s or 0.0

    @property
    def has_room(self) -> bool:
        return self.capacity is None or self.held < self.capacity

    def give_back_room(self) -> None:
        self.held -= 1
        self.waiting.wake_one()

    def begin(self, work: Work, now: float) -> None:
        """One more claim is in the device's hands."""
        if not self.works:
            self.first_since = now
        self.works[work.claim.ticket] = work
        self.meter.begin(now)

    def end(self, work: Work, now: float) -> None:
        """The claim left the device's hands, finished or not."""
        if next(iter(self.works.values())) is work:
            self.first_since = now
        del self.works[work.claim.ticket]
        self.meter.end(now)

    def due(self, work: Work) -> float | None:
        """When this work should be finished, by the pace of the device and its place in line; None: pace unknown."""
        if self.meter.make_s is None:
            return None
        place = list(self.works).index(work.claim.ticket)
        begun = max(self.meter.last_finish, next(iter(self.works.values())).started)
        return begun + (place + 1) * self.meter.make_s

    def remaining(self, work: Work, now: float) -> float:
        """How long it will still take. What is overdue, or of unknown pace, takes as long again as it already has."""
        due = self.due(work)
        return now - work.started if due is None else abs(due - now)


def _capacity(device: Device, batch_nbytes: int | None) -> int | None:
    """How many batches the device's store can hold; None: no bound."""
    capabilities = device.capabilities
    if capabilities.store_bytes is None or batch_nbytes is None:
        return capabilities.store_batches
    if capabilities.store_bytes < batch_nbytes:
        raise UsageError(
            f"{device.name}: a store of {capabilities.store_bytes} bytes cannot hold one batch of {batch_nbytes} bytes"
        )
    return capabilities.store_bytes // max(1, batch_nbytes)
