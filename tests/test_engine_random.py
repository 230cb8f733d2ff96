"""Thousands of random histories of one epoch, in virtual time: exactly once, or the first cause; never a hang."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddlp.engine import MAX_TRIES, Epoch
from ddlp.errors import BatchFailed, DeviceLost, SampleError
from ddlp.policies.base import Policy
from ddlp.policies.mte import MTE
from ddlp.policies.wrr import WRR
from ddlp.queue import DualEndedQueue
from ddlp.testing.laws import clean, exactly_once
from ddlp.testing.scripted import NO_JOB, Fault, Pair, ScriptedAccelerator, ScriptedCarry, ScriptedDevice
from ddlp.testing.virtual import run_virtual
from ddlp.types import HEAD, TAIL, Side

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ddlp.policies.base import EpochView
    from ddlp.post import Post

MAX_TURNS = 100_000  # many times what the largest history here needs


class Whim(Policy):
    """Any side at any time: what a stranger's policy may do."""

    def __init__(self, seed: int, n: int) -> None:
        self._seed = seed
        self._n = n

    async def schedule(self, epoch: EpochView) -> AsyncGenerator[Side, None]:
        whim = random.Random(self._seed)
        while True:
            if whim.random() < 0.1:
                epoch.set_boundary(whim.randrange(-1, self._n + 2))
            yield whim.choice([HEAD, TAIL])

    def __repr__(self) -> str:
        return f"Whim({self._seed}, {self._n})"


@dataclass(frozen=True)
class Maker:
    """A scripted device to be."""

    side: Side
    make_s: float
    depth: int
    workers: int
    store: int | None
    faults: dict[int, Fault]
    jitter: int

    def build(self, number: int) -> ScriptedDevice:
        noise = random.Random(self.jitter)
        return ScriptedDevice(
            self.side,
            (lambda _n: self.make_s * noise.uniform(0.2, 2.0)) if self.jitter else self.make_s,
            depth=self.depth,
            workers=self.workers,
            store_batches=self.store,
            faults=self.faults,
            name=f"{self.side.name.lower()}{number}",
        )


@dataclass(frozen=True)
class History:
    """All that decides what happens in one epoch."""

    n: int
    makers: list[Maker]
    policy: Policy
    step_s: Pair
    read_s: Pair
    prefetch: int
    timeout: float
    carry_fails: set[int]
    boundary: int | None

    @property
    def faults(self) -> set[Fault]:
        return {fault for maker in self.makers for fault in maker.faults.values()}

    def play(self) -> tuple[list[int], BaseException | None]:
        """Run it; check what must hold however it ends; return the order of use and what ended it."""
        queue = DualEndedQueue(self.n, self.boundary)
        devices = [maker.build(number) for number, maker in enumerate(self.makers)]
        carry = ScriptedCarry(self.read_s, {number: BatchFailed("carry fails") for number in self.carry_fails})
        used: list[int] = []
        posts: list[Post] = []

        async def epoch() -> None:
            for device in devices:
                await device.open(NO_JOB)
            run = Epoch(queue, devices, self.policy, carry, timeout=self.timeout)
            posts.extend(run._posts)
            accelerator = ScriptedAccelerator(run.settle, self.step_s, self.prefetch)
            try:
                await run.run(accelerator.deliver)
            finally:
                accelerator.stop()
                used.extend(claim.index for claim in accelerator.order)

        failure: BaseException | None = None
        try:
            run_virtual(epoch(), max_turns=MAX_TURNS)
        except ExceptionGroup as group:
            failure = group
        for device in devices:
            clean(device)
            assert failure or not any(isinstance(error, SampleError) for error in device.raised)
        queue.check()
        assert queue.finished == (failure is None)
        assert failure or not any(post.held for post in posts), "room was not given back"
        assert len(used) == len(set(used)), f"delivered twice: {used}"
        return used, failure


