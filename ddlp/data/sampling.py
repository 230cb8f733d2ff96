"""Which samples batch `index` holds, and the random draws of each sample: pure functions, no stored list, no state.

Both come from one keyed 64-bit mixing function, so every machine computes the same numbers from the few bytes of a
`Plan`. The order of an epoch is a keyed permutation of range(n):

    n <= 1024   sorting by hashed keys, which is uniform over all n! orders however small n is
    n >  1024   a Feistel network over the mixed-radix digits (l, r) of x = l * b + r with a * b >= n, whose halves are
                added to each other in turn; the few results >= n walk on along their cycle until they fall inside

The row of positions is laid out in global batches of `world_size * batch_size`; rank r holds the r-th part of each. The
last short global batch is split evenly, so every sample is used exactly once over all ranks, without padding.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ddlp.data import compiled
from ddlp.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, the Weyl increment of SplitMix64 (Steele, Lea, Flood 2014)
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # its finaliser, variant 13 of Stafford
_SORTED_UP_TO = 1024
_ROUNDS = 8
_ORDER, _DRAW = 1, 2  # keep the keys of the two uses apart


class Plan(msgspec.Struct, frozen=True, tag=True):
    """One epoch of one rank: batch index -> sample ids, computed when asked.

    The short last batch is the last index; `drop_last` drops the short global batch and no other, so then all ranks
    have the same number of full batches. Without it ranks differ by one batch only when fewer samples than ranks are
    left over, and the sizes of the short batches differ by at most one.

    Raises:
        UsageError: a count is out of range.
    """

    samples: int
    batch_size: int
    drop_last: bool
    shuffle: bool
    seed: int
    epoch: int
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        _check_words(self.seed, self.epoch)
        _at_least("samples", self.samples, 0)
        _at_least("batch_size", self.batch_size, 1)
        _at_least("world_size", self.world_size, 1)
        if not 0 <= self.rank < self.world_size:
            raise UsageError(f"rank must be in 0..{self.world_size - 1} for world_size {self.world_size}: {self.rank}")

    def __len__(self) -> int:
        """Batches of this rank."""
        return self._full + (self._short > 0)

    @property
    def most_rows(self) -> int:
        """Samples in the largest batch; 0 without batches."""
        return self.rows(0) if len(self) else 0

    def rows(self, index: int) -> int:
        """Samples in batch `index`. Raises IndexError outside 0..len-1."""
        _check_index(index, len(self))
        return self.batch_size if index < self._full else self._short

    def ids(self, index: int, lo: int = 0, hi: int | None = None) -> NDArray[np.int64]:
        """Sample ids of rows lo..hi (None: to the end) of batch `index`. Raises IndexError out of range."""
        lo, hi = _window(lo, hi, self.rows(index))
        start = index * self.batch_size * self.world_size + self._offset(index)
        positions = np.arange(start + lo, start + hi, dtype=np.int64)
        if not self.shuffle:
            return positions
        return permute(positions, self.samples, _order_key(self.seed, self.epoch))

    @property
    def _full(self) -> int:
        return self.samples // (self.batch_size * self.world_size)

    @property
    def _rest(self) -> int:
        """Samples in the short global batch, all ranks together."""
        return 0 if self.drop_last else self.samples % (self.batch_size * self.world_size)

    @property
    def _short(self) -> int:
        """This rank's samples of the short global batch."""
        return self._rest // self.world_size + (self.rank < self._rest % self.world_size)

    def _offset(self, index: int) -> int:
        """Where this rank's part begins inside its global batch."""
        if index < self._full:
            return self.rank * self.batch_size
        each, larger = divmod(self._rest, self.world_size)
        return self.rank * each + min(self.rank, larger)


