"""Replay: the recorded order of an earlier epoch, exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddlp.errors import UsageError
from ddlp.policies.base import Policy
from ddlp.types import HEAD, Order

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ddlp.policies.base import EpochView
    from ddlp.types import Side


class Replay(Policy):
    """Deliver batches in the order of `record`, which a loader gives as `loader.order` after an epoch.

    The sides make what they made then; who is faster today does not matter.
    """

    name = "replay"

    def __init__(self, record: Order) -> None:
        if not isinstance(record, Order):
            raise UsageError(f"Replay takes the Order of a finished epoch (loader.order), not {type(record).__name__}")
        if sorted(record.batches) != list(range(len(record.batches))):
            raise UsageError(
                f"Replay takes the Order of a whole epoch; this one has {len(record.batches)} batches of it"
            )
        self.record = record
        self.row = record.row

    async def schedule(self, epoch: EpochView) -> AsyncGenerator[Side, None]:
        if len(epoch) != len(self.record.batches):
            raise UsageError(f"the record has {len(self.record.batches)} batches, the epoch has {len(epoch)}")
        epoch.set_boundary(self.record.sides.count(HEAD))
        for side in self.record.sides[epoch.delivered :]:
            yield side

    def __repr__(self) -> str:
        return f"Replay({self.record!r})"
