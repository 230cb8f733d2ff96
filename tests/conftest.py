"""Data sets that several tests share, and the watch over what a test leaves behind."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import uvloop
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Iterator


def write_images(
    folder: Path, count: int, *, classes: int = 4, seed: int = 0, size: tuple[int, int] = (48, 36)
) -> Path:
    """`count` small JPEG files of smooth noise, all different, in ImageFolder layout."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        coarse = rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        where = folder / f"class{number % classes}"
        where.mkdir(parents=True, exist_ok=True)
        Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(where / f"{number:05}.jpg", quality=90)
    return folder


@pytest.fixture(scope="session")
def small_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 small JPEG files in 4 classes."""
    return write_images(tmp_path_factory.mktemp("small"), 60)


def processes() -> set[int]:
    """Children of this process, however deep."""
    found: set[int] = set()
    for task in Path(f"/proc/{os.getpid()}/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has just ended
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


def descriptors() -> set[str]:
    """What the open file descriptors of this process refer to."""
    names = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            names.add(f"{entry.name}: {os.readlink(entry)}")
        except OSError:
            continue
    return names


def shared_memory() -> set[str]:
    """What lies in /dev/shm and could be ours: other programs of the machine use it too."""
    ours = ("ddlp", "psm_", f"_{os.getpid()}_")
    return {name for name in os.listdir("/dev/shm") if any(mark in name for mark in ours)}


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """No process, thread of ours, file descriptor or shared-memory file may outlive the test."""
    uvloop.new_event_loop().close()  # libuv keeps one pipe per process, from the first loop on
    before = processes(), descriptors(), shared_memory()
    yield
    left: dict[str, Any] = {}
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:  # /proc shows the end of a process, or of a thread, a little later
        left = {
            "processes": processes() - before[0],
            "threads": [thread for thread in threading.enumerate() if thread.name.startswith("ddlp")],
            "descriptors": descriptors() - before[1],
            "shared memory": shared_memory() - before[2],
        }
        if not any(left.values()):
            return
        time.sleep(0.02)
    raise AssertionError(f"left behind: {left}")
