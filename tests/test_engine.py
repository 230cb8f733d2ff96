"""The laws of one epoch, in virtual time: what it promises when it is cancelled, and when something breaks.

Random histories are in test_engine_random.py.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from ddlp.devices.base import Capabilities
from ddlp.engine import MAX_TRIES, Delivered, Epoch
from ddlp.errors import BatchFailed, BatchTimeout, DeviceLost, SampleError, StaleTicket, UsageError
from ddlp.policies.base import Policy
from ddlp.policies.mte import MTE
from ddlp.policies.wrr import WRR
from ddlp.queue import DualEndedQueue
from ddlp.testing.laws import cancel_everywhere, clean, exactly_once
from ddlp.testing.scripted import NO_JOB, Fault, Pair, ScriptedAccelerator, ScriptedCarry, ScriptedDevice
from ddlp.testing.simulate import Rehearsal, rehearse
from ddlp.testing.virtual import run_virtual
from ddlp.types import HEAD, TAIL, BatchRef, Claim, Side

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ddlp.policies.base import EpochView

MAX_TURNS = 100_000  # many times what the largest history here needs
LONG = 1e6  # seconds; nothing that is alive here takes that long


# --- cancellation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [WRR(), MTE(2, fit_store=True), WRR((2, 1))], ids=repr)
def test_cancelled_anywhere_nothing_is_left_and_the_state_resumes(policy: Policy) -> None:
    """Wherever an epoch is cancelled: no task, no batch in a store, and its state gives exactly what was not settled.

    Only the batch in the loop's hands, and those on their way to it, are made again.
    """
    worlds: list[World] = []

    def epoch() -> Any:
        worlds.append(World(8, policy))
        return worlds[-1].play()

    def resumed_exactly() -> None:
        world = worlds[-1]
        for device in world.devices:
            clean(device)
        world.queue.check()
        rest = World(8, policy, DualEndedQueue.restore(world.queue.state()))
        run_virtual(rest.play(), max_turns=MAX_TURNS)
        exactly_once([*world.settled, *rest.settled], 8)

    assert cancel_everywhere(epoch, resumed_exactly) > 50


class World:
    """One epoch with a device that fails once, one that is lost, and one that answers late."""

    def __init__(self, n: int, policy: Policy, queue: DualEndedQueue | None = None) -> None:
        self.queue = queue or DualEndedQueue(n)
        self.devices = [
            ScriptedDevice(HEAD, 1.0, faults={1: Fault.FAIL}),
            ScriptedDevice(HEAD, 0.7, faults={2: Fault.LOSE}, name="short-lived"),
            ScriptedDevice(TAIL, 1.3, store_batches=4, faults={1: Fault.LATE}),
        ]
        self.policy = policy
        self.settled: list[int] = []

    async def play(self) -> None:
        for device in self.devices:
            await device.open(NO_JOB)
        epoch = Epoch(self.queue, self.devices, self.policy, ScriptedCarry(Pair(0.1, 0.2)), timeout=LONG)

        def settle(batch: Delivered, step_s: float) -> None:
            epoch.settle(batch, step_s)
            self.settled.append(batch.claim.index)

        accelerator = ScriptedAccelerator(settle, Pair(0.5, 0.4), prefetch=2)
        try:
            await epoch.run(accelerator.deliver)
        finally:
            accelerator.stop()


# --- histories by name -----------------------------------------------------------------------------------------------


def play(n: int, *devices: ScriptedDevice, policy: Policy | None = None, **rest: Any) -> Rehearsal:
    return run_virtual(rehearse(DualEndedQueue(n), devices, policy or WRR(), **rest), max_turns=MAX_TURNS)


def cause_of(n: int, *devices: ScriptedDevice, **rest: Any) -> Exception:
    """The one error that ends the epoch; checks that nothing is left."""
    with pytest.raises(ExceptionGroup) as caught:
        play(n, *devices, **rest)
    for device in devices:
        clean(device)
    (cause,) = caught.value.exceptions
    return cause


def notes(error: Exception) -> str:
    return "\n".join(getattr(error, "__notes__", []))


def test_nothing_to_do_ends_at_once() -> None:
    """An epoch of no batches makes no call, delivers nothing and takes no time."""
    device = ScriptedDevice(HEAD, 1.0)
    run = play(0, device)
    assert (run.order, run.seconds, device.calls) == ((), 0.0, [])


def test_without_devices_it_is_refused() -> None:
    """Nobody to make the batches is an error of the caller."""
    with pytest.raises(UsageError, match="at least one device"):
        play(3)


def test_a_lost_device_s_batches_are_made_by_its_neighbour() -> None:
    """What it was making, and what waits in its store, is made again on the same side; nobody tries to fetch it."""
    lost = ScriptedDevice(HEAD, 1.0, depth=3, faults={6: Fault.LOSE}, name="lost")
    other, carry = ScriptedDevice(HEAD, 1.0), ScriptedCarry()
    exactly_once(play(20, lost, other, carry=carry, step_s=Pair(5.0, 5.0)).indices, 20)
    assert len(lost.made) > 3
    assert carry.calls == 20


def test_a_device_lost_while_it_rests_is_found_out() -> None:
    """Its share is finished and waits in its store: the first fetch fails, and everything is made again elsewhere."""
    tail = ScriptedDevice(TAIL, 1.0)

    async def main() -> Rehearsal:
        asyncio.get_running_loop().call_later(30.0, tail.lose)
        return await rehearse(DualEndedQueue(40), [ScriptedDevice(HEAD, 2.0), tail], MTE(split=0.5))

    run = run_virtual(main(), max_turns=MAX_TURNS)
    assert len(tail.made) == 20
    assert run.count(TAIL) == 0
    exactly_once(run.indices, 40)


def test_a_lost_side_is_taken_by_the_other_side() -> None:
    """Even behind the boundary: with the tail's last device gone, the head makes everything."""
    tail = ScriptedDevice(TAIL, 1.0, faults={3: Fault.LOSE})
    run = play(20, ScriptedDevice(HEAD, 1.0), tail, policy=MTE(split=0.5))
    exactly_once(run.indices, 20)
    assert run.count(TAIL) == 0  # it was to be delivered last, and its store is gone


