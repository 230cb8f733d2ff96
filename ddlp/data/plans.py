"""The plan of every epoch of a loader, from what the user said about order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ddlp.data.base import digest
from ddlp.data.sampling import ListedPlan, Plan, listed
from ddlp.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class Plans:
    """Plans by the number of the epoch: of a formula, or of what a user's `sampler` or `batch_sampler` draws.

    `row` rearranges the batches of every plan: see `Policy.row`. A sampler is only drawn by `plan`, once per call.

    Raises:
        UsageError: arguments that make no sense, or not together.
    """

    def __init__(
        self,
        formula: Plan,
        sampler: Iterable[int] | None,
        batch_sampler: Iterable[Sequence[int]] | None,
        row: Sequence[int] | None,
    ) -> None:
        given = sampler if batch_sampler is None else batch_sampler
        if sampler is not None and batch_sampler is not None:
            raise UsageError("give sampler or batch_sampler, not both")
        if given is not None and formula.shuffle:
            raise UsageError("shuffle has no meaning beside a sampler, which chooses the order: leave one of them out")
        if given is not None and formula.world_size > 1:
            raise UsageError("rank and world_size have no meaning beside a sampler: let it draw this rank's samples")
        if given is not None and iter(given) is given:
            raise UsageError("sampler is an iterator and could be used for one epoch only: pass an iterable, as a list")
        self._formula = formula
        self._sampler = sampler
        self._batch_sampler = batch_sampler
        self._row = None if row is None or list(row) == list(range(len(row))) else row

    def plan(self, epoch: int) -> Plan | ListedPlan:
        """The plan of this epoch.

        Raises:
            UsageError: the sampler draws what are no samples of the data set.
        """
        plan = self._drawn(epoch)
        if isinstance(plan, ListedPlan) and plan.largest_id >= self._formula.samples:
            raise UsageError(f"the sampler draws sample {plan.largest_id} of a data set of {self._formula.samples}")
        if self._row is None:
            return plan
        return listed((plan.ids(index).tolist() for index in self._row), plan.seed, epoch)

    def index(self, position: int) -> int:
        """Which batch of the plan as it was before it was rearranged stands at `position`."""
        return position if self._row is None else self._row[position]

    def batches(self) -> int:
        """How many a plan has, without drawing one. Raises TypeError where the sampler has no len()."""
        if self._batch_sampler is not None:
            return len(self._batch_sampler)  # type: ignore[arg-type]
        if self._sampler is None:
            return len(self._formula)
        whole, rest = divmod(len(self._sampler), self._formula.batch_size)  # type: ignore[arg-type]
        return whole + (rest > 0 and not self._formula.drop_last)

    def __repr__(self) -> str:
        try:
            return f"{self.batches()} batches"
        except TypeError:
            return f"batches of {type(self._sampler or self._batch_sampler).__name__}"

    def _drawn(self, epoch: int) -> Plan | ListedPlan:
        seed = self._formula.seed
        if self._batch_sampler is not None:
            return listed(self._batch_sampler, seed, epoch)
        if self._sampler is not None:
            return listed(self._chunks(list(self._sampler)), seed, epoch)
        return msgspec.structs.replace(self._formula, epoch=epoch)

    def _chunks(self, ids: list[Any]) -> Iterator[list[Any]]:
        size = self._formula.batch_size
        for start in range(0, len(ids), size):
            if start + size <= len(ids) or not self._formula.drop_last:
                yield ids[start : start + size]


def listing(plan: Plan | ListedPlan) -> str | None:
    """A short name of the samples that a plan lists; None where they follow from a formula."""
    return digest(plan.ids_, plan.bounds) if isinstance(plan, ListedPlan) else None
