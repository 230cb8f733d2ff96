"""Data sets in Python, in a module of their own so that worker processes import nothing else with them."""

from __future__ import annotations

import os
import signal
import time

import numpy as np


class Rows:
    """Sample i is (an array full of i, i)."""

    def __init__(self, count: int = 40, width: int = 5) -> None:
        self.count = count
        self.width = width

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return np.full(self.width, index, np.float32), index


class Slow(Rows):
    """Takes a while over each sample, without using the processor."""

    seconds = 0.01

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        time.sleep(self.seconds)
        return super().__getitem__(index)


class Slower(Slow):
    """Takes so long that a busy machine makes no difference."""

    seconds = 0.04


class Ragged(Rows):
    """A batch is as large as its largest sample id says."""

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return np.full(1 + 100_000 * (index // 10), index, np.float32), index


class Unlucky(Rows):
    """Sample 7 fails in the way that `how` says."""

    def __init__(self, how: str, count: int = 40) -> None:
        super().__init__(count)
        self.how = how

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        if index == 7:
            getattr(self, self.how)()
        return super().__getitem__(index)

    def raise_key_error(self) -> None:
        raise KeyError("lost\nkey")

    def exit(self) -> None:
        raise SystemExit(3)

    def be_killed(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def hang(self) -> None:
        time.sleep(3600)

    def raise_unpicklable(self) -> None:
        raise Unpicklable(lambda: None)

    def raise_unbuildable(self) -> None:
        raise Unbuildable(1, 2)

    def print(self) -> None:
        print("a sample prints")


class Unpicklable(Exception):
    """Cannot be pickled."""


class Unbuildable(Exception):
    """Pickles, and cannot be unpickled, for its arguments are not those of its constructor."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def fail_to_start(worker: int) -> None:
    raise ValueError(f"worker {worker} will not start")


class Counting:
    """A collate function that counts its calls in an array, large or small."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __call__(self, batch: list) -> np.ndarray:
        self.array += 1
        return self.array


class Images(Rows):
    """Images of one colour, that of their number; that of `slow` takes a while."""

    def __init__(self, slow: int) -> None:
        super().__init__()
        self.slow = slow

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        if index == self.slow:
            time.sleep(0.2)
        return np.full((32, 32, 3), index, np.uint8), index


class Threads(Rows):
    """Every sample is the number of threads that numerical libraries are told to use."""

    def __getitem__(self, index: int) -> int:
        return int(os.environ["OMP_NUM_THREADS"])


def fail_to_start_the_second(worker: int) -> None:
    if worker == 1:
        raise ValueError(f"worker {worker} will not start")