SECONDS = st.floats(-3, 3).map(lambda exponent: 10.0**exponent) | st.sampled_from([0.0, 1.0])


def makers(faults: st.SearchStrategy[dict[int, Fault]]) -> st.SearchStrategy[Maker]:
    return st.builds(
        Maker,
        side=st.sampled_from(Side),
        make_s=SECONDS,
        depth=st.integers(1, 4),
        workers=st.integers(1, 3),
        store=st.none() | st.integers(1, 5),
        faults=faults,
        jitter=st.integers(0, 3),
    )


POLICIES = st.one_of(
    st.just(WRR()),
    st.just(WRR("calibrated")),
    st.tuples(st.integers(0, 3), st.integers(1, 3)).map(WRR),
    st.builds(
        MTE, st.integers(1, 12), st.sampled_from(["balanced", "proportional", 0.0, 0.3, 1.0]), fit_store=st.just(True)
    ),
    st.builds(Whim, st.integers(0, 99), st.just(30)),
)


def histories(
    faults: st.SearchStrategy[dict[int, Fault]],
    carry_fails: st.SearchStrategy[set[int]],
    timeout: st.SearchStrategy[float],
) -> Any:
    return st.builds(
        History,
        n=st.integers(0, 30),
        makers=st.lists(makers(faults), min_size=1, max_size=4),
        policy=POLICIES,
        step_s=st.builds(Pair, SECONDS, SECONDS),
        read_s=st.builds(Pair, SECONDS, SECONDS),
        prefetch=st.integers(1, 3),
        timeout=timeout,
        carry_fails=carry_fails,
        boundary=st.none() | st.integers(0, 30),
    )


MANY = settings(max_examples=700, deadline=None, suppress_health_check=[HealthCheck.too_slow])
LONG = 1e6  # seconds; nothing that is alive here takes that long
TIMEOUTS = st.sampled_from([LONG, 0.5, 1.0, 2.0, 3.0, 100.0])


@MANY
@given(histories(st.just({}), st.just(set()), st.just(LONG)))
def test_without_faults_every_batch_is_delivered_exactly_once(history: History) -> None:
    """Any devices, speeds, stores and policy: the epoch ends, and each batch was delivered once."""
    used, failure = history.play()
    assert failure is None
    exactly_once(used, history.n)


FAULTS = st.dictionaries(st.integers(0, 20), st.sampled_from(Fault), max_size=4)


@MANY
@given(histories(FAULTS, st.sets(st.integers(0, 30), max_size=3), TIMEOUTS))
def test_with_faults_exactly_once_or_the_cause(history: History) -> None:
    """Whatever breaks: each batch exactly once, or an error that the script explains. Never a hang, never a leak."""
    used, failure = history.play()
    if failure is None:
        exactly_once(used, history.n)
        return
    assert isinstance(failure, ExceptionGroup)
    for cause in failure.exceptions:
        explained(cause, history)


def explained(cause: Exception, history: History) -> None:
    """The error can come from this script."""
    if isinstance(cause, SampleError):
        assert Fault.DATA in history.faults
    elif isinstance(cause, DeviceLost):
        assert history.timeout < LONG or history.faults & {Fault.LOSE, Fault.STALL, Fault.FULL}
    else:
        assert type(cause) is BatchFailed
        fails = sum(fault is Fault.FAIL for maker in history.makers for fault in maker.faults.values())
        too_slow_to_carry = max(history.read_s) >= history.timeout
        assert too_slow_to_carry or fails + len(history.carry_fails) >= MAX_TRIES


@settings(MANY, max_examples=100)
@given(histories(FAULTS, st.sets(st.integers(0, 30), max_size=3), TIMEOUTS))
def test_the_same_history_twice_is_the_same(history: History) -> None:
    """Same devices, faults and policy: same order of use, same end."""
    (first, one), (second, other) = history.play(), history.play()
    assert first == second
    assert str(one) == str(other)
