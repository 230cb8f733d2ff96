"""How batches cross from the background thread to the training loop, whatever the training loop does."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from ddlp.bridge import LoopThread, Stream
from ddlp.engine import Epoch
from ddlp.errors import BatchTimeout, ClosedError, SampleError
from ddlp.policies.wrr import WRR
from ddlp.queue import DualEndedQueue
from ddlp.testing.scripted import NO_JOB, Fault, ScriptedCarry, ScriptedDevice
from ddlp.types import HEAD

if TYPE_CHECKING:
    from collections.abc import Iterator


class Run:
    """One scripted epoch on a background thread of its own."""

    def __init__(self, n: int, *, prefetch: int = 2, timeout: float | None = 5.0, **script: Any) -> None:
        self.thread = LoopThread.acquire(self, self._nothing)
        self.device = ScriptedDevice(HEAD, **{"store_batches": 8, **script})
        self.queue = DualEndedQueue(n)
        self.stream = Stream(self.thread, prefetch, timeout, lambda batch: batch)
        self.ended = threading.Event()
        self.stream.begin(self._epoch(timeout))

    async def _nothing(self) -> None:
        self.thread.release(self)

    async def _epoch(self, timeout: float | None) -> None:
        error: BaseException | None = None
        try:
            await self.device.open(NO_JOB)
            await self.stream.run(Epoch(self.queue, [self.device], WRR(), ScriptedCarry(), timeout=timeout))
        except BaseException as caught:
            error = caught
        finally:
            self.stream.clear()
            self.stream.finish(error)
            self.ended.set()

    def plain(self) -> Iterator[int]:
        while True:
            try:
                yield self.stream.take().claim.index
            except StopIteration:
                return

    def close(self) -> None:
        self.stream.close()
        assert self.ended.wait(5.0), "the epoch did not end"
        self.thread.release(self)
        if self.thread.ending:
            self.thread.join()


@pytest.fixture
def start() -> Iterator[Any]:
    runs: list[Run] = []

    def begin(*args: Any, **kwargs: Any) -> Run:
        runs.append(Run(*args, **kwargs))
        return runs[-1]

    yield begin
    for run in runs:
        run.close()
        assert not run.device.violations
    assert not any(thread.name == "ddlp" for thread in threading.enumerate()), "the background thread stayed"


@pytest.mark.parametrize("prefetch", [1, 2, 7])
def test_a_plain_loop_gets_every_batch_once_and_then_only_the_end(start: Any, prefetch: int) -> None:
    """Every batch, in order, and StopIteration as often as one asks after that; everything is settled."""
    run = start(300, prefetch=prefetch)
    assert list(run.plain()) == list(range(300))
    for _ in range(2):
        with pytest.raises(StopIteration):
            run.stream.take()
    assert run.queue.finished
    assert not run.device.stored


def test_the_mailbox_holds_at_most_prefetch_batches(start: Any) -> None:
    """A training loop that takes nothing is given `prefetch` finished batches, and no more are fetched."""
    run = start(50, prefetch=3)
    time.sleep(0.05)
    assert len(run.stream._mailbox) == 3
    assert run.queue.view().taken == 3


def test_a_wait_that_times_out_again_and_again_loses_nothing(start: Any) -> None:
    """`wait_for(anext, short)` in a loop, then going on, still gives every index: python/asyncio#201 and its kind."""
    run = start(12, make_s=0.02, prefetch=1)
    timeouts = 0

    async def consume() -> list[int]:
        nonlocal timeouts
        got: list[int] = []
        while True:
            try:
                got.append((await asyncio.wait_for(run.stream.atake(), 0.004)).claim.index)
            except TimeoutError:
                timeouts += 1
            except StopAsyncIteration:
                return got

    assert asyncio.run(consume()) == list(range(12))
    assert timeouts > 5


def test_a_cancelled_task_leaves_its_batch_to_the_next(start: Any) -> None:
    """Cancelling the task that waits for a batch, at many different moments, never swallows one."""
    run = start(60, make_s=0.002, prefetch=2)

    async def consume() -> list[int]:
        got: list[int] = []
        for delay in range(10_000):
            task = asyncio.ensure_future(run.stream.atake())
            await asyncio.sleep((delay % 7) * 0.0004)
            task.cancel()
            try:
                got.append((await task).claim.index)
            except asyncio.CancelledError:
                continue
            except StopAsyncIteration:
                return got
        raise AssertionError("does not end")

    assert asyncio.run(consume()) == list(range(60))


def test_the_consumer_may_be_any_thread(start: Any) -> None:
    """A training loop on another thread than the one that made the loader works the same."""
    run = start(40)
    got: list[int] = []
    worker = threading.Thread(target=lambda: got.extend(run.plain()))
    worker.start()
    worker.join(5.0)
    assert got == list(range(40))


def test_an_epoch_that_is_closed_early_ends_and_frees_the_store(start: Any) -> None:
    """After close() in the middle nothing is left in any store, and who asks again is told why nothing comes."""
    run = start(1000)
    for _ in range(10):
        run.stream.take()
    run.stream.close()
    assert run.ended.wait(5.0)
    assert not run.device.stored
    with pytest.raises(ClosedError):
        list(run.plain())


def test_what_ends_the_epoch_reaches_the_training_loop(start: Any) -> None:
    """The error of a sample comes out of the loop, and comes again when one asks again."""
    run = start(50, faults={20: Fault.DATA}, depth=1)
    with pytest.raises(ExceptionGroup) as caught:
        list(run.plain())
    assert caught.group_contains(SampleError)
    with pytest.raises(ExceptionGroup):
        run.stream.take()


def test_a_wait_has_an_end_and_says_who_has_what(start: Any) -> None:
    """Nothing within the timeout raises BatchTimeout, which names the device and the batch; asking again goes on."""
    run = start(3, make_s=0.3, depth=1, timeout=None)
    run.stream._timeout = 0.05
    with pytest.raises(BatchTimeout, match=r"scripted-head makes \[0\]"):
        run.stream.take()
    run.stream._timeout = 5.0
    assert list(run.plain()) == [0, 1, 2]


def test_waiting_is_counted(start: Any) -> None:
    """`wait_s` is the time that the loop waited, and not the time that it worked."""
    run = start(5, make_s=0.02)
    for _ in run.plain():
        time.sleep(0.04)
    assert 0.01 < run.stream.wait_s < 0.15
    assert run.stream.seconds > 0.2


def test_a_forked_child_is_told_so() -> None:
    """In a fork neither thread nor workers exist: using the loader there raises at once, and the parent goes on."""
    owner = object()

    async def nothing() -> None: ...

    thread = LoopThread.acquire(owner, nothing)
    try:
        real, thread.pid = thread.pid, os.getpid() + 1
        with pytest.raises(ClosedError, match="fork"):
            thread.check_process()
        thread.pid = real
        thread.check_process()
    finally:
        thread.release(owner)
        thread.join()


def test_the_thread_is_shared_and_ends_with_its_last_user() -> None:
    """Two users share one thread; it stays for the one when the other goes."""
    first, second = object(), object()

    async def nothing() -> None: ...

    thread = LoopThread.acquire(first, nothing)
    assert LoopThread.acquire(second, nothing) is thread
    thread.release(first)
    assert thread.ask(lambda: 1 + 1) == 2
    thread.release(second)
    thread.join()
    assert not any(other.name == "ddlp" for other in threading.enumerate())
    gc.collect()
