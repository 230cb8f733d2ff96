"""One epoch: devices make batches, the policy says which side is next, the engine does the waiting.

The only module that creates tasks. One TaskGroup per epoch holds `depth` producers per device; the body of the group
is the deliverer. All decisions are plain functions over the queue; between reading and changing shared state nothing
is awaited, so a cancellation at any await leaves every batch in exactly one place.

Who waits for what, and who wakes it:
* a producer without room in its device's store: woken by `settle` (and whenever a claim of that device ends badly);
* a producer with nothing to claim: woken when a batch comes back (release, a lost side), when the epoch ends, or at
  the time at which it could take over somebody else's late batch;
* the deliverer, mostly inside the policy: woken by every change that a policy can see.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from ddlp.errors import (
    BatchFailed,
    BatchTimeout,
    ClosedError,
    DeviceError,
    DeviceLost,
    StaleTicket,
    StoreFull,
    UsageError,
)
from ddlp.meter import Meter, combined
from ddlp.post import Line, Post, Work
from ddlp.queue import Place
from ddlp.types import HEAD, TAIL, BatchRef, Claim, Order, Rates, Side

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from ddlp.devices.base import Device, Job
    from ddlp.policies.base import Policy
    from ddlp.queue import DualEndedQueue

# A batch that fails this many times, on whatever devices, ends the epoch: it is the batch, not the devices.
MAX_TRIES = 3

# A timer that comes so much too late says that the process was stopped: by Ctrl-Z, a debugger, a suspended machine.
SUSPENDED_S = 1.0


class Delivered:
    """A batch in the training loop's hands: `value` is what the transport made of it. Owed: one `Epoch.settle`."""

    __slots__ = ("carried_s", "claim", "ref", "value")

    def __init__(self, ref: BatchRef, value: Any, carried_s: float) -> None:
        self.claim = ref.claim
        self.ref = ref
        self.value = value
        self.carried_s = carried_s

    def __repr__(self) -> str:
        return f"<Delivered {self.claim} from {self.ref.device}>"


class LostDevice(NamedTuple):
    """A device that went during the epoch, and why."""

    device: str
    cause: DeviceLost


async def open_devices(devices: Sequence[Device], job: Job) -> dict[Device, Exception]:
    """Open all devices at once. Returns those that are gone, and why; the epoch may do without them.

    Raises:
        ExceptionGroup: of everything else that devices raise.
    """
    lost: dict[Device, Exception] = {}

    async def opened(device: Device) -> None:
        try:
            await device.open(job)
        except (DeviceLost, ClosedError) as error:
            lost[device] = error

    async with asyncio.TaskGroup() as group:
        for device in devices:
            group.create_task(opened(device), name=f"ddlp:{device.name}:open")
    return lost


async def close_devices(devices: Sequence[Device]) -> None:
    """Close all devices at once, each to its end whatever happens to the others."""
    results = await asyncio.gather(*(device.aclose() for device in devices), return_exceptions=True)
    errors = [result for result in results if isinstance(result, Exception)]
    if errors:
        raise ExceptionGroup("some devices did not close cleanly", errors)


