"""A policy of one's own in ten lines: the CSD makes at most a given share of each epoch, because others need it too.

Try `python examples/custom_policy.py --share 0.1`.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import numpy as np

import ddlp
from ddlp import HEAD, TAIL

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ddlp.policies.base import EpochView


class AtMost(ddlp.Policy):
    """Whatever is ready, and no more than `share` of the batches from the tail."""

    def __init__(self, share: float) -> None:
        self.share = share

    async def schedule(self, epoch: EpochView) -> AsyncGenerator[ddlp.Side, None]:
        epoch.set_boundary(round(len(epoch) * (1 - self.share)))
        while True:
            if epoch.ready(TAIL):
                yield TAIL
            elif epoch.ready(HEAD):
                yield HEAD
            else:
                await epoch.changed()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--images", type=int, default=20_000)
    arguments = parser.parse_args()

    random = np.random.default_rng(0)
    dataset = ddlp.ArrayDataset(
        random.integers(0, 256, (arguments.images, 32, 32, 3), np.uint8), random.integers(0, 10, arguments.images)
    )
    with ddlp.Loader(
        dataset,
        ddlp.recipes.cifar_train(),
        batch_size=200,
        devices=[ddlp.CpuPool(workers=1), ddlp.EmulatedCsd(slowdown=2)],
        policy=AtMost(arguments.share),
    ) as loader:
        for _images, _labels in loader:
            pass  # train
        statistics = loader.statistics()
        print(f"{statistics.delivered[TAIL]} of {statistics.batches} batches came from the CSD")
        print(loader.explain())


if __name__ == "__main__":
    main()
