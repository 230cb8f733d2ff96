"""What every peer's driver is: a few lines that set a loader up as its own documentation says, and nothing more.

This module and the drivers run in the peers' environments, not in ddlp's: they import the standard library, numpy and
what their environment has.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZE = 224
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


class Crop(NamedTuple):
    """A part of an image file, perhaps with left and right swapped."""

    path: str
    left: int
    top: int
    width: int
    height: int
    mirror: bool = False


class Job(NamedTuple):
    """What is asked of every loader: the ImageNet training recipe on the files of `folder`, in random order, for ever.

    folder   the image set, in ImageFolder layout
    cache    where a peer that wants the set in a format of its own keeps it
    float32  normalised float32 batches; else uint8 batches, for an accelerator that normalises
    workers  processes or threads, whichever the peer is better with
    """

    folder: Path
    cache: Path
    float32: bool
    batch_size: int
    workers: int

    def files(self) -> list[tuple[str, int]]:
        """(path, label) of every file."""
        classes = sorted(entry for entry in self.folder.iterdir() if entry.is_dir())
        return [(str(path), label) for label, folder in enumerate(classes) for path in sorted(folder.iterdir())]


class Driver:
    """One loader. Made in a process of its own, which ends by being killed."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def prepare(self) -> None:
        """Write the set in the peer's own format, unless it is there. Not measured."""

    def batches(self) -> Iterator[Any]:
        """Endless: (images, labels) as the peer gives them, images first."""
        raise NotImplementedError

    def crops(self, crops: Sequence[Crop]) -> tuple[Sequence[Crop], NDArray[Any]]:
        """Parts, and what the peer's own code makes of them, (crop, SIZE, SIZE, 3) uint8; without such code, Pillow.

        The parts are those asked for, unless the peer chooses its own.
        """
        return crops, self._pixels_of(crops)

    def _pixels_of(self, crops: Sequence[Crop]) -> NDArray[Any]:
        import plain

        return plain.crops(crops)

    def close(self) -> None:
        """Remove what would outlive the process."""


def endless(items: Sequence[Any]) -> Iterator[Any]:
    """Every item once per epoch, in a new order each time."""
    order, rng = list(items), random.Random(0)
    while True:
        rng.shuffle(order)
        yield from order


def repeated(epochs: Iterable[Any]) -> Iterator[Any]:
    """One epoch after the other, of loaders that have epochs."""
    while True:
        yield from epochs