class ListedPlan(msgspec.Struct, frozen=True, tag=True):
    """One epoch whose batches a user's sampler chose: explicit ids, made by `listed`.

    ids_    all sample ids one batch behind the other, int64 little-endian
    bounds  batch i is ids[bounds[i]:bounds[i + 1]], int64 little-endian
    """

    ids_: bytes
    bounds: bytes
    seed: int
    epoch: int

    def __post_init__(self) -> None:
        _check_words(self.seed, self.epoch)
        if len(self.ids_) % 8 or len(self.bounds) % 8 or not self.bounds:
            raise UsageError("ids_ and bounds must be whole int64 arrays, and bounds must not be empty")
        bounds, ids = _int64(self.bounds), _int64(self.ids_)
        if bounds[0] != 0 or bounds[-1] != len(ids) or (np.diff(bounds) < 1).any():
            raise UsageError(f"bounds must rise from 0 to {len(ids)}, the number of ids: every batch needs a sample")
        if len(ids) and ids.min() < 0:
            raise UsageError(f"sample ids must not be negative: {ids.min()}")

    def __len__(self) -> int:
        """Batches."""
        return len(self.bounds) // 8 - 1

    @property
    def largest_id(self) -> int:
        """-1 where there is none."""
        return int(_int64(self.ids_).max(initial=-1))

    @property
    def most_rows(self) -> int:
        """Samples in the largest batch; 0 without batches."""
        return int(np.diff(_int64(self.bounds)).max(initial=0))

    def rows(self, index: int) -> int:
        """Samples in batch `index`. Raises IndexError outside 0..len-1."""
        first, last = self._bounds(index)
        return last - first

    def ids(self, index: int, lo: int = 0, hi: int | None = None) -> NDArray[np.int64]:
        """Sample ids of rows lo..hi (None: to the end) of batch `index`. Raises IndexError out of range."""
        first, last = self._bounds(index)
        lo, hi = _window(lo, hi, last - first)
        return _int64(self.ids_)[first + lo : first + hi].astype(np.int64)

    def _bounds(self, index: int) -> tuple[int, int]:
        _check_index(index, len(self))
        first, last = _int64(self.bounds)[index : index + 2].tolist()
        return first, last


def listed(batches: Iterable[Iterable[int]], seed: int, epoch: int) -> ListedPlan:
    """The plan of explicit `batches` of sample ids.

    Raises:
        UsageError: a batch is empty, or an id is not a non-negative integer.
    """
    rows = [list(batch) for batch in batches]
    bounds = np.cumsum([0, *map(len, rows)], dtype="<i8")
    try:
        flat = [id_.__index__() for row in rows for id_ in row]
        ids = np.array(flat, dtype="<i8")
    except (AttributeError, OverflowError, TypeError) as error:
        raise UsageError(f"a sampler must yield integer sample ids: {error}") from error
    return ListedPlan(ids.tobytes(), bounds.tobytes(), seed, epoch)


def permute(positions: NDArray[np.int64], n: int, key: int) -> NDArray[np.int64]:
    """Where the keyed permutation of range(n) sends each of `positions`, int64 like them.

    Raises:
        IndexError: a position is outside range(n).
    """
    if n > _SORTED_UP_TO and compiled.loops is not None:
        images = positions.astype(np.int64)
        compiled.loops.permute(images, n, *_network(n, key))
        return images
    if len(positions) and not (positions.min() >= 0 and positions.max() < n):
        raise IndexError(f"positions must be in 0..{n - 1}")
    return _sorted(n, key)[positions] if n <= _SORTED_UP_TO else _walked(positions, n, *_network(n, key))


def draws(seed: int, epoch: int, ids: NDArray[np.int64], operation: int, count: int) -> NDArray[np.float64]:
    """`count` uniform numbers in [0, 1) for each sample, (len(ids), count).

    Number j of a sample depends on (seed, epoch, id, operation, j) and on nothing else: not on the batch or on `count`.
    """
    key = _draw_key(seed, epoch, operation)
    if compiled.loops is not None:
        uniform = np.empty((len(ids), count))
        compiled.loops.draws(np.ascontiguousarray(ids, np.int64), key, count, uniform)
        return uniform
    counters = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GAMMA)
    bits = _finalise(_mixed(ids, key)[:, None] + counters)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def sample_seed(seed: int, epoch: int, id_: int) -> int:
    """A 64-bit seed of one sample, for generators of other libraries."""
    return _key(_DRAW, seed, epoch, id_)


