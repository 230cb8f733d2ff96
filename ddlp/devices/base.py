"""The contract of a device: something that turns a claim into a finished batch.

A driver implements the underscored methods; the public ones check and translate, so that what leaves a driver is only
`DeviceLost` (the device is gone), `BatchFailed` (this batch, another try may succeed), `SampleError` (the data) or
`ClosedError`. The life of a device: `open` once per epoch, any number of concurrent `preprocess`, `discard`, `aclose`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from ddlp.errors import ClosedError, DataError, DdlpError, DeviceLost
from ddlp.types import Side

if TYPE_CHECKING:
    from ddlp.data.maker import Preparation
    from ddlp.data.sampling import ListedPlan, Plan
    from ddlp.memory import Arena
    from ddlp.types import BatchRef, Claim


class Capabilities(msgspec.Struct, frozen=True):
    """What a device can do, as data.

    side         the end that it eats from unless told otherwise
    depth        claims in flight that keep it busy
    store_bytes  room for finished batches that wait to be used, in bytes; None: no such bound
    store_batches  the same in batches, where no bound in bytes is given or the size of a batch is not known
    lands        where finished batches lie: "slot", "file", "stream" or "accelerator"
    kernels      versions of the libraries that make its pixels
    """

    side: Side
    depth: int
    store_bytes: int | None = None
    store_batches: int | None = None
    lands: str = "file"
    kernels: dict[str, str] = {}


@dataclass(frozen=True)
class Job:
    """What a device needs to know for one epoch.

    preparation  data set, recipe and layout, the same for every epoch of a loader
    plan         which samples batch `index` holds
    arena        host memory for devices that land in slots
    timeout_s    how long the device may take to answer while it opens
    """

    preparation: Preparation
    plan: Plan | ListedPlan
    arena: Arena
    timeout_s: float | None = 60.0


class FilePlace(msgspec.Struct, frozen=True):
    """The `place` of a batch in a file: its bytes begin at `offset` of `path`, with the checksums of the protocol."""

    path: str
    offset: int
    crcs: tuple[int, ...]


class DeviceStatistics(msgspec.Struct, frozen=True):
    """Since the device was opened first. Times are seconds; cpu_s is CPU time of the device's own processors."""

    made: int = 0
    failed: int = 0
    made_s: float = 0.0
    cpu_s: float = 0.0
    nbytes: int = 0
    late: int = 0  # answers to claims that had been given up
    restarts: int = 0


class Device(ABC):
    """Six verbs: `capabilities`, `open`, `preprocess`, `discard`, `statistics`, `aclose`."""

    name: str = "device"

    def __init__(self) -> None:
        self._closed = False
        self._broken: DeviceLost | None = None

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """Fixed for the life of the device, and readable before `open`."""

    async def open(self, job: Job) -> None:
        """Get ready for one epoch. The first call starts what has to be started; later ones are cheap.

        Raises:
            DeviceLost: it cannot be started or reached.
            DataError: the data set cannot be used on this device.
            ClosedError: after `aclose`.
        """
        self._check_open()
        await self._translated(self._open(job), DeviceLost)

    async def preprocess(self, claim: Claim) -> BatchRef:
        """Make one batch and say where it lies. Several calls may be in flight, up to `capabilities.depth` usefully.

        After cancellation nothing of the claim is left in the device's store: no `discard` is owed.

        Raises:
            SampleError: a sample cannot be read; no other device would do better.
            BatchFailed: this try failed; another may succeed.
            DeviceLost: the device is gone, with every batch in its store that has not been fetched.
            ClosedError: after `aclose`.
        """
        self._check_open()
        ref: BatchRef = await self._translated(self._preprocess(claim), DeviceLost)
        if ref.claim != claim:
            raise DeviceLost(f"{self.name} cannot be trusted: asked for {claim}, it answered with {ref.claim}")
        return ref

    def discard(self, ref: BatchRef) -> None:
        """Forget a finished batch and free its room. Returns at once and never raises; a driver that fails is lost."""
        if self._closed:
            return
        try:
            self._discard(ref)
        except Exception as error:
            self._broken = DeviceLost(f"{self.name}: discarding failed: {type(error).__name__}: {error}")
            self._broken.__cause__ = error

    def statistics(self) -> DeviceStatistics:
        """What it has done so far."""
        return DeviceStatistics()

    async def aclose(self) -> None:
        """End everything the device has started. Twice is fine; what is in flight ends with ClosedError."""
        if not self._closed:
            self._closed = True
            await self._aclose()

    @abstractmethod
    async def _open(self, job: Job) -> None: ...

    @abstractmethod
    async def _preprocess(self, claim: Claim) -> BatchRef: ...

    @abstractmethod
    def _discard(self, ref: BatchRef) -> None: ...

    @abstractmethod
    async def _aclose(self) -> None: ...

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.name} is closed")
        if self._broken is not None:
            raise self._broken

    async def _translated(self, work: Any, wrapper: type[DdlpError]) -> Any:
        """Await a driver's own coroutine; no foreign exception crosses the boundary."""
        try:
            return await work
        except (DdlpError, DataError):
            raise
        except Exception as error:
            raise wrapper(f"{self.name}: {type(error).__name__}: {error}") from error

    def __repr__(self) -> str:
        state = " closed" if self._closed else ""
        return f"<{type(self).__name__} {self.name} {self.capabilities.side.name.lower()}{state}>"
