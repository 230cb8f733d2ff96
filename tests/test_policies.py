"""The laws of MTE, WRR and Replay: what fixes an order, what never hangs, and what is refused."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddlp.engine import Delivered, Epoch
from ddlp.errors import UsageError
from ddlp.policies.mte import MTE, balanced_tail
from ddlp.policies.replay import Replay
from ddlp.policies.wrr import WRR
from ddlp.queue import DualEndedQueue
from ddlp.testing.laws import clean, exactly_once
from ddlp.testing.scripted import NO_JOB, Pair, ScriptedCarry, ScriptedDevice
from ddlp.testing.simulate import Rehearsal, rehearse
from ddlp.testing.virtual import run_virtual
from ddlp.types import HEAD, TAIL, Order

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddlp.policies.base import Policy

POLICIES: list[Callable[[], Policy]] = [
    WRR,
    lambda: WRR("calibrated"),
    lambda: WRR((3, 1)),
    MTE,
    lambda: MTE(split="proportional"),
    lambda: MTE(split=0.5),
]
EVERY_POLICY = pytest.mark.parametrize("policy", [make() for make in POLICIES], ids=repr)

SECONDS = st.floats(-3, 3).map(lambda exponent: 10.0**exponent)


def play(
    policy: Policy, n: int, head_s: float | None, tail_s: float | None, *, store: int | None = None, **rest: Any
) -> Rehearsal:
    """One epoch of one device per side (None: none on that side); checks that nothing is left in a store."""
    devices = [ScriptedDevice(HEAD, head_s, store_batches=6)] if head_s is not None else []
    devices += [ScriptedDevice(TAIL, tail_s, store_batches=store)] if tail_s is not None else []
    run = run_virtual(rehearse(DualEndedQueue(n), devices, policy, timeout=None, **rest), max_turns=200_000)
    for device in devices:
        clean(device)
    exactly_once(run.indices, n)
    return run


def refusal(policy: Policy, *args: Any, **rest: Any) -> str:
    with pytest.raises(ExceptionGroup) as caught:
        play(policy, *args, **rest)
    (cause,) = caught.value.exceptions
    assert type(cause) is UsageError
    return str(cause)


# --- every policy ----------------------------------------------------------------------------------------------------


@EVERY_POLICY
@pytest.mark.parametrize("n", [0, 1, 2, 3])
@pytest.mark.parametrize("speeds", [(1.0, 1.0), (1.0, None), (None, 1.0), (0.0, 0.0), (1.0, 0.0), (0.0, 1.0)])
def test_epochs_shorter_than_anything(policy: Policy, n: int, speeds: tuple[float | None, float | None]) -> None:
    """A few batches, with either side missing or taking no time at all: exactly once, a second each."""
    assert play(policy, n, *speeds).seconds <= n


@EVERY_POLICY
@pytest.mark.parametrize("speeds", [(1.0, 1e6), (1.0, 1e-6), (1e6, 1.0), (1e-6, 1.0)])
def test_a_side_a_million_times_slower(policy: Policy, speeds: tuple[float, float]) -> None:
    """The epoch ends; and unless the user fixed the shares, it takes no longer than the faster side alone would."""
    seconds = play(policy, 200, *speeds).seconds
    fixed_by_the_user = isinstance(getattr(policy, "split", ""), float) or isinstance(
        getattr(policy, "weights", ""), tuple
    )
    assert fixed_by_the_user or seconds <= 200 * min(speeds) * 1.1 + 20 * min(speeds)


@EVERY_POLICY
def test_a_tail_store_of_one_batch(policy: Policy) -> None:
    """WRR works with the smallest store there is; MTE says what would be needed."""
    if isinstance(policy, MTE):
        assert "it has room for 1" in refusal(policy, 100, 1.0, 2.0, store=1)
    else:
        play(policy, 100, 1.0, 2.0, store=1)


# --- MTE -------------------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    n=st.integers(0, 60),
    speeds=st.tuples(SECONDS, SECONDS),
    step_s=st.builds(Pair, SECONDS, SECONDS),
    calibration=st.integers(1, 20),
    split=st.sampled_from(["balanced", "proportional", 0.0, 0.4, 1.0]),
)
def test_mte_delivers_the_head_in_order_and_then_the_tail(
    n: int, speeds: tuple[float, float], step_s: Pair, calibration: int, split: str | float
) -> None:
    """With a boundary b the order is 0..b-1, then n-1..b, whatever the speeds.

    Only an epoch so short that a side ran dry while both were still measured, and took a batch over, is different.
    """
    queue = DualEndedQueue(n)
    devices = [ScriptedDevice(HEAD, speeds[0], store_batches=4), ScriptedDevice(TAIL, speeds[1])]
    run = run_virtual(rehearse(queue, devices, MTE(calibration, split), step_s=step_s, timeout=None))
    exactly_once(run.indices, n)
    if queue.boundary is not None and not run.takeovers:
        assert run.indices == [*range(queue.boundary), *range(n - 1, queue.boundary - 1, -1)]


def test_mte_with_a_number_fixes_the_boundary_before_anything_is_made() -> None:
    """The order depends on the number alone."""
    orders = {tuple(play(MTE(split=0.25), 40, head, tail).indices) for head, tail in [(1, 1), (1, 50), (50, 1)]}
    assert orders == {(*range(30), *range(39, 29, -1))}


def test_mte_calibration_longer_than_the_epoch() -> None:
    """The head and the tail meet before there is enough to measure; the epoch ends all the same."""
    run = play(MTE(calibration_batches=1000), 30, 1.0, 1.0)
    assert run.seconds <= 31


def test_mte_knows_the_paces_of_the_last_epoch() -> None:
    """With the last epoch's rates nothing is measured: the boundary is the same however the new epoch goes."""
    rates = play(MTE(), 400, 1.0, 3.0).rates
    orders = {tuple(play(MTE(), 400, head, tail, rates=rates).indices) for head, tail in [(1, 3), (1, 30), (30, 1)]}
    assert len(orders) == 1


