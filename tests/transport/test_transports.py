"""The laws of transports: the right bytes or an error that names file and batch, and no memory lost on the way."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import aclosing

import numpy as np
import pytest
import uvloop

from ddlp.agent.protocol import CHECKED_NBYTES, checksums
from ddlp.devices.base import FilePlace
from ddlp.errors import BatchFailed, UsageError
from ddlp.memory import Arena
from ddlp.transport import bounce
from ddlp.transport.bounce import BounceTransport
from ddlp.transport.choose import Carrier, TransportStatistics
from ddlp.transport.host import HostTransport
from ddlp.types import TAIL, BatchRef, Claim, Leaf

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request):
    return request.param


@pytest.fixture
def arena():
    arena = Arena()
    yield arena
    arena.close()


@pytest.fixture
def ref_of(tmp_path):
    """Writes bytes to a file, behind `offset` others, and refers to them as a device does."""

    def make(payload: bytes, offset: int = 4096, index: int = 3) -> BatchRef:
        path = tmp_path / f"b{index}"
        path.write_bytes(bytes(offset) + payload)
        place = FilePlace(str(path), offset, checksums(memoryview(payload)))
        return BatchRef(Claim(index, TAIL, 9), "csd0", place, (Leaf("uint8", (len(payload),), 0),), len(payload))

    return make


def random_bytes(count: int) -> bytes:
    return np.random.default_rng(count).bytes(count)


@pytest.mark.parametrize(
    "nbytes", [1, 100, CHECKED_NBYTES - 1, CHECKED_NBYTES, CHECKED_NBYTES + 1, 5 * CHECKED_NBYTES + 7]
)
@pytest.mark.parametrize("offset", [0, 4096, 17])
def test_a_file_arrives_whole(run, arena, ref_of, nbytes, offset):
    """Every byte arrives in its place, whatever the size and wherever in the file the batch begins."""
    payload = random_bytes(nbytes)

    async def main() -> None:
        async with aclosing(Carrier(arena)) as carrier:
            slot = await carrier.carry(ref_of(payload, offset))
            assert bytes(slot.memory[:nbytes]) == payload

    run(main())


@pytest.mark.parametrize("at", [0, CHECKED_NBYTES - 1, CHECKED_NBYTES, 2 * CHECKED_NBYTES + 5])
def test_a_changed_byte_is_found(run, arena, ref_of, at):
    """Damage anywhere fails the batch, with file, batch and place, and gives the memory back."""
    ref = ref_of(random_bytes(2 * CHECKED_NBYTES + 6))
    with open(ref.place.path, "r+b") as file:
        file.seek(4096 + at)
        byte = file.read(1)
        file.seek(4096 + at)
        file.write(bytes([byte[0] ^ 1]))

    async def main() -> None:
        async with aclosing(Carrier(arena)) as carrier:
            begin = at // CHECKED_NBYTES * CHECKED_NBYTES
            with pytest.raises(BatchFailed, match=f"batch 3 .* of csd0: .*b3' is damaged: bytes from {begin} on"):
                await carrier.carry(ref)

    run(main())
    assert arena.used_nbytes == 0


def test_a_short_file_is_found(run, arena, ref_of):
    """A file that was cut fails its batch, and says by how much."""
    ref = ref_of(random_bytes(1000))
    os.truncate(ref.place.path, 4096 + 900)

    async def main() -> None:
        async with aclosing(Carrier(arena)) as carrier:
            with pytest.raises(BatchFailed, match="b3' ends 100 bytes too early"):
                await carrier.carry(ref)

    run(main())


def test_a_missing_file_is_named(run, arena, ref_of):
    """A file that is gone fails its batch; the ref stays valid, for when the file is back."""
    payload = random_bytes(1000)
    ref = ref_of(payload)
    os.unlink(ref.place.path)

    async def main() -> None:
        async with aclosing(Carrier(arena)) as carrier:
            with pytest.raises(BatchFailed, match=r"batch 3 .* of csd0: .*No such file.*b3"):
                await carrier.carry(ref)
            ref_of(payload)
            assert bytes((await carrier.carry(ref)).memory[:1000]) == payload

    run(main())


def test_a_cancelled_fetch_keeps_its_memory_until_the_reader_is_done(run, arena, ref_of, monkeypatch):
    """Cancelling returns at once; memory that a thread still writes to is given to nobody before it is done."""
    reading, go_on = threading.Event(), threading.Event()
    real = os.preadv

    def slow(fd: int, buffers: list, offset: int) -> int:
        reading.set()
        assert go_on.wait(10)
        return real(fd, buffers, offset)

    monkeypatch.setattr(bounce.os, "preadv", slow)

    async def main() -> None:
        async with aclosing(Carrier(arena)) as carrier:
            task = asyncio.ensure_future(carrier.carry(ref_of(random_bytes(100))))
            await asyncio.to_thread(reading.wait, 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            del task
            used = arena.used_nbytes
            other = arena.lease(100)
            other.memory[:100] = bytes(100)
            go_on.set()
        assert used > 0
        assert bytes(other.memory[:100]) == bytes(100)

    run(main())
    assert arena.used_nbytes == 0


def test_a_batch_in_a_slot_stays_where_it_is(run, arena):
    """What lies in host memory is not moved, and stays its device's."""
    slot = arena.lease(100)
    ref = BatchRef(Claim(0, TAIL, 1), "cpu0", slot, (), 100)

    async def main() -> None:
        async with aclosing(Carrier(arena)) as carrier:
            assert await carrier.carry(ref) is slot

    run(main())
    assert arena.used_nbytes == slot.capacity


