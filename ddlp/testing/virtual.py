"""An asyncio event loop in virtual time: a day of waiting takes as long as its callbacks do.

When callbacks are ready they run, in asyncio's own order; when none is, time jumps to the next timer; when there is no
timer either, nothing can ever happen again and the loop raises `Deadlock`, which says where every task waits. The same
program always gives the same history. Sockets, threads, signals and processes do not live in virtual time and are
refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import threading
from asyncio.base_events import BaseEventLoop
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

T = TypeVar("T")


class Stuck(AssertionError):
    """The program under test does not end. The message lists every task and where it waits."""


class Deadlock(Stuck):
    """Every task waits, and no timer is left that could wake one."""


class OutOfTime(Stuck):
    """The program wanted to wait beyond `max_seconds`, or to run for more than `max_turns`."""


class Untidy(AssertionError):
    """The program ended and left tasks running, or an exception that nobody looked at."""


class RealWorld(RuntimeError):
    """A thread, socket, signal or process was asked for in virtual time."""


def _refused(verb: str) -> Any:
    def refuse(*_args: object, **_kwargs: object) -> NoReturn:
        raise RealWorld(f"{verb} is not possible in virtual time; use a scripted device, or a real loop")

    return refuse


class _Clock:
    """Stands where a loop has its selector: it is asked to wait, once per turn, and moves time instead."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> tuple[()]:
        self._loop.turn(timeout)
        return ()


class VirtualLoop(BaseEventLoop):
    """`time()` starts at zero and moves only when nothing else can. `on_turn` is told the number of each turn."""

    def __init__(
        self,
        *,
        max_seconds: float | None = None,
        max_turns: int | None = None,
        on_turn: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__()
        self._selector: Any = _Clock(self)
        self._now = 0.0
        self._clock_resolution = math.ulp(0.0)
        self._limit = math.inf if max_seconds is None else max_seconds
        self._max_turns = math.inf if max_turns is None else max_turns
        self._on_turn = on_turn
        self._owner = threading.get_ident()
        self.turns = 0
        self.unhandled: list[dict[str, Any]] = []  # what asyncio would only have logged
        self.set_exception_handler(lambda _loop, context: self.unhandled.append(context))

    def time(self) -> float:
        return self._now

    def turn(self, timeout: float | None) -> None:
        """One turn begins. `timeout` is as for a selector: 0 when callbacks are ready, None when nothing is left."""
        self.turns += 1
        if self.turns > self._max_turns:
            self._max_turns = math.inf  # cleaning up takes some more
            raise OutOfTime(self._story(f"still runs after {self.turns} turns"))
        if self._on_turn is not None:
            self._on_turn(self.turns)
        if timeout != 0 and not self._ready:  # type: ignore[attr-defined]  # on_turn may have called something
            self._advance()

    def _advance(self) -> None:
        if not self._scheduled:  # type: ignore[attr-defined]
            raise Deadlock(self._story("nothing can happen any more"))
        when: float = self._scheduled[0].when()  # type: ignore[attr-defined]
        if when > self._limit:
            raise OutOfTime(self._story(f"would wait until {when:g} s, beyond {self._limit:g} s"))
        self._now = when
        # asyncio runs the timers before `time() + resolution`: the smallest step that this float can make is exact.
        self._clock_resolution = math.ulp(when)

    def _story(self, what: str) -> str:
        return "\n  ".join([f"at {self._now:g} s {what}; waiting:", *waiting(self)])

    def _process_events(self, event_list: object) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """A callback came by `call_soon_threadsafe`: as good as any other from this thread, refused from another."""
        if threading.get_ident() != self._owner:
            raise RealWorld("another thread called into virtual time")

    run_in_executor = _refused("a thread")
    add_reader = _refused("waiting for a file descriptor")
    add_writer = _refused("waiting for a file descriptor")
    add_signal_handler = _refused("a signal")
    create_connection = _refused("a connection")
    create_unix_connection = _refused("a connection")
    create_datagram_endpoint = _refused("a connection")
    create_server = _refused("a server")
    create_unix_server = _refused("a server")
    connect_read_pipe = _refused("a pipe")
    connect_write_pipe = _refused("a pipe")
    subprocess_exec = _refused("a process")
    subprocess_shell = _refused("a process")


def run_virtual(
    main: Coroutine[Any, Any, T],
    *,
    max_seconds: float | None = None,
    max_turns: int | None = None,
    on_turn: Callable[[int], None] | None = None,
) -> T:
    """Run `main` in a fresh virtual loop and return its result, or raise what it raised.

    Whatever happens, no task survives: leftovers are cancelled before this returns.

    Raises:
        Deadlock: every task waits for something that can not come.
        OutOfTime: virtual time would pass `max_seconds`, or the loop has made `max_turns` turns: it runs in circles.
        Untidy: `main` ended, but a task it started did not, or failed unseen; `__cause__` is what `main` raised.
    """
    loop = VirtualLoop(max_seconds=max_seconds, max_turns=max_turns, on_turn=on_turn)
    with _tidied(loop):
        return loop.run_until_complete(main)


@contextlib.contextmanager
def _tidied(loop: VirtualLoop) -> Iterator[None]:
    failure: BaseException | None = None
    try:
        yield
    except BaseException as error:
        failure = error
        raise
    finally:
        left = waiting(loop)
        _cancel_all(loop)
        left += [_unseen(context) for context in loop.unhandled]
        if left and not isinstance(failure, (Stuck, KeyboardInterrupt)):
            raise Untidy("\n  ".join(["left behind:", *left])) from failure


def _cancel_all(loop: VirtualLoop) -> None:
    try:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel("the virtual loop ends")
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def _unseen(context: dict[str, Any]) -> str:
    return f"unseen: {context['message']}: {context.get('exception')!r}"


def waiting(loop: asyncio.AbstractEventLoop) -> list[str]:
    """One line for each task that has not ended: its name, and the chain of frames down to where it waits."""
    return [_line(task) for task in sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())]


def _line(task: asyncio.Task[Any]) -> str:
    return f"{task.get_name()}: {' > '.join(_chain(task.get_coro()))}"


def _chain(awaited: Any) -> Iterator[str]:
    while awaited is not None:
        frame = next((f for name in ("cr_frame", "ag_frame", "gi_frame") if (f := getattr(awaited, name, None))), None)
        if frame is not None:
            yield f"{frame.f_code.co_qualname} ({frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno})"
        awaited = _next_link(awaited)


def _next_link(awaited: Any) -> Any:
    for name in ("cr_await", "ag_await", "gi_yieldfrom"):
        if hasattr(awaited, name):
            return getattr(awaited, name)
    # What `async for` awaits does not say which generator it drives; the garbage collector knows.
    return next((held for held in gc.get_referents(awaited) if hasattr(held, "ag_await")), None)
