"""FFCV. It reads a file of its own format, which is written once: JPEG files encoded anew, or decoded pixels.

It resizes with OpenCV's INTER_AREA, which is not the filter of the recipe: for large crops it is close, and for small
ones it repeats pixels.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
from driver import MEAN, SIZE, STD, Crop, Driver, Job, repeated
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

os.environ.setdefault("NUMBA_NUM_THREADS", str(len(os.sched_getaffinity(0))))


class _Images:
    def __init__(self, job: Job) -> None:
        self._files = job.files()

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        path, label = self._files[index]
        return Image.open(path).convert("RGB"), label


class Ffcv(Driver):
    mode, options = "", dict[str, Any]()

    @property
    def _path(self) -> str:
        return str(self.job.cache / f"ffcv-{self.mode}.beton")

    def prepare(self) -> None:
        from ffcv.fields import IntField, RGBImageField
        from ffcv.writer import DatasetWriter

        if not os.path.exists(self._path):
            fields = {"image": RGBImageField(write_mode=self.mode, **self.options), "label": IntField()}
            writer = DatasetWriter(f"{self._path}.partial", fields, num_workers=self.job.workers)
            writer.from_indexed_dataset(_Images(self.job))
            os.rename(f"{self._path}.partial", self._path)

    def batches(self) -> Iterator[Any]:
        from ffcv.fields.decoders import IntDecoder
        from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
        from ffcv.loader import Loader, OrderOption
        from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, ToTensor, ToTorchImage

        images = [RandomResizedCropRGBImageDecoder((SIZE, SIZE)), RandomHorizontalFlip()]
        if self.job.float32:
            mean, std = 255 * np.array(MEAN), 255 * np.array(STD)
            images += [NormalizeImage(mean, std, np.float32), ToTensor(), ToTorchImage()]
        else:
            images += [ToTensor()]
        return repeated(
            Loader(
                self._path,
                batch_size=self.job.batch_size,
                num_workers=self.job.workers,
                order=OrderOption.RANDOM,
                os_cache=True,
                drop_last=True,
                pipelines={"image": images, "label": [IntDecoder(), ToTensor()]},
            )
        )

    def _pixels_of(self, crops: Sequence[Crop]) -> NDArray[Any]:
        from ffcv.libffcv import resize_crop

        out = np.empty((len(crops), SIZE, SIZE, 3), np.uint8)
        for target, crop in zip(out, crops, strict=True):
            pixels = np.ascontiguousarray(self._stored(crop.path))
            resize_crop(pixels, crop.top, crop.top + crop.height, crop.left, crop.left + crop.width, target)
        return out

    def _stored(self, path: str) -> NDArray[Any]:
        """The pixels that come out of the file that `prepare` wrote."""
        return np.asarray(Image.open(path).convert("RGB"))


class FfcvRaw(Ffcv):
    mode = "raw"


class FfcvJpeg(Ffcv):
    mode, options = "jpg", {"jpeg_quality": 95}

    def _stored(self, path: str) -> NDArray[Any]:
        import cv2
        from ffcv.fields.rgb_image import encode_jpeg

        encoded = encode_jpeg(super()._stored(path), self.options["jpeg_quality"])
        return cv2.imdecode(encoded, cv2.IMREAD_COLOR)[:, :, ::-1]
