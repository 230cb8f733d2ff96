"""Host memory that processes share: slots for batches, leased and recycled, and objects handed over whole.

One anonymous file (memfd) backs all slots of an arena: it has no name, is not bounded by the size of /dev/shm, and ends
with the last process that uses it. Every slot is a range of that file, mapped once, so that its pages are faulted in
once and no slot costs a file descriptor.

The rule of a slot's life: it is free again when nothing refers to its memory any more, neither the slot nor an array
or tensor made from it. Whoever still reads or writes therefore keeps the memory by holding on to it, and nobody has to
be told. This is seen by a weak reference to the object that exports the buffer, because numpy and torch pass that one
object on from view to view; its callback may run in any thread, in the middle of a garbage collection, and so only
appends to a deque.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import pickle
import pickletools
import struct
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlp.errors import ClosedError, IllegalMove

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from ddlp.types import Leaf

KEEP_LEASES = 64  # free memory that so many leases did not need is given back
_PUNCH_HOLE, _KEEP_SIZE = 2, 1  # linux/falloc.h
_POPULATE_WRITE = 23  # linux/mman.h, since Linux 5.14
_FAILED = ctypes.c_void_p(-1).value  # MAP_FAILED
_ALIGNMENT = 64  # a cache line; no dtype needs more

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def view(memory: Any, leaf: Leaf) -> NDArray[Any]:
    """The array of `leaf` in `memory` (an exporter of bytes), which it keeps alive; bfloat16 comes as int16."""
    dtype = "int16" if leaf.dtype == "bfloat16" else leaf.dtype
    return np.ndarray(leaf.shape, dtype, buffer=memory, offset=leaf.offset)


def raw(memory: Any) -> memoryview:
    """The bytes of `memory`, writable; they keep it alive. By way of numpy, for a memoryview cannot write to ctypes."""
    return np.frombuffer(memory, np.uint8).data


def aligned(nbytes: int, to: int = _ALIGNMENT) -> int:
    """`nbytes` rounded up to a multiple of `to`."""
    return -(-nbytes // to) * to


def mapped(fd: int, offset: int, nbytes: int) -> ctypes.Array[ctypes.c_ubyte]:
    """Map a page-aligned range of a file, shared and writable, until nothing refers to the returned object any more.

    Unlike mmap.mmap it does not keep a duplicate of the file descriptor.

    Raises:
        OSError: the range cannot be mapped.
    """
    address = _libc.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, offset)
    if address == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot map {nbytes} bytes: {os.strerror(code)}")
    memory = (ctypes.c_ubyte * nbytes).from_address(address)
    # Not at exit: other threads may still be using their views then, and the mapping ends with the process anyway.
    weakref.finalize(memory, _libc.munmap, address, nbytes).atexit = False
    return memory


def populated(memory: ctypes.Array[ctypes.c_ubyte]) -> ctypes.Array[ctypes.c_ubyte]:
    """The mapping, its pages ready to be written to; where the kernel cannot do that, each is when it is needed."""
    _libc.madvise(ctypes.addressof(memory), len(memory), _POPULATE_WRITE)
    return memory


# --- slots -----------------------------------------------------------------------------------------------------------


class _Block:
    """A range of the arena's file and its mapping, used by one slot after the other."""

    __slots__ = ("capacity", "idle_since", "memory", "offset")

    def __init__(self, offset: int, capacity: int, memory: ctypes.Array[ctypes.c_ubyte]) -> None:
        self.offset = offset
        self.capacity = capacity
        self.memory = memory
        self.idle_since = 0  # in leases


class _Use(weakref.ref["ctypes.Array[ctypes.c_ubyte]"]):
    """Watches the exporter through which all views of one lease of `block` reach the memory."""

    __slots__ = ("block",)
    block: _Block