def test_the_choice_has_reasons_and_figures(run, arena, ref_of):
    """For each device one can see what carries its batches and why; for each transport what it carried."""
    refs = [BatchRef(Claim(0, TAIL, 1), "cpu0", arena.lease(100), (), 100), ref_of(random_bytes(1000))]

    async def main() -> None:
        async with aclosing(Carrier(arena)) as carrier:
            assert carrier.reasons() == {}
            for ref in [*refs, refs[1]]:
                await carrier.carry(ref)
            assert carrier.reasons() == {
                "cpu0": "host",
                "csd0": "bounce (not host: the batch does not lie in host memory)",
            }
            statistics = carrier.statistics()
            assert statistics["host"].batches == 1
            assert statistics["bounce"] == TransportStatistics(2, 2000, statistics["bounce"].seconds)
            assert statistics["bounce"].seconds > 0

    run(main())


def test_a_device_may_change_where_its_batches_lie(run, arena, ref_of):
    """When the chosen transport cannot carry a batch, another one is chosen."""
    ref = ref_of(random_bytes(10))
    slot = BatchRef(ref.claim, ref.device, arena.lease(10), (), 10)

    async def main() -> None:
        async with aclosing(Carrier(arena)) as carrier:
            await carrier.carry(ref)
            await carrier.carry(slot)
            assert carrier.reasons() == {"csd0": "host"}

    run(main())


def test_what_nobody_can_carry_is_explained(run, arena, ref_of):
    """Without a transport that can, the message has the reason of each."""

    async def main() -> None:
        async with aclosing(Carrier(arena, "cuda:0", [HostTransport()])) as carrier:
            message = "no transport carries batches of csd0 to cuda:0: host: the batch does not lie in host memory"
            with pytest.raises(UsageError, match=message):
                await carrier.carry(ref_of(b"x"))

    run(main())


def test_closing_twice_is_fine(run, arena):
    """A carrier and its transports may be closed again."""

    async def main() -> None:
        carrier = Carrier(arena)
        await carrier.aclose()
        await carrier.aclose()

    run(main())


def test_repr_names_the_transport():
    """One line, for messages."""
    transport = BounceTransport()
    assert repr(transport) == "<BounceTransport bounce>"
    asyncio.run(transport.aclose())
