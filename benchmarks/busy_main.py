"""What a training loop that is busy in Python costs the loader.

    python benchmarks/busy_main.py [--images 1024] [--batch-size 16] [--rounds 7]

A step takes half of the time that a batch takes to make, either in pure Python, holding the interpreter's lock, or
asleep. The loader's background thread needs the same lock; how much longer the epoch takes with a busy step is what
that costs. One worker has the first core, the training process the second, so that they do not compete for a core.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import TYPE_CHECKING

from common import epoch_s, median_of, photos, ratios, take_turns, verdict

import ddlp

if TYPE_CHECKING:
    from collections.abc import Callable

GOAL = 1.05  # times the epoch with a step that sleeps


def burn(seconds: float) -> None:
    """Spend this time in the interpreter."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def busy_epoch_s(loader: ddlp.Loader, step: Callable[[float], None], step_s: float) -> float:
    begun = time.perf_counter()
    for _ in loader:
        step(step_s)
    return time.perf_counter() - begun


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print("one core only: the worker and the training loop would share it, so there is nothing to measure")
        return 0
    os.sched_setaffinity(0, {cores[1]})
    with (
        photos(args.images) as folder,
        ddlp.Loader(
            ddlp.ImageFolder(folder),
            ddlp.recipes.imagenet_train(224),
            batch_size=args.batch_size,
            shuffle=True,
            devices=[ddlp.CpuPool(workers=1, cpus=[cores[0]])],
        ) as loader,
    ):
        epoch_s(loader)
        step_s = epoch_s(loader) / len(loader) / 2
        print(f"a batch takes {2e3 * step_s:.1f} ms, a step {1e3 * step_s:.1f} ms")
        seconds = take_turns(
            args.rounds,
            {
                "asleep": lambda: busy_epoch_s(loader, time.sleep, step_s),
                "busy": lambda: busy_epoch_s(loader, burn, step_s),
            },
        )
    found = ratios(seconds["busy"], seconds["asleep"])
    print(f"an epoch with a busy step takes {median_of(found)} as long")
    return verdict(f"at most {GOAL} times as long", statistics.median(found) <= GOAL)


if __name__ == "__main__":
    raise SystemExit(main())