def sample_seeds(seed: int, epoch: int, ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    """`sample_seed` of each of `ids`."""
    words = _finalise(ids.astype(np.uint64) + np.uint64(_GAMMA))
    return _finalise(words ^ np.uint64(_absorbed(4, _DRAW, seed, epoch)))


@functools.lru_cache(maxsize=4)
def _order_key(seed: int, epoch: int) -> int:
    return _key(_ORDER, seed, epoch)


@functools.lru_cache(maxsize=64)
def _draw_key(seed: int, epoch: int, operation: int) -> int:
    return _key(_DRAW, seed, epoch, operation)


@functools.lru_cache(maxsize=4)
def _sorted(n: int, key: int) -> NDArray[np.int64]:
    return np.argsort(_mixed(np.arange(n), key), kind="stable").astype(np.int64)


@functools.lru_cache(maxsize=4)
def _network(n: int, key: int) -> tuple[int, int, NDArray[np.uint64]]:
    """The sides (a, b) of the network over range(n), and the key of each round."""
    a = math.isqrt(n - 1) + 1
    return a, -(-n // a), np.array([_key(key, turn) for turn in range(_ROUNDS)], np.uint64)


def _walked(positions: NDArray[np.int64], n: int, a: int, b: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Through the network until all are inside."""
    images = _feistel(positions.astype(np.uint64), a, b, keys)
    while len(outside := np.flatnonzero(images >= n)):
        images[outside] = _feistel(images[outside], a, b, keys)
    return images.astype(np.int64)


def _feistel(x: NDArray[np.uint64], a: int, b: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One pass of the network over range(a * b), n <= a * b < n + a."""
    left, right = np.divmod(x, np.uint64(b))
    for turn in range(0, _ROUNDS, 2):
        left = (left + _below(a, right, keys[turn])) % np.uint64(a)
        right = (right + _below(b, left, keys[turn + 1])) % np.uint64(b)
    return left * np.uint64(b) + right


def _below(limit: int, x: NDArray[np.uint64], key: np.uint64) -> NDArray[np.uint64]:
    """Keyed hash of each x to 0..limit-1, for limit < 2**32 (Lemire's multiply and shift)."""
    return (_mixed(x, key) >> np.uint64(32)) * np.uint64(limit) >> np.uint64(32)


def _mixed(x: NDArray[np.integer], key: int | np.uint64) -> NDArray[np.uint64]:
    return _finalise(_finalise(x.astype(np.uint64) * np.uint64(_GAMMA) + np.uint64(key)) ^ np.uint64(key))


def _finalise(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser on arrays, whose uint64 arithmetic wraps silently."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX_2)
    return z ^ (z >> np.uint64(31))


def _key(*words: int) -> int:
    """A 64-bit key: SplitMix64's finaliser absorbing one word after the other."""
    return _absorbed(len(words), *words)


def _absorbed(key: int, *words: int) -> int:
    for word in words:
        key = _mix_int(key ^ _mix_int(word + _GAMMA))
    return key


def _mix_int(z: int) -> int:
    z &= _MASK
    z = ((z ^ (z >> 30)) * _MIX_1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX_2) & _MASK
    return z ^ (z >> 31)


def _int64(data: bytes) -> NDArray[np.int64]:
    return np.frombuffer(data, "<i8")


def _window(lo: int, hi: int | None, rows: int) -> tuple[int, int]:
    hi = rows if hi is None else hi
    if not 0 <= lo <= hi <= rows:
        raise IndexError(f"rows {lo}..{hi} of a batch of {rows}")
    return lo, hi


def _check_index(index: int, batches: int) -> None:
    if not 0 <= index < batches:
        raise IndexError(f"batch {index} of a plan of {batches}")


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise UsageError(f"{name} must be at least {least}: {value}")


def _check_words(seed: int, epoch: int) -> None:
    _at_least("epoch", epoch, 0)
    if not -(1 << 63) <= seed <= _MASK:
        raise UsageError(f"seed must fit in 64 bits: {seed}")
