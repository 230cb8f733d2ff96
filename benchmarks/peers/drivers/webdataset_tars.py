"""WebDataset: tar files, read in DataLoader's workers, which make whole batches with Pillow."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import plain
import webdataset as wds
from driver import Driver

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARDS = 4


class WebDataset(Driver):
    @property
    def _folder(self) -> Path:
        return self.job.cache / "webdataset"

    def prepare(self) -> None:
        if self._folder.exists():
            return
        files = self.job.files()
        random.Random(0).shuffle(files)
        partial = self._folder.with_suffix(".partial")
        partial.mkdir(exist_ok=True)
        for shard in range(SHARDS):
            with wds.TarWriter(str(partial / f"{shard}.tar")) as tar:
                for number, (path, label) in enumerate(files[shard::SHARDS]):
                    tar.write({"__key__": f"{number:06}", "jpg": Path(path).read_bytes(), "cls": label})
        os.rename(partial, self._folder)

    def batches(self) -> Iterator[Any]:
        shards = [str(self._folder / f"{shard}.tar") for shard in range(SHARDS)]
        samples = wds.WebDataset(shards, resampled=True, nodesplitter=None).shuffle(500).to_tuple("jpg", "cls")
        batches = samples.map_tuple(self._image, int).batched(self.job.batch_size)
        return iter(wds.WebLoader(batches, batch_size=None, num_workers=self.job.workers))

    def _image(self, data: bytes) -> Any:
        return plain.to_tensor(plain.augmented(data), self.job.float32)
