"""Batches that lie in host memory already."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddlp.memory import Slot
from ddlp.transport.base import Transport

if TYPE_CHECKING:
    from ddlp.types import BatchRef


class HostTransport(Transport):
    """Nothing to do: the device wrote into the slot."""

    name = "host"
    in_place = True

    def can_carry(self, ref: BatchRef, target: str) -> str | None:
        return None if isinstance(ref.place, Slot) else "the batch does not lie in host memory"

    async def fetch(self, ref: BatchRef, slot: Slot) -> None:
        pass

    async def aclose(self) -> None:
        pass
