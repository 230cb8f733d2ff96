"""The laws of tuning: the best number of workers is found and kept, and the pool follows without losing a batch."""

from __future__ import annotations

import asyncio
import math
import os
import random
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ddlp
from ddlp.data.room import cores
from ddlp.devices import cpu
from ddlp.devices.cpu import CpuPool
from ddlp.devices.tuning import LONGEST_REST, WINDOW_S, Tuner
from ddlp.errors import BatchFailed, UsageError
from tests.conftest import processes
from tests.devices import samples
from tests.devices.conftest import opened, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


# --- virtual time ----------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """Batches as so many workers make them, and a training loop uses them, per second; both differ a little each time.

    pauses  length of a pause of the loop every 50 s
    """

    tuner: Tuner
    capacity: Callable[[int], float]
    use: float = math.inf
    pauses: float = 0.0
    seed: int = 0
    now: float = 0.0
    batches: int = 0
    numbers: list[int] = field(default_factory=list)

    def on(self, seconds: float) -> Run:
        """Go on for so long."""
        chance, end = random.Random(self.seed), self.now + seconds
        while self.now < end:
            rate = min(self.capacity(self.tuner.workers), self.use)
            before, self.now = self.now, self.now + chance.uniform(0.7, 1.3) / rate
            if self.pauses and self.now // 50 > before // 50:
                self.now += self.pauses
            self.batches += 1
            self.tuner.made(self.now)
            self.numbers.append(self.tuner.workers)
        return self

    @property
    def changes(self) -> int:
        return sum(one != other for one, other in zip(self.numbers, self.numbers[1:], strict=False))


@pytest.mark.parametrize("most", [2, 3, 8, 64])
@pytest.mark.parametrize("seed", range(3))
def test_what_every_worker_makes_faster_keeps_all(most, seed):
    """Where each worker adds its share, all are kept, and looking for better costs less than a twentieth."""
    run = Run(Tuner(most), lambda n: 5.0 * n, seed=seed).on(600)
    assert run.tuner.home == most
    assert run.batches > 600 * 5 * most * (1 - 1 / 20)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("most", "enough"), [(2, 1), (8, 3), (16, 5), (64, 20)])
def test_where_training_is_slower_fewer_are_enough(most, enough, seed):
    """When the loop uses no more than some workers make, about so many are left, and the loop is not slowed down."""
    run = Run(Tuner(most), lambda n: 5.0 * n, use=5.0 * enough - 1, seed=seed).on(600)
    assert enough <= run.tuner.home <= enough + max(1, enough // 4)
    assert run.batches > 600 * run.use * 0.98


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("best", [1, 5, 11])
def test_the_peak_is_found(best, seed):
    """Where more workers are in each other's way, the number at the peak is found, as near as steps of an eighth go."""
    run = Run(Tuner(12), lambda n: 30.0 / (1 + 0.2 * abs(n - best)), seed=seed).on(600)
    assert abs(run.tuner.home - best) <= best // 8


@pytest.mark.parametrize("seed", range(3))
def test_what_is_given_up_for_fewer_is_bounded(seed):
    """Where each further worker helps less, step after step never leads far below what all of them make."""
    run = Run(Tuner(16), lambda n: 20.0 * n**0.3, seed=seed).on(3600)
    assert run.capacity(run.tuner.home) > 0.9 * run.capacity(16)


def test_a_changed_load_is_noticed():
    """When training gets faster more workers come, and when it gets slower they go, in a few minutes."""
    run = Run(Tuner(16), lambda n: 5.0 * n, use=20.0).on(300)
    assert run.tuner.home in (4, 5)
    run.use = 70.0
    assert run.on(300).tuner.home >= 13
    run.use = 20.0
    assert run.on(300).tuner.home <= 6


def test_it_comes_to_rest():
    """After a while it hardly tries any more: once in LONGEST_REST windows."""
    run = Run(Tuner(8), lambda n: 5.0 * n).on(600)
    run.numbers.clear()
    run.on(LONGEST_REST * WINDOW_S * 10)
    assert 2 <= run.changes <= 20
    assert run.tuner.home == 8


