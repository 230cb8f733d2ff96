"""How much room this machine has: memory that may still be taken, space on a disk, processors."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_PROC, _GROUPS = Path("/proc"), Path("/sys/fs/cgroup")
# Of each version of control groups the files that hold a group's limit, and what it uses.
_MEMORY = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes"), 2: ("memory.max", "memory.current")}
# And those that hold its processor time, and the period in which it gets that.
_CPU = {1: ("cpu.cfs_quota_us", "cpu.cfs_period_us"), 2: ("cpu.max",)}


def memory_nbytes(proc: Path = _PROC, groups: Path = _GROUPS) -> int:
    """Bytes of memory that may still be taken without swapping, by the system and by our control groups alike."""
    return max(0, min([_numbers(proc / "meminfo")["MemAvailable:"] << 10, *_left_to_groups(proc, groups)]))


def disk_nbytes(folder: str | os.PathLike[str]) -> int:
    """Bytes that may still be written to the file system of `folder`."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def cores(chosen: Collection[int] | None = None, proc: Path = _PROC, groups: Path = _GROUPS) -> int:
    """Processors that can be kept busy: those `chosen` (None: that we may run on), and what our groups allow us."""
    available = os.sched_getaffinity(0) if chosen is None else set(chosen)
    return min([len(available), *(math.ceil(share) for share in _shares(proc, groups))])


def _left_to_groups(proc: Path, groups: Path) -> Iterator[int]:
    """What each of our groups may still take."""
    for group, version in _ours("memory", proc, groups):
        with contextlib.suppress(OSError, ValueError):  # it is not to be seen, or its limit is "max"
            yield _left(group, *_MEMORY[version])


def _shares(proc: Path, groups: Path) -> Iterator[float]:
    """How many processors' time each of our groups gets."""
    for group, version in _ours("cpu", proc, groups):
        with contextlib.suppress(OSError, ValueError):  # it is not to be seen, or its quota is "max"
            quota, period = (int(word) for name in _CPU[version] for word in (group / name).read_text().split())
            if quota > 0 and period > 0:
                yield quota / period


def _ours(controller: str, proc: Path, groups: Path) -> Iterator[tuple[Path, int]]:
    """The groups of a controller, with their version: those that we are in, and those that these are in."""
    for line in (proc / "self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            root = groups / controller if controllers else groups
            here = root / path.lstrip("/")
            for group in (here, *here.parents):
                if group.is_relative_to(root):
                    yield group, 1 if controllers else 2


def _left(group: Path, limit: str, usage: str) -> int:
    """What the group may still take; the pages of files that nobody uses at the moment count as free."""
    limit_nbytes, used_nbytes = (int((group / name).read_text()) for name in (limit, usage))
    return limit_nbytes - used_nbytes + _numbers(group / "memory.stat").get("inactive_file", 0)


def _numbers(file: Path) -> dict[str, int]:
    """The first number behind each name in a file of lines `name number ...`."""
    return {name: int(number) for name, number, *_ in map(str.split, file.read_text().splitlines())}
