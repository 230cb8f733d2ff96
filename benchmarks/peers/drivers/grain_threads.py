"""Grain with threads, which are faster here than its processes: Pillow gives up the interpreter while it works."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import grain
import plain
from driver import Driver

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Files:
    def __init__(self, files: list[tuple[str, int]]) -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        path, label = self._files[index]
        return Path(path).read_bytes(), label


class Grain(Driver):
    def batches(self) -> Iterator[Any]:
        samples = grain.MapDataset.source(_Files(self.job.files())).shuffle(seed=0).repeat().map(self._sample)
        reading = grain.ReadOptions(num_threads=self.job.workers, prefetch_buffer_size=self.job.batch_size)
        return iter(samples.to_iter_dataset(reading).batch(self.job.batch_size))

    def _sample(self, sample: tuple[bytes, int]) -> tuple[Any, int]:
        data, label = sample
        return plain.to_tensor(plain.augmented(data), self.job.float32).numpy(), label
