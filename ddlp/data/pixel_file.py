"""Decoded images that were made once, in one file that all workers, and all ranks, map and crop from.

The file holds a record for each sample, and behind these the pixels of one image after the other, in the order in which
they came. It only grows, up to its bound, and nothing in it ever moves.

* To add an image, take room at the end, write the pixels there, then publish its record; the first and the last of
  these under a lock. Whoever dies in between leaves a hole that no record speaks of.
* To look one up takes no lock. A record has a checksum, so one that is half written, or torn by a write, is none.
* All writing is done with pwrite: where a disk is full that is an error, and in a mapping it would be the end of us.
* What was written survives every process, but not the machine. So a record says in which `home` it was written, one
  boot and one file. Anywhere else (after a reboot, in a copy) an image is read whole, once, to see that it is all
  there.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import mmap
import os
import struct
import weakref
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ddlp.data.base import digest
from ddlp.data.operation import CHANNELS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from ddlp.data.recipe import Recipe

FORMAT = 1  # of the file; another number makes new files
_BODY = struct.Struct("<QIIIQqq")
_CHECK = struct.Struct("<I")
_RECORD_NBYTES = _BODY.size + _CHECK.size


class Stamp(NamedTuple):
    """By what the file of a sample is known to be the same as before."""

    mtime_ns: int
    nbytes: int

    @classmethod
    def of(cls, path: str) -> Stamp:
        """Raises OSError where there is no such file."""
        status = os.stat(path)
        return cls(status.st_mtime_ns, status.st_size)


class _Record(NamedTuple):
    """Where the pixels of one sample are, (height, width, channel) from `offset` on, and what they were made of."""

    offset: int
    height: int
    width: int
    crc: int  # of the pixels
    home: int
    mtime_ns: int
    nbytes: int

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.mtime_ns, self.nbytes)

    def packed(self, id_: int) -> bytes:
        """Its bytes for sample `id_`, and no other."""
        body = _BODY.pack(*self)
        return body + _CHECK.pack(zlib.crc32(body, id_))


class PixelFile:
    """The pixels after `kept`, the first operations of a recipe, of as many samples as `nbytes` have room for.

    It owns `fd`, until `close`, or until nobody refers to it any more. A process that inherits `fd` gets a file of its
    own by unpickling. Used by one thread.

    full  whether this process has stopped adding
    """

    def __init__(self, fd: int, nbytes: int, samples: int, kept: Recipe) -> None:
        assert kept.decode is not None
        self.fd = fd
        self.close = weakref.finalize(self, os.close, fd)
        self.nbytes = nbytes
        self.kept = kept
        self.full = False
        self._samples = samples
        self._channels = CHANNELS[kept.decode.mode]
        self._home = _home(fd)
        self._map: mmap.mmap | bytes = b""
        with self._locked():
            os.ftruncate(fd, max(self.used_nbytes, samples * _RECORD_NBYTES))

    def __reduce__(self) -> tuple[Any, ...]:
        return _inherited, (self.fd, self.nbytes, self._samples, self.kept)

    @property
    def used_nbytes(self) -> int:
        """Bytes of the file so far."""
        return os.fstat(self.fd).st_size

    def get(self, id_: int, stamp: Stamp) -> NDArray[np.uint8] | None:
        """The pixels of sample `id_`, read-only (height, width, channel); None where they are not there.

        They are a view of the file: only the rows that are looked at are read.
        """
        record = self._record(id_)
        if record is None or record.stamp != stamp:
            return None
        pixels = self._pixels(record)
        if pixels is None or record.home == self._home:
            return pixels
        return pixels if self._brought_home(id_, record, pixels) else None

    def has(self, id_: int) -> bool:
        """Whether sample `id_` is there, perhaps made of a file that has changed since."""
        return self._record(id_) is not None

    def add(self, id_: int, stamp: Stamp, pixels: NDArray[np.uint8]) -> None:
        """Keep C-contiguous pixels, unless somebody else has, or there is no room.

        An image of a file that has changed takes new room; the old pixels stay where they are, for others may be
        reading them.
        """
        with self._full_if_not_possible():
            offset = None if self.full else self._reserve(id_, stamp, pixels.nbytes)
            if offset is not None:
                _write(self.fd, pixels.reshape(-1).data, offset)
                height, width, _ = pixels.shape
                self._publish(id_, _Record(offset, height, width, zlib.crc32(pixels.data), self._home, *stamp))

    # --- looking -----------------------------------------------------------------------------------------------------

    def _record(self, id_: int) -> _Record | None:
        end = (id_ + 1) * _RECORD_NBYTES
        data = self._reaching(end)[end - _RECORD_NBYTES : end]
        record = _Record(*_BODY.unpack_from(data))
        return record if record.packed(id_) == data else None

    def _pixels(self, record: _Record) -> NDArray[np.uint8] | None:
        """None where they are behind the end of the file: it is a copy, and not whole."""
        shape = record.height, record.width, self._channels
        end = record.offset + math.prod(shape)
        memory = self._reaching(end)
        return np.ndarray(shape, np.uint8, memory, record.offset) if end <= len(memory) else None

    def _reaching(self, end: int) -> mmap.mmap | bytes:
        """The file, mapped as far as `end`, or as far as it goes."""
        if end > len(self._map):
            self._map = mmap.mmap(self.fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
        return self._map

    # --- writing -----------------------------------------------------------------------------------------------------

    def _reserve(self, id_: int, stamp: Stamp, nbytes: int) -> int | None:
        """Where so many bytes may be written; None where that is not needed, or where they do not fit."""
        with self._locked():
            record = self._record(id_)
            if record is not None and (record.stamp, record.home) == (stamp, self._home):
                return None
            end = self.used_nbytes
            self.full = end + nbytes > self.nbytes
            if self.full:
                return None
            os.ftruncate(self.fd, end + nbytes)
            return end

    def _publish(self, id_: int, record: _Record) -> None:
        with self._locked():
            _write(self.fd, memoryview(record.packed(id_)), id_ * _RECORD_NBYTES)

    def _brought_home(self, id_: int, record: _Record, pixels: NDArray[np.uint8]) -> bool:
        """Whether the pixels are all there; if so nobody has to look again."""
        if zlib.crc32(pixels.data) != record.crc:
            return False
        with self._full_if_not_possible():
            self._publish(id_, record._replace(home=self._home))
        return True

    @contextlib.contextmanager
    def _full_if_not_possible(self) -> Iterator[None]:
        """A disk without room, or a broken one, is no error: what is not kept is decoded each time."""
        try:
            yield
        except OSError:
            self.full = True

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Nobody else changes the records or the size of the file; the kernel frees the lock of one who dies."""
        fcntl.flock(self.fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self.fd, fcntl.LOCK_UN)

    def __repr__(self) -> str:
        state = "closed" if not self.close.alive else f"{self.used_nbytes} of {self.nbytes} bytes"
        return f"<PixelFile {state}, {self.kept!r}>"


def _inherited(fd: int, *rest: Any) -> PixelFile:
    # Opened anew and not duplicated: a lock belongs to an opening of the file, and one that is shared locks nobody out.
    return PixelFile(os.open(f"/proc/self/fd/{fd}", os.O_RDWR), *rest)


def _home(fd: int) -> int:
    """What names this file in this boot of the machine; in another boot, or for a copy of it, it is another number."""
    with open("/proc/sys/kernel/random/boot_id", "rb") as file:
        boot = file.read()
    status = os.fstat(fd)
    return int(digest(boot, b"%d %d" % (status.st_dev, status.st_ino)), 16)


def _write(fd: int, data: memoryview, offset: int) -> None:
    while data:
        done = os.pwrite(fd, data, offset)
        data, offset = data[done:], offset + done
