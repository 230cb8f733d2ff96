"""What the runtime itself costs per batch, with devices that answer at once. One core.

    python benchmarks/overhead.py [--batches 40000] [--rounds 5]

Prints, for 1, 2 and 10 devices and both policies, batches per second and microseconds per batch
* through the engine: claim, preprocess, ready, policy, take, carry, deliver, settle, discard, on one event loop;
* through the engine and the bridge, into a plain `for` on another thread, which waits for each batch.
Since a device answers at once and the loop works for no time, the time per batch is the latency that ddlp adds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import TYPE_CHECKING

import uvloop

from ddlp.bridge import LoopThread, Stream
from ddlp.engine import Epoch
from ddlp.policies.mte import MTE
from ddlp.policies.wrr import WRR
from ddlp.queue import DualEndedQueue
from ddlp.testing.scripted import NO_JOB, ScriptedCarry, ScriptedDevice
from ddlp.types import Side

if TYPE_CHECKING:
    from ddlp.engine import Delivered
    from ddlp.policies.base import Policy

# The goals, asserted by the exit status: batches per second, and microseconds added to a batch.
GOAL_RATE, GOAL_US = 20_000, 60.0


def make_devices(count: int) -> list[ScriptedDevice]:
    return [ScriptedDevice(Side(i % 2), store_batches=8, name=f"at-once{i}") for i in range(count)]


async def make_epoch(batches: int, count: int, policy: Policy) -> Epoch:
    devices = make_devices(count)
    for device in devices:
        await device.open(NO_JOB)
    return Epoch(DualEndedQueue(batches), devices, policy, ScriptedCarry())


async def through_engine(batches: int, count: int, policy: Policy) -> float:
    """Seconds for an epoch on one loop."""
    epoch = await make_epoch(batches, count, policy)

    async def deliver(batch: Delivered) -> None:
        epoch.settle(batch, 0.0)

    begun = time.perf_counter()
    await epoch.run(deliver)
    return time.perf_counter() - begun


def through_bridge(batches: int, count: int, policy: Policy) -> float:
    """Seconds for an epoch from the background thread into a `for` on this one."""

    async def nothing() -> None: ...

    owner = object()
    thread = LoopThread.acquire(owner, nothing)
    stream = Stream(thread, prefetch=2, timeout=60.0, unpack=lambda batch: batch)

    async def work() -> None:
        epoch = await make_epoch(batches, count, policy)
        await stream.run(epoch)
        stream.finish()

    begun = time.perf_counter()
    stream.begin(work())
    delivered = 0
    while True:
        try:
            stream.take()
        except StopIteration:
            break
        delivered += 1
    seconds = time.perf_counter() - begun
    assert delivered == batches, f"{delivered} of {batches} batches arrived"
    thread.release(owner)
    thread.join()
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    met = True
    for count in (1, 2, 10):
        for policy in (WRR(), MTE()):
            engine, bridge = [], []
            for _ in range(args.rounds):
                engine.append(uvloop.run(through_engine(args.batches, count, policy)))
                bridge.append(through_bridge(args.batches // 4, count, policy) * 4)
            rate = args.batches / statistics.median(engine)
            added_us = 1e6 * statistics.median(bridge) / args.batches
            met &= rate >= GOAL_RATE and added_us <= GOAL_US
            print(
                f"{count:2} device{'s' if count > 1 else ' '}  {policy.name}  engine {rate:7,.0f} batches/s "
                f"{1e6 / rate:5.1f} us   with bridge {1e6 / added_us:7,.0f} batches/s {added_us:5.1f} us"
            )
    print(f"goal: at least {GOAL_RATE:,} batches/s through the engine and below {GOAL_US:.0f} us added: {met}")
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
