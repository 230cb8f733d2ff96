"""The one background thread, and how batches cross from it to the training loop. Only this module knows both threads.

The engine lives on the background thread's event loop; a training loop is a plain `for` on any thread, or an
`async for` on any other event loop. Between them is one `Stream` per epoch: a mailbox of at most `prefetch` batches.
The mailbox and the outcome are changed by single operations that the interpreter makes atomic; everything else that
both sides need is handed to the background loop with `call_soon_threadsafe`.

A consumer takes a batch out of the mailbox in plain code, after waiting, never while waiting. So a wait that is
cancelled or times out loses nothing: the batch is still in the mailbox.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import time
from collections import deque
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any, TypeVar

import uvloop

from ddlp.errors import BatchTimeout, ClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future

    from ddlp.engine import Delivered, Epoch
    from ddlp.types import Claim

T = TypeVar("T")

# How long the end of the process may wait for the background thread to close what is still open.
EXIT_TIMEOUT_S = 10.0


class LoopThread:
    """The background thread with its event loop, shared by every open loader of the process.

    It starts with the first user and ends with the last. `acquire` and `release` come in pairs; what a user leaves
    open when the interpreter exits is closed by the `closing` coroutine function that it gave.
    """

    _lock = threading.Lock()
    _current: LoopThread | None = None

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = uvloop.new_event_loop()
        self._users: dict[object, Callable[[], Coroutine[Any, Any, None]]] = {}
        self._thread = threading.Thread(target=self._run, name="ddlp", daemon=True)
        self._thread.start()

    @classmethod
    def acquire(cls, user: object, closing: Callable[[], Coroutine[Any, Any, None]]) -> LoopThread:
        """The running thread, kept running until `release(user)`."""
        with cls._lock:
            if cls._current is None or cls._current.pid != os.getpid():
                cls._current = LoopThread()
            cls._current._users[user] = closing
            return cls._current

    def release(self, user: object) -> None:
        """The user has closed everything; the last one's release ends the thread. From any thread; never blocks."""
        with self._lock:
            self._users.pop(user, None)
            if not self._users and LoopThread._current is self:
                LoopThread._current = None
                self.loop.call_soon_threadsafe(self.loop.stop)

    @property
    def ending(self) -> bool:
        """Whether the last user has released it."""
        return not self._users

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the background loop; any other thread can wait for the result, or cancel it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def ask(self, question: Callable[[], T]) -> T:
        """The answer of a plain function that runs on the background loop. Raises what it raises."""
        self.check_process()
        if self.loop.is_closed() or self.is_current:  # nothing can change, or nobody else can change it
            return question()

        async def answer() -> T:
            return question()

        return self.submit(answer()).result()

    @property
    def is_current(self) -> bool:
        """Whether this very thread is it: a finaliser may run anywhere."""
        return self._thread is threading.current_thread()

    def check_process(self) -> None:
        """Raise ClosedError in a forked child: neither the thread nor the workers came along."""
        if self.pid != os.getpid():
            raise ClosedError(
                f"this loader belongs to process {self.pid}, and this is its fork {os.getpid()}: "
                "make a new loader here, or start the process by spawning"
            )

    def join(self) -> None:
        """Wait for the thread to end, unless this is it."""
        if not self.is_current:
            self._thread.join(EXIT_TIMEOUT_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    @classmethod
    def _close_all(cls) -> None:
        """At exit: close what was left open, then end the thread."""
        thread = cls._current
        if thread is None or thread.pid != os.getpid():
            return
        wait([thread.submit(closing()) for closing in list(thread._users.values())], EXIT_TIMEOUT_S)
        thread.join()


atexit.register(LoopThread._close_all)


class Stream:
    """One epoch on its way to the training loop.

    On the background loop: `run(epoch)`, then `finish`. For the consumer, from one thread or event loop at a time:
    `take` or `atake` until StopIteration or StopAsyncIteration, and `close` at any time. Asking for a batch settles
    the one before. `unpack` makes of a batch what the loop is given, in the loop's thread.
    """

    def __init__(
        self, thread: LoopThread, prefetch: int, timeout: float | None, unpack: Callable[[Delivered], Any]
    ) -> None:
        self._thread = thread
        self._unpack = unpack
        self._prefetch = max(1, prefetch)
        self._timeout = timeout
        self._mailbox: deque[Delivered] = deque()
        self._current: Delivered | None = None
        self._handed_at = 0.0
        self._work: Future[None] | None = None
        self._settling = False  # the epoch runs, and counts what the loop has used
        self._finished = False  # nothing more will come into the mailbox
        self._error: BaseException | None = None
        self._room: asyncio.Future[None] | None = None
        self._arrived = threading.Event()
        self._async_waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None
        self.epoch: Epoch | None = None
        self.handed: list[Claim] = []  # what the loop was given, in order
        self.wait_s = 0.0
        self.started_at = time.monotonic()
        self.ended_at: float | None = None

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Start what makes the epoch: a coroutine that calls `run` and, whatever happens, `finish`."""
        self._work = self._thread.submit(work)

    @property
    def finished(self) -> bool:
        """Whether the epoch is over: what is in the mailbox is all that may come."""
        return self._finished

    @property
    def seconds(self) -> float:
        """How long the epoch took, or has been running."""
        return (time.monotonic() if self.ended_at is None else self.ended_at) - self.started_at

    # --- on the background loop --------------------------------------------------------------------------------------

    async def run(self, epoch: Epoch) -> None:
        """Make the epoch and put its batches into the mailbox."""
        self.epoch = epoch
        self._settling = True
        try:
            await epoch.run(self._put)
        finally:
            self._settling = False

    def finish(self, error: BaseException | None = None) -> None:
        """Nothing more will come; `error` is why, unless the epoch is simply over."""
        if not self._finished:
            self._error = ClosedError("the epoch was closed") if isinstance(error, asyncio.CancelledError) else error
            self.ended_at = time.monotonic()
            self._finished = True
            self._wake_consumer()

    def clear(self) -> None:
        """Drop the batches that the consumer has not taken, and with them their memory."""
        self._mailbox.clear()

    async def _put(self, batch: Delivered) -> None:
        self._mailbox.append(batch)
        self._wake_consumer()
        try:
            while len(self._mailbox) >= self._prefetch:
                self._room = asyncio.get_running_loop().create_future()
                # Looked at again, because the consumer may have taken one before it could see that we wait.
                if len(self._mailbox) >= self._prefetch:
                    await self._room
        finally:
            self._room = None

    def _settle(self, batch: Delivered, step_s: float) -> None:
        if self.epoch is None:
            return
        if self._settling:
            self.epoch.settle(batch, step_s)
        else:
            self.epoch.settle_late(batch)

    def _make_room(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _wake_consumer(self) -> None:
        self._arrived.set()
        waiter, self._async_waiter = self._async_waiter, None
        if waiter is not None:
            loop, future = waiter
            with contextlib.suppress(RuntimeError):  # the consumer's loop was closed: nobody waits any more
                loop.call_soon_threadsafe(_set, future)

    # --- in the consumer's thread ------------------------------------------------------------------------------------

    @property
    def in_hand(self) -> Delivered | None:
        """The batch that the training loop works on."""
        return self._current

    def take(self) -> Any:
        """The next batch, unpacked, waited for with the thread blocked.

        Raises:
            StopIteration: the epoch is over.
            BatchTimeout: nothing came within the timeout; asking again goes on waiting.
            whatever ended the epoch.
        """
        self._thread.check_process()
        begun = self._release_current()
        while (batch := self._next()) is None:
            self._arrived.clear()
            if self._mailbox or self._finished:
                if not self._mailbox:
                    self._end(StopIteration)
                continue
            if not self._arrived.wait(self._timeout):
                raise self._too_late()
        return self._hand_over(batch, begun)

    async def atake(self) -> Any:
        """`take` for an event loop. A cancelled call has changed nothing: the next one gets the batch."""
        self._thread.check_process()
        begun = self._release_current()
        while (batch := self._next()) is None:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()
            self._async_waiter = loop, future
            if self._mailbox or self._finished:
                if not self._mailbox:
                    self._end(StopAsyncIteration)
                continue
            try:
                async with asyncio.timeout(self._timeout):
                    await future
            except TimeoutError:
                raise self._too_late() from None
        return self._hand_over(batch, begun)

    def end(self) -> None:
        """The loop is done with the last batch, without having asked for another."""
        self._release_current()

    def close(self) -> None:
        """End the epoch early; what is in the loop's hands stays valid. Twice is fine; never blocks."""
        if self._work is not None:
            self._work.cancel()

    def _release_current(self) -> float:
        """The loop asks for more: it is done with the batch in its hands. Returns the time."""
        now = time.monotonic()
        if self._current is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it stays in hand, and so counts as used
                self._thread.loop.call_soon_threadsafe(self._settle, self._current, now - self._handed_at)
                self._current = None
        return now

    def _next(self) -> Delivered | None:
        """The first batch of the mailbox, which stays there."""
        try:
            return self._mailbox[0]
        except IndexError:
            return None

    def _hand_over(self, batch: Delivered, begun: float) -> Any:
        """Give the loop its batch. When unpacking fails it has not been given: asking again gives the same one."""
        unpacked = self._unpack(batch)
        with contextlib.suppress(IndexError):  # the epoch has just ended, and cleared the mailbox
            self._mailbox.popleft()
        self._current = batch
        self.handed.append(batch.claim)
        if self._room is not None:
            self._thread.loop.call_soon_threadsafe(self._make_room)
        self._handed_at = time.monotonic()
        self.wait_s += self._handed_at - begun
        return unpacked

    def _end(self, stop: type[Exception]) -> None:
        if self._error is not None:
            raise self._error
        raise stop

    def _too_late(self) -> BatchTimeout:
        epoch = self.epoch
        state = "the epoch has not started: its devices are still opening" if epoch is None else epoch.describe()
        return BatchTimeout(f"no batch came within {self._timeout} s: {state}")


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
