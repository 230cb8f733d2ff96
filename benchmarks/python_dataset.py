"""Data sets of arbitrary Python, without a recipe: ddlp against DataLoader at its best number of workers.

    python benchmarks/python_dataset.py [--images 512] [--samples 20000] [--rounds 5]

Heavy samples: a file decoded, cropped, resized and normalised with Pillow and torch in `__getitem__`. Tiny samples: two
small arrays, where collating and carrying cost more than making; how DataLoader does without workers, inside the
training process, is printed too. Before anything is measured, every batch of ddlp is compared with DataLoader's: same
structure, same bytes.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from common import epoch_s, median_of, photos, ratios, take_turns, verdict
from PIL import Image
from torch.utils.data import DataLoader

import ddlp

if TYPE_CHECKING:
    from collections.abc import Sequence

GOALS = {"heavy": 1.0, "tiny": 5.0}  # times as fast as DataLoader at its best
WORKERS = 2
BATCH_SIZES = {"heavy": 32, "tiny": 64}
MEAN, STD = (torch.tensor(levels)[:, None, None] for levels in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))


class Heavy:
    """Decoded, cropped and normalised images, always the same of a sample."""

    def __init__(self, folder: str) -> None:
        files = ddlp.ImageFolder(folder)
        self._paths = [files.path(id_) for id_ in range(len(files))]
        self._labels = files.labels.tolist()

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self._paths[index]) as file:
            image = file.convert("RGB")
        margin = index % 64
        image = image.crop((margin, margin, image.width - margin, image.height - margin))
        image = image.resize((224, 224), Image.Resampling.BILINEAR)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        return pixels.to(torch.float32).div_(255).sub_(MEAN).div_(STD), self._labels[index]


class Tiny:
    """Two small arrays."""

    def __init__(self, samples: int) -> None:
        self._features = np.random.default_rng(0).standard_normal((samples, 16), dtype=np.float32)
        self._targets = np.arange(samples, dtype=np.int64)[:, None]

    def __len__(self) -> int:
        return len(self._features)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return self._features[index], self._targets[index]


def same(ours: Any, theirs: Any) -> bool:
    return len(ours) == len(theirs) and all(
        a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)
    )


def compare(kind: str, dataset: Any, workers: Sequence[int], rounds: int) -> bool:
    """Whether the goal of this kind is met."""
    size = BATCH_SIZES[kind]
    plain = {
        f"DataLoader with {n}": DataLoader(dataset, size, num_workers=n, persistent_workers=n > 0) for n in workers
    }
    with ddlp.Loader(dataset, batch_size=size, num_workers=WORKERS) as loader:
        first = next(iter(plain.values()))
        assert len(loader) == len(first)
        assert all(same(ours, theirs) for ours, theirs in zip(loader, first, strict=True)), "a batch differs"
        print(f"{kind}: all {len(loader)} batches are identical")
        turns = {name: lambda plain=plain: epoch_s(plain) for name, plain in plain.items()}
        seconds = take_turns(rounds, {**turns, "ddlp": lambda: epoch_s(loader)})
    for name in plain:
        print(f"{kind}: ddlp is {median_of(ratios(seconds[name], seconds['ddlp']))} as fast as {name} workers")
    with_workers = [name for name, loader in plain.items() if loader.num_workers]
    best = min(with_workers, key=lambda name: statistics.median(seconds[name]))
    met = statistics.median(ratios(seconds[best], seconds["ddlp"])) >= GOALS[kind]
    verdict(f"{kind} samples at least {GOALS[kind]} times as fast as {best}, which is its best number of workers", met)
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=512, help="heavy samples")
    parser.add_argument("--samples", type=int, default=20_000, help="tiny samples")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than cores: they may be the best
    with photos(args.images) as folder:
        heavy = compare("heavy", Heavy(folder), (1, 2, 3), args.rounds)
    tiny = compare("tiny", Tiny(args.samples), (0, 1, 2), args.rounds)
    return 0 if heavy and tiny else 1


if __name__ == "__main__":
    raise SystemExit(main())
