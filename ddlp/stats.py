"""What happened in an epoch, as frozen values, and the same in words. Only read, never written to, by anyone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ddlp.devices.base import DeviceStatistics
from ddlp.types import HEAD, TAIL, Rates, Side

if TYPE_CHECKING:
    from collections.abc import Iterator


class BatchInfo(msgspec.Struct, frozen=True):
    """The batch that the training loop has just been given.

    index       its index in the epoch
    sample_ids  which samples it holds, in order
    epoch       the epoch's number
    side        the end that it came from
    device      who made it
    made_s      wall seconds that the device worked on it
    cpu_s       CPU seconds that the device worked on it
    carried_s   seconds to bring it to its place
    """

    index: int
    sample_ids: tuple[int, ...]
    epoch: int
    side: Side
    device: str
    made_s: float
    cpu_s: float
    carried_s: float


class LoaderStatistics(msgspec.Struct, frozen=True):
    """The current epoch, or the last one when none runs. All times are measured, in seconds.

    epoch       its number
    batches     how many it has
    delivered   how many the loop was given, by side: `delivered[HEAD]`, `delivered[TAIL]`
    seconds     since it began, or how long it took
    wait_s      that the training loop waited for batches
    boundary    where the sides meet, when a policy fixed it
    takeovers   late batches that the other side made instead
    failures    tries that failed and were made again
    rates       seconds per batch, by side
    devices     what each device has done since it was opened
    lost        devices that are gone, or could not be opened for the epoch, and why
    transports  how each device's batches travel, and why so
    host_bytes  host memory in slots, in use or ready for use
    """

    epoch: int
    batches: int
    delivered: dict[Side, int]
    seconds: float
    wait_s: float
    boundary: int | None
    takeovers: int
    failures: int
    rates: dict[Side, Rates]
    devices: dict[str, DeviceStatistics]
    lost: dict[str, str]
    transports: dict[str, str]
    host_bytes: int


def explain(statistics: LoaderStatistics) -> str:
    """Who waited for whom and why, in a few lines for people."""
    return "\n".join(_lines(statistics))


def _lines(s: LoaderStatistics) -> Iterator[str]:
    done = s.delivered[HEAD] + s.delivered[TAIL]
    yield f"epoch {s.epoch}: {done} of {s.batches} batches in {s.seconds:.2f} s"
    yield f"  head {s.delivered[HEAD]}, tail {s.delivered[TAIL]}{_boundary(s)}"
    yield f"  the training loop waited {s.wait_s:.2f} s for batches: {_verdict(s)}"
    for side in Side:
        yield f"  {side.name.lower()}: {_pace(s.rates[side])}"
    for name, device in s.devices.items():
        yield f"  {name}: {device.made} batches made, {device.failed} failed, {device.cpu_s:.2f} CPU s"
    for name, reason in s.transports.items():
        yield f"  {name} travels by {reason}"
    if s.takeovers:
        yield f"  {s.takeovers} late batches were made by the other side instead"
    if s.failures:
        yield f"  {s.failures} tries failed and were made again"
    for name, why in s.lost.items():
        yield f"  {name} is lost: {why}"


def _boundary(s: LoaderStatistics) -> str:
    return "" if s.boundary is None else f" (boundary fixed at {s.boundary})"


def _pace(rates: Rates) -> str:
    made = "not measured yet" if rates.make_s is None else f"{1e3 * rates.make_s:.1f} ms to make a batch"
    used = "not measured yet" if rates.step_s is None else f"{1e3 * rates.step_s:.1f} ms to use one"
    return f"{made}, {used}"


def _verdict(s: LoaderStatistics) -> str:
    if s.seconds <= 0.0:
        return "nothing to judge yet"
    if s.wait_s > 0.1 * s.seconds:
        return "preprocessing is the bottleneck"
    return "training is the bottleneck, preprocessing keeps up"
