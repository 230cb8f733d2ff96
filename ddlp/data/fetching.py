"""Samples of any Python data set, each with randomness of its own."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ddlp.data.randomness import Randomness
from ddlp.data.rows import sample_error
from ddlp.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ddlp.data.sampling import ListedPlan, Plan


class Fetcher:
    """Asks `dataset` for samples: several at once where it has `__getitems__`, as torch does, else one by one.

    A sample that draws from a global generator is asked for by itself, after the generator was seeded for it. So may
    be a sample that was asked for before: see `randomness`.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._many: Callable[[list[int]], Any] | None = getattr(dataset, "__getitems__", None)
        self._randomness = Randomness()

    def fetch(self, plan: Plan | ListedPlan, ids: list[int], check: Callable[[], None]) -> list[Any]:
        """The samples `ids`. Calls `check` between them; what it raises leaves as it is.

        Raises:
            SampleError: the data set raised for a sample; `__cause__` is the original.
            DataError: `__getitems__` failed where `__getitem__` does not.
        """
        fetch = self._singly if self._many is None else self._at_once
        return self._randomness.each(plan, ids, functools.partial(fetch, ids, check))

    def seed_batch(self, plan: Plan | ListedPlan, ids: Sequence[int]) -> None:
        """Seed the global generators for what is done with the batch of samples `ids` as a whole."""
        self._randomness.seed_batch(plan, ids[0])

    def _singly(self, ids: list[int], check: Callable[[], None], lo: int, hi: int) -> list[Any]:
        dataset, samples = self._dataset, []
        for id_ in ids[lo:hi]:
            check()
            try:
                samples.append(dataset[id_])
            except Exception as error:
                raise sample_error(error, id_, None) from error
        return samples

    def _at_once(self, ids: list[int], check: Callable[[], None], lo: int, hi: int) -> list[Any]:
        assert self._many is not None
        check()
        wanted = ids[lo:hi]
        try:
            samples = list(self._many(wanted))
        except Exception as error:
            self._singly(ids, check, lo, hi)  # says which sample it was
            raise DataError(f"__getitems__ failed for samples {wanted}, and __getitem__ for none: {error}") from error
        if len(samples) != len(wanted):
            raise DataError(f"__getitems__ gave {len(samples)} samples for {len(wanted)} ids, {wanted}")
        return samples