def test_the_last_device_lost_names_the_first_cause() -> None:
    """DeviceLost of the device that went first; those that went later are in its notes."""
    first = ScriptedDevice(TAIL, 1.0, faults={1: Fault.LOSE}, name="csd0")
    second = ScriptedDevice(HEAD, 1.0, faults={9: Fault.LOSE}, name="cpu0")
    cause = cause_of(30, first, second)
    assert type(cause) is DeviceLost
    assert "csd0" in str(cause)
    assert "cpu0" in notes(cause)


def test_a_device_that_never_answers_is_lost_after_the_timeout() -> None:
    """Its batch is made by another device, and the epoch is late by no more than the timeout."""
    stalled = ScriptedDevice(HEAD, 1.0, depth=2, workers=2, faults={0: Fault.STALL, 1: Fault.STALL})
    tail = ScriptedDevice(TAIL, 100.0)
    run = play(4, stalled, tail, timeout=60.0 * 4, policy=MTE(split=0.5))
    exactly_once(run.indices, 4)
    assert 240 <= run.seconds <= 240 + 400


def test_a_device_that_is_given_up_stops_at_once() -> None:
    """What else it is making is called off: the epoch does not wait for it."""
    stalled = ScriptedDevice(HEAD, 90.0, workers=2, faults={0: Fault.STALL})  # batch 2 would be ready at 180 s
    run = play(20, stalled, ScriptedDevice(TAIL, 1.0), policy=MTE(split=0.5), timeout=100.0)
    exactly_once(run.indices, 20)
    assert 100 < run.seconds < 120


def test_the_only_device_that_never_answers_ends_the_epoch() -> None:
    """BatchTimeout names batch, device and seconds, and is the cause of the DeviceLost."""
    cause = cause_of(4, ScriptedDevice(HEAD, 1.0, depth=3, faults={2: Fault.STALL}, name="cpu7"), timeout=30.0)
    assert type(cause) is DeviceLost
    assert type(cause.__cause__) is BatchTimeout
    assert all(word in str(cause.__cause__) for word in ("batch 2", "cpu7", "30"))


