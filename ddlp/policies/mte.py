"""MTE, moving towards each other: one boundary, the whole head in order, then the whole tail. Consistency.

Source: DDLP, IEEE Transactions on Computers 75(3), 2026 (arXiv 2407.00005); the balanced split and the handling of a
small store are ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddlp.errors import UsageError
from ddlp.policies.base import Policy, paces
from ddlp.types import HEAD, TAIL

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from ddlp.policies.base import EpochView
    from ddlp.types import Rates, Side


class MTE(Policy):
    """Measure both sides on their first batches, fix the boundary, deliver the head and then the tail.

    Args:
        calibration_batches: batches of each side (ordinary work, delivered like any other) that the measure rests on.
        split: "balanced" minimises the predicted epoch time; "proportional" is the paper's ratio
            `n_cpu = N * t_csd / (t_cpu + t_csd)`; a number between 0 and 1 is the tail's share.
        fit_store: when the tail's store cannot hold its share, take the best boundary for that store instead of
            refusing.
    """

    name = "mte"

    def __init__(
        self, calibration_batches: int = 10, split: str | float = "balanced", *, fit_store: bool = False
    ) -> None:
        if calibration_batches < 1:
            raise UsageError(f"calibration_batches must be at least 1, not {calibration_batches}")
        known = split in ("balanced", "proportional") if isinstance(split, str) else 0.0 <= split <= 1.0
        if not known:
            raise UsageError(f'split must be "balanced", "proportional" or the tail\'s share in 0..1, not {split!r}')
        self.calibration_batches = calibration_batches
        self.split = split
        self.fit_store = fit_store

    async def schedule(self, epoch: EpochView) -> AsyncGenerator[Side, None]:
        while self._must_measure(epoch):
            if epoch.ready(HEAD):
                yield HEAD
            else:
                await epoch.changed()
        if epoch.boundary is None and epoch.left(HEAD) and epoch.left(TAIL):
            self._fix_boundary(epoch)
        while True:
            yield HEAD  # and, once the head has nothing left, the tail

    def _must_measure(self, epoch: EpochView) -> bool:
        if epoch.boundary is not None or not isinstance(self.split, str):
            return False
        if not (epoch.left(HEAD) and epoch.left(TAIL)):
            return False
        store = epoch.tail_store_batches
        tail_batches = self.calibration_batches if store is None else min(self.calibration_batches, store)
        rates = epoch.rates
        return rates[HEAD].made < self.calibration_batches or rates[TAIL].made < tail_batches

    def _fix_boundary(self, epoch: EpochView) -> None:
        n = epoch.todo
        tail = self.tail_share(n, epoch.rates)
        store = epoch.tail_store_batches
        if store is not None and tail > store:
            if not self.fit_store:
                raise UsageError(
                    f"MTE delivers the tail last, so the tail's store must hold its whole share: {tail} of {n} batches "
                    f"by the {self.split} split, but it has room for {store}. Give the device a larger store, pass "
                    f'MTE(fit_store=True), or use policy="wrr"'
                )
            tail = store
        epoch.set_boundary(epoch.begins_at + n - tail)

    def tail_share(self, n: int, rates: Mapping[Side, Rates]) -> int:
        """How many of `n` batches the tail makes, by what was measured."""
        if not isinstance(self.split, str):
            return round(n * self.split)
        tau, s, rho = paces(rates)
        if self.split == "proportional":
            return n - round(n * s / (tau + s)) if tau + s > 0 else n // 2
        return balanced_tail(n, tau, s, rho)

    def __repr__(self) -> str:
        return f"MTE(calibration_batches={self.calibration_batches}, split={self.split!r}, fit_store={self.fit_store})"


def balanced_tail(n: int, tau: float, s: float, rho: float) -> int:
    """The tail's batches with the least predicted epoch time.

    The epoch takes `(n - k) * tau + k * rho` as long as the tail has made its k batches by then, in `k * s`; so the
    best k is where both are equal, `n * tau / (s + tau - rho)`, and nothing when a tail batch costs more than it saves.
    """
    if rho >= tau:
        return 0
    share = n if s <= rho else int(n * tau / (s + tau - rho))
    return min((share, min(share + 1, n)), key=lambda k: max((n - k) * tau + k * rho, k * s))