class Epoch:
    """One pass over a queue of batches.

    `devices` are open. `carry` moves a finished batch to where training wants it and returns what `Delivered.value`
    becomes; when it raises DeviceError the batch is made again. `batch_nbytes` is what one batch takes of a store, None
    if that is not known. A device that takes more than `timeout` seconds for the first batch in its line is lost.
    `rates` are the last epoch's, so that a policy need not measure again. Time is the running loop's.
    """

    def __init__(
        self,
        queue: DualEndedQueue,
        devices: Sequence[Device],
        policy: Policy,
        carry: Callable[[BatchRef], Awaitable[Any]],
        *,
        batch_nbytes: int | None = 1,
        timeout: float | None = 60.0,
        rates: Mapping[Side, Rates] | None = None,
    ) -> None:
        self._queue = queue
        self._policy = policy
        self._carry = carry
        self._timeout = timeout
        self._prior = rates or {}
        self._posts = [Post(device, batch_nbytes) for device in devices]
        self._steps = {HEAD: Meter(), TAIL: Meter()}
        self._stored: dict[int, tuple[Post, BatchRef]] = {}  # by ticket: finished batches in a device's store
        self._idle = Line()
        self._change: asyncio.Future[None] | None = None
        self._failures: Counter[int] = Counter()
        self._taken_over: set[int] = set()
        self._order: list[Claim] = []
        left = queue.state()["left"]
        self.todo: int = sum(hi - lo for lo, hi in left)
        self.begins_at: int = left[0][0] if left else len(queue)
        self.lost: list[LostDevice] = []

    async def run(self, deliver: Callable[[Delivered], Awaitable[None]]) -> None:
        """Make and deliver every batch; returns when all are settled.

        `deliver` gets one batch at a time, in the policy's order. However this ends, nothing is left in any store.

        Raises:
            ExceptionGroup: of whatever ended the epoch: SampleError, BatchFailed after MAX_TRIES, DeviceLost when no
                device is left (the first cause, the others as notes), or an error of the policy or of `deliver`.
        """
        try:
            for side in Side:
                if not any(post.side is side for post in self._posts):
                    self._queue.lose(side, "it has no devices")
            if not self._posts:
                raise UsageError("an epoch needs at least one device")
            async with asyncio.TaskGroup() as group:
                for post in self._posts:
                    for number in range(post.depth):
                        group.create_task(self._produce(post), name=f"ddlp:{post.name}:{number}")
                await self._deliver_all(deliver)
        finally:
            for post, ref in self._stored.values():
                post.device.discard(ref)
            self._stored.clear()
            for post in self._posts:
                if post.watch is not None:
                    post.watch.cancel()

    def settle_late(self, batch: Delivered) -> None:
        """The training loop had used the batch when the epoch ended: it counts, although its store is gone."""
        if self._queue.holds(batch.claim) is Place.TAKEN:
            self._queue.settle(batch.claim)

    def settle(self, batch: Delivered, step_s: float | None = None) -> None:
        """The training loop is done with the batch, after `step_s` seconds: its place in the store is free again."""
        self._queue.settle(batch.claim)
        if step_s is not None:
            self._steps[batch.claim.side].add(max(step_s, batch.carried_s))
        self._discard(batch.claim)
        if self._queue.finished:
            self._idle.wake_all()
            for post in self._posts:
                post.waiting.wake_all()
            self._notify()

    # --- what a policy sees (EpochView) ------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._queue)

    def ready(self, side: Side) -> bool:
        return self._queue.is_ready(side)

    def left(self, side: Side) -> bool:
        return self._queue.left(side)

    @property
    def boundary(self) -> int | None:
        return self._queue.boundary

    @property
    def delivered(self) -> int:
        return len(self) - self.todo + len(self._order)

    @property
    def order(self) -> Order:
        """What was delivered so far."""
        return Order(tuple(claim.index for claim in self._order), tuple(claim.side for claim in self._order))

    @property
    def takeovers(self) -> int:
        """Batches that another device finished because their own was too late."""
        return len(self._taken_over)

    @property
    def failures(self) -> int:
        """Tries that failed and were made again."""
        return self._failures.total()

    @property
    def tail_store_batches(self) -> int | None:
        capacities = [post.capacity for post in self._posts if post.side is TAIL and post.cause is None]
        return None if None in capacities else sum(capacity or 0 for capacity in capacities)

    @property
    def rates(self) -> Mapping[Side, Rates]:
        return {side: self._rates(side) for side in Side}

    async def changed(self) -> None:
        self._change = asyncio.get_running_loop().create_future()
        await self._change

    def set_boundary(self, index: int) -> int:
        index = self._queue.set_boundary(index)
        self._idle.wake_all()
        return index

    def describe(self) -> str:
        """Who has what, in one line: for messages about waiting too long."""
        view = self._queue.view()
        makers = ", ".join(f"{post.name} makes {[w.claim.index for w in post.works.values()]}" for post in self._posts)
        return f"open {view.open}, ready {view.ready}, taken {view.taken}, settled {view.settled} of {view.n}; {makers}"

    # --- producers ---------------------------------------------------------------------------------------------------

    async def _produce(self, post: Post) -> None:
        while post.cause is None and not self._queue.finished:
            if not post.has_room:
                await post.waiting.wait()
                continue
            claim = self._queue.claim(post.side) or self._take_over(post)
            if claim is None:
                await self._idle.wait(self._next_take_over(post))
                continue
            post.held += 1
            await self._make(post, claim)

    async def _make(self, post: Post, claim: Claim) -> None:
        now = asyncio.get_running_loop().time
        work = None
        try:
            async with asyncio.timeout(None) as scope:
                work = Work(claim, now(), scope)
                post.begin(work, now())
                self._watch(post)
                try:
                    ref = await post.device.preprocess(claim)
                finally:
                    post.end(work, now())
        except TimeoutError as error:
            post.give_back_room()
            if work is None or not work.called_off:
                self._lose(post, claim, _too_late(post, claim, self._timeout, error))
        except DeviceLost as error:
            post.give_back_room()
            self._lose(post, claim, error)
        except StoreFull as error:
            self._shrink(post, claim, error)
            post.give_back_room()
        except BatchFailed as error:
            post.give_back_room()
            self._retry(post, claim, error)
        except Exception as error:
            error.add_note(f"{claim} on {post.name}")
            raise
        else:
            self._finish(post, ref, now())

    def _finish(self, post: Post, ref: BatchRef, now: float) -> None:
        """The batch is made; unless its claim was given up meanwhile, it is ready."""
        self._stored[ref.claim.ticket] = post, ref
        try:
            self._queue.ready(ref.claim, ref)
        except StaleTicket:
            self._discard(ref.claim)
            return
        post.meter.finish(now)
        self._notify()

    def _discard(self, claim: Claim) -> None:
        post, ref = self._stored.pop(claim.ticket)
        post.device.discard(ref)
        post.give_back_room()

    # --- devices that hang -------------------------------------------------------------------------------------------

    def _watch(self, post: Post) -> None:
        """Look again when the first in the device's line is too late. One timer, however many claims it has.

        A claim's time begins when it is the first: until then the device may be busy with those before it.
        """
        if self._timeout is not None and post.watch is None and post.cause is None:
            when = post.first_since + self._timeout
            post.watch = asyncio.get_running_loop().call_at(when, self._look, post, when)

    def _look(self, post: Post, when: float) -> None:
        post.watch = None
        now = asyncio.get_running_loop().time()
        if not post.works or self._timeout is None:
            return
        if now - when > SUSPENDED_S:
            # This process itself was stopped for a while: answers may be waiting to be read.
            post.first_since += now - when
        if post.first_since + self._timeout > now:
            self._watch(post)
        else:
            # Its producer finds a timeout that was not called off, and gives the device up.
            next(iter(post.works.values())).scope.reschedule(now)

    # --- when things go wrong ----------------------------------------------------------------------------------------

    def _retry(self, post: Post, claim: Claim, error: DeviceError) -> None:
        """Give the batch back to be made again, unless it has failed too often or is not this claim's any more."""
        if self._queue.holds(claim) is None:
            return
        self._failures[claim.index] += 1
        if self._failures[claim.index] >= MAX_TRIES:
            for why in self._queue.tries(claim.index):
                error.add_note(f"before: {why}")
            error.add_note(f"{claim} on {post.name}, try {MAX_TRIES} of {MAX_TRIES}")
            raise error
        self._release(claim, f"{post.name}: {error}")

    def _shrink(self, post: Post, claim: Claim, error: StoreFull) -> None:
        """The store holds less than it said: go on with the room that it has proven to have, or without the device."""
        post.capacity = post.held - 1
        if post.capacity < 1:
            lost = DeviceLost(f"{post.name}: its store has no room for a single batch ({error})")
            lost.__cause__ = error
            self._lose(post, claim, lost)
        else:
            self._give_up(claim, f"{post.name}: {error}")

    def _lose(self, post: Post, claim: Claim, error: DeviceLost) -> None:
        """The device is gone, with `claim`, all else that it was making, and what is still in its store."""
        why = f"{post.name} is lost: {error}"
        self._give_up(claim, why)
        if post.cause is not None:
            return
        post.cause = error
        self.lost.append(LostDevice(post.name, error))
        now = asyncio.get_running_loop().time()
        for work in post.works.values():
            self._give_up(work.claim, why)
            work.call_off(now)
        for stored in [ref.claim for owner, ref in self._stored.values() if owner is post]:
            if self._queue.holds(stored) is Place.READY:
                self._give_up(stored, why)
                self._discard(stored)
        if not any(other.side is post.side and other.cause is None for other in self._posts):
            self._queue.lose(post.side, why)
        post.waiting.wake_all()
        self._idle.wake_all()
        self._notify()
        if all(other.cause is not None for other in self._posts):
            self._raise_first_cause()

    def _raise_first_cause(self) -> NoReturn:
        first, *others = self.lost
        for other in others:
            first.cause.add_note(f"then {other.device}: {other.cause}")
        raise first.cause

    def _give_up(self, claim: Claim, why: str) -> None:
        """Void the claim, unless it is void already."""
        if self._queue.holds(claim) is not None:
            self._release(claim, why)

    def _release(self, claim: Claim, why: str) -> None:
        self._queue.release(claim, why)
        self._idle.wake_all()
        self._notify()

    # --- late batches ------------------------------------------------------------------------------------------------

    def _take_over(self, post: Post) -> Claim | None:
        """At the end of an epoch: the claim that an idle device would finish sooner than the device that has it.

        Only while no boundary fixes who makes what. What the other device has done so far is thrown away, which costs
        nothing: it would have had nothing else to do. A batch changes hands once.
        """
        now = asyncio.get_running_loop().time()
        late = [(other.remaining(work, now), other, work) for other, work in self._takeable(post)]
        if not late:
            return None
        remaining, other, work = max(late, key=lambda item: item[0])
        if remaining <= post.pace:
            return None
        self._taken_over.add(work.claim.index)
        self._queue.release(work.claim, f"{post.name} took it over from {other.name}", post.side)
        work.call_off(now)
        self._notify()
        return self._queue.claim(post.side)

    def _takeable(self, post: Post) -> list[tuple[Post, Work]]:
        if self._queue.boundary is not None or post.meter.make_s is None:
            return []
        return [
            (other, work)
            for other in self._posts
            if other is not post and other.cause is None
            for work in other.works.values()
            if not work.called_off and work.claim.index not in self._taken_over
        ]

    def _next_take_over(self, post: Post) -> float | None:
        """When a batch that is not late yet would be late enough to be taken over, if nothing happens before."""
        late_at = [other.due(work) or work.started for other, work in self._takeable(post)]
        if not late_at:
            return None
        # Never at once: a rounding error must not turn the wait into a spin.
        return max(min(late_at) + post.pace, asyncio.get_running_loop().time() + max(post.pace / 16, 1e-3))

    # --- deliverer ---------------------------------------------------------------------------------------------------

    async def _deliver_all(self, deliver: Callable[[Delivered], Awaitable[None]]) -> None:
        async with aclosing(self._policy.schedule(self)) as schedule:
            while self._queue.left(HEAD) or self._queue.left(TAIL):
                side = await anext(schedule, None)
                if side is None:
                    raise UsageError(f"{self._policy!r} ended after {self.delivered} of {len(self)} batches")
                if not isinstance(side, Side):
                    raise UsageError(f"{self._policy!r} yielded {side!r}: it must yield HEAD or TAIL")
                batch = await self._next(side)
                if batch is not None:
                    self._order.append(batch.claim)
                    await deliver(batch)
        while not self._queue.finished:
            await self.changed()

    async def _next(self, side: Side) -> Delivered | None:
        """The side's next batch, or the other side's when it has none left; None when nothing is left at all."""
        while True:
            source = side if self._queue.left(side) else side.other
            ref = self._queue.take(source)
            if ref is not None:
                batch = await self._fetch(ref)
                if batch is not None:
                    return batch
            elif not self._queue.left(source):
                return None
            else:
                await self.changed()

    async def _fetch(self, ref: BatchRef) -> Delivered | None:
        """Carry the batch over; None when that failed and it will be made again."""
        post, _ = self._stored[ref.claim.ticket]
        now = asyncio.get_running_loop().time
        begun = now()
        try:
            async with asyncio.timeout(self._timeout):
                value = await self._carry(ref)
        except (DeviceError, TimeoutError) as error:
            if isinstance(error, TimeoutError):
                error = BatchFailed(f"it was not carried over from {post.name} within {self._timeout} s")
            self._retry(post, ref.claim, error)
            self._discard(ref.claim)
            return None
        return Delivered(ref, value, now() - begun)

    # --- parts -------------------------------------------------------------------------------------------------------

    def _rates(self, side: Side) -> Rates:
        prior = self._prior.get(side, Rates())
        meters = [post.meter for post in self._posts if post.side is side and post.cause is None]
        made = sum(meter.count for meter in meters)
        # A few batches say less than the whole last epoch did.
        make_s = combined(meters) if made >= 10 or prior.make_s is None else prior.make_s
        step_s = self._steps[side].mean_s
        return Rates(make_s, prior.step_s if step_s is None else step_s, prior.made + made)

    def _notify(self) -> None:
        if self._change is not None and not self._change.done():
            self._change.set_result(None)


def _too_late(post: Post, claim: Claim, timeout: float | None, error: TimeoutError) -> DeviceLost:
    cause = BatchTimeout(f"{claim} was not made by {post.name} within {timeout} s")
    cause.__cause__ = error
    lost = DeviceLost(str(cause))
    lost.__cause__ = cause
    return lost