def test_a_slow_training_loop_is_no_error() -> None:
    """The timeout bounds devices, not the user: a step may take hours."""
    run = play(5, ScriptedDevice(HEAD, 1.0), step_s=Pair(7200.0, 7200.0), timeout=60.0)
    exactly_once(run.indices, 5)


def test_a_batch_that_always_fails_ends_the_epoch() -> None:
    """After MAX_TRIES, with the story of every try in the notes."""
    faults = dict.fromkeys(range(100), Fault.FAIL)
    cause = cause_of(1, ScriptedDevice(HEAD, 1.0, faults=faults, name="a"), ScriptedDevice(TAIL, 1.0, faults=faults))
    assert type(cause) is BatchFailed
    assert notes(cause).count("before: ") == MAX_TRIES - 1
    assert "batch 0" in notes(cause)


def test_a_bad_sample_ends_the_epoch_and_is_not_tried_again() -> None:
    """SampleError leaves with the batch and the device in its notes."""
    device = ScriptedDevice(HEAD, 1.0, faults={3: Fault.DATA}, name="cpu0")
    cause = cause_of(10, device)
    assert type(cause) is SampleError
    assert "batch 3" in notes(cause)
    assert "cpu0" in notes(cause)


def test_a_store_that_holds_less_than_it_said_is_believed() -> None:
    """StoreFull lowers the room that the engine counts with, and the epoch goes on."""
    device = ScriptedDevice(HEAD, 1.0, depth=4, workers=4, store_batches=8, faults={2: Fault.FULL, 3: Fault.FULL})
    exactly_once(play(30, device, step_s=Pair(5.0, 5.0)).indices, 30)
    assert device.most_stored < 8


def test_a_carry_that_fails_gets_its_batch_made_again() -> None:
    """The failed copy is thrown away, and the batch comes later, once."""
    device = ScriptedDevice(HEAD, 1.0)
    run = play(5, device, carry=ScriptedCarry(errors={1: BatchFailed("bad copy")}))
    exactly_once(run.indices, 5)
    assert len(device.made) == 6


def test_an_error_of_deliver_or_carry_is_the_cause() -> None:
    """What strangers raise leaves as it is, in the group."""
    assert type(cause_of(5, ScriptedDevice(HEAD, 1.0), carry=ScriptedCarry(errors={2: KeyError("mine")}))) is KeyError


def test_a_policy_is_closed_when_the_epoch_ends() -> None:
    """Its `finally` has run when `Epoch.run` returns, not whenever the garbage collector finds it."""
    closed: list[int] = []

    class Watched(Policy):
        async def schedule(self, epoch: EpochView) -> AsyncGenerator[Side, None]:
            try:
                while True:
                    yield HEAD
            finally:
                closed.append(epoch.delivered)

    async def epoch() -> list[int]:
        await rehearse(DualEndedQueue(4), [ScriptedDevice(HEAD, 1.0)], Watched())
        return list(closed)

    assert run_virtual(epoch()) == [4]


def test_a_policy_that_gives_up_is_named() -> None:
    """A schedule that ends early is an error, not a short epoch."""

    class Short(Policy):
        async def schedule(self, epoch: EpochView) -> AsyncGenerator[Side, None]:
            yield HEAD

    cause = cause_of(4, ScriptedDevice(HEAD, 1.0), policy=Short())
    assert type(cause) is UsageError
    assert "Short() ended after 1 of 4" in str(cause)


def test_a_driver_that_answers_for_another_claim_is_lost() -> None:
    """It cannot be trusted with data: no batch is ever delivered under another's index, and nothing hangs."""

    class Confused(ScriptedDevice):
        async def _preprocess(self, claim: Claim) -> BatchRef:
            ref = await super()._preprocess(claim)
            return msgspec.structs.replace(ref, claim=self.calls[0]) if claim.index == 2 else ref

    confused = Confused(HEAD, 1.0, depth=1, name="confused")
    with pytest.raises(ExceptionGroup) as caught:
        play(5, confused)
    (cause,) = caught.value.exceptions
    assert type(cause) is DeviceLost
    assert "confused cannot be trusted" in str(cause)
    exactly_once(play(5, Confused(HEAD, 1.0, depth=1), ScriptedDevice(TAIL, 5.0)).indices, 5)