def test_mte_refuses_a_store_that_cannot_hold_its_share() -> None:
    """With the arithmetic and three ways out; told to fit, it takes what the store holds."""
    message = refusal(MTE(split=0.3), 200, 1.0, 3.0, store=16)
    assert "60 of 200 batches" in message
    assert "room for 16" in message
    assert all(way in message for way in ("larger store", "fit_store=True", 'policy="wrr"'))
    assert "room for 59" in refusal(MTE(split=0.3), 200, 1.0, 3.0, store=59)
    assert play(MTE(split=0.3), 200, 1.0, 3.0, store=60).count(TAIL) == 60
    assert play(MTE(split=0.3, fit_store=True), 200, 1.0, 3.0, store=16).count(TAIL) == 16
    assert play(MTE(fit_store=True), 200, 1.0, 3.0, store=16).count(TAIL) == 16


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((0,), "calibration_batches"), ((10, "fair"), "'fair'"), ((10, 1.5), "1.5"), ((10, -0.1), "-0.1")],
)
def test_mte_refuses_senseless_arguments(arguments: tuple[Any, ...], words: str) -> None:
    """The message names the argument."""
    with pytest.raises(UsageError, match=words):
        MTE(*arguments)


@settings(max_examples=500, deadline=None)
@given(n=st.integers(0, 60), tau=SECONDS | st.just(0.0), s=SECONDS | st.just(0.0), rho=SECONDS | st.just(0.0))
def test_the_balanced_split_is_the_best_split(n: int, tau: float, s: float, rho: float) -> None:
    """No other share has a shorter predicted epoch, `max((n - k) * tau + k * rho, k * s)`."""

    def predicted(k: int) -> float:
        return max((n - k) * tau + k * rho, k * s)

    tail = balanced_tail(n, tau, s, rho)
    assert 0 <= tail <= n
    assert predicted(tail) <= min(map(predicted, range(n + 1))) * (1 + 1e-9)


# --- WRR -------------------------------------------------------------------------------------------------------------


def test_wrr_takes_the_tail_whenever_it_is_ready() -> None:
    """Else the head: a tail three times slower gives every fourth batch."""
    run = play(WRR(), 40, 1.0, 3.0)
    assert [claim.side for claim in run.order].count(TAIL) == 10
    assert run.seconds == 30


@settings(max_examples=200, deadline=None)
@given(
    n=st.integers(0, 60),
    weights=st.tuples(st.integers(0, 5), st.integers(1, 5)),
    first=st.tuples(SECONDS, SECONDS),
    second=st.tuples(SECONDS, SECONDS),
    step_s=st.builds(Pair, SECONDS, SECONDS),
)
def test_wrr_with_weights_has_an_order_of_its_own(
    n: int, weights: tuple[int, int], first: tuple[float, float], second: tuple[float, float], step_s: Pair
) -> None:
    """The order follows from n and the weights, not from the timing, and both sides are used evenly from the start."""
    one, other = play(WRR(weights), n, *first), play(WRR(weights), n, *second, store=1, step_s=step_s)
    assert one.indices == other.indices
    head, tail = weights
    for used in range(n + 1):
        tails = sum(claim.side is TAIL for claim in one.order[:used])
        assert abs(tails - used * tail / (head + tail)) <= 1


def test_wrr_calibrated_gives_a_slow_tail_little() -> None:
    """A tail ten thousand times slower gets no share that the epoch would wait for."""
    rates = play(WRR("calibrated"), 200, 1.0, 3.0).rates
    assert play(WRR("calibrated"), 1000, 1.0, 3.0, rates=rates).count(TAIL) == pytest.approx(250, abs=2)
    assert play(WRR("calibrated"), 500, 1.0, 1e4).seconds <= 501


