"""Devices, a transport and an accelerator that do exactly what a script says, in virtual or in real time.

They are real drivers of the contract in `ddlp.devices.base`: a cancelled `preprocess` leaves nothing in the store, the
store never grows beyond its bound, and only the errors of the contract come out, at the batch that the script names.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from ddlp.devices.base import Capabilities, Device, DeviceStatistics, Job
from ddlp.errors import BatchFailed, ClosedError, DeviceLost, SampleError, StoreFull
from ddlp.types import BatchRef, Claim, Side

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Scripted devices make batches of nothing, so they need no data set, plan or memory.
NO_JOB = Job(cast("Any", None), cast("Any", None), cast("Any", None))


class Pair(NamedTuple):
    """One figure for each side, indexed by `Side`."""

    head: float = 0.0
    tail: float = 0.0


AT_ONCE = Pair()


class Fault(enum.Enum):
    """What goes wrong with a device's n-th `preprocess`."""

    FAIL = "fail"  # BatchFailed once the work is done
    FULL = "full"  # StoreFull once the work is done
    DATA = "data"  # SampleError once the work is done
    LOSE = "lose"  # DeviceLost, for this and for everything in flight; the store is gone, until the next `open`
    LATE = "late"  # the batch takes LATE_FACTOR times as long
    STALL = "stall"  # the batch never comes


LATE_FACTOR = 10.0


