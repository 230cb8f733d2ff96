"""Batches in files, read through the page cache into a slot: works on every file system."""

from __future__ import annotations

import asyncio
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ddlp.devices.base import FilePlace
from ddlp.errors import BatchFailed
from ddlp.transport.base import Transport

if TYPE_CHECKING:
    from ddlp.memory import Slot
    from ddlp.types import BatchRef

_THREADS = 2  # the batch that training waits for, and the one after it


class BounceTransport(Transport):
    """Reads in threads of its own, so that the event loop never waits for a disk; checks length and CRC-32."""

    name = "bounce"

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="ddlp-bounce")

    def can_carry(self, ref: BatchRef, target: str) -> str | None:
        return None if isinstance(ref.place, FilePlace) else "the batch does not lie in a file"

    async def fetch(self, ref: BatchRef, slot: Slot) -> None:
        # The view keeps the slot's memory until the thread is done with it, even when this call is cancelled.
        view = slot.memory[: ref.nbytes]
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, _read, ref.place, view)
        except OSError as error:
            raise BatchFailed(f"{ref.claim} of {ref.device}: {error}") from error

    async def aclose(self) -> None:
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)


def _read(place: FilePlace, out: memoryview) -> None:
    """Fill `out`. Raises OSError naming the file when it is missing, too short or damaged."""
    fd = os.open(place.path, os.O_RDONLY)
    try:
        done = 0
        while done < len(out):
            count = os.preadv(fd, [out[done:]], place.offset + done)
            if count == 0:
                raise OSError(f"{place.path!r} ends {len(out) - done} bytes too early")
            done += count
    finally:
        os.close(fd)
    crc = zlib.crc32(out)
    if crc != place.crc:
        raise OSError(f"{place.path!r} is damaged: its CRC-32 is {crc:08x}, not {place.crc:08x}")
