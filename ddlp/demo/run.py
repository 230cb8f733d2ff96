"""The demo from its arguments to its table."""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING

from ddlp.demo import training
from ddlp.demo.loaders import Result, Work, results
from ddlp.demo.photos import image_folder
from ddlp.demo.report import LEGEND, setting, table
from ddlp.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from ddlp.data.folder import ImageFolder
    from ddlp.demo.progress import Interrupts

_LEAST = {"images": 1, "batch_size": 1, "workers": 1, "epochs": 1, "slowdown": 1, "step_ms": 0}


def run(arguments: argparse.Namespace, interrupts: Interrupts) -> None:
    """Make the images where there are none, stream them four ways, print the table.

    Raises:
        DdlpError, OSError: something that the user can mend.
        KeyboardInterrupt: at Ctrl-C; then no process and no half of anything is left.
    """
    _check(arguments)
    host, csd = divided_cores()
    folder = image_folder(arguments.data, arguments.images, interrupts)
    with _pinned(host):
        work = _work(arguments, folder, host)
        print(setting(work, _described_training(arguments), arguments.slowdown, host, csd), flush=True)
        _read_once(work, interrupts)
        found: list[Result] = list(results(work, arguments.slowdown, csd, interrupts))
    print(f"\n{table(found)}\n\n{LEGEND}")


def divided_cores() -> tuple[list[int], list[int]]:
    """Which cores play the host, and which one plays the CSD; both have the only one where there is no second."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[:-1] or cores, cores[-1:]


def _check(arguments: argparse.Namespace) -> None:
    for name, least in _LEAST.items():
        value = getattr(arguments, name)
        if value is not None and not value >= least:
            raise UsageError(f"--{name.replace('_', '-')} must be at least {least}, not {value}")


def _work(arguments: argparse.Namespace, folder: ImageFolder, host: Sequence[int]) -> Work:
    if arguments.train:
        step = training.small_network(len(folder.classes), threads=len(host))
    else:
        step = training.stand_in(arguments.step_ms / 1e3)
    return Work(
        folder,
        ids=random.Random(0).sample(range(len(folder)), min(arguments.images, len(folder))),
        batch_size=arguments.batch_size,
        workers=arguments.workers or len(host),
        epochs=arguments.epochs,
        step=step,
    )


def _described_training(arguments: argparse.Namespace) -> str:
    if arguments.train:
        return f"a small network on {training.accelerator()}"
    return f"a stand-in that takes {arguments.step_ms:g} ms per batch and no host CPU; --train trains a small network"


@contextlib.contextmanager
def _pinned(cores: Sequence[int]) -> Iterator[None]:
    """This thread, and all that is started by it inside, on these cores only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _read_once(work: Work, interrupts: Interrupts) -> None:
    """Read every file, so that no loader is the one that waits for the disk."""
    for id_ in work.ids:
        interrupts.check()
        Path(work.folder.path(id_)).read_bytes()
