"""The randomness of samples that arbitrary Python makes: each sample's draws are its own.

What a sample draws from `random`, `numpy.random` and torch's default generator is a function of (seed, epoch, id),
because these are seeded for each sample. That takes longer than many samples do, and most samples draw nothing. So a
generator is left at rest, in the same state for every sample, until it is seen to have moved. What was made since it
was last seen at rest is made again, and from then on that generator is seeded for each sample.
"""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from ddlp.data.sampling import sample_seed, sample_seeds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ddlp.data.sampling import ListedPlan, Plan

T = TypeVar("T")

_LONGEST_STRIDE = 1 << 12


class Generator(NamedTuple):
    """A global generator: how to `seed` it with 64 bits, and to `look` at what tells its state, which may move it."""

    seed: Callable[[int], object]
    look: Callable[[], object]


def seed_generators(seed: int, epoch: int, id_: int) -> None:
    """Seed every generator for one sample, unconditionally."""
    word = sample_seed(seed, epoch, id_)
    for generator in _loaded():
        generator.seed(word)


class Randomness:
    """Gives each sample that is made in this process randomness of its own."""

    def __init__(self) -> None:
        self._seeded: list[Generator] = []  # for each sample
        self._resting: dict[Generator, object] = {}  # what each of the others looks like while it has not moved
        self._rest = -1  # the seed they rest at
        self._stride = 1  # samples from one look to the next: more and more while nothing moves

    def each(self, plan: Plan | ListedPlan, ids: Sequence[int], make: Callable[[int, int], list[T]]) -> list[T]:
        """make(lo, hi), the samples ids[lo:hi], for parts that follow each other from 0 to the end; all of them.

        It is called again for a part in which a generator moved that had not done so before. Raises what it raises.
        """
        self._put_at_rest(sample_seed(plan.seed, plan.epoch, -1))
        made: list[T] = []
        while (lo := len(made)) < len(ids):
            hi = min(lo + self._stride, len(ids))
            try:
                part = self._seeded_make(plan, ids, make, lo, hi) if self._seeded else make(lo, hi)
            except Exception:
                if self._all_at_rest():
                    raise
            else:
                if self._all_at_rest():
                    made += part
        return made

    def seed_batch(self, plan: Plan | ListedPlan, first: int) -> None:
        """Seed every generator for what is done with a whole batch, whose first sample is `first`."""
        seed_generators(plan.seed, plan.epoch, -2 - first)
        self._rest = -1

    def _seeded_make(
        self, plan: Plan | ListedPlan, ids: Sequence[int], make: Callable[[int, int], list[T]], lo: int, hi: int
    ) -> list[T]:
        made: list[T] = []
        words = sample_seeds(plan.seed, plan.epoch, np.array(ids[lo:hi], np.int64)).tolist()
        for row, word in enumerate(words, start=lo):
            for generator in self._seeded:
                generator.seed(word)
            made += make(row, row + 1)
        return made

    def _put_at_rest(self, word: int) -> None:
        if word != self._rest:
            self._rest = word
            for generator in _loaded():
                if generator not in self._seeded:
                    self._calm(generator)

    def _calm(self, generator: Generator) -> None:
        generator.seed(self._rest)
        self._resting[generator] = generator.look()
        generator.seed(self._rest)

    def _all_at_rest(self) -> bool:
        """Whether none has moved of the generators that are not seeded. One that has will be."""
        quiet = True
        for generator in _loaded():
            if generator in self._seeded:
                continue
            if generator not in self._resting:  # its library was loaded by the samples
                self._calm(generator)
                quiet = False
            elif generator.look() != self._resting[generator]:
                del self._resting[generator]
                self._seeded.append(generator)
                quiet = False
            else:
                generator.seed(self._rest)
        self._stride = min(2 * self._stride, _LONGEST_STRIDE) if quiet else 1
        return quiet


_RANDOM = Generator(random.seed, lambda: random.getrandbits(64))
_NUMPY = Generator(lambda word: np.random.seed(word & 0xFFFFFFFF), lambda: np.random.random_sample())
# The CPU's generator alone: torch.manual_seed() would also ask for every GPU.
_TORCH = Generator(
    lambda word: sys.modules["torch"].default_generator.manual_seed(word >> 1),
    lambda: sys.modules["torch"].default_generator.get_state().numpy().tobytes(),
)


def _loaded() -> tuple[Generator, ...]:
    return (_RANDOM, _NUMPY, _TORCH) if "torch" in sys.modules else (_RANDOM, _NUMPY)
