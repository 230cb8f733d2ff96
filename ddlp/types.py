"""Frozen values that every layer speaks of. No torch, no numpy, no clock, no I/O."""

from __future__ import annotations

import enum
import functools
from typing import Any

import msgspec


class Side(enum.IntEnum):
    """An end of the row of batches, and the devices that eat from it."""

    HEAD = 0
    TAIL = 1

    @property
    def other(self) -> Side:
        return Side.TAIL if self is Side.HEAD else Side.HEAD


HEAD, TAIL = Side.HEAD, Side.TAIL


class Claim(msgspec.Struct, frozen=True, gc=False):
    """The right to make batch `index` once. Tickets only grow, so a late answer to an old claim is recognised."""

    index: int
    side: Side
    ticket: int

    def __str__(self) -> str:
        return f"batch {self.index} ({self.side.name.lower()}, ticket {self.ticket})"


# Bytes of one element, by the dtype names that numpy, torch and safetensors share.
ITEM_NBYTES = {
    "bool": 1, "uint8": 1, "int8": 1,
    "uint16": 2, "int16": 2, "float16": 2, "bfloat16": 2,
    "uint32": 4, "int32": 4, "float32": 4,
    "uint64": 8, "int64": 8, "float64": 8,
}  # fmt: skip


class Leaf(msgspec.Struct, frozen=True, gc=False):
    """One array inside a batch's bytes: `dtype` name, full `shape` (batch dimension first), `offset` in bytes."""

    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        count = ITEM_NBYTES[self.dtype]
        for extent in self.shape:
            count *= extent
        return count


class Field(msgspec.Struct, frozen=True, gc=False):
    """One array of a sample: its `name`, `dtype` name and `shape` without the batch dimension."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of one sample's value."""
        return Leaf(self.dtype, self.shape, 0).nbytes


class Layout(msgspec.Struct, frozen=True, gc=False):
    """How a batch with a fixed form lies in memory, in a slot or in a file alike.

    Arrays lie one behind the other without holes (as safetensors demands), the largest elements first, so that each
    is aligned to its own element. `fields` keeps the order in which the loop receives them.
    """

    fields: tuple[Field, ...]

    @property
    def row_nbytes(self) -> int:
        """Bytes of one sample."""
        return sum(field.nbytes for field in self.fields)

    def nbytes(self, rows: int) -> int:
        """Bytes of a batch of `rows` samples."""
        return rows * self.row_nbytes

    def leaves(self, rows: int) -> tuple[Leaf, ...]:
        """Each field's place in a batch of `rows` samples, in the order of `fields`."""
        return _leaves(self, rows)


@functools.lru_cache(maxsize=64)  # asked for by every batch, nearly always with the same number of rows
def _leaves(layout: Layout, rows: int) -> tuple[Leaf, ...]:
    fields = layout.fields
    order = sorted(range(len(fields)), key=lambda i: (-ITEM_NBYTES[fields[i].dtype], i))
    leaves: dict[int, Leaf] = {}
    offset = 0
    for i in order:
        leaves[i] = Leaf(fields[i].dtype, (rows, *fields[i].shape), offset)
        offset += leaves[i].nbytes
    return tuple(leaves[i] for i in range(len(fields)))


class BatchRef(msgspec.Struct, frozen=True):
    """A finished batch, where it lies.

    `place` belongs to the device that made it (a memory slot, a file, ...); transports look at it, nothing else does.
    `skeleton` is the pickled structure around the arrays of a batch without a fixed form, and only ever comes from a
    process that this one started; None means a tuple of the `leaves`.
    """

    claim: Claim
    device: str
    place: Any
    leaves: tuple[Leaf, ...]
    nbytes: int
    skeleton: bytes | None = None
    made_s: float = 0.0  # wall seconds that the device worked on it
    cpu_s: float = 0.0  # CPU seconds that the device's processor worked on it


class Rates(msgspec.Struct, frozen=True, gc=False):
    """What was measured of one side, seconds per batch; None where nothing was measured yet.

    make_s  between finished batches while the side's devices had work (all devices of the side together)
    step_s  that the training loop kept a batch of this side before it asked for the next
    made    batches finished by the side in this epoch
    """

    make_s: float | None = None
    step_s: float | None = None
    made: int = 0


class Order(msgspec.Struct, frozen=True):
    """The order in which an epoch's batches reached the loop: for each, its index and the side that made it."""

    batches: tuple[int, ...]
    sides: tuple[Side, ...]

    @property
    def row(self) -> list[int]:
        """Batch indices as the sides ate them: the head's forwards, then the tail's backwards.

        It is 0..n-1 unless some batch had to be made again.
        """
        pairs = list(zip(self.batches, self.sides, strict=True))
        head = [index for index, side in pairs if side is HEAD]
        return head + [index for index, side in reversed(pairs) if side is TAIL]

    def __repr__(self) -> str:
        return f"<Order of {len(self.batches)} batches, {self.sides.count(HEAD)} from the head>"
