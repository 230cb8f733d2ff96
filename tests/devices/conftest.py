"""Jobs, both event loops, and a look at what a device made."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pytest
import uvloop

from ddlp.data.arrays import ArrayDataset
from ddlp.data.maker import Preparation
from ddlp.data.python import unpack
from ddlp.data.sampling import Plan
from ddlp.devices.base import Job
from ddlp.memory import Arena
from ddlp.transport.choose import Carrier
from ddlp.types import TAIL, Claim

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from ddlp.devices.base import Device
    from ddlp.types import BatchRef

    D = TypeVar("D", bound=Device)

BATCH = 10


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    """Runs a coroutine, on either event loop."""
    return request.param


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena()
    yield arena
    arena.close()


@pytest.fixture
def arrays() -> ArrayDataset:
    """75 samples of random uint8 (6, 4, 3) and their number."""
    return ArrayDataset(np.random.default_rng(5).integers(0, 256, (75, 6, 4, 3), dtype=np.uint8), np.arange(75))


@dataclass
class Work:
    """A job, and the means to look at its batches."""

    arena: Arena
    preparation: Preparation
    epoch: int = 0
    tickets: int = 0

    @property
    def plan(self) -> Plan:
        return Plan(self.preparation.samples, BATCH, False, True, seed=3, epoch=self.epoch)

    def job(self, timeout_s: float = 30.0) -> Job:
        return Job(self.preparation, self.plan, self.arena, timeout_s)

    def claim(self, index: int) -> Claim:
        self.tickets += 1
        return Claim(index, TAIL, self.tickets)

    def claim_of(self, sample: int) -> Claim:
        """A claim of the batch that holds this sample."""
        return self.claim(next(i for i in range(len(self.plan)) if sample in self.plan.ids(i)))

    async def arrays(self, ref: BatchRef) -> list[np.ndarray]:
        """Copies of a batch's arrays."""
        carrier = Carrier(self.arena)
        try:
            slot = await carrier.carry(ref)
            return [array.copy() for array in slot.arrays(ref.leaves)]
        finally:
            await carrier.aclose()

    async def batch(self, device: Device, index: int) -> Any:
        """Batch `index`, as lists, made and discarded again."""
        ref = await device.preprocess(self.claim(index))
        arrays = await self.arrays(ref)
        device.discard(ref)
        batch = tuple(arrays) if ref.skeleton is None else unpack(ref.skeleton, [Tensor(array) for array in arrays])
        return tuple(np.asarray(part).tolist() for part in batch)

    async def epoch_of(self, device: Device) -> list[Any]:
        """All batches of the epoch, asked for at once."""
        return await asyncio.gather(*(self.batch(device, index) for index in range(len(self.plan))))


@asynccontextmanager
async def opened(device: D, work: Work) -> AsyncIterator[D]:
    """The device, open; closed at the end."""
    async with aclosing(device):
        await device.open(work.job())
        yield device


async def until(condition: Callable[[], object], pause_s: float = 0.005) -> None:
    """Wait for what another process does; with a pause of 0, at every turn of the loop."""
    end = time.monotonic() + 10.0
    while time.monotonic() < end:
        if condition():
            return
        await asyncio.sleep(pause_s)
    raise AssertionError("it never came true")


class Tensor(np.ndarray):
    """What `unpack` needs of a tensor."""

    def __new__(cls, array: np.ndarray) -> Tensor:
        return array.view(cls)

    def numpy(self) -> np.ndarray:
        return np.asarray(self)


@pytest.fixture
def work(arena: Arena, arrays: ArrayDataset) -> Work:
    """Batches of the arrays as they are."""
    return Work(arena, Preparation(arrays))


@pytest.fixture
def work_of(arena: Arena) -> Callable[..., Work]:
    """Batches of any data set."""
    return lambda *arguments, **options: Work(arena, Preparation(*arguments, **options))
