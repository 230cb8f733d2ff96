"""One agent: hears what it is asked, makes it, answers. Single-threaded; it listens between samples while it works.

Forget and the end of the conversation take effect at once, everything else in the order in which it came.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import time
import traceback
from collections import deque
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ddlp.agent.channel import HangUp
from ddlp.agent.faults import Faults
from ddlp.agent.protocol import VERSION, Begin, Failed, Forget, Grant, Hello, Make, Need, Open, Opened, Welcome
from ddlp.data.maker import Maker, Preparation
from ddlp.errors import DataError, ProtocolError, SampleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from ddlp.agent.channel import Channel
    from ddlp.agent.protocol import HostMessage, Made
    from ddlp.agent.store import Store
    from ddlp.data.python import Column
    from ddlp.data.sampling import ListedPlan, Plan
    from ddlp.types import Layout

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)
_MAX_TRACEBACK = 20_000  # characters
_LISTEN_EVERY_S = 0.001


class _Forgotten(BaseException):
    """The host gave up the ticket that is being made. Not an Exception, like HangUp."""


class Pace:
    """Makes an agent as fast as a device that is `slowdown` times slower than one core of this machine.

    The measure is the CPU time that making the samples took, so the emulated device is as fast as ever when the machine
    is busy, and makes up for what it was late, as long as it always has work. Writing the file does not count: what
    that costs on this machine says nothing about a device that writes to its own flash.
    """

    def __init__(self, slowdown: float) -> None:
        self._slowdown = slowdown
        self._deadline: float | None = None  # of the batch before; None after a time without work

    def idle(self) -> None:
        """There was nothing to do."""
        self._deadline = None

    def due(self, started: float, cpu_s: float, factor: float) -> float:
        """When a batch begun at `started` is to be answered; `factor` slows it down further."""
        factor *= self._slowdown
        if factor == 1.0:
            return started
        begun = started if self._deadline is None else self._deadline
        self._deadline = begun + cpu_s * factor
        return self._deadline


class Epoch:
    """What Begin sets up for every later Make. `cpu_s`: CPU seconds that it took to make what was made last."""

    def __init__(self, maker: Maker, layout: Layout | None, plan: Plan | ListedPlan) -> None:
        self._maker = maker
        self.layout = layout
        self.plan = plan
        self.cpu_s = 0.0

    def expect(self, index: int, lo: int, hi: int) -> None:
        """`Maker.expect`."""
        self._maker.expect(index, lo, hi)

    def make(self, index: int, lo: int, hi: int, out: Sequence[NDArray[Any]], check: Callable[[], None]) -> None:
        """`Maker.make`."""
        with self._measured():
            self._maker.make(index, lo, hi, out, check)

    def collect(
        self, index: int, lo: int, hi: int, check: Callable[[], None]
    ) -> tuple[list[NDArray[Any] | Column], bytes]:
        """`Maker.collect`."""
        with self._measured():
            return self._maker.collect(index, lo, hi, check)

    @contextlib.contextmanager
    def _measured(self) -> Iterator[None]:
        begun = time.process_time()
        yield
        self.cpu_s = time.process_time() - begun


class Server:
    """Serves one host until it hangs up.

    `job` loads the preparation that a parent process handed over, for Open(python=True); then the answer to what fails
    brings the original exception. `worker` is our number among those who share the job.
    """

    def __init__(
        self,
        channel: Channel,
        make_store: Callable[[Callable[[int, int], Grant]], Store],
        *,
        job: Callable[[], Preparation] | None = None,
        worker: int = 0,
        slowdown: float = 1.0,
        faults: Faults | None = None,
    ) -> None:
        self._channel = channel
        self._store = make_store(self._grow)
        self._job = job
        self._worker = worker
        self._pace = Pace(slowdown)
        self._faults = faults or Faults()
        self._inbox: deque[HostMessage] = deque()
        self._grant: Grant | None = None  # the last one
        self._forgotten: set[int] = set()  # tickets to be made, or being made, that nobody wants any more
        self._making = 0  # the ticket
        self._listen_at = 0.0  # the next time, while something is made
        self._count = 0  # Makes so far
        self._opened: tuple[Maker, Layout | None] | None = None
        self._python = False  # whether a user's Python runs in the job: what fails unexpectedly is then theirs
        self._epoch: Epoch | None = None

    def serve(self) -> None:
        """Returns when the host has hung up, and leaves nothing in the store. Raises ProtocolError."""
        try:
            while True:
                self._obey(self._next())
        except HangUp:
            pass
        finally:
            self.close()

    def close(self) -> None:
        """Leave nothing in the store. Twice is fine."""
        self._store.close()

    # --- listening ---------------------------------------------------------------------------------------------------

    def _next(self) -> HostMessage:
        self._listen(0.0)
        while not self._inbox:
            self._pace.idle()
            self._listen(None)
        return self._inbox.popleft()

    def _listen(self, timeout_s: float | None) -> None:
        for message in self._channel.receive(timeout_s):
            match message:
                case Forget():
                    self._forget(message.ticket)
                case Grant():
                    self._grant = message
                case Make():
                    self._expect(message)
                    self._inbox.append(message)
                case _:
                    self._inbox.append(message)

    def _expect(self, ask: Make) -> None:
        """What it needs is read ahead while those before it are made; of an epoch yet to begin nothing is known."""
        begins = any(isinstance(message, Begin) for message in self._inbox)
        if self._epoch is not None and not begins:
            self._epoch.expect(ask.index, ask.lo, ask.hi)

    def _forget(self, ticket: int) -> None:
        waiting = any(isinstance(message, Make) and message.ticket == ticket for message in self._inbox)
        if waiting or ticket == self._making:
            self._forgotten.add(ticket)
        else:
            self._store.remove(ticket)

    def _check(self) -> None:
        """Listen, without waiting. Raises _Forgotten when what is being made is not wanted any more.

        Samples may take less time than the question whether anything has come, so that is not asked for each of them.
        """
        now = time.monotonic()
        if now >= self._listen_at:
            self._listen_at = now + _LISTEN_EVERY_S
            self._listen(0.0)
            self._check_wanted()

    def _check_wanted(self) -> None:
        if self._making in self._forgotten:
            raise _Forgotten

    def _wait(self, until: float) -> None:
        """Listen until the monotonic clock shows `until`. Raises _Forgotten."""
        while (left := until - time.monotonic()) > 0:
            self._listen(left)
            self._check_wanted()

    def _stall(self, seconds: float | None) -> None:
        """Do nothing that one is asked to, as a device that hangs; the end of the conversation still ends it."""
        until = None if seconds is None else time.monotonic() + seconds
        while until is None or until > time.monotonic():
            self._listen(None if until is None else max(0.0, until - time.monotonic()))

    # --- working -----------------------------------------------------------------------------------------------------

    def _obey(self, message: HostMessage) -> None:
        match message:
            case Hello():
                self._channel.send(Welcome(VERSION, os.getpid(), Maker.kernels()))
            case Open():
                self._open(message)
            case Begin() if self._opened is not None:
                maker, layout = self._opened
                maker.begin(message.plan)
                self._epoch = Epoch(maker, layout, message.plan)
                for waiting in self._inbox:
                    if isinstance(waiting, Make):
                        self._expect(waiting)
            case Make() if self._epoch is not None:
                self._answer(message, self._epoch)
            case _:
                raise ProtocolError(f"{type(message).__name__} out of order")

    def _open(self, message: Open) -> None:
        try:
            found = self._prepared(message)
            self._opened, self._python = (found.maker(self._worker), found.layout), found.python
        except Exception as error:
            self._channel.send(self._failure(0, error))
        else:
            self._channel.send(Opened(found.samples, found.fingerprint, found.layout))

    def _prepared(self, message: Open) -> Preparation:
        if not message.python:
            return Preparation.described(message.dataset, message.recipe)
        if self._job is None:
            raise ProtocolError("Open(python=True), and no job was handed over at start")
        return self._job()

    def _answer(self, ask: Make, epoch: Epoch) -> None:
        number, self._count = self._count, self._count + 1
        self._making = ask.ticket
        try:
            answer: Made | Failed = self._make(ask, epoch, number)
        except HangUp:
            raise
        except _Forgotten:
            answer = Failed(ask.ticket, "forgotten", "given up by the host")
        except BaseException as error:  # SystemExit of a user's data set, too, is a bad sample and not the end
            answer = self._failure(ask.ticket, error)
        self._forgotten.discard(ask.ticket)
        self._making = 0
        for _ in range(self._faults.answers(number)):
            self._channel.send(answer)

    def _make(self, ask: Make, epoch: Epoch, number: int) -> Made:
        """Make it, wait until it is due, publish it."""
        if number in self._faults.stall_at:
            self._stall(self._faults.stall_s)
        self._check_wanted()
        started, cpu = time.monotonic(), time.process_time()
        self._faults.check_room(number)
        made = self._store.make(ask, epoch, self._check)
        cpu_s = time.process_time() - cpu
        self._faults.crash(number)
        try:
            self._wait(self._pace.due(started, epoch.cpu_s, self._faults.slowdown(number)))
        except BaseException:
            self._store.remove(ask.ticket)
            raise
        self._store.publish(made)
        self._faults.corrupt(number, made.path)
        return msgspec.structs.replace(made, made_s=time.monotonic() - started, cpu_s=cpu_s)

    def _grow(self, ticket: int, nbytes: int) -> Grant:
        """Ask for a larger place, and wait for it. Raises _Forgotten."""
        self._channel.send(Need(ticket, nbytes))
        while self._grant is None or self._grant.ticket != ticket:
            self._listen(None)
            self._check_wanted()
        return self._grant

    def _failure(self, ticket: int, error: BaseException) -> Failed:
        message, sample_id, path, original = f"{type(error).__name__}: {error}", None, None, error
        if isinstance(error, SampleError):
            message, sample_id, path = str(error.args[0]), error.sample_id, error.path
            original = error.__cause__ or error
        return Failed(
            ticket,
            self._kind(error),
            message,
            sample_id,
            path,
            traceback="".join(traceback.format_exception(error))[-_MAX_TRACEBACK:],
            exception=None if self._job is None else _pickled(original),
        )

    def _kind(self, error: BaseException) -> Literal["data", "full", "device"]:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _NO_ROOM):
            return "full"
        return "data" if isinstance(error, DataError) or self._python else "device"


def _pickled(error: BaseException) -> bytes | None:
    try:
        return pickle.dumps(error)
    except Exception:  # the traceback still tells
        return None
