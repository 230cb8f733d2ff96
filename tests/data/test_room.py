"""What is left of memory and disk, by the system's files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ddlp.data import room

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """A machine with 1,000 KiB of available memory, whose process is in no group."""
    (tmp_path / "self").mkdir()
    (tmp_path / "meminfo").write_text("MemTotal: 4000 kB\nMemFree: 10 kB\nMemAvailable:   1000 kB\nHugePages: 0\n")
    (tmp_path / "self/cgroup").write_text("")
    return tmp_path


def group(folder: Path, limit: str, usage: int, version: int = 2, inactive: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    for name, value in zip(names, (limit, usage), strict=True):
        (folder / name).write_text(f"{value}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {inactive}\n")


def test_without_a_limit_it_is_what_the_system_has(system: Path) -> None:
    """No groups, one without a limit, one that cannot be seen: the system's own figure."""
    assert room.memory_nbytes(system, system / "groups") == 1000 << 10
    (system / "self/cgroup").write_text("0::/job\n4:cpu:/other\n5:memory:/hidden\n")
    group(system / "groups/job", "max", 5)
    assert room.memory_nbytes(system, system / "groups") == 1000 << 10


@pytest.mark.parametrize(("version", "line"), [(2, "0::/outer/inner"), (1, "9:cpu,memory:/outer/inner")])
def test_the_tightest_group_counts(system: Path, version: int, line: str) -> None:
    """A container's limit, be it the inner group's or the outer one's; cached files of it can be dropped."""
    (system / "self/cgroup").write_text(f"{line}\n0:name=systemd:/\n")
    root = system / "groups" / ("memory" if version == 1 else "")
    group(root / "outer/inner", "500000", 100000, version)
    assert room.memory_nbytes(system, system / "groups") == 400000
    group(root / "outer", "300000", 290000, version, inactive=50000)
    assert room.memory_nbytes(system, system / "groups") == 60000
    group(root, "300000", 290001, version)
    assert room.memory_nbytes(system, system / "groups") == 9999
    group(root, "10", 20, version)
    assert room.memory_nbytes(system, system / "groups") == 0


def test_this_machine_has_room(tmp_path: Path) -> None:
    """Figures of the machine that runs this."""
    assert 0 < room.memory_nbytes() < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert room.disk_nbytes(tmp_path) > 0


def quota(folder: Path, quota_us: str, version: int = 2) -> None:
    """Let a group have so many microseconds of each 100,000."""
    folder.mkdir(parents=True, exist_ok=True)
    if version == 2:
        (folder / "cpu.max").write_text(f"{quota_us} 100000\n")
    else:
        (folder / "cpu.cfs_quota_us").write_text(f"{quota_us}\n")
        (folder / "cpu.cfs_period_us").write_text("100000\n")


@pytest.mark.parametrize(("version", "line"), [(2, "0::/outer/inner"), (1, "9:cpu,cpuacct:/outer/inner")])
def test_processors_are_those_that_may_be_used(system: Path, version: int, line: str) -> None:
    """The cores that one may run on, and no more than the tightest group's share of time keeps busy, rounded up."""
    (system / "self/cgroup").write_text(f"{line}\n3:cpuset:/elsewhere\n")
    root = system / "groups" / ("cpu" if version == 1 else "")

    def cores() -> int:
        return room.cores(range(8), system, system / "groups")

    assert cores() == 8
    quota(root / "outer/inner", "max" if version == 2 else "-1", version)
    assert cores() == 8
    quota(root / "outer", "350000", version)
    assert cores() == 4
    quota(root / "outer/inner", "20000", version)
    assert cores() == 1
    quota(root / "outer/inner", "1600000", version)
    assert cores() == 4


def test_this_machine_has_processors() -> None:
    """Those of this process, or those that are chosen."""
    assert 1 <= room.cores() <= len(os.sched_getaffinity(0))
    assert room.cores([]) == 0