@pytest.mark.parametrize("weights", [(0, 0), (-1, 2), (1,), "fair"])
def test_wrr_refuses_senseless_weights(weights: Any) -> None:
    """The message shows what was given."""
    with pytest.raises(UsageError, match="weights must be"):
        WRR(weights)


# --- Replay ----------------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    n=st.integers(0, 60),
    first=st.tuples(SECONDS, SECONDS),
    second=st.tuples(SECONDS, SECONDS),
    step_s=st.builds(Pair, SECONDS, SECONDS),
)
def test_replay_repeats_any_wrr_order(
    n: int, first: tuple[float, float], second: tuple[float, float], step_s: Pair
) -> None:
    """However fast the sides are today, batches come in the recorded order, from the recorded sides.

    `row` says which batch lies at which place of the row; the loader arranges the row before the epoch.
    """
    record = play(WRR(), n, *first, step_s=step_s).record
    replay = Replay(record)
    again = play(replay, n, *second)
    assert tuple(replay.row[index] for index in again.indices) == record.batches
    assert tuple(claim.side for claim in again.order) == record.sides


@pytest.mark.parametrize(
    "policy",
    [Replay(Order(tuple(range(20)), (HEAD, TAIL, HEAD, HEAD) * 5)), WRR((3, 1)), WRR((1, 2)), MTE(split=0.3)],
    ids=repr,
)
@pytest.mark.parametrize("used", range(0, 21, 4))
def test_an_order_of_its_own_survives_a_break(policy: Policy, used: int) -> None:
    """Stopped after any number of batches and resumed from the state, the order goes on as if nothing had been."""
    queue = DualEndedQueue(20)
    before = first_of(queue, policy, used)
    after = first_of(DualEndedQueue.restore(queue.state()), policy, 20 - used)
    assert before + after == play(policy, 20, 1.0, 1.0).indices


def first_of(queue: DualEndedQueue, policy: Policy, count: int) -> list[int]:
    """The first `count` batches of an epoch that then breaks off."""
    used: list[int] = []

    async def main() -> None:
        devices = [ScriptedDevice(HEAD, 1.0, store_batches=6), ScriptedDevice(TAIL, 2.5)]
        for device in devices:
            await device.open(NO_JOB)
        epoch = Epoch(queue, devices, policy, ScriptedCarry(), timeout=None)

        async def use(batch: Delivered) -> None:
            if len(used) == count:
                raise StopAsyncIteration
            used.append(batch.claim.index)
            epoch.settle(batch)

        with contextlib.suppress(ExceptionGroup):
            await epoch.run(use)

    run_virtual(main())
    assert len(used) == count
    return used


def test_replay_refuses_another_epoch_s_length() -> None:
    """Both lengths are in the message."""
    record = play(WRR(), 10, 1.0, 1.0).record
    message = refusal(Replay(record), 11, 1.0, 1.0)
    assert "10" in message
    assert "11" in message


def test_replay_refuses_what_is_not_a_whole_order() -> None:
    """Part of an epoch, or something else, cannot be replayed."""
    with pytest.raises(UsageError, match="whole epoch"):
        Replay(Order((0, 2), (HEAD, TAIL)))
    with pytest.raises(UsageError, match="not list"):
        Replay([0, 1, 2])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (MTE(), "MTE(calibration_batches=10, split='balanced', fit_store=False)"),
        (WRR((3, 1)), "WRR(weights=(3, 1))"),
        (Replay(Order((0, 1), (HEAD, TAIL))), "Replay(<Order of 2 batches, 1 from the head>)"),
    ],
)
def test_reprs_say_how_the_policy_was_made(policy: Policy, text: str) -> None:
    """One line with every choice."""
    assert repr(policy) == text


@pytest.mark.parametrize(
    ("policy", "tail"),
    [(MTE(split=0.5), 50), (MTE(split=0.2), 20), (WRR((4, 1)), 20), (WRR((1, 1)), 50), (WRR([4, 1]), 20)],
)
def test_a_resumed_epoch_divides_what_is_left(policy: Any, tail: int) -> None:
    """A state of another policy, resumed: the shares are of the batches that are left, wherever these lie."""
    queue = DualEndedQueue.restore({"n": 200, "boundary": None, "left": [[100, 200]]})
    run = run_virtual(rehearse(queue, [ScriptedDevice(HEAD, 0.01), ScriptedDevice(TAIL, 0.01)], policy))
    assert sum(claim.side is TAIL for claim in run.order) == tail
    assert sorted(claim.index for claim in run.order) == list(range(100, 200))
