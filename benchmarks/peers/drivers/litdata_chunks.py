"""LitData: chunks of its own format with the files' bytes, read in its DataLoader's workers, with Pillow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import litdata
import plain
from driver import Driver, repeated

if TYPE_CHECKING:
    from collections.abc import Iterator


def _sample(file: tuple[str, int]) -> dict[str, Any]:
    return {"data": Path(file[0]).read_bytes(), "label": file[1]}


class _Images(litdata.StreamingDataset):
    float32 = True

    def __getitem__(self, index: Any) -> tuple[Any, int]:
        sample = super().__getitem__(index)
        return plain.to_tensor(plain.augmented(sample["data"]), self.float32), sample["label"]


class LitData(Driver):
    @property
    def _folder(self) -> Path:
        return self.job.cache / "litdata"

    def prepare(self) -> None:
        if not self._folder.exists():
            partial = self._folder.with_suffix(".partial")
            litdata.optimize(_sample, self.job.files(), str(partial), num_workers=1, chunk_bytes="64MB")
            os.rename(partial, self._folder)

    def batches(self) -> Iterator[Any]:
        images = _Images(str(self._folder), shuffle=True)
        images.float32 = self.job.float32
        workers = self.job.workers
        return repeated(
            litdata.StreamingDataLoader(
                images, batch_size=self.job.batch_size, num_workers=workers, persistent_workers=True, drop_last=True
            )
        )
