"""CPU time of this process and everything that it started, from Linux's /proc. Resolution: one clock tick, 10 ms."""

from __future__ import annotations

import os
from typing import NamedTuple

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class CpuTime(NamedTuple):
    """CPU seconds so far, user and system: of the host's side, and of emulated CSDs that are running."""

    host_s: float
    csd_s: float

    def since(self, earlier: CpuTime) -> CpuTime:
        return CpuTime(self.host_s - earlier.host_s, self.csd_s - earlier.csd_s)


class _Process(NamedTuple):
    pid: int
    parent: int
    cpu_s: float  # its ended children included


def cpu_time() -> CpuTime:
    """Of this process, of its descendants that run, and of those that have ended."""
    family = _family(os.getpid())
    csd_s = sum((process.cpu_s for process in family if _is_emulated_csd(process.pid)), 0.0)
    return CpuTime(sum(process.cpu_s for process in family) - csd_s, csd_s)


def _family(root: int) -> list[_Process]:
    """The process and its descendants."""
    children: dict[int, list[_Process]] = {}
    everyone = [process for process in map(_process, filter(str.isdigit, os.listdir("/proc"))) if process is not None]
    for process in everyone:
        children.setdefault(process.parent, []).append(process)
    family = [process for process in everyone if process.pid == root]
    for process in family:  # grows while it is walked
        family += children.get(process.pid, [])
    return family


def _process(pid: str) -> _Process | None:
    """None where it has ended meanwhile."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return _Process(int(pid), int(fields[1]), sum(map(int, fields[11:15])) / _TICKS_PER_S)  # proc(5), fields 14 to 17


def _is_emulated_csd(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            arguments = file.read().split(b"\0")
    except OSError:
        return False
    return b"ddlp.agent" in arguments and any(argument.startswith(b"--slowdown") for argument in arguments)
