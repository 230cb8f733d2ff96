"""Where an agent puts what it makes: slots of the host's shared memory, or one safetensors file per batch."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shutil
import struct
import tempfile
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import msgspec

from ddlp.agent.protocol import CHECKED_NBYTES, Made, checksums
from ddlp.data.python import Column, dtype_name
from ddlp.errors import DataError
from ddlp.memory import aligned, mapped, populated, raw, view
from ddlp.types import Leaf

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from ddlp.agent.protocol import Grant, Make
    from ddlp.agent.server import Epoch
    from ddlp.types import Layout

# Names of dtypes in safetensors files.
SAFETENSORS_DTYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8",
    "uint16": "U16", "int16": "I16", "float16": "F16", "bfloat16": "BF16",
    "uint32": "U32", "int32": "I32", "float32": "F32",
    "uint64": "U64", "int64": "I64", "float64": "F64",
}  # fmt: skip
_MAPPINGS = 64  # slots that stay mapped
_SPARE_FILES = 3  # that stay for the next batches
_HEADER_LENGTH = struct.Struct("<Q")
_PAYLOAD_ALIGNMENT = 4096  # of the tensors in a file, so that they can be read with direct I/O


class Store(ABC):
    """`make` a batch, then `publish` it; `remove` it, or all of them with `close`."""

    @abstractmethod
    def make(self, ask: Make, epoch: Epoch, check: Callable[[], None]) -> Made:
        """Make what is asked for. When anything is raised, also by `check`, nothing of it is left.

        Raises:
            SampleError, DataError: by the maker.
            OSError: with ENOSPC, when there is no room.
        """

    @abstractmethod
    def publish(self, made: Made) -> None:
        """From now on the host may use it."""

    @abstractmethod
    def remove(self, ticket: int) -> None:
        """Forget a batch, if it is here."""

    @abstractmethod
    def close(self) -> None:
        """Forget everything. Twice is fine."""


class SlotStore(Store):
    """Writes in place into the memory file `fd` of the host; nothing that was written there is ours to keep or remove.

    `grow(ticket, nbytes)` asks the host for a larger place, for batches without a fixed form.
    """

    def __init__(self, fd: int, grow: Callable[[int, int], Grant]) -> None:
        self._mapped = functools.lru_cache(_MAPPINGS)(functools.partial(mapped, fd))
        self._grow = grow

    def make(self, ask: Make, epoch: Epoch, check: Callable[[], None]) -> Made:
        if epoch.layout is None:
            return self._collect(ask, epoch, check)
        memory = self._mapped(ask.offset, ask.capacity)
        out = [view(memory, leaf)[ask.lo : ask.hi] for leaf in epoch.layout.leaves(epoch.plan.rows(ask.index))]
        epoch.make(ask.index, ask.lo, ask.hi, out, check)
        return Made(ask.ticket, epoch.layout.nbytes(ask.hi - ask.lo))

    def _collect(self, ask: Make, epoch: Epoch, check: Callable[[], None]) -> Made:
        arrays, skeleton = epoch.collect(ask.index, ask.lo, ask.hi, check)
        leaves, nbytes = placed(arrays)
        place = ask if nbytes <= ask.capacity else self._grow(ask.ticket, nbytes)
        memory = self._mapped(place.offset, place.capacity)
        for leaf, array in zip(leaves, arrays, strict=True):
            out = view(memory, leaf)
            if isinstance(array, Column):
                array.into(out)
            else:
                out[...] = array
        return Made(ask.ticket, nbytes, leaves=leaves, skeleton=skeleton)

    def publish(self, made: Made) -> None:
        pass

    def remove(self, ticket: int) -> None:
        pass

    def close(self) -> None:
        pass


class FileStore(Store):
    """One safetensors file per batch in `folder`, which belongs to this store alone and goes with it.

    A file that is not needed any more is used again for the next batch, mapping and all: fresh pages would cost more
    than filling them.

    nbytes  bound on the tensors' bytes in all files together; None: what the file system holds
    """

    def __init__(self, folder: str | None = None, nbytes: int | None = None) -> None:
        self.folder = tempfile.mkdtemp(prefix="ddlp-agent-") if folder is None else folder
        self._nbytes = nbytes
        self._held: dict[int, _BatchFile] = {}  # by ticket
        self._spare: list[_BatchFile] = []

    def make(self, ask: Make, epoch: Epoch, check: Callable[[], None]) -> Made:
        if epoch.layout is None:
            raise DataError("batches without a fixed form cannot be written to files")
        rows = ask.hi - ask.lo
        self._check_room(epoch.layout.nbytes(rows))
        file = self._held[ask.ticket] = self._file(ask.ticket, epoch.layout, rows)
        try:
            epoch.make(ask.index, ask.lo, ask.hi, file.arrays, check)
            crcs = file.finish()
        except BaseException:
            self.remove(ask.ticket)
            raise
        return Made(ask.ticket, file.nbytes, path=self._path(ask.ticket), offset=file.offset, crcs=crcs)

    def publish(self, made: Made) -> None:
        self._held[made.ticket].rename(made.path)

    def remove(self, ticket: int) -> None:
        file = self._held.pop(ticket, None)
        if file is None:
            return
        if len(self._spare) < _SPARE_FILES:
            file.rename(os.path.join(self.folder, f".spare{ticket}"))
            self._spare.append(file)
        else:
            file.unlink()

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _file(self, ticket: int, layout: Layout, rows: int) -> _BatchFile:
        """A file to write to, under a name that the host does not read."""
        path = os.path.join(self.folder, f".b{ticket}.partial")
        for file in self._spare:
            if file.fits(layout, rows):
                self._spare.remove(file)
                file.rename(path)
                return file
        while self._spare:  # of another size: their room may be needed
            self._spare.pop().unlink()
        return _BatchFile(path, layout, rows)

    def _check_room(self, nbytes: int) -> None:
        # Spare files do not come on top: a new file is only made when there is none.
        held = sum(file.nbytes for file in self._held.values())
        if self._nbytes is not None and held + nbytes > self._nbytes:
            raise OSError(errno.ENOSPC, f"{held} of {self._nbytes} bytes are taken, and the batch needs {nbytes}")

    def _path(self, ticket: int) -> str:
        return os.path.join(self.folder, f"b{ticket}.safetensors")


class _BatchFile:
    """A new safetensors file of its final size, mapped: fill `arrays`, then `finish`. The tensors begin at `offset`.

    Raises:
        OSError: it cannot be created, or there is no room for it.
    """

    def __init__(self, path: str, layout: Layout, rows: int) -> None:
        self._path = path
        self._form = layout, rows
        self._tensors = _tensors(layout, rows)
        self.nbytes = layout.nbytes(rows)
        self.offset = len(_header(self._tensors, [0] * -(-self.nbytes // CHECKED_NBYTES)))
        self._bytes = raw(_mapped_file(path, self.offset + self.nbytes))
        self._payload = self._bytes[self.offset :]
        self.arrays = [view(self._payload, leaf) for leaf in layout.leaves(rows)]

    def fits(self, layout: Layout, rows: int) -> bool:
        """Whether it can hold such a batch in place of its own."""
        return self._form == (layout, rows)

    def finish(self) -> tuple[int, ...]:
        """Write the header; returns the checksums of the tensors' bytes."""
        crcs = checksums(self._payload)
        self._bytes[: self.offset] = _header(self._tensors, crcs)
        return crcs

    def rename(self, path: str) -> None:
        os.rename(self._path, path)
        self._path = path

    def unlink(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)


