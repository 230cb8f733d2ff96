"""The laws themselves: each one catches what it is there to catch."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from typing import TYPE_CHECKING

import pytest

from ddlp.testing.laws import cancel_at_every_await, cancel_everywhere, exactly_once, nothing_left

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


def test_exactly_once_names_what_is_wrong() -> None:
    """Missing, repeated and foreign batches, each by number."""
    exactly_once([2, 0, 1], 3)
    exactly_once([], 0)
    with pytest.raises(AssertionError, match=r"missing \[1\], more than once \[2\], foreign \[7\]"):
        exactly_once([2, 0, 2, 7], 3)


async def steps(log: list[str]) -> None:
    """Five awaits, in a child task too, that clean up behind themselves."""
    log.append("begin")
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(3))
            await asyncio.sleep(1)
            await asyncio.sleep(0)
        await asyncio.sleep(1)
    finally:
        log.append("end")


def test_cancel_everywhere_reaches_every_await() -> None:
    """Each run is cancelled a little later than the one before, and checked; the last runs through."""
    log: list[str] = []
    checks: list[int] = []

    def check() -> None:
        assert log.count("begin") == log.count("end")
        checks.append(log.count("begin"))

    cancelled = cancel_everywhere(lambda: steps(log), check)
    assert cancelled >= 4
    assert checks == list(range(1, cancelled + 2))


def test_cancel_at_every_await_counts_the_awaits() -> None:
    """In real time and in one task: one run per suspension, and one that runs through."""
    seen: list[int] = []

    async def three() -> None:
        for number in range(3):
            seen.append(number)
            await asyncio.sleep(0.001 * (number % 2))

    async def main() -> int:
        count = await cancel_at_every_await(three)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        return count

    assert asyncio.run(main()) == 3
    assert seen == [0, 0, 1, 0, 1, 2, 0, 1, 2]


async def stubborn() -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(1)


async def translating() -> None:
    try:
        await asyncio.sleep(1)
    except asyncio.CancelledError:
        raise KeyError("it was cancelled") from None


@pytest.mark.parametrize(("make", "error"), [(stubborn, AssertionError), (translating, KeyError)])
def test_a_cancellation_that_does_not_arrive_is_caught(
    make: Callable[[], Coroutine[None, None, None]], error: type[Exception]
) -> None:
    """Swallowed, or turned into something else: both runners say so."""
    with pytest.raises(error):
        cancel_everywhere(make)
    with pytest.raises(error):
        asyncio.run(_at_every_await(make))


async def _at_every_await(make: Callable[[], Coroutine[None, None, None]]) -> None:
    await cancel_at_every_await(make)


def test_nothing_left_finds_descriptors_and_threads() -> None:
    """What the block leaves open is named; what it closes is not."""
    with nothing_left():
        os.close(os.open("/dev/null", os.O_RDONLY))
    with pytest.raises(AssertionError, match="/dev/null"), nothing_left():
        opened = os.open("/dev/null", os.O_RDONLY)
    os.close(opened)
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="forgotten")
    with pytest.raises(AssertionError, match="forgotten"), nothing_left():
        thread.start()
    end.set()
    thread.join()
