"""What the benchmarks share: taking turns, comparing within a round, photographs, the verdict."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from typing import TYPE_CHECKING, Any

from ddlp.data.synthetic import make_photos

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

CLASSES = 8


def take_turns(rounds: int, turns: Mapping[str, Callable[[], float]], unit: str = "s") -> dict[str, list[float]]:
    """What each of `turns` returns, round by round (A B C ... A B C), after a first round that only warms up."""
    taken: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(rounds + 1):
        found = {name: turn() for name, turn in turns.items()}
        note = ", ".join(f"{name} {value:.4g} {unit}" for name, value in found.items())
        print(f"round {number}: {note}" if number else "warmed up", flush=True)
        for name, value in found.items() if number else ():
            taken[name].append(value)
    return taken


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Each to the one of the same round."""
    return [a / b for a, b in zip(above, below, strict=True)]


def median_of(ratios: Sequence[float]) -> str:
    """The median and the range, in words."""
    return f"{statistics.median(ratios):.3f}x (from {min(ratios):.3f} to {max(ratios):.3f})"


def epoch_s(loader: Iterable[Any]) -> float:
    """Seconds for one epoch with a training loop that does nothing."""
    begun = time.perf_counter()
    for _ in loader:
        pass
    return time.perf_counter() - begun


@contextlib.contextmanager
def photos(images: int) -> Iterator[str]:
    """A folder of at least `images` photo-like files, in ImageFolder layout; it goes in the end."""
    with tempfile.TemporaryDirectory(prefix="ddlp-benchmark-") as folder:
        print(f"making {images} photo-like files", flush=True)
        make_photos(folder, classes=CLASSES, per_class=-(-images // CLASSES))
        yield folder


def verdict(goal: str, met: bool) -> int:
    """Say whether the goal was met; the exit status."""
    print(f"goal: {goal}: {met}")
    return 0 if met else 1
