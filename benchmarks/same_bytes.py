"""Every sample of the demo's photos has the same bytes, whoever makes it and in whatever order.

    python benchmarks/same_bytes.py [--images 1600] [--batch-size 16]

Two epochs each of the CPU pool alone, the emulated device alone, MTE, WRR, and a Replay of the WRR epochs. Compared
sample by sample, by SHA-256; the two epochs must differ in every sample, since each has an augmentation of its own.
"""

from __future__ import annotations

import argparse
import hashlib
from typing import TYPE_CHECKING

import ddlp
from ddlp.demo.photos import image_folder
from ddlp.demo.progress import Interrupts

if TYPE_CHECKING:
    from collections.abc import Callable

Digests = dict[int, str]  # by sample id


def epoch(loader: ddlp.Loader) -> Digests:
    """The digest of every sample of one epoch."""
    found: Digests = {}
    for images, labels in loader:
        for row, id_ in enumerate(loader.info.sample_ids):
            assert id_ not in found, f"sample {id_} came twice"
            found[id_] = hashlib.sha256(images[row].numpy().tobytes() + labels[row].numpy().tobytes()).hexdigest()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1600)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()
    data, recipe = image_folder(None, args.images, Interrupts()), ddlp.recipes.imagenet_train(224)

    def run(devices: list[ddlp.Device], policy: str | ddlp.Policy) -> tuple[list[Digests], list[ddlp.Order]]:
        with ddlp.Loader(data, recipe, args.batch_size, shuffle=True, devices=devices, policy=policy) as loader:
            epochs, orders = [], []
            for _ in range(2):
                epochs.append(epoch(loader))
                orders.append(loader.order)
            return epochs, orders

    def both() -> list[ddlp.Device]:
        return [ddlp.CpuPool(), ddlp.EmulatedCsd(slowdown=2)]

    reference, _ = run([ddlp.CpuPool()], "wrr")
    assert all(reference[0][id_] != reference[1][id_] for id_ in reference[0]), "the augmentation repeats"
    wrr, orders = run(both(), "wrr")
    others: dict[str, Callable[[], list[Digests]]] = {
        "CSD alone": lambda: run([ddlp.EmulatedCsd(slowdown=1)], "wrr")[0],
        "MTE": lambda: run(both(), "mte")[0],
        "WRR": lambda: wrr,
        "Replay": lambda: [run(both(), ddlp.Replay(order))[0][number] for number, order in enumerate(orders)],
    }
    met = len(reference[0]) == len(data)
    for name, epochs in others.items():
        same = epochs() == reference
        met &= same
        print(f"{name}: {len(data)} samples, 2 epochs, {'the same bytes' if same else 'DIFFERENT BYTES'}", flush=True)
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
