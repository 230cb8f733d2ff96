"""The contract of a policy: which side the accelerator takes its next batch from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

from ddlp.types import HEAD, TAIL

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from ddlp.types import Rates, Side


class EpochView(Protocol):
    """What a policy may see and do."""

    def __len__(self) -> int:
        """Batches in this epoch, delivered ones included."""
        ...

    def ready(self, side: Side) -> bool:
        """Whether the side's next batch is finished, so that taking it does not wait."""
        ...

    def left(self, side: Side) -> bool:
        """Whether anything can still come from the side."""
        ...

    @property
    def rates(self) -> Mapping[Side, Rates]:
        """What was measured so far; from the second epoch on it starts with the last epoch's figures."""
        ...

    @property
    def boundary(self) -> int | None:
        """Where the sides meet, once that is fixed; from the start in an epoch that is resumed."""
        ...

    @property
    def todo(self) -> int:
        """Batches of this run: all, or those that were left where the epoch is resumed."""
        ...

    @property
    def begins_at(self) -> int:
        """The lowest index of this run: 0, or the lowest that was left where the epoch is resumed."""
        ...

    @property
    def delivered(self) -> int:
        """Batches handed on in this epoch, those before it was resumed included."""
        ...

    @property
    def tail_store_batches(self) -> int | None:
        """How many finished batches the tail's devices can hold together; None: no bound."""
        ...

    async def changed(self) -> None:
        """Wait until something that this view shows has changed."""
        ...

    def set_boundary(self, index: int) -> int:
        """Fix where the sides meet: the head makes batches below `index`, the tail the rest.

        Batches that were already claimed move the meeting point; returns the index that holds.
        """
        ...


class Policy(ABC):
    """Yields, for each batch, the side to take it from. The engine waits for the batch.

    A side that has nothing left is replaced by the other one, so `while True: yield HEAD` is a complete policy. A
    policy has no clock and no randomness of its own: the same events give the same choices.
    """

    name: str = "policy"
    row: Sequence[int] | None = None  # a rearrangement of the batches before the two sides start; None: 0..n-1

    @abstractmethod
    def schedule(self, epoch: EpochView) -> AsyncGenerator[Side, None]:
        """Sides, one per batch; write it as `async def` with `yield`. It is closed when the epoch ends."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def paces(rates: Mapping[Side, Rates]) -> tuple[float, float, float]:
    """(tau, s, rho) in seconds per batch: fed by the head, made by the tail, a tail batch on the accelerator.

    Before any tail batch was used, rho is taken to be what a head batch costs the accelerator.
    """
    head, tail = rates[HEAD], rates[TAIL]
    step = head.step_s or 0.0
    tau = max(head.make_s or 0.0, step)
    rho = step if tail.step_s is None else tail.step_s
    return tau, tail.make_s or 0.0, rho