class ScriptedDevice(Device):
    """Makes batches at a scripted speed and fails where it is told to.

    make_s         seconds per batch of one worker, or a function of the call's number; 0 answers without suspending
    depth          claims in flight that it asks for
    store_batches  finished batches that it can hold; None: no bound
    workers        batches that it works on at the same time
    faults         what goes wrong, by the number of the `preprocess` call, counted from 0 over the device's life

    What it did is in `calls` (claims, in order), `made`, `discarded`, `stored` (by ticket), `most_stored` and `raised`;
    what was done to it against the contract is in `violations`.
    """

    def __init__(
        self,
        side: Side,
        make_s: float | Callable[[int], float] = 0.0,
        *,
        depth: int = 2,
        store_batches: int | None = None,
        workers: int = 1,
        faults: Mapping[int, Fault] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self.name = f"scripted-{side.name.lower()}" if name is None else name
        self._capabilities = Capabilities(side, depth, store_batches=store_batches)
        self._make_s = make_s
        self._store_batches = store_batches
        self._workers = workers
        self._faults = dict(faults or {})
        self._busy = asyncio.Semaphore(workers)
        self._gone: Exception | None = None
        self._in_flight: set[asyncio.Future[None]] = set()
        self.calls: list[Claim] = []
        self.made: list[Claim] = []
        self.discarded: list[Claim] = []
        self.stored: dict[int, BatchRef] = {}
        self.most_stored = 0
        self.raised: list[Exception] = []
        self.violations: list[str] = []

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def statistics(self) -> DeviceStatistics:
        return DeviceStatistics(made=len(self.made), failed=len(self.raised), nbytes=len(self.made))

    def holds(self, ref: BatchRef) -> bool:
        """Whether the batch is in its store."""
        return self.stored.get(ref.claim.ticket) is ref

    def lose(self) -> None:
        """The device is gone, from now until the next `open`, with its store and everything in flight."""
        self._vanish(DeviceLost(f"{self.name}: lost by the script"))

    async def _open(self, job: Job) -> None:
        self._gone = None
        self.stored.clear()
        self._busy = asyncio.Semaphore(self._workers)

    async def _preprocess(self, claim: Claim) -> BatchRef:
        number = len(self.calls)
        self.calls.append(claim)
        fault = self._faults.get(number)
        made_s = self._seconds(number, fault)
        try:
            if made_s > 0:
                async with self._busy:
                    await self._work(made_s)
            self._strike(fault, claim)
            return self._keep(claim, made_s)
        except Exception as error:
            self.raised.append(error)
            raise

    def _seconds(self, number: int, fault: Fault | None) -> float:
        if fault is Fault.STALL:
            return float("inf")
        seconds = self._make_s(number) if callable(self._make_s) else self._make_s
        return seconds * LATE_FACTOR if fault is Fault.LATE else seconds

    async def _work(self, seconds: float) -> None:
        self._check_there()
        loop = asyncio.get_running_loop()
        working: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(seconds, _finish, working) if seconds < float("inf") else None
        self._in_flight.add(working)
        try:
            await working
        finally:
            self._in_flight.discard(working)
            if timer is not None:
                timer.cancel()

    def _strike(self, fault: Fault | None, claim: Claim) -> None:
        if fault is Fault.LOSE:
            self.lose()
        self._check_there()
        if fault in _RAISES:
            raise _RAISES[fault](f"{self.name}: {claim} fails by the script")

    def _vanish(self, why: Exception) -> None:
        self._gone = why
        self.stored.clear()
        for working in self._in_flight:
            if not working.done():
                working.set_exception(why)

    def _check_there(self) -> None:
        if self._gone is not None:
            raise self._gone

    def _keep(self, claim: Claim, made_s: float) -> BatchRef:
        if self._store_batches is not None and len(self.stored) >= self._store_batches:
            self.violations.append(f"{claim} was asked for while the store held {len(self.stored)} batches")
            raise StoreFull(f"{self.name}: the store holds {len(self.stored)} batches; no room for {claim}")
        ref = BatchRef(claim, self.name, place=self, leaves=(), nbytes=1, made_s=made_s)
        self.stored[claim.ticket] = ref
        self.most_stored = max(self.most_stored, len(self.stored))
        self.made.append(claim)
        return ref

    def _discard(self, ref: BatchRef) -> None:
        if self.stored.pop(ref.claim.ticket, None) is not None:
            self.discarded.append(ref.claim)
        elif self._gone is None:
            self.violations.append(f"{ref.claim} was discarded, and is not in the store")

    async def _aclose(self) -> None:
        self._vanish(ClosedError(f"{self.name} is closed"))


_RAISES: dict[Fault | None, type[Exception]] = {
    Fault.FAIL: BatchFailed,
    Fault.FULL: StoreFull,
    Fault.DATA: SampleError,
}


def _finish(working: asyncio.Future[None]) -> None:
    if not working.done():
        working.set_result(None)


class ScriptedCarry:
    """Moves a batch in `read_s` seconds (by side), unless the script has an error for this call; gives its index.

    `calls` counts them, `carried` lists the claims that arrived. What its device no longer holds is DeviceLost.
    """

    def __init__(self, read_s: Pair = AT_ONCE, errors: Mapping[int, Exception] | None = None) -> None:
        self._read_s = read_s
        self._errors = dict(errors or {})
        self.calls = 0
        self.carried: list[Claim] = []

    async def __call__(self, ref: BatchRef) -> int:
        number, self.calls = self.calls, self.calls + 1
        read_s = self._read_s[ref.claim.side]
        if read_s > 0:
            await asyncio.sleep(read_s)
        if number in self._errors:
            raise self._errors[number]
        if not ref.place.holds(ref):
            raise DeviceLost(f"{ref.claim} is not in the store of {ref.device}")
        self.carried.append(ref.claim)
        return ref.claim.index


class Batch(Protocol):
    """What the accelerator needs to know of a delivered batch."""

    @property
    def claim(self) -> Claim: ...


class ScriptedAccelerator:
    """A training loop: keeps each batch for `step_s` seconds (by side), then settles it and begins the next.

    prefetch  delivered batches that may wait for it; `deliver` waits while there are that many

    It is a server with a queue, so it needs timers and no task. `order` lists the claims in the order of use,
    `wait_s` is the time it had nothing to do before its last batch.
    """

    def __init__(self, settle: Callable[[Any, float], None], step_s: Pair = AT_ONCE, prefetch: int = 1) -> None:
        self._settle = settle
        self._step_s = step_s
        self._prefetch = prefetch
        self._loop = asyncio.get_running_loop()
        self._buffer: deque[Batch] = deque()
        self._room = asyncio.Event()
        self._timer: asyncio.Handle | None = None
        self._idle_since = self._loop.time()
        self.order: list[Claim] = []
        self.wait_s = 0.0

    async def deliver(self, batch: Batch) -> None:
        """Hand it a batch. After cancellation the batch was not accepted."""
        while len(self._buffer) >= self._prefetch:
            self._room.clear()
            await self._room.wait()
        self._buffer.append(batch)
        if self._timer is None:
            self.wait_s += self._loop.time() - self._idle_since
            self._begin()

    def stop(self) -> None:
        """It uses nothing any more, and settles nothing."""
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self) -> None:
        batch = self._buffer.popleft()
        self._room.set()
        self.order.append(batch.claim)
        step_s = self._step_s[batch.claim.side]
        self._timer = (
            self._loop.call_later(step_s, self._end, batch) if step_s > 0 else self._loop.call_soon(self._end, batch)
        )

    def _end(self, batch: Batch) -> None:
        self._timer = None
        self._idle_since = self._loop.time()
        self._settle(batch, self._step_s[batch.claim.side])
        if self._buffer:
            self._begin()
