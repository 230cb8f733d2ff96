"""Measuring paces: seconds per batch of a device that is sometimes idle. No clock of its own."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

WINDOW = 32  # batches that the present pace rests on


class Meter:
    """The pace of one device: the time in which it had work, per finished batch."""

    __slots__ = ("_active", "_busy_s", "_marks", "_since", "count", "last_finish")

    def __init__(self) -> None:
        self.count = 0
        self.last_finish = float("-inf")
        self._active = 0
        self._busy_s = 0.0
        self._since = 0.0
        self._marks: deque[float] = deque([0.0], maxlen=WINDOW + 1)  # busy seconds at each finish

    def begin(self, now: float) -> None:
        """One more claim is in the device's hands."""
        if self._active == 0:
            self._since = now
        self._active += 1

    def end(self, now: float) -> None:
        """A claim left the device's hands, finished or not."""
        self._active -= 1
        if self._active == 0:
            self._busy_s += now - self._since

    def finish(self, now: float) -> None:
        """A claim was finished."""
        busy_s = self._busy_s + (now - self._since if self._active else 0.0)
        self.count += 1
        self.last_finish = now
        self._marks.append(busy_s)

    def add(self, seconds: float) -> None:
        """A batch took `seconds`: for work that is measured elsewhere."""
        self._busy_s += seconds
        self.count += 1
        self._marks.append(self._busy_s)

    @property
    def make_s(self) -> float | None:
        """Seconds per batch over the last WINDOW of them, which shows a change; None before the first."""
        return (self._marks[-1] - self._marks[0]) / (len(self._marks) - 1) if self.count else None

    @property
    def mean_s(self) -> float | None:
        """Seconds per batch over all of them, which is steadier; None before the first."""
        return self._marks[-1] / self.count if self.count else None


def combined(meters: Iterable[Meter]) -> float | None:
    """Seconds per batch of devices that work side by side; None when none of them has finished any."""
    paces = [meter.mean_s for meter in meters if meter.mean_s is not None]
    if not paces:
        return None
    if min(paces) <= 0.0:
        return 0.0
    return 1.0 / sum(1.0 / pace for pace in paces)
