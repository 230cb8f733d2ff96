"""Scripted devices, carry and accelerator do what their script says, by the contract that real ones keep."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlp.errors import BatchFailed, ClosedError, DeviceLost, SampleError, StoreFull
from ddlp.testing.laws import cancel_everywhere, clean
from ddlp.testing.scripted import (
    LATE_FACTOR,
    NO_JOB,
    Fault,
    Pair,
    ScriptedAccelerator,
    ScriptedCarry,
    ScriptedDevice,
)
from ddlp.testing.virtual import run_virtual
from ddlp.types import HEAD, TAIL, BatchRef, Claim, Side


def claim(index: int, side: Side = HEAD) -> Claim:
    return Claim(index, side, index + 1)


def now() -> float:
    return asyncio.get_running_loop().time()


async def results(device: ScriptedDevice, count: int) -> list[tuple[float, Any]]:
    """What `count` concurrent claims came to, and when, in the order in which they were asked."""
    await device.open(NO_JOB)

    async def one(index: int) -> tuple[float, Any]:
        try:
            result: Any = await device.preprocess(claim(index))
        except Exception as error:
            result = type(error)
        return now(), result

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(index)) for index in range(count)]
    return [task.result() for task in tasks]


@given(count=st.integers(1, 10), workers=st.integers(1, 4))
def test_each_worker_makes_one_batch_at_a_time(count: int, workers: int) -> None:
    """Batch i is finished after its turn, `i // workers + 1` times the seconds of one batch."""
    made = run_virtual(results(ScriptedDevice(HEAD, 2.0, workers=workers), count))
    assert [at for at, _ in made] == [2.0 * (index // workers + 1) for index in range(count)]


def test_speed_may_depend_on_the_call() -> None:
    """`make_s` as a function gets the number of the call."""
    made = run_virtual(results(ScriptedDevice(HEAD, lambda number: [3.0, 1.0][number], workers=2), 2))
    assert [at for at, _ in made] == [3.0, 1.0]


def test_no_time_at_all_does_not_even_suspend() -> None:
    """A device that is ready at once costs the event loop nothing."""
    work = ScriptedDevice(HEAD).preprocess(claim(0))
    with pytest.raises(StopIteration) as ended:
        work.send(None)
    assert ended.value.value.claim == claim(0)


@pytest.mark.parametrize(
    ("fault", "outcome", "at"),
    [
        (Fault.FAIL, BatchFailed, 2.0),
        (Fault.FULL, StoreFull, 2.0),
        (Fault.DATA, SampleError, 2.0),
        (Fault.LOSE, DeviceLost, 2.0),
        (Fault.LATE, BatchRef, 2.0 * LATE_FACTOR),
    ],
)
def test_faults_strike_at_their_call(fault: Fault, outcome: type, at: float) -> None:
    """At the end of the work, so that the time is lost too; the call before is untouched."""
    before, struck = run_virtual(results(ScriptedDevice(HEAD, 2.0, workers=2, faults={1: fault}), 2))
    assert before[0] == 2.0
    assert type(before[1]) is BatchRef
    assert struck[0] == at
    assert outcome in (struck[1], type(struck[1]))


def test_a_lost_device_takes_everything_with_it() -> None:
    """What it holds and what it works on is gone at that moment, until it is opened again."""
    device = ScriptedDevice(HEAD, lambda number: [1.0, 2.0, 50.0, 1.0][number], workers=3, faults={1: Fault.LOSE})
    made = run_virtual(results(device, 3))
    assert [at for at, _ in made] == [1.0, 2.0, 2.0]
    assert [result for _, result in made[1:]] == [DeviceLost, DeviceLost]
    assert not device.stored
    ((_, again),) = run_virtual(results(device, 1))
    assert device.holds(again)


def test_a_stalled_batch_never_comes_and_can_be_given_up() -> None:
    """A stall blocks its worker until it is cancelled; then the next batch begins."""

    async def main() -> float:
        device = ScriptedDevice(HEAD, 1.0, faults={0: Fault.STALL})
        await device.open(NO_JOB)
        async with asyncio.TaskGroup() as group:
            stalled = group.create_task(device.preprocess(claim(0)))
            group.create_task(device.preprocess(claim(1)))
            await asyncio.sleep(100)
            stalled.cancel()
        return now()

    assert run_virtual(main()) == 101


def test_a_cancelled_preprocess_leaves_nothing() -> None:
    """Wherever it is cancelled, waiting for the worker or at work."""
    devices: list[ScriptedDevice] = []

    async def use(device: ScriptedDevice, index: int) -> None:
        device.discard(await device.preprocess(claim(index)))

    async def main() -> None:
        device = ScriptedDevice(HEAD, 1.0)
        devices.append(device)
        await device.open(NO_JOB)
        async with asyncio.TaskGroup() as group:
            for index in range(3):
                group.create_task(use(device, index))

    assert cancel_everywhere(main, lambda: clean(devices[-1])) >= 4
    assert {len(device.made) for device in devices} >= {0, 1, 2, 3}


def test_the_store_keeps_its_bound_and_its_books() -> None:
    """One batch too many is refused and remembered; so is a discard of what is not there."""

    async def main() -> ScriptedDevice:
        device = ScriptedDevice(TAIL, 1.0, store_batches=1)
        await device.open(NO_JOB)
        assert device.capabilities.store_batches == 1
        ref = await device.preprocess(claim(0))
        with pytest.raises(StoreFull):
            await device.preprocess(claim(1))
        device.discard(ref)
        device.discard(ref)
        assert not device.holds(ref)
        return device

    device = run_virtual(main())
    assert device.most_stored == 1
    assert len(device.violations) == 2
    with pytest.raises(AssertionError, match="was discarded, and is not in the store"):
        clean(device)


def test_a_closed_device_refuses_and_ends_what_it_had() -> None:
    """Twice is fine; what was in flight ends with ClosedError, and so does what comes later."""

    async def main() -> None:
        device = ScriptedDevice(HEAD, 10.0)
        await device.open(NO_JOB)
        async with asyncio.TaskGroup() as group:
            flying = group.create_task(asyncio.wait_for(_error_of(device.preprocess(claim(0))), 100))
            await asyncio.sleep(1)
            await device.aclose()
            await device.aclose()
        assert flying.result() is ClosedError
        assert now() == 1
        assert await _error_of(device.preprocess(claim(1))) is ClosedError

    run_virtual(main())


async def _error_of(work: Any) -> type[BaseException] | None:
    try:
        await work
    except Exception as error:
        return type(error)
    return None


def test_carry_takes_its_time_and_fails_where_told() -> None:
    """By side; what the device no longer holds cannot be carried."""

    async def main() -> list[Any]:
        device = ScriptedDevice(TAIL)
        refs = [await device.preprocess(claim(index, TAIL)) for index in range(3)]
        carry = ScriptedCarry(Pair(1.0, 2.0), errors={1: KeyError("told")})
        device.discard(refs[2])
        outcomes = [await carry(refs[0]), await _error_of(carry(refs[1])), await _error_of(carry(refs[2])), now()]
        assert carry.carried == [claim(0, TAIL)]
        return outcomes

    assert run_virtual(main()) == [0, KeyError, DeviceLost, 6.0]


class Handed:
    def __init__(self, index: int, side: Side) -> None:
        self.claim = claim(index, side)


def test_the_accelerator_uses_settles_and_waits() -> None:
    """Steps by side, in order; `deliver` waits while `prefetch` batches are ahead; idle time is counted."""
    settled: list[tuple[float, int, float]] = []
    delivered: list[float] = []

    async def main() -> ScriptedAccelerator:
        accelerator = ScriptedAccelerator(
            lambda batch, step_s: settled.append((now(), batch.claim.index, step_s)), Pair(2.0, 5.0), prefetch=1
        )
        await asyncio.sleep(1.0)
        for index, side in enumerate([HEAD, TAIL, HEAD]):
            await accelerator.deliver(Handed(index, side))
            delivered.append(now())
        await asyncio.sleep(20.0)
        await accelerator.deliver(Handed(3, HEAD))
        await asyncio.sleep(2.0)
        return accelerator

    accelerator = run_virtual(main())
    assert settled == [(3.0, 0, 2.0), (8.0, 1, 5.0), (10.0, 2, 2.0), (25.0, 3, 2.0)]
    assert delivered == [1.0, 1.0, 3.0]
    assert accelerator.wait_s == 1.0 + 13.0
    assert [used.index for used in accelerator.order] == [0, 1, 2, 3]
