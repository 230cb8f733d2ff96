"""MosaicML Streaming: shards of its own format with the files' bytes, read in DataLoader's workers, with Pillow."""

from __future__ import annotations

import importlib.machinery
import os
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import plain
from driver import Driver, repeated
from torch.utils.data import DataLoader

if TYPE_CHECKING:
    from collections.abc import Iterator

# It imports torchvision for data sets that are not used here; torchvision's builds do not load beside every torch.
for name in ("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional"):
    sys.modules[name] = module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.VisionDataset, module.to_tensor = object, None  # type: ignore[attr-defined]

import streaming  # noqa: E402 - not before the names above are there
from streaming.base.util import clean_stale_shared_memory  # noqa: E402


class _Images(streaming.StreamingDataset):
    float32 = True

    def __getitem__(self, at: Any) -> tuple[Any, int]:
        sample = super().__getitem__(at)
        return plain.to_tensor(plain.augmented(sample["data"]), self.float32), sample["label"]


class Streaming(Driver):
    @property
    def _folder(self) -> Path:
        return self.job.cache / "streaming"

    def prepare(self) -> None:
        if self._folder.exists():
            return
        partial = self._folder.with_suffix(".partial")
        with streaming.MDSWriter(out=str(partial), columns={"data": "bytes", "label": "int"}) as writer:
            for path, label in self.job.files():
                writer.write({"data": Path(path).read_bytes(), "label": label})
        os.rename(partial, self._folder)

    def batches(self) -> Iterator[Any]:
        clean_stale_shared_memory()
        images = _Images(local=str(self._folder), shuffle=True, batch_size=self.job.batch_size)
        images.float32 = self.job.float32
        workers = self.job.workers
        return repeated(DataLoader(images, self.job.batch_size, num_workers=workers, persistent_workers=True))

    def close(self) -> None:
        clean_stale_shared_memory()
