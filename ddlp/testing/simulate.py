"""A whole epoch in virtual time: the real queue, engine and policy, with scripted devices and accelerator."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from ddlp.engine import Epoch
from ddlp.queue import DualEndedQueue
from ddlp.testing import theory
from ddlp.testing.scripted import AT_ONCE, NO_JOB, Pair, ScriptedAccelerator, ScriptedCarry, ScriptedDevice
from ddlp.testing.virtual import run_virtual
from ddlp.types import HEAD, TAIL, Claim, Order, Rates, Side

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ddlp.devices.base import Device
    from ddlp.policies.base import Policy
    from ddlp.types import BatchRef


class Rehearsal(msgspec.Struct, frozen=True):
    """What one epoch came to.

    order    the claims as the accelerator used them
    record   the order as the engine gives it, for `Replay`
    seconds  from the first claim until the last batch was settled
    wait_s   that the accelerator had nothing to do before its last batch
    rates    what the engine measured, for the next epoch
    takeovers  batches that a device finished because the one that had them was too late
    """

    order: tuple[Claim, ...]
    record: Order
    seconds: float
    wait_s: float
    rates: Mapping[Side, Rates]
    takeovers: int

    @property
    def indices(self) -> list[int]:
        return [claim.index for claim in self.order]

    def count(self, side: Side) -> int:
        """Batches that came from the side."""
        return sum(claim.side is side for claim in self.order)


async def rehearse(
    queue: DualEndedQueue,
    devices: Sequence[Device],
    policy: Policy,
    *,
    carry: Callable[[BatchRef], Awaitable[object]] | None = None,
    step_s: Pair = AT_ONCE,
    prefetch: int = 1,
    timeout: float | None = 60.0,
    rates: Mapping[Side, Rates] | None = None,
) -> Rehearsal:
    """One epoch of `queue` on scripted devices, which are opened first; raises what `Epoch.run` raises.

    Nothing is settled after it ended, however it ended.
    """
    for device in devices:
        await device.open(NO_JOB)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    epoch = Epoch(queue, devices, policy, carry or ScriptedCarry(), timeout=timeout, rates=rates)
    accelerator = ScriptedAccelerator(epoch.settle, step_s, prefetch)
    try:
        await epoch.run(accelerator.deliver)
    finally:
        accelerator.stop()
    return Rehearsal(
        tuple(accelerator.order), epoch.order, loop.time() - begun, accelerator.wait_s, epoch.rates, epoch.takeovers
    )


class Simulation(msgspec.Struct, frozen=True):
    """What `simulate` found; counts, order and waits are those of the last epoch.

    epoch_s       seconds of each epoch
    head, tail    batches that each side made
    wait_s        that the accelerator waited for a batch
    order_digest  of the order in which batches were used: equal digests, equal orders
    cpu_only_s    closed form: the epoch without a tail device
    shared_s      closed form: WRR and balanced MTE; see `theory` for when an overlapping runtime is faster
    proportional_s  closed form: MTE with the paper's ratio
    bound_s       no policy can be faster than this
    """

    policy: str
    epoch_s: tuple[float, ...]
    head: int
    tail: int
    wait_s: float
    order_digest: str
    cpu_only_s: float
    shared_s: float
    proportional_s: float
    bound_s: float


def simulate(
    batches: int,
    policy: Policy,
    *,
    cpu_s: float,
    csd_s: float,
    accel_head_s: float,
    accel_tail_s: float | None = None,
    depth: int = 2,
    csd_store: int | None = None,
    prefetch: int = 1,
    epochs: int = 1,
) -> Simulation:
    """Run the real engine and policy in virtual time; a million batches take seconds to a minute.

    Args:
        batches: per epoch.
        cpu_s: seconds per batch of the host's workers together.
        csd_s: seconds per batch of the CSD.
        accel_head_s: seconds that the accelerator needs for a head batch, its copy included.
        accel_tail_s: the same for a tail batch, its direct read included; None: as for a head batch.
        depth: claims in flight per side; the host may hold twice as many finished batches.
        csd_store: finished batches that the CSD can hold; None: no bound.
        prefetch: batches that wait in front of the accelerator.
        epochs: how many, at least one; what one measured is known to the next.
    """
    step_s = Pair(accel_head_s, accel_head_s if accel_tail_s is None else accel_tail_s)
    host = ScriptedDevice(HEAD, cpu_s, depth=depth, store_batches=2 * depth + prefetch)
    csd = ScriptedDevice(TAIL, csd_s, depth=depth, store_batches=csd_store)
    runs: list[Rehearsal] = []
    for _ in range(epochs):
        known = runs[-1].rates if runs else None
        queue = DualEndedQueue(batches)
        epoch = rehearse(queue, [host, csd], policy, step_s=step_s, prefetch=prefetch, timeout=None, rates=known)
        runs.append(run_virtual(epoch))
    run, tau = runs[-1], max(cpu_s, step_s.head)
    return Simulation(
        policy=repr(policy),
        epoch_s=tuple(run.seconds for run in runs),
        head=run.count(HEAD),
        tail=run.count(TAIL),
        wait_s=run.wait_s,
        order_digest=digest(run.indices),
        cpu_only_s=theory.cpu_only_s(batches, tau),
        shared_s=theory.shared_s(batches, tau, csd_s, step_s.tail),
        proportional_s=theory.proportional_s(batches, tau, csd_s, step_s.tail),
        bound_s=theory.bound_s(batches, cpu_s, csd_s, *step_s),
    )


def digest(indices: Sequence[int]) -> str:
    """Sixteen hex digits that name an order of batches."""
    return hashlib.blake2b(repr(list(indices)).encode(), digest_size=8).hexdigest()
