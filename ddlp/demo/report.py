"""What the demo prints: the setting, a table of results, and what its columns mean."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddlp.demo.loaders import Result, Work

LEGEND = """\
epoch s     of the last epoch, from asking for the first batch until the last step has ended
waited s    of that, how long training waited for a batch
CSD share   of the batches that were made by the CSD
host CPU s  user and system time of this process and its workers, from /proc, without the process that is the CSD
CSD CPU s   the emulated CSD's own: what a real device would do on its own processor"""


def setting(work: Work, training: str, slowdown: float, host: Sequence[int], csd: Sequence[int]) -> str:
    """What is compared, on what. `host` and `csd` are cores of this machine."""
    nbytes = sum(os.path.getsize(work.folder.path(id_)) for id_ in work.ids)
    workers = "1 worker process" if work.workers == 1 else f"{work.workers} worker processes"
    lines = [
        f"images    {len(work.ids)} files of {work.folder.root}, {nbytes / 1e6:.0f} MB, {work.batch_size} per batch",
        f"host      {workers} on {_cores(host)}, the same for every loader",
        f"CSD       emulated: a process on {_cores(csd)} of this machine that is paced by its own CPU time to be"
        f" {slowdown:g} times slower than one host core",
        f"training  {training}",
    ]
    if set(host) & set(csd):
        lines.append("caution   there is no core to spare for the CSD here: it takes its time from the host's workers")
    return "\n".join(lines)


def table(results: Sequence[Result]) -> str:
    """A row for each; the first one is what `speed` compares with."""
    head = ("loader", "images/s", "speed", "epoch s", "waited s", "CSD share", "host CPU s", "CSD CPU s")
    rows = [head, *(_row(result, results[0]) for result in results)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(_line(row, widths) for row in rows)


def _row(result: Result, first: Result) -> tuple[str, ...]:
    has_csd = result.csd_share is not None
    return (
        result.name,
        f"{result.rate:.1f}",
        f"{result.rate / first.rate:.2f} x",
        f"{result.seconds:.2f}",
        f"{result.wait_s:.2f}",
        f"{result.csd_share:.1%}" if has_csd else "-",
        f"{result.cpu.host_s:.2f}",
        f"{result.cpu.csd_s:.2f}" if has_csd else "-",
    )


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    name, *figures = row
    cells = [name.ljust(widths[0]), *(figure.rjust(width) for figure, width in zip(figures, widths[1:], strict=True))]
    return "  ".join(cells)


def _cores(cores: Sequence[int]) -> str:
    return f"core {cores[0]}" if len(cores) == 1 else f"cores {', '.join(map(str, cores))}"
