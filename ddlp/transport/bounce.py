"""Batches in files, read through the page cache into a slot: works on every file system."""

from __future__ import annotations

import asyncio
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ddlp.agent.protocol import CHECKED_NBYTES
from ddlp.devices.base import FilePlace
from ddlp.errors import BatchFailed
from ddlp.transport.base import Transport

if TYPE_CHECKING:
    from ddlp.memory import Slot
    from ddlp.types import BatchRef

_THREADS = 2  # that read parts of one batch at the same time


class BounceTransport(Transport):
    """Reads in threads of its own, so that the event loop never waits for a disk; checks length and checksums."""

    name = "bounce"

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="ddlp-bounce")

    def can_carry(self, ref: BatchRef, target: str) -> str | None:
        return None if isinstance(ref.place, FilePlace) else "the batch does not lie in a file"

    async def fetch(self, ref: BatchRef, slot: Slot) -> None:
        # The view keeps the slot's memory until the threads are done with it, even when this call is cancelled.
        view = slot.memory[: ref.nbytes]
        loop, count = asyncio.get_running_loop(), len(ref.place.crcs)
        parts = [range(first, count, _THREADS) for first in range(min(count, _THREADS))]
        reading = [loop.run_in_executor(self._threads, _read, ref.place, view, part) for part in parts]
        if reading:
            await asyncio.wait(reading)
        for error in filter(None, (part.exception() for part in reading)):
            # Without its traceback, which would keep the slot's memory as long as somebody keeps the error.
            raise BatchFailed(f"{ref.claim} of {ref.device}: {error}") from error.with_traceback(None)

    async def aclose(self) -> None:
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)


def _read(place: FilePlace, batch: memoryview, parts: range) -> None:
    """Read these parts of CHECKED_NBYTES each. Raises OSError naming the file where it is missing, cut or damaged."""
    fd = os.open(place.path, os.O_RDONLY)
    try:
        for part in parts:
            at = part * CHECKED_NBYTES
            _read_part(fd, place, at, batch[at : at + CHECKED_NBYTES], place.crcs[part])
    finally:
        os.close(fd)


def _read_part(fd: int, place: FilePlace, at: int, out: memoryview, crc: int) -> None:
    done = 0
    while done < len(out):
        count = os.preadv(fd, [out[done:]], place.offset + at + done)
        if count == 0:
            raise OSError(f"{place.path!r} ends {len(out) - done} bytes too early")
        done += count
    found = zlib.crc32(out)
    if found != crc:
        raise OSError(f"{place.path!r} is damaged: bytes from {at} on have the CRC-32 {found:08x}, not {crc:08x}")
