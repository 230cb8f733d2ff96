"""PyTorch's DataLoader with Pillow and the usual transforms: the baseline.

As many workers as cores: with one more, or fewer, it is slower. An endless sampler, so that no epoch ends.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import plain
from driver import Driver, Job, endless
from torch.utils.data import DataLoader, Dataset, Sampler

if TYPE_CHECKING:
    from collections.abc import Iterator


class Images(Dataset[Any]):
    def __init__(self, job: Job) -> None:
        self._files = job.files()
        self._float32 = job.float32

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self._files[index]
        return plain.to_tensor(plain.augmented(Path(path).read_bytes()), self._float32), label


class Endless(Sampler[int]):
    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __iter__(self) -> Iterator[int]:
        return endless(range(self._samples))


class TorchLoader(Driver):
    def batches(self) -> Iterator[Any]:
        images = Images(self.job)
        workers = self.job.workers
        return iter(DataLoader(images, self.job.batch_size, sampler=Endless(len(images)), num_workers=workers))