def _mapped_file(path: str, nbytes: int) -> Any:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.posix_fallocate(fd, 0, nbytes)  # a full disk is an error here, and not a SIGBUS later
        return populated(mapped(fd, 0, nbytes))
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(fd)


def _tensors(layout: Layout, rows: int) -> dict[str, Any]:
    return {
        field.name: {
            "dtype": SAFETENSORS_DTYPES[leaf.dtype],
            "shape": leaf.shape,
            "data_offsets": (leaf.offset, leaf.offset + leaf.nbytes),
        }
        for field, leaf in zip(layout.fields, layout.leaves(rows), strict=True)
    }


def _header(tensors: dict[str, Any], crcs: Sequence[int]) -> bytes:
    """Length and JSON, padded with spaces so that the tensors begin at a multiple of 4096."""
    metadata = {"crc32": " ".join(f"{crc:08x}" for crc in crcs), "crc32_of_each": str(CHECKED_NBYTES)}
    text = msgspec.json.encode({"__metadata__": metadata, **tensors})
    nbytes = aligned(_HEADER_LENGTH.size + len(text), _PAYLOAD_ALIGNMENT) - _HEADER_LENGTH.size
    return _HEADER_LENGTH.pack(nbytes) + text.ljust(nbytes)


def placed(arrays: Sequence[NDArray[Any] | Column]) -> tuple[tuple[Leaf, ...], int]:
    """A place for each array, one behind the other, and the bytes of all together."""
    leaves: list[Leaf] = []
    nbytes = 0
    for array in arrays:
        leaves.append(Leaf(dtype_name(array.dtype), array.shape, nbytes))
        nbytes = aligned(nbytes + array.nbytes)
    return tuple(leaves), nbytes