def test_pauses_of_the_loop_are_not_the_workers_fault():
    """A loop that stops for validation now and then does not change what is best."""
    run = Run(Tuner(8), lambda n: 5.0 * n, pauses=30.0).on(1200)
    assert run.tuner.home == 8
    assert run.changes < 30


def test_a_single_core_is_left_alone():
    """With one core there is nothing to be found."""
    assert Run(Tuner(1), lambda n: 10.0 * n).on(100).changes == 0


@given(st.integers(1, 70), st.lists(st.floats(0, 5), max_size=400))
def test_it_never_leaves_its_bounds(most, intervals):
    """Whatever the times are: at least one worker, at most `most`, and none ended that may be needed."""
    tuner, now = Tuner(most), 0.0
    for interval in intervals:
        before, now = tuner.workers, now + interval
        tuner.made(now)
        assert 1 <= tuner.workers <= tuner.wanted <= most
        assert tuner.home <= tuner.wanted
        assert abs(tuner.workers - before) <= 2 * -(-most // 8)


def test_the_same_times_give_the_same_numbers():
    """It has no chance and no clock of its own."""
    runs = [Run(Tuner(9), lambda n: 7.0 * n, use=40.0, seed=4).on(200) for _ in range(2)]
    assert runs[0].numbers == runs[1].numbers


# --- processes -------------------------------------------------------------------------------------------------------

real = [pytest.mark.real, pytest.mark.usefixtures("nothing_left")]


class Told:
    """A tuner that says what it was told to."""

    def __init__(self, workers: int) -> None:
        self.times = 0
        self.say(workers)

    def say(self, workers: int, wanted: int = 0) -> None:
        self.workers, self.wanted = workers, max(workers, wanted)

    def made(self, now: float) -> None:
        self.times += 1


def told(workers: int, monkeypatch: pytest.MonkeyPatch) -> tuple[CpuPool, Told]:
    """A pool of at most three workers that begins with so many, and what tells it how many there should be."""
    monkeypatch.setattr(cpu, "cores", lambda chosen: 3)
    pool, tuner = CpuPool("auto"), Told(workers)
    pool._tuner, pool._workers = tuner, workers  # type: ignore[assignment]
    return pool, tuner


async def epochs_until(condition: Callable[[], object], work, pool: CpuPool) -> None:
    """Make right batches until it is true."""
    while not condition():
        check(await work.epoch_of(pool), work)


def check(batches: Iterable, work) -> None:
    for index, (_, numbers) in enumerate(batches):
        assert numbers == work.plan.ids(index).tolist()


@pytest.mark.real
@pytest.mark.usefixtures("nothing_left")
def test_workers_come_and_go_while_batches_are_made(run, work, monkeypatch):
    """Added workers start beside the work and are asked once they are open; those retired end; no batch is lost."""

    async def main() -> None:
        pool, tuner = told(1, monkeypatch)
        async with opened(pool, work):
            for workers in (3, 1, 2, 3):
                tuner.say(workers)
                await epochs_until(lambda: len(pool._working()) == workers == len(processes()), work, pool)  # noqa: B023
                check(await work.epoch_of(pool), work)
                assert pool.workers == workers
            assert pool.statistics().failed == pool.statistics().restarts == 0

    run(main())


@pytest.mark.real
@pytest.mark.usefixtures("nothing_left")
def test_while_fewer_are_tried_the_others_rest(run, work, monkeypatch):
    """A worker that may be needed again is not asked, and not ended; when another dies it takes its place."""

    async def main() -> None:
        pool, tuner = told(2, monkeypatch)
        async with opened(pool, work):
            first, second = pool._agents
            tuner.say(1, wanted=2)
            await work.epoch_of(pool)
            asked = []
            monkeypatch.setattr(second.connection, "make", asked.append)
            check(await work.epoch_of(pool), work)
            assert not asked
            assert len(processes()) == 2
            monkeypatch.undo()
            os.kill(first.pid, signal.SIGKILL)
            await until(lambda: len(processes()) == 1)
            check(await work.epoch_of(pool), work)

    run(main())


@pytest.mark.real
@pytest.mark.usefixtures("nothing_left")
def test_a_worker_that_died_is_not_replaced_at_once(run, work_of, monkeypatch):
    """What kills workers gets no new one before the next `open`, as without tuning."""

    async def main() -> None:
        work = work_of(samples.Unlucky("be_killed"))
        pool, _ = told(2, monkeypatch)
        async with opened(pool, work):
            with pytest.raises(BatchFailed):
                await pool.preprocess(work.claim_of(7))
            good = next(i for i in range(len(work.plan)) if 7 not in work.plan.ids(i))
            await work.batch(pool, good)
            assert len(processes()) == 1
            await pool.open(work.job())
            assert len(processes()) == 2
            assert pool.statistics().restarts == 1

    run(main())


@pytest.mark.real
@pytest.mark.usefixtures("nothing_left")
def test_a_worker_that_cannot_start_changes_nothing(run, work_of, monkeypatch):
    """One that cannot open the data set, or for which there is no process, is done without; no batch fails."""

    async def main() -> None:
        work = work_of(samples.Rows(), worker_init_fn=samples.fail_to_start_the_second)
        pool, tuner = told(1, monkeypatch)
        async with opened(pool, work):
            tuner.say(2)
            await work.epoch_of(pool)
            await until(lambda: pool._agents[1].connection._opened.done())
            check(await work.epoch_of(pool), work)
            assert len(pool._working()) == 1
            monkeypatch.setattr(cpu, "AgentProcess", refused)
            tuner.say(3)
            check(await work.epoch_of(pool), work)
            assert pool.statistics().failed == 0

    run(main())


def refused(*_: object, **__: object) -> None:
    raise BlockingIOError("no more processes")


@pytest.mark.real
@pytest.mark.usefixtures("nothing_left")
def test_a_pace_is_not_measured_while_a_worker_starts(run, work, monkeypatch):
    """What is measured is the pace of as many workers as were tried."""

    async def main() -> None:
        pool, tuner = told(1, monkeypatch)
        async with opened(pool, work):
            await work.batch(pool, 0)
            assert tuner.times == 1
            tuner.say(2)
            await work.batch(pool, 1)
            assert tuner.times == 1
            await epochs_until(lambda: len(pool._working()) == 2, work, pool)
            times = tuner.times
            await work.batch(pool, 1)
            assert tuner.times == times + 1

    run(main())


@pytest.mark.real
@pytest.mark.usefixtures("nothing_left")
def test_cancelling_while_a_worker_starts_leaves_no_process(run, work, monkeypatch):
    """However early a batch is given up that was about to add a worker: the pool works on, and closes."""

    async def main() -> None:
        pool, tuner = told(1, monkeypatch)
        async with opened(pool, work):
            for turns in range(6):
                tuner.say(2)
                task = asyncio.ensure_future(pool.preprocess(work.claim(0)))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                tuner.say(1)
                check(await work.epoch_of(pool), work)

    run(main())


@pytest.mark.real
@pytest.mark.usefixtures("nothing_left")
def test_a_loader_tunes_by_itself(monkeypatch):
    """num_workers="auto" delivers whole epochs, with a worker for each core at first."""
    data = ddlp.ArrayDataset(np.arange(400))
    with ddlp.Loader(data, batch_size=4, num_workers="auto") as loader:
        for _ in range(2):
            assert sorted(int(value) for (batch,) in loader for value in batch) == list(range(400))
        assert len(processes()) == cores()


@pytest.mark.real
@pytest.mark.usefixtures("nothing_left")
def test_a_worker_uses_one_core(run, work_of):
    """Numerical libraries are told to use one thread in a worker, whatever the user's own setting is."""

    async def main() -> None:
        work = work_of(samples.Threads())
        async with opened(CpuPool(1), work) as pool:
            ref = await pool.preprocess(work.claim(0))
            assert (await work.arrays(ref))[0].tolist() == [1] * 10

    run(main())


@pytest.mark.parametrize("workers", ["many", 0, 1.5])
def test_a_number_or_auto(workers):
    """Anything else is a UsageError."""
    with pytest.raises(UsageError, match="auto"):
        CpuPool(workers)


def test_capabilities_are_those_of_all_workers():
    """The pool takes as many claims as it can ever need, however many work."""
    assert CpuPool("auto").capabilities == CpuPool(cores()).capabilities
