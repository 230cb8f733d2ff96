"""Which transport carries the batches of which device, and why."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from ddlp.errors import BatchFailed, UsageError
from ddlp.transport.bounce import BounceTransport
from ddlp.transport.host import HostTransport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddlp.memory import Arena, Slot
    from ddlp.transport.base import Transport
    from ddlp.types import BatchRef


class TransportStatistics(msgspec.Struct, frozen=True):
    """What one transport has carried, and the seconds that took."""

    batches: int = 0
    nbytes: int = 0
    seconds: float = 0.0


class Carrier:
    """Brings batches into host memory for `target`, each device's by the first transport that can carry them."""

    def __init__(self, arena: Arena, target: str = "cpu", transports: Sequence[Transport] | None = None) -> None:
        self._arena = arena
        self._target = target
        self._transports = [HostTransport(), BounceTransport()] if transports is None else list(transports)
        self._chosen: dict[str, tuple[Transport, str]] = {}  # by device: and why
        self._statistics: dict[str, TransportStatistics] = {}  # by transport

    async def carry(self, ref: BatchRef) -> Slot:
        """The batch in a slot: the one where it lies, or a new one, then owed to the arena.

        After an error or a cancellation `ref` is still valid and nothing is owed.

        Raises:
            BatchFailed: the batch is not where it should be, or is damaged, or there is no host memory for it.
            UsageError: no transport can carry it; the message has each one's reason.
        """
        transport = self._transport(ref)
        started = time.perf_counter()
        slot: Slot = ref.place if transport.in_place else self._lease(ref)
        try:
            await transport.fetch(ref, slot)
        except BaseException:
            if not transport.in_place:
                self._arena.recycle(slot)
            raise
        self._count(transport, ref.nbytes, time.perf_counter() - started)
        return slot

    def _lease(self, ref: BatchRef) -> Slot:
        try:
            return self._arena.lease(ref.nbytes)
        except OSError as error:
            raise BatchFailed(f"no host memory for {ref.claim} of {ref.device}: {error}") from error

    def reasons(self) -> dict[str, str]:
        """For each device so far, the transport that carries its batches and why no earlier one does."""
        return {device: f"{transport.name}{why}" for device, (transport, why) in self._chosen.items()}

    def statistics(self) -> dict[str, TransportStatistics]:
        """By the name of the transport."""
        return dict(self._statistics)

    async def aclose(self) -> None:
        """End the transports. Twice is fine."""
        for transport in self._transports:
            await transport.aclose()

    def _transport(self, ref: BatchRef) -> Transport:
        """The device's transport so far, unless it cannot carry this batch."""
        chosen = self._chosen.get(ref.device)
        if chosen is None or chosen[0].can_carry(ref, self._target) is not None:
            chosen = self._chosen[ref.device] = self._choose(ref)
        return chosen[0]

    def _choose(self, ref: BatchRef) -> tuple[Transport, str]:
        refusals: list[str] = []
        for transport in self._transports:
            refusal = transport.can_carry(ref, self._target)
            if refusal is None:
                return transport, f" (not {'; not '.join(refusals)})" if refusals else ""
            refusals.append(f"{transport.name}: {refusal}")
        raise UsageError(f"no transport carries batches of {ref.device} to {self._target}: {'; '.join(refusals)}")

    def _count(self, transport: Transport, nbytes: int, seconds: float) -> None:
        so_far = self._statistics.get(transport.name, TransportStatistics())
        self._statistics[transport.name] = TransportStatistics(
            so_far.batches + 1, so_far.nbytes + nbytes, so_far.seconds + seconds
        )
