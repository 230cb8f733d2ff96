"""WRR, weighted round robin: whatever is ready. Efficiency.

Source: DDLP, IEEE Transactions on Computers 75(3), 2026 (arXiv 2407.00005); fixed weights are ours.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from ddlp.errors import UsageError
from ddlp.policies.base import Policy, paces
from ddlp.types import HEAD, TAIL

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from ddlp.policies.base import EpochView
    from ddlp.types import Side


class WRR(Policy):
    """Take from the tail whenever it has a batch ready, else from the head.

    Args:
        weights: None lets the order follow the timing (it is recorded, see `Replay`). `(head, tail)` fixes the
            pattern: that many batches of each side in turn, both used at once, in a reproducible order. "calibrated"
            measures ten batches of each side, then fixes the pattern by their paces.
    """

    name = "wrr"

    def __init__(self, weights: tuple[int, int] | str | None = None) -> None:
        if isinstance(weights, str):
            known = weights == "calibrated"
        else:
            known = weights is None or (len(weights) == 2 and min(weights) >= 0 and sum(weights) > 0)
        if not known:
            raise UsageError(f'weights must be None, "calibrated" or two counts (head, tail), not {weights!r}')
        self.weights = weights if weights is None or isinstance(weights, str) else tuple(weights)

    async def schedule(self, epoch: EpochView) -> AsyncGenerator[Side, None]:
        weights = self.weights
        heads = 0
        while not isinstance(weights, tuple):
            if weights == "calibrated" and _measured(epoch):
                weights = _weights(epoch)
            elif epoch.ready(TAIL):
                yield TAIL
            elif epoch.ready(HEAD):
                heads += 1
                yield HEAD
            else:
                await epoch.changed()
        for side in _pattern(epoch, heads, *weights):
            yield side

    def __repr__(self) -> str:
        return f"WRR(weights={self.weights!r})"


def _pattern(epoch: EpochView, heads: int, head: int, tail: int) -> Iterator[Side]:
    """`head` and `tail` batches in turn, spread evenly, after `heads` head batches were used already.

    The sides' shares follow from the weights alone, so the order does too; a resumed epoch goes on in it.
    """
    left = len(epoch) - epoch.delivered
    resumed = epoch.boundary is not None
    if not resumed:
        epoch.set_boundary(epoch.begins_at + heads + round(left * head / (head + tail)))
    return islice(_turns(head, tail), epoch.delivered if resumed else 0, None)


def _turns(head: int, tail: int) -> Iterator[Side]:
    owed = 0
    while True:
        owed += tail
        if 2 * owed > head + tail:
            owed -= head + tail
            yield TAIL
        else:
            yield HEAD


def _measured(epoch: EpochView) -> bool:
    rates = epoch.rates
    return min(rates[HEAD].made, rates[TAIL].made) >= 10


def _weights(epoch: EpochView) -> tuple[int, int]:
    """The sides' shares in thousandths. The tail's is rounded down: an epoch waits for a side that got too much."""
    tau, s, _ = paces(epoch.rates)
    tail = int(1000 * tau / (tau + s)) if tau + s > 0.0 else 500
    return 1000 - tail, tail
