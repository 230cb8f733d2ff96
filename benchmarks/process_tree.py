"""CPU time and memory of a process and everything that it started, from Linux's /proc. Standard library only."""

from __future__ import annotations

import contextlib
import os

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def family(root: int) -> list[int]:
    """The process `root` and its descendants that run."""
    pids = [root]
    for pid in pids:  # grows while it is walked
        with contextlib.suppress(OSError):  # it has ended meanwhile
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                    pids += map(int, file.read().split())
    return pids


def cpu_s(root: int) -> float:
    """CPU seconds of the family so far, user and system, children that have ended included. Resolution: 10 ms."""
    return sum(map(_cpu_s, family(root)))


def pss_nbytes(root: int) -> int:
    """Proportional set size of the family: memory that several of them share counts once."""
    return sum(map(_pss_nbytes, family(root)))


def busy_s() -> float:
    """CPU seconds that all processes of the machine together have spent since it started."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _idle, _iowait, irq, softirq, steal, *_guest = map(int, file.readline().split()[1:])
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_S


def _cpu_s(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS_PER_S  # proc(5), fields 14 to 17


def _pss_nbytes(pid: int) -> int:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
