"""NVIDIA DALI on the CPU alone: its fused decoding and random cropping, with the antialiased filter that Pillow has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from driver import MEAN, RATIO, SCALE, SIZE, STD, Crop, Driver
from nvidia.dali import fn, pipeline_def, types

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray


class Dali(Driver):
    def batches(self) -> Iterator[Any]:
        options = {"batch_size": self.job.batch_size, "num_threads": self.job.workers, "device_id": None}
        pipeline = pipeline_def(self._graph)(**options, prefetch_queue_depth=2)
        pipeline.build()
        while True:
            images, labels = pipeline.run()
            yield np.asarray(images.as_tensor()), labels

    def _graph(self) -> tuple[Any, Any]:
        paths, numbers = zip(*self.job.files(), strict=True)
        files, labels = fn.readers.file(files=list(paths), labels=list(numbers), random_shuffle=True, name="files")
        images = fn.decoders.image_random_crop(
            files, random_area=SCALE, random_aspect_ratio=RATIO, output_type=types.RGB, adjust_orientation=False
        )
        images, mirror = _resized(images), fn.random.coin_flip(probability=0.5)
        if not self.job.float32:
            return fn.flip(images, horizontal=mirror), labels
        mean, std = ([255 * level for level in levels] for levels in (MEAN, STD))
        return fn.crop_mirror_normalize(
            images, mirror=mirror, mean=mean, std=std, dtype=types.FLOAT, output_layout="CHW"
        ), labels

    def _pixels_of(self, crops: Sequence[Crop]) -> NDArray[Any]:
        def graph() -> Any:
            files, starts, shapes = map(_source, zip(*map(_slice, crops), strict=True))
            images = fn.decoders.image_slice(
                files, start=starts, shape=shapes, axis_names="HW", output_type=types.RGB, adjust_orientation=False
            )
            return _resized(images)

        pipeline = pipeline_def(graph)(batch_size=len(crops), num_threads=self.job.workers, device_id=None)
        pipeline.build()
        return np.array(pipeline.run()[0].as_tensor())


def _slice(crop: Crop) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """The file's bytes, and where the part begins and how large it is, (height, width) each."""
    start, shape = (crop.top, crop.left), (crop.height, crop.width)
    return np.fromfile(crop.path, np.uint8), np.array(start, np.int32), np.array(shape, np.int32)


def _source(batch: Sequence[NDArray[Any]]) -> Any:
    """The same batch for ever."""
    return fn.external_source([list(batch)], cycle=True)


def _resized(images: Any) -> Any:
    size = {"resize_x": SIZE, "resize_y": SIZE}
    return fn.resize(images, **size, interp_type=types.INTERP_LINEAR, antialias=True)