def test_settling_twice_is_refused() -> None:
    """The second settle of a batch raises, and frees no room a second time."""
    device = ScriptedDevice(HEAD, 1.0, store_batches=1)

    async def epoch() -> None:
        await device.open(NO_JOB)
        run = Epoch(DualEndedQueue(3), [device], WRR(), ScriptedCarry())

        async def use(batch: Delivered) -> None:
            run.settle(batch)
            with pytest.raises(StaleTicket):
                run.settle(batch)

        await run.run(use)

    run_virtual(epoch())
    clean(device)


def test_a_late_batch_at_the_end_is_taken_over() -> None:
    """Without a boundary, an idle fast device makes the slow device's last batch rather than wait for it."""
    slow = ScriptedDevice(TAIL, 1000.0, depth=1)
    run = play(50, ScriptedDevice(HEAD, 1.0), slow, timeout=LONG)
    exactly_once(run.indices, 50)
    assert run.seconds < 60
    assert run.count(TAIL) == 0


def test_stores_are_bounded_in_bytes() -> None:
    """A store of 100 bytes holds three batches of 30; one of 10 bytes is refused before anything starts."""

    class Sized(ScriptedDevice):
        @property
        def capabilities(self) -> Capabilities:
            return Capabilities(TAIL, depth=8, store_bytes=100)

    async def epoch(batch_nbytes: int) -> None:
        await device.open(NO_JOB)
        run = Epoch(DualEndedQueue(20), [device], WRR(), ScriptedCarry(), batch_nbytes=batch_nbytes)
        accelerator = ScriptedAccelerator(run.settle, Pair(5.0, 5.0))
        await run.run(accelerator.deliver)

    device = Sized(TAIL, 1.0)
    run_virtual(epoch(30))
    assert device.most_stored == 3
    with pytest.raises(UsageError, match="100 bytes cannot hold one batch of 101 bytes"):
        run_virtual(epoch(101))


def test_rates_are_what_the_script_says() -> None:
    """Seconds per batch of each side and of each side's steps, as they were scripted."""
    run = play(200, ScriptedDevice(HEAD, 1.0), ScriptedDevice(TAIL, 3.0), step_s=Pair(0.5, 0.25), timeout=LONG)
    assert run.rates[HEAD].make_s == pytest.approx(1.0)
    assert run.rates[TAIL].make_s == pytest.approx(3.0)
    assert (run.rates[HEAD].step_s, run.rates[TAIL].step_s) == (0.5, 0.25)
    assert run.rates[HEAD].made == run.count(HEAD)


def test_a_step_is_as_long_as_its_carry() -> None:
    """Steps and transfers overlap, so the longer of both is what a batch of this side costs."""
    run = play(50, ScriptedDevice(HEAD, 1.0), carry=ScriptedCarry(Pair(0.75, 0.0)), step_s=Pair(0.5, 0.5))
    assert run.rates[HEAD].step_s == pytest.approx(0.75)


def test_a_batch_that_is_never_carried_over_is_made_again() -> None:
    """A transport that hangs is bounded by the timeout like everything else; the batch comes by another try."""
    carried: list[int] = []

    async def carry(ref: BatchRef) -> int:
        carried.append(ref.claim.index)
        if len(carried) == 3:
            await asyncio.get_running_loop().create_future()
        return ref.claim.index

    async def epoch() -> Epoch:
        device = ScriptedDevice(HEAD, 0.01)
        await device.open(NO_JOB)
        run = Epoch(DualEndedQueue(6), [device], WRR(), carry, timeout=1.0)
        accelerator = ScriptedAccelerator(run.settle)
        await run.run(accelerator.deliver)
        return run

    run = run_virtual(epoch(), max_turns=MAX_TURNS)
    assert sorted(run.order.batches) == list(range(6))
    assert run.failures == 1
    assert sorted(carried) == [0, 1, 2, 2, 3, 4, 5]
