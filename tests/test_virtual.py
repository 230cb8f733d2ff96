"""The laws of virtual time: exact, deterministic, never waiting for anything real, and tidy at the end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddlp.testing.virtual import Deadlock, OutOfTime, RealWorld, Untidy, run_virtual

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


def now() -> float:
    return asyncio.get_running_loop().time()


@given(st.lists(st.floats(0, 1e6), max_size=20))
def test_sleepers_wake_exactly_when_they_said(delays: list[float]) -> None:
    """Each at its own time, to the last bit, and so in order of time."""
    woken: list[float] = []

    async def sleeper(delay: float) -> None:
        await asyncio.sleep(delay)
        assert now() == delay
        woken.append(delay)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for delay in delays:
                group.create_task(sleeper(delay))

    run_virtual(main())
    assert woken == sorted(delays)


@pytest.mark.parametrize("start", [0.0, 1.0, 1e9, 1e15])
def test_time_moves_however_late_it_is(start: float) -> None:
    """A step that the clock's float can just show is waited for, at any time of the day or the aeon."""

    async def main() -> float:
        await asyncio.sleep(start)
        step = max(1e-9, start * 2.0**-50)
        for _ in range(10):
            await asyncio.sleep(step)
        return now() - start

    assert 0 < run_virtual(main(), max_turns=100) <= max(1e-7, start * 2.0**-46)


def test_years_pass_in_no_time() -> None:
    """Waiting costs nothing, also beyond the longest wait of a selector."""
    begun = time.perf_counter()

    async def main() -> float:
        await asyncio.sleep(3e8)
        return now()

    assert run_virtual(main()) == 3e8
    assert time.perf_counter() - begun < 5


def test_timeouts_and_groups_work() -> None:
    """asyncio's own tools run unchanged."""

    async def main() -> float:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(2))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.5):
                    await asyncio.Event().wait()
            assert now() == 1.5
        return now()

    assert run_virtual(main()) == 2


def test_a_deadlock_says_where_everybody_waits() -> None:
    """Task names and the chain of frames down to the last await, through async generators too."""

    async def numbers() -> AsyncIterator[int]:
        await asyncio.Event().wait()
        yield 1

    async def reader() -> None:
        async for _ in numbers():
            pass

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(reader(), name="the reader")

    with pytest.raises(Deadlock) as caught:
        run_virtual(main())
    (line,) = [line for line in str(caught.value).splitlines() if "the reader" in line]
    assert [link.split(" (")[0].rpartition(".")[2] for link in line.split(" > ")] == ["reader", "numbers", "wait"]
    assert "test_virtual.py:" in line


def test_limits_end_what_does_not_end() -> None:
    """`max_seconds` ends what waits too long, `max_turns` what runs in circles; both say who."""

    async def circle(seconds: float) -> None:
        await asyncio.sleep(seconds)
        await circle(seconds)

    with pytest.raises(OutOfTime, match=r"(?s)beyond 100 s.*circle"):
        run_virtual(circle(7.0), max_seconds=100)
    with pytest.raises(OutOfTime, match=r"(?s)after 51 turns.*circle"):
        run_virtual(circle(0.0), max_turns=50)


def test_leftovers_are_cancelled_and_told() -> None:
    """A task that outlives the main one is ended, and is an error even when the main one succeeds or fails."""
    ended: list[str] = []

    async def stray() -> None:
        try:
            await asyncio.sleep(1e9)
        finally:
            ended.append("stray")

    async def main(failing: bool) -> None:
        main.task = asyncio.ensure_future(stray())  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        if failing:
            raise KeyError("mine")

    with pytest.raises(Untidy, match="stray"):
        run_virtual(main(failing=False))
    with pytest.raises(Untidy, match="stray") as caught:
        run_virtual(main(failing=True))
    assert type(caught.value.__cause__) is KeyError
    assert ended == ["stray", "stray"]


def test_an_exception_that_nobody_saw_is_told() -> None:
    """What asyncio would only log is an error here."""

    async def failing() -> None:
        raise KeyError("unseen")

    async def main() -> None:
        task = asyncio.ensure_future(failing())
        await asyncio.sleep(1)
        assert task.done()

    with pytest.raises(Untidy, match="KeyError"):
        run_virtual(main())


async def _call_from_a_thread() -> None:
    loop = asyncio.get_running_loop()
    errors: list[Exception] = []

    def call() -> None:
        try:
            loop.call_soon_threadsafe(print)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    raise errors[0]


@pytest.mark.parametrize(
    "real",
    [
        lambda: asyncio.to_thread(print),
        lambda: asyncio.open_connection("localhost", 1),
        lambda: asyncio.create_subprocess_exec("true"),
        lambda: asyncio.get_running_loop().getaddrinfo("localhost", 1),
        _call_from_a_thread,
    ],
)
def test_the_real_world_is_refused(real: Callable[[], Any]) -> None:
    """Threads, sockets and processes do not live in virtual time."""

    async def main() -> None:
        await real()

    with pytest.raises(RealWorld, match="virtual time"):
        run_virtual(main())


def test_the_caller_s_event_loop_is_left_alone() -> None:
    """Neither a running loop nor a current loop is left behind."""
    code = "\n".join(
        [
            "import asyncio",
            "from ddlp.testing.virtual import run_virtual",
            "assert run_virtual(asyncio.sleep(5, 'done')) == 'done'",
            "assert asyncio._get_running_loop() is None",
            "assert asyncio.get_event_loop_policy()._local._loop is None",
        ]
    )
    subprocess.run([sys.executable, "-W", "ignore::DeprecationWarning", "-c", code], check=True, timeout=30)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=12))
def test_the_same_program_has_the_same_history(steps: list[tuple[int, int]]) -> None:
    """Every run makes the same turns at the same times."""

    async def worker(number: int, log: list[Any], lock: asyncio.Lock) -> None:
        async with lock:
            await asyncio.sleep(steps[number][0])
        await asyncio.sleep(steps[number][1])
        log.append((now(), number))

    async def main() -> list[Any]:
        log: list[Any] = []
        lock = asyncio.Lock()
        async with asyncio.TaskGroup() as group:
            for number in range(len(steps)):
                group.create_task(worker(number, log, lock))
        return log

    assert run_virtual(main()) == run_virtual(main())
