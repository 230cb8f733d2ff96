"""How much memory the ImageNet training recipe takes, and whether it grows.

    python benchmarks/memory.py [--images 2048] [--epochs 20]

Batches of 64 in float32 (38.5 MB each), two workers. The memory is the proportional set size of this process and its
workers, in which shared pages count once, looked at a few times a second; what this process had before the loader was
made, Python with torch and ddlp, is taken off.
"""

from __future__ import annotations

import argparse
import os
import threading
from typing import Any

import process_tree
import torch
from common import photos, verdict

import ddlp

GOAL_MB = 300
FLAT_MB = 15  # by which the second half of the epochs may need more than the first
SAMPLE_S = 0.1


class Peaks:
    """The most memory of the process tree since the last `take`, watched by a thread while inside `with`."""

    def __init__(self) -> None:
        self._nbytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Peaks:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._thread.join()

    def take(self) -> int:
        peak, self._nbytes = max(self._nbytes, process_tree.pss_nbytes(os.getpid())), 0
        return peak

    def _watch(self) -> None:
        while not self._over.wait(SAMPLE_S):
            self._nbytes = max(self._nbytes, process_tree.pss_nbytes(os.getpid()))


def peaks_mb(loader: Any, epochs: int, before: int) -> list[float]:
    """Of each epoch, beyond `before`."""
    found = []
    with Peaks() as peaks:
        for epoch in range(epochs):
            for _ in loader:
                pass
            found.append((peaks.take() - before) / 1e6)
            print(f"epoch {epoch}: {found[-1]:.0f} MB", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2048)
    parser.add_argument("--epochs", type=int, default=20, help="at least 2")
    args = parser.parse_args()
    with photos(args.images) as folder:
        dataset, recipe = ddlp.ImageFolder(folder), ddlp.recipes.imagenet_train(224)
        torch.zeros(1).add_(1)  # what torch loads at its first operation is torch's
        before = process_tree.pss_nbytes(os.getpid())
        with ddlp.Loader(dataset, recipe, batch_size=64, shuffle=True, num_workers=2) as loader:
            found = peaks_mb(loader, args.epochs, before)
    half = args.epochs // 2
    growth = max(found[half:]) - max(found[:half])
    print(
        f"{before / 1e6:.0f} MB before; at most {max(found):.0f} MB beyond that; the second half needs {growth:+.1f} MB"
    )
    met = max(found) <= GOAL_MB and growth <= FLAT_MB
    return verdict(f"at most {GOAL_MB} MB, and the second half of the epochs at most {FLAT_MB} MB more", met)


if __name__ == "__main__":
    raise SystemExit(main())
