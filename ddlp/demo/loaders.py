"""The four loaders of the demo, and how an epoch of one of them is measured."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from ddlp.data.recipes import imagenet_train
from ddlp.demo.accounting import CpuTime, cpu_time
from ddlp.demo.baseline import plain_loader
from ddlp.demo.progress import Progress
from ddlp.devices.cpu import CpuPool
from ddlp.devices.emulated import EmulatedCsd
from ddlp.loader import Loader
from ddlp.policies.mte import MTE
from ddlp.policies.wrr import WRR
from ddlp.types import TAIL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ddlp.data.folder import ImageFolder
    from ddlp.demo.progress import Interrupts
    from ddlp.demo.training import Step
    from ddlp.devices.base import Device
    from ddlp.policies.base import Policy


class Work(NamedTuple):
    """What every loader has to do: `epochs` of the samples `ids`, in this order, by `workers` processes on the host."""

    folder: ImageFolder
    ids: Sequence[int]
    batch_size: int
    workers: int
    epochs: int
    step: Step

    @property
    def batches(self) -> int:
        """Of one epoch."""
        return -(-len(self.ids) // self.batch_size)


class Result(NamedTuple):
    """The last epoch of one loader.

    seconds    from asking for the first batch until the last step has ended
    wait_s     of that, for batches
    cpu        time that was spent in the epoch, the end of its workers included
    csd_share  of the batches; None where there is no CSD
    """

    name: str
    images: int
    seconds: float
    wait_s: float
    cpu: CpuTime
    csd_share: float | None = None

    @property
    def rate(self) -> float:
        """Images per second."""
        return self.images / self.seconds


def results(work: Work, slowdown: float, csd_cores: Sequence[int], interrupts: Interrupts) -> Iterator[Result]:
    """One loader after the other.

    Raises:
        KeyboardInterrupt: at Ctrl-C; then no process is left.
    """

    def devices() -> list[Device]:
        return [CpuPool(work.workers), EmulatedCsd(slowdown, cpus=csd_cores)]

    calibration = max(1, min(10, work.batches // 20))  # a short epoch leaves time for a short measurement only
    yield _pytorch(work, interrupts)
    yield _ddlp("ddlp, CPU alone", work, [CpuPool(work.workers)], WRR(), interrupts)
    yield _ddlp("ddlp, CPU + CSD, MTE", work, devices(), MTE(calibration), interrupts)
    yield _ddlp("ddlp, CPU + CSD, WRR", work, devices(), WRR(), interrupts)


def _pytorch(work: Work, interrupts: Interrupts) -> Result:
    loader = plain_loader(work.folder, work.ids, work.batch_size, work.workers)
    return _measured("PyTorch DataLoader", work, loader, interrupts)


def _ddlp(name: str, work: Work, devices: Sequence[Device], policy: Policy, interrupts: Interrupts) -> Result:
    with Loader(
        work.folder, imagenet_train(), work.batch_size, sampler=work.ids, devices=devices, policy=policy
    ) as loader:
        result = _measured(name, work, loader, interrupts)
        if len(devices) == 1:
            return result
        return result._replace(csd_share=loader.statistics().delivered[TAIL] / work.batches)


def _measured(name: str, work: Work, loader: Iterable[Any], interrupts: Interrupts) -> Result:
    for _ in range(work.epochs):
        with Progress(name, len(work.ids)) as progress:
            result = _epoch(name, work.step, loader, progress, interrupts)
    return result


def _epoch(name: str, step: Step, loader: Iterable[Any], progress: Progress, interrupts: Interrupts) -> Result:
    cpu_before = cpu_time()
    begun = asked = time.monotonic()
    wait_s = 0.0
    for images, labels in loader:
        wait_s += time.monotonic() - asked
        step(images, labels)
        progress.advance(len(labels))
        interrupts.check()
        asked = time.monotonic()
    return Result(name, progress.done, asked - begun, wait_s, cpu_time().since(cpu_before))
