"""One turn of one driver, in the peer's environment; started by run.py, which reads the lines beginning with @.

What is measured begins after a warm-up and lasts for a number of seconds; the process's own start, the first batch and
the warm-up are not part of it.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import process_tree
from driver import SIZE, Crop, Driver, Job

if TYPE_CHECKING:
    from collections.abc import Iterator

CHECKED_BATCHES = 2
WARM_UP_BATCHES = 16  # taken at once: more than any loader has finished in advance


def say(event: str, **facts: Any) -> None:
    print("@" + json.dumps({"event": event, **facts}), flush=True)


def measure(batches: Iterator[Any], job: Job, seconds: float) -> None:
    first = next(batches)
    say("first", at_s=time.monotonic())
    check(np.asarray(first[0]), job)
    del first
    mean = statistics.mean(float(np.asarray(batch[0]).mean()) for batch in itertools.islice(batches, CHECKED_BATCHES))
    for _ in itertools.islice(batches, WARM_UP_BATCHES):
        pass
    others_s, cpu_s, begun = process_tree.busy_s(), process_tree.cpu_s(os.getpid()), time.perf_counter()
    images = 0
    while (taken_s := time.perf_counter() - begun) < seconds:
        images += len(next(batches)[0])
    cpu_s = process_tree.cpu_s(os.getpid()) - cpu_s
    others_s = max(0.0, process_tree.busy_s() - others_s - cpu_s)
    say("result", images=images, seconds=taken_s, cpu_s=cpu_s, others_s=others_s, mean=mean)


def check(images: np.ndarray[Any, Any], job: Job) -> None:
    """Raise ValueError unless this is a batch as it was asked for, in either layout."""
    shapes = [(job.batch_size, 3, SIZE, SIZE), (job.batch_size, SIZE, SIZE, 3)]
    dtype = "float32" if job.float32 else "uint8"
    if images.shape not in shapes or images.dtype != dtype or images.std() == 0:
        raise ValueError(f"a batch of {images.dtype} {images.shape}, standard deviation {images.std():.3f}")


def driver_of(name: str, job: Job) -> Driver:
    module, _, kind = name.partition(":")
    made: Driver = getattr(importlib.import_module(f"drivers.{module}"), kind)(job)
    return made


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("driver", help="module:class")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--float32", action="store_true")
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--crops", type=Path, help="a JSON list; the crops that were made go there, and pixels to .npy")
    args = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.workers])
    driver = driver_of(args.driver, Job(args.folder, args.cache, args.float32, args.batch_size, args.workers))
    if args.prepare:
        driver.prepare()
    elif args.crops:
        crops = [Crop(*crop) for crop in json.loads(args.crops.read_text())]
        crops, pixels = driver.crops(crops)
        args.crops.write_text(json.dumps(crops))
        np.save(args.crops.with_suffix(".npy"), pixels)
    else:
        measure(driver.batches(), driver.job, args.seconds)
    driver.close()
    say("done")


if __name__ == "__main__":
    main()
