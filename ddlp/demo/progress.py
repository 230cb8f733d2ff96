"""What people see while they wait, and how they end it: a progress bar, and Ctrl-C that breaks nothing."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from types import FrameType, TracebackType

REDRAW_S = 0.1
_MAX_BAR = 40  # characters


class Progress:
    """How far `label` is, out of `total`: one line that is redrawn on a terminal, one line at the end anywhere else."""

    def __init__(self, label: str, total: int, stream: TextIO | None = None) -> None:
        self._label = label
        self._total = total
        self._stream = sys.stderr if stream is None else stream
        self._on_terminal = self._stream.isatty()
        self._started_at = time.monotonic()
        self._drawn_at = float("-inf")
        self.done = 0

    def advance(self, count: int = 1) -> None:
        """`count` more are done."""
        self.done += count
        if self._on_terminal and time.monotonic() - self._drawn_at > REDRAW_S:
            self._draw()

    def __enter__(self) -> Progress:
        if self._on_terminal:
            self._draw()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        seconds = time.monotonic() - self._started_at
        end = f"done in {seconds:.1f} s" if kind is None else f"ended after {seconds:.1f} s"
        self._write(f"{self._label}: {self.done} of {self._total}, {end}\n")

    def _draw(self) -> None:
        self._drawn_at = time.monotonic()
        self._write(f"{self._label} [{self._bar()}] {self.done}/{self._total}")

    def _bar(self) -> str:
        room = shutil.get_terminal_size().columns - len(f"{self._label} [] {self._total}/{self._total}") - 1
        width = max(0, min(_MAX_BAR, room))
        filled = width * self.done // max(1, self._total)
        return "#" * filled + "." * (width - filled)

    def _write(self, text: str) -> None:
        erase = "\r\x1b[K" if self._on_terminal else ""
        self._stream.write(erase + text)
        self._stream.flush()


class Interrupts:
    """Ctrl-C ends the work inside of `with` at its next `check`, and so never in the middle of something.

    A second one ends it at once. To be entered in the main thread. Processes forked inside are not disturbed by the
    first Ctrl-C, which a terminal sends to them too: their parent ends them.
    """

    def __init__(self) -> None:
        self._asked = False

    def check(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was pressed."""
        if self._asked:
            raise KeyboardInterrupt

    def __enter__(self) -> Interrupts:
        self._before = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _interrupt(self, _signum: int, _frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