class Slot:
    """Memory for one batch, `capacity` bytes at `offset` of the arena's file. Free when it and its views are gone."""

    __slots__ = ("__weakref__", "_memory", "capacity", "offset")

    def __init__(self, offset: int, memory: ctypes.Array[ctypes.c_ubyte]) -> None:
        self.offset = offset
        self.capacity = len(memory)
        self._memory: ctypes.Array[ctypes.c_ubyte] | None = memory

    @property
    def memory(self) -> memoryview:
        """Its bytes, writable. Raises IllegalMove after the slot was handed over or recycled."""
        return raw(self._exporter)

    def arrays(self, leaves: Iterable[Leaf]) -> list[NDArray[Any]]:
        """Views of the leaves; they keep the memory. Raises IllegalMove after hand_over or recycling."""
        exporter = self._exporter
        return [view(exporter, leaf) for leaf in leaves]

    def hand_over(self, leaves: Iterable[Leaf]) -> list[NDArray[Any]]:
        """Views that own the memory from now on: it is free when the last of them, and of theirs, is gone."""
        arrays = self.arrays(leaves)
        self._memory = None
        return arrays

    @property
    def _exporter(self) -> ctypes.Array[ctypes.c_ubyte]:
        if self._memory is None:
            raise IllegalMove(f"{self!r} has no memory any more: it was handed over or recycled")
        return self._memory

    def __repr__(self) -> str:
        state = " given up" if self._memory is None else ""
        return f"<Slot {self.capacity} bytes at {self.offset}{state}>"


class Arena:
    """Slots of one memory file. Used by one thread; only views may die in any other.

    `fd` is the file, for processes that write into slots. Free memory is what was in use at some time during the last
    KEEP_LEASES leases, at most; it is reused as long as it is large enough.
    """

    def __init__(self) -> None:
        self.fd = os.memfd_create("ddlp-arena")
        self._end = 0
        self._leases = 0
        self._free: list[_Block] = []
        self._uses: dict[int, _Use] = {}  # by offset
        self._over: deque[_Use] = deque()  # uses whose exporter has died since the last lease
        self._close = weakref.finalize(self, os.close, self.fd)

    def lease(self, nbytes: int) -> Slot:
        """A slot of at least `nbytes` bytes, whose content is arbitrary. Drop it, or `recycle` it, to give it back.

        Raises:
            ClosedError: the arena is closed.
            OSError: the system has no more memory or address space.
        """
        if not self._close.alive:
            raise ClosedError("the arena is closed")
        self._leases += 1
        self._reclaim()
        block = self._best(nbytes) or self._new(nbytes)
        exporter = (ctypes.c_ubyte * block.capacity).from_buffer(block.memory)
        use = _Use(exporter, self._over.append)
        use.block = block
        self._uses[block.offset] = use
        return Slot(block.offset, exporter)

    def recycle(self, slot: Slot) -> None:
        """Give the slot up: its memory is free once its views are gone too. One that was handed over is left alone."""
        slot._memory = None

    def close(self) -> None:
        """No leases any more. What is free is given back now, what is in use when its views are gone. Twice is fine."""
        if self._close.alive:
            self._reclaim()
            self._drop(self._free)
            self._uses.clear()
            self._close()

    @property
    def nbytes(self) -> int:
        """Bytes of all its slots, used or free."""
        return self.used_nbytes + self.free_nbytes

    @property
    def used_nbytes(self) -> int:
        """Bytes of slots that are leased, or whose views live."""
        return sum(use.block.capacity for use in tuple(self._uses.values()) if use() is not None)

    @property
    def free_nbytes(self) -> int:
        """Bytes kept for the next leases."""
        dead = sum(use.block.capacity for use in tuple(self._uses.values()) if use() is None)
        return dead + sum(block.capacity for block in tuple(self._free))

    def __repr__(self) -> str:
        closed = "" if self._close.alive else " closed"
        return f"<Arena {self.used_nbytes} bytes used, {self.free_nbytes} free{closed}>"

    def _reclaim(self) -> None:
        while self._over:
            block = self._over.popleft().block
            del self._uses[block.offset]
            block.idle_since = self._leases
            self._free.append(block)
        self._drop([block for block in self._free if self._leases - block.idle_since > KEEP_LEASES])

    def _best(self, nbytes: int) -> _Block | None:
        """The smallest free block that is large enough; of equal ones the last used, so that surplus ones grow idle."""
        fitting = [block for block in self._free if block.capacity >= nbytes]
        if not fitting:
            return None
        best = min(fitting, key=lambda block: (block.capacity, -block.idle_since))
        self._free.remove(best)
        return best

    def _new(self, nbytes: int) -> _Block:
        """A new block at the end of the file; all that is free has proven too small and goes."""
        self._drop(self._free)
        capacity = _roomy(nbytes)
        os.ftruncate(self.fd, self._end + capacity)
        block = _Block(self._end, capacity, mapped(self.fd, self._end, capacity))
        self._end += capacity
        return block

    def _drop(self, blocks: Sequence[_Block]) -> None:
        for block in tuple(blocks):
            self._free.remove(block)
            _libc.fallocate(self.fd, _PUNCH_HOLE | _KEEP_SIZE, block.offset, block.capacity)


