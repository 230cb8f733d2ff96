"""Whether two workers cost the same CPU time per image as one: what is shared must not be fought over.

    python benchmarks/scaling.py [--images 1024] [--batch-size 32] [--rounds 5]

The ImageNet training recipe with one worker on the first core, and with two on the first two; CPU time of this process
and the workers. How many times as fast two are is printed too; it depends on what else the machine does.
"""

from __future__ import annotations

import argparse
import os
import statistics

import process_tree
from common import epoch_s, median_of, photos, ratios, take_turns, verdict

import ddlp

GOAL = 1.05  # times the CPU time per image of one worker


class Pool:
    """A loader with this many workers, each with a core of its own, and how fast its epochs were."""

    def __init__(self, folder: str, batch_size: int, cores: list[int]) -> None:
        self.images_s: list[float] = []
        self.loader = ddlp.Loader(
            ddlp.ImageFolder(folder),
            ddlp.recipes.imagenet_train(224),
            batch_size=batch_size,
            shuffle=True,
            devices=[ddlp.CpuPool(workers=len(cores), cpus=cores)],
        )

    def epoch_cpu_ms(self) -> float:
        """CPU milliseconds per image of one epoch."""
        before_s = process_tree.cpu_s(os.getpid())
        images = len(self.loader.dataset)
        self.images_s.append(images / epoch_s(self.loader))
        return 1e3 * (process_tree.cpu_s(os.getpid()) - before_s) / images


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print("one core only: there is nothing to measure")
        return 0
    with photos(args.images) as folder:
        pools = {f"{n} worker{'s' if n > 1 else ''}": Pool(folder, args.batch_size, cores[:n]) for n in (1, 2)}
        taken = take_turns(args.rounds, {name: pool.epoch_cpu_ms for name, pool in pools.items()}, "CPU ms per image")
        for pool in pools.values():
            pool.loader.close()
    one, two = taken.values()
    faster = ratios(*(pool.images_s[1:] for pool in reversed(pools.values())))
    found = ratios(two, one)
    print(f"two workers are {median_of(faster)} as fast, for {median_of(found)} of the CPU time per image")
    return verdict(f"at most {GOAL} times the CPU time per image", statistics.median(found) <= GOAL)


if __name__ == "__main__":
    raise SystemExit(main())
