"""An emulated computational storage device: an agent on this machine that is as slow as one, with a store of files.

Everything but the hardware is real: it opens its own copy of the data set from a description, keeps finished batches in
its own store of bounded size, and runs at a speed of its own, whatever else the machine does.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import weakref
from typing import TYPE_CHECKING

import msgspec

from ddlp.agent.protocol import CHECKED_NBYTES, Open
from ddlp.data.arrays import ArrayDataset
from ddlp.data.maker import Maker, Preparation
from ddlp.devices.base import Capabilities, FilePlace
from ddlp.devices.process import AgentProcess
from ddlp.devices.remote import PARTS_EACH, AgentDevice
from ddlp.errors import DataError, DeviceLost, UsageError
from ddlp.types import BatchRef, Side

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddlp.agent.faults import Faults
    from ddlp.agent.protocol import Opened, Welcome
    from ddlp.devices.base import Job
    from ddlp.devices.remote import Batch


class EmulatedCsd(AgentDevice):
    """A device `slowdown` times slower than one core of this machine, with room for `store_bytes` of batches.

    store   folder in which its store is made and removed again; None: the system's place for temporary files
    cpus    cores that it may use; None: all
    faults  what shall go wrong with it
    name    unique among a loader's devices

    Raises:
        UsageError: a number is out of range, or the folder does not exist.
    """

    def __init__(
        self,
        slowdown: float = 4.0,
        store: str | os.PathLike[str] | None = None,
        store_bytes: int | None = None,
        cpus: Sequence[int] | None = None,
        faults: Faults | None = None,
        name: str = "csd0",
    ) -> None:
        super().__init__(name, workers=1)
        if slowdown < 1:
            raise UsageError(f"slowdown must be at least 1, as fast as a core of this machine: {slowdown}")
        if store_bytes is not None and store_bytes < 1:
            raise UsageError(f"store_bytes must be at least 1: {store_bytes}")
        if store is not None and not os.path.isdir(store):
            raise UsageError(f"store is not a folder: {os.fspath(store)!r}")
        self._slowdown = slowdown
        self._store = store
        self._store_bytes = store_bytes
        self._cpus = cpus
        self._faults = faults
        self._folder: _Folder | None = None
        self._kept: dict[str, Batch] = {}  # finished batches, by path

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(Side.TAIL, PARTS_EACH, store_bytes=self._store_bytes, lands="file")

    async def _prepare(self, job: Job) -> Open:
        if job.preparation.python:
            raise UsageError(
                f"{self.name} runs no Python of this program: use ImageFolder, TarShards, CIFAR10 or ArrayDataset, a"
                " recipe without Map, and no collate_fn or worker_init_fn; or leave this data set to CpuPool"
            )
        self._clean_up()
        self._folder, description = await asyncio.to_thread(_loaded, job.preparation, self._store)
        return description

    def _spawn(self, job: Job, number: int) -> AgentProcess:
        assert self._folder is not None
        arguments = [f"--folder={self._folder.path}", f"--slowdown={self._slowdown}"]
        if self._store_bytes is not None:
            arguments.append(f"--store-bytes={self._store_bytes}")
        if self._cpus is not None:
            arguments.append(f"--cpus={','.join(map(str, self._cpus))}")
        if self._faults is not None:
            arguments.append(f"--faults={msgspec.json.encode(self._faults).decode()}")
        return AgentProcess(self.name, number, arguments)

    def _check(self, job: Job, welcome: Welcome, opened: Opened) -> None:
        ours = job.preparation
        for what, here, there in (
            ("the number of samples", ours.samples, opened.samples),
            ("the form of batches", ours.layout, opened.layout),
            ("the fingerprint of data set and recipe", ours.fingerprint, opened.fingerprint),
            ("the libraries that make the pixels", Maker.kernels(), welcome.kernels),
        ):
            if here != there:
                raise DataError(
                    f"{self.name} and this host would make different batches: {what} is {there} there and {here} here"
                )

    def _ref(self, batch: Batch) -> BatchRef:
        layout, (made,) = batch.job.preparation.layout, batch.made
        assert layout is not None
        assert self._folder is not None
        nbytes = layout.nbytes(batch.rows)
        if (
            os.path.dirname(made.path) != self._folder.path
            or made.nbytes != nbytes
            or made.offset < 0
            or len(made.crcs) != -(-nbytes // CHECKED_NBYTES)
        ):
            raise DeviceLost(f"{self.name}: the agent's answer is no batch of {nbytes} bytes in its store: {made!r}")
        self._kept[made.path] = batch
        return BatchRef(
            batch.claim,
            self.name,
            FilePlace(made.path, made.offset, made.crcs),
            layout.leaves(batch.rows),
            made.nbytes,
            made_s=made.made_s,
            cpu_s=made.cpu_s,
        )

    def _discard(self, ref: BatchRef) -> None:
        batch = self._kept.pop(ref.place.path, None)
        if batch is not None:
            batch.forget()

    def _clean_up(self) -> None:
        self._kept.clear()
        if self._folder is not None:
            self._folder.remove()


class _Folder:
    """A private folder in `parent`, until `remove`, or until nobody refers to this any more."""

    def __init__(self, parent: str | os.PathLike[str] | None) -> None:
        self.path = tempfile.mkdtemp(prefix="ddlp-", dir=parent)
        self.remove = weakref.finalize(self, _remove, self.path, os.getpid())


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # and not in a process forked from it
        shutil.rmtree(folder, ignore_errors=True)


def _loaded(preparation: Preparation, store: str | os.PathLike[str] | None) -> tuple[_Folder, Open]:
    """The device's folder, and what it is to open; arrays in memory go there, as one loads data onto a device."""
    folder = _Folder(store)
    try:
        return folder, Open(*_described(preparation, os.path.join(folder.path, "data")))
    except BaseException:
        folder.remove()
        raise


def _described(preparation: Preparation, folder: str) -> tuple[bytes, bytes]:
    """(data set, recipe) as JSON, of a copy in `folder` where only this process has the data."""
    try:
        return preparation.describe()
    except UsageError:
        if not isinstance(preparation.dataset, ArrayDataset):
            raise
        return Preparation(preparation.dataset.saved(folder), preparation.recipe).describe()
