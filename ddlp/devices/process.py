"""An agent as a child process: started, watched, ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from ddlp.devices.connection import Connection
from ddlp.errors import DeviceLost

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ddlp.agent.protocol import Open
    from ddlp.errors import DdlpError
    from ddlp.memory import Slot

END_S = 2.0  # that an agent has to end by itself, once the conversation is over
# Workers are many: each uses one core, whatever libraries its samples need.
_ONE_THREAD = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)

# While Popen waits for its child to start, it waits for the end of a pipe. A process that another thread forks at that
# moment would hold the pipe open, and Popen wait for ever: so the two take turns.
_starting = threading.Lock()
os.register_at_fork(before=_starting.acquire, after_in_parent=_starting.release, after_in_child=_starting.release)


class AgentProcess:
    """Agent `number` of the device `name`, on this machine, and the `connection` to it. Owed: `end`.

    Made and used on the loop's thread: Linux ends the child when the *thread* that started it ends.

    Raises:
        OSError: the process cannot be started.
    """

    def __init__(
        self,
        name: str,
        number: int,
        arguments: Sequence[str],
        fds: Sequence[int] = (),
        *,
        lease: Callable[[int], Slot] | None = None,
        trusted: bool = False,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._process, self._socket = _started(arguments, fds)
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.connection = Connection(f"{name} (process {self.pid})", lost=self._kill_soon, lease=lease, trusted=trusted)
        self._connected = False
        self._kill: asyncio.TimerHandle | None = None
        self.number = number
        self._owner = os.getpid()
        self._watch()

    @property
    def pid(self) -> int:
        return self._process.pid

    async def connect(self, message: Open) -> None:
        """Start the conversation with `message`; then await `connection.opened()`."""
        self._connected = True  # the loop owns the socket
        await self._loop.create_unix_connection(lambda: self.connection, sock=self._socket)
        self.connection.greet(message)

    def end(self, why: DdlpError) -> asyncio.Future[None]:
        """Hang up, and ask the process to end: whatever is asked of it fails with `why`.

        What is returned is done when the process has ended, by itself or killed after END_S.
        """
        self.connection.lose(why)
        self.hang_up()
        self._process.terminate()  # for one that is stuck in a sample and does not listen
        self._kill_soon()
        return self.ended

    def hang_up(self) -> None:
        """Hang up, from whatever thread, even while no loop runs; not in a process forked from ours.

        Unlike closing our end it also works while such a process has a copy of it.
        """
        if os.getpid() == self._owner:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _kill_soon(self) -> None:
        if self._kill is None and not self.ended.done():
            self._kill = self._loop.call_later(END_S, self._process.kill)

    def _watch(self) -> None:
        """Have `_reap` called when the process has ended."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except OSError:  # an old kernel, or a sandbox that does not know the call
            threading.Thread(target=self._wait, daemon=True, name=f"ddlp-wait-{self.pid}").start()
        else:
            self._loop.add_reader(pidfd, self._on_pidfd, pidfd)

    def _on_pidfd(self, pidfd: int) -> None:
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        self._reap()

    def _wait(self) -> None:
        self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._reap)

    def _reap(self) -> None:
        status = self._process.wait()  # returns at once
        if self._kill is not None:
            self._kill.cancel()
        self.connection.lose(DeviceLost(f"{self.connection.name} {_describe(status)}"))
        if not self._connected:
            self._socket.close()
        if not self.ended.done():
            self.ended.set_result(None)


def _started(arguments: Sequence[str], fds: Sequence[int]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """The process, and our end of the socket between us."""
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            return _popen(arguments, (theirs.fileno(), *fds)), ours
        except BaseException:
            ours.close()
            raise


def _popen(arguments: Sequence[str], fds: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start an agent that inherits `fds`, the first of which is its socket."""
    command = [sys.executable, "-P", "-m", "ddlp.agent", f"--fd={fds[0]}", f"--parent={os.getpid()}", *arguments]
    with _starting:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=fds,
            env=_environment(),
            process_group=0,  # Ctrl-C in a terminal goes to the host alone
        )


def _environment() -> dict[str, str]:
    """Ours, with our import path, so that a data set's module is found as it was here."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {**os.environ, **dict.fromkeys(_ONE_THREAD, "1"), "PYTHONPATH": path}


def _describe(status: int) -> str:
    if status >= 0:
        return f"ended with exit code {status}"
    names = {number.value: number.name for number in signal.Signals}
    return f"was killed by {names.get(-status, f'signal {-status}')}"
