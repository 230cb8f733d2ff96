"""From the turns of all rounds to the tables of docs/benchmarks.md."""

from __future__ import annotations

import datetime
import os
import platform
import statistics
from typing import TYPE_CHECKING

from setup import HERE
from turns import BASELINE, OURS, ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from quality import Quality
    from turns import Turn, Work

Rounds = dict[tuple[str, bool], dict[int, "Turn"]]  # of (row's name, float32): the turn of each round
BEGIN, END = "<!-- peers: written by benchmarks/peers/run.py -->", "<!-- /peers -->"

_HEAD = "| loader | images/s, ratio | images/s | CPU ms per image | peak memory, MB | first batch, s | pixels |"
_KINDS = ((True, "float32, normalised on the CPU"), (False, "uint8, for an accelerator that normalises"))
# In which a row can be better than ddlp, and how much better: above 1 it is.
_BETTER: dict[str, Callable[[Turn, Turn], float]] = {
    "images per second": lambda theirs, ours: theirs.images_s / ours.images_s,
    "CPU per image": lambda theirs, ours: ours.cpu_ms / theirs.cpu_ms,
    "memory": lambda theirs, ours: ours.pss_mb / theirs.pss_mb,
    "first batch": lambda theirs, ours: ours.first_s / theirs.first_s,
}


def report(rounds: Rounds, pixels: Mapping[str, Quality], absent: Mapping[str, str], work: Work, command: str) -> str:
    """Everything that is known, in Markdown."""
    parts = [_source(work, command), _disturbance(rounds)]
    for float32, title in _KINDS:
        parts += [f"### {title}", _table(rounds, pixels, float32), _losses(rounds, float32)]
    if absent:
        parts.append("Not measured: " + "; ".join(f"{name} ({why})" for name, why in absent.items()) + ".")
    return "\n\n".join(parts)


def write(text: str, page: Path) -> None:
    """Put the report between its two marks in the page."""
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}")


def _source(work: Work, command: str) -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        model = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "unknown CPU")
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"`{command}` on {datetime.date.today():%d %B %Y}: {len(os.sched_getaffinity(0))} cores of {model}, "
        f"{memory_gb:.0f} GiB, Python {platform.python_version()}; {work.workers} workers, batches of "
        f"{work.batch_size}, {work.seconds:g} s a turn. Versions: {_versions()}."
    )


def _disturbance(rounds: Rounds) -> str:
    others = [turn.others for turns in rounds.values() for turn in turns.values()] or [0.0]
    return (
        f"While a turn was measured, other processes of the machine kept {statistics.median(others):.2f} cores busy in "
        f"the median, and {max(others):.2f} at the most."
    )


def _versions() -> str:
    """Of the peers, as their environments have them."""
    names = ("torch", "nvidia-dali-cuda120", "ffcv", "tensorflow_cpu", "spdl", "webdataset", "grain", "litdata")
    lines = [line for path in HERE.glob("*.txt") for line in path.read_text().splitlines()]
    pinned = dict(line.split("==") for line in lines if "==" in line)
    return ", ".join(f"{name} {pinned[name]}" for name in (*names, "mosaicml-streaming", "pillow"))


def _table(rounds: Rounds, pixels: Mapping[str, Quality], float32: bool) -> str:
    baseline = rounds.get((BASELINE, float32), {})
    lines = []
    for row in ROWS:
        turns = rounds.get((row.name, float32), {})
        ratios = [turn.images_s / baseline[number].images_s for number, turn in turns.items() if number in baseline]
        if ratios:
            line = _line(row.title, list(turns.values()), ratios, str(pixels.get(row.name, "not compared")))
            lines.append((statistics.median(ratios), line))
    ordered = [line for _, line in sorted(lines, reverse=True)]
    return "\n".join([_HEAD, "|---|---|---|---|---|---|---|", *ordered])


def _line(title: str, turns: Sequence[Turn], ratios: Sequence[float], pixels: str) -> str:
    spread = f" ({min(ratios):.2f} to {max(ratios):.2f})" if len(ratios) > 1 else ""
    images_s, cpu_ms, pss_mb, first_s, *_ = map(statistics.median, zip(*turns, strict=True))
    return (
        f"| {title} | {statistics.median(ratios):.2f}{spread} | {images_s:.0f} | {cpu_ms:.2f} | {pss_mb:.0f} "
        f"| {first_s:.1f} | {pixels} |"
    )


def _losses(rounds: Rounds, float32: bool) -> str:
    """In what others are better than ddlp without its cache, and how many times, in the median of the rounds."""
    found = []
    for what, better in _BETTER.items():
        ratios = {row.name: _median_ratio(rounds, row.name, float32, better) for row in ROWS}
        losses = [f"{name} {ratio:.2f}x" for name, ratio in ratios.items() if ratio > 1.005]
        if losses:
            found.append(f"{what}: {', '.join(losses)}")
    return f"Where ddlp loses: {'; '.join(found) or 'nowhere in this table'}."


def _median_ratio(rounds: Rounds, name: str, float32: bool, better: Callable[[Turn, Turn], float]) -> float:
    """Of a row to ddlp, over the rounds that have both; 0 where it has none, or is ddlp's own."""
    ours, theirs = rounds.get((OURS, float32), {}), rounds.get((name, float32), {})
    ratios = [better(turn, ours[number]) for number, turn in theirs.items() if number in ours]
    return 0.0 if name.startswith(OURS) or not ratios else statistics.median(ratios)
