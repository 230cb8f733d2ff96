"""The contract of a transport: it carries a finished batch from where its device left it to host memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddlp.memory import Slot
    from ddlp.types import BatchRef


class Transport(ABC):
    """`name` is how it is called; `in_place` transports find batches in slots and have nothing to move."""

    name: str = "transport"
    in_place: bool = False

    @abstractmethod
    def can_carry(self, ref: BatchRef, target: str) -> str | None:
        """None when it can carry this batch to `target` ("cpu", "cuda:0"); otherwise why not."""

    @abstractmethod
    async def fetch(self, ref: BatchRef, slot: Slot) -> None:
        """Put the batch's bytes into `slot`, which holds `ref.nbytes` at least.

        After an error or a cancellation the slot's content is arbitrary and `ref` still valid; whoever still writes to
        the slot keeps its memory from being used again.

        Raises:
            BatchFailed: the batch is not where `ref` says, or is damaged.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """End what it has started. Twice is fine."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"
