"""The promises of ddlp as functions that raise AssertionError: for the tests of ddlp, and of your own driver."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

from ddlp.testing.virtual import run_virtual

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator

    from ddlp.testing.scripted import ScriptedDevice


def exactly_once(indices: Iterable[int], n: int) -> None:
    """Each of 0..n-1 is there once, in whatever order."""
    counts = Counter(indices)
    missing = [index for index in range(n) if index not in counts]
    twice = sorted(index for index, count in counts.items() if count > 1)
    foreign = sorted(index for index in counts if not 0 <= index < n)
    wrong = missing or twice or foreign
    assert not wrong, f"of {n} batches: missing {missing}, more than once {twice}, foreign {foreign}"


def clean(device: ScriptedDevice) -> None:
    """The device was used by the contract, its store never overflowed, and nothing is left in it."""
    assert not device.violations, f"{device.name}: {device.violations}"
    assert not device.stored, f"{device.name} still holds {[str(ref.claim) for ref in device.stored.values()]}"


def cancel_everywhere(make: Callable[[], Coroutine[Any, Any, Any]], check: Callable[[], None] | None = None) -> int:
    """Run `make()` in virtual time again and again, cancelled a turn of the event loop later each time.

    So the cancellation arrives at every await of every task that the coroutine starts. Each run must end with
    CancelledError, leave no task behind, and satisfy `check()`. The last run is not cancelled, and must succeed.
    Returns the number of runs that were cancelled.
    """
    turn = 1
    while _cancelled_at_turn(make(), turn):
        if check is not None:
            check()
        turn += 1
    if check is not None:
        check()
    return turn - 1


def _cancelled_at_turn(main: Coroutine[Any, Any, Any], turn: int) -> bool:
    task: asyncio.Task[Any] | None = None
    asked = False

    async def body() -> None:
        nonlocal task
        task = asyncio.current_task()
        await main

    def on_turn(number: int) -> None:
        nonlocal asked
        if number > turn and not asked and task is not None:
            asked = task.cancel()

    try:
        run_virtual(body(), on_turn=on_turn)
    except asyncio.CancelledError:
        assert asked, "it was cancelled from inside"
    else:
        assert not asked, f"the cancellation at turn {turn} was swallowed"
    return asked


async def cancel_at_every_await(
    make: Callable[[], Coroutine[Any, Any, Any]], check: Callable[[], None] | None = None
) -> int:
    """Await `make()` again and again in this very task, cancelled at its first, second, ... suspension.

    For drivers, in real time. Each run must end with CancelledError and satisfy `check()`; the last one is not
    cancelled, and must succeed. Returns the number of runs that were cancelled.
    """
    suspension = 1
    while await _cancelled_at_suspension(make(), suspension):
        if check is not None:
            check()
        suspension += 1
    if check is not None:
        check()
    return suspension - 1


async def _cancelled_at_suspension(main: Coroutine[Any, Any, Any], suspension: int) -> bool:
    task = asyncio.current_task()
    assert task is not None
    stepped = _CancelledAt(main, suspension, task)
    try:
        await stepped
    except asyncio.CancelledError:
        if not stepped.asked:
            raise
        task.uncancel()
    else:
        assert not stepped.asked, f"the cancellation at suspension {suspension} was swallowed"
    return stepped.asked


class _CancelledAt:
    """Awaits a coroutine, and cancels the task when the coroutine suspends for the n-th time."""

    def __init__(self, main: Coroutine[Any, Any, Any], suspension: int, task: asyncio.Task[Any]) -> None:
        self._main = main
        self._left = suspension
        self._task = task
        self.asked = False

    def __await__(self) -> Generator[Any, Any, Any]:
        step, argument = self._main.send, None
        while True:
            try:
                awaited = step(argument)
            except StopIteration as end:
                return end.value
            self._count()
            try:
                step, argument = self._main.send, (yield awaited)
            except BaseException as error:  # whatever comes must reach the coroutine
                step, argument = self._main.throw, error

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.asked = self._task.cancel()


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """What the block opens it also closes: file descriptors, child processes, threads. Linux."""
    before = _held()
    yield
    left = {kind: held - before[kind] for kind, held in _held().items() if held - before[kind]}
    assert not left, f"left behind: {left}"


def _held() -> dict[str, set[str]]:
    return {
        "file descriptors": set(_descriptors()),
        "child processes": set(_children()),
        "threads": {thread.name for thread in threading.enumerate()},
    }


def _descriptors() -> Iterator[str]:
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own descriptor is closed again
            yield f"{descriptor}: {os.readlink(f'/proc/self/fd/{descriptor}')}"


def _children() -> Iterator[str]:
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/children") as children:
            yield from children.read().split()