def _roomy(nbytes: int) -> int:
    """A little more, so that batches of slightly different sizes share blocks; pages not touched cost nothing."""
    return aligned(max(nbytes, 1), max(mmap.PAGESIZE, 1 << max(nbytes.bit_length() - 4, 0)))


# --- objects ---------------------------------------------------------------------------------------------------------

_COUNT = struct.Struct("<Q")


class Shared:
    """An object in a memory file of its own: `nbytes` of `fd`, until `close`, or until nobody refers to this any more.

    `names_main`: it refers to things defined in the program's main module, which a reader must have imported.
    """

    def __init__(self, fd: int, nbytes: int, names_main: bool) -> None:
        self.fd = fd
        self.nbytes = nbytes
        self.names_main = names_main
        self.close = weakref.finalize(self, os.close, fd)


def share(obj: object) -> Shared:
    """Write the pickle of `obj` into a memory file, its large buffers apart, so that readers share their pages.

    Raises:
        Exception: whatever pickling raises.
    """
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(obj, protocol=5, buffer_callback=buffers.append)
    parts: list[Any] = [data, *(buffer.raw() for buffer in buffers)]
    sizes = [len(part) for part in parts]
    header = _COUNT.pack(len(parts)) + b"".join(map(_COUNT.pack, sizes))
    places = _places(sizes)
    nbytes = places[-1] + sizes[-1] or 1
    fd = os.memfd_create("ddlp-shared")
    os.ftruncate(fd, nbytes)
    with contextlib.closing(mmap.mmap(fd, nbytes)) as file:
        file[: len(header)] = header
        for place, size, part in zip(places, sizes, parts, strict=True):
            file[place : place + size] = part
    return Shared(fd, nbytes, _names_main(data))


def load_shared(fd: int, nbytes: int) -> Any:
    """Read what `share` wrote. Its arrays are views of the shared pages; a page that is written to is copied first."""
    memory = memoryview(mmap.mmap(fd, nbytes, access=mmap.ACCESS_COPY))
    (count,) = _COUNT.unpack_from(memory)
    sizes = [size for (size,) in _COUNT.iter_unpack(memory[_COUNT.size : _COUNT.size * (1 + count)])]
    data, *buffers = (memory[place : place + size] for place, size in zip(_places(sizes), sizes, strict=True))
    return pickle.loads(data, buffers=buffers)


def _places(sizes: Sequence[int]) -> list[int]:
    """Where each part begins, behind the header."""
    places = [aligned(_COUNT.size * (1 + len(sizes)))]
    for size in sizes[:-1]:
        places.append(aligned(places[-1] + size))
    return places


def _names_main(data: bytes) -> bool:
    # Taking a pickle apart is slow and hardly ever needed, so look for the bytes first.
    return b"__main__" in data and any(argument == "__main__" for _, argument, _ in pickletools.genops(data))
