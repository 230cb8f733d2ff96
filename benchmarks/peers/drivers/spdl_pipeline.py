"""SPDL's pipeline of threads: with its own FFmpeg decoding, whose filters crop and resize, or with Pillow in a stage.

FFmpeg's scaling is bilinear with a filter of its own; its default, bicubic, is further from the recipe. It does not
take every file of the set (a few CMYK and PNG files): those are left out.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import plain
import spdl.io
import torch
from driver import SIZE, Crop, Driver, endless
from spdl.pipeline import PipelineBuilder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray


class _Spdl(Driver):
    def batches(self) -> Iterator[Any]:
        builder = PipelineBuilder().add_source(endless(self.job.files()))
        builder.pipe(self._sample, concurrency=self.job.workers, output_order="completion")
        builder.aggregate(self.job.batch_size).pipe(self._batch).add_sink(2)
        pipeline = builder.build(num_threads=self.job.workers)
        with pipeline.auto_stop():
            yield from pipeline

    def _sample(self, file: tuple[str, int]) -> tuple[Any, int] | None:
        """An image and its label; None is left out of the batch."""
        raise NotImplementedError

    def _pixels(self, images: Sequence[Any]) -> NDArray[np.uint8]:
        """(image, SIZE, SIZE, 3)."""
        raise NotImplementedError

    def _batch(self, samples: Sequence[tuple[Any, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = zip(*samples, strict=True)
        pixels = self._pixels(images)
        return plain.normalized(pixels) if self.job.float32 else torch.from_numpy(pixels), torch.tensor(labels)


class SpdlFfmpeg(_Spdl):
    def _sample(self, file: tuple[str, int]) -> tuple[Any, int] | None:
        try:
            packets = spdl.io.demux_image(file[0])
            box = plain.random_box(packets.codec.width, packets.codec.height)
            return _decoded(packets, box, mirror=random.random() < 0.5), file[1]
        except RuntimeError:
            return None

    def _pixels(self, images: Sequence[Any]) -> NDArray[np.uint8]:
        return _array(images)

    def _pixels_of(self, crops: Sequence[Crop]) -> NDArray[Any]:
        return _array([_decoded(spdl.io.demux_image(crop.path), crop[1:5], mirror=False) for crop in crops])


class SpdlPillow(_Spdl):
    def _sample(self, file: tuple[str, int]) -> tuple[Any, int]:
        return np.asarray(plain.augmented(Path(file[0]).read_bytes())), file[1]

    def _pixels(self, images: Sequence[Any]) -> NDArray[np.uint8]:
        return np.stack(images)


def _decoded(packets: Any, box: plain.Box, mirror: bool) -> Any:
    left, top, width, height = box
    flip = ",hflip" if mirror else ""
    return spdl.io.decode_packets(
        packets,
        filter_desc=f"crop={width}:{height}:{left}:{top}:exact=1,scale={SIZE}:{SIZE}:flags=bilinear{flip},format=rgb24",
        decode_config=spdl.io.decode_config(decoder_options={"threads": "1"}),
    )


def _array(frames: Sequence[Any]) -> NDArray[np.uint8]:
    pixels: NDArray[np.uint8] = spdl.io.to_numpy(spdl.io.convert_frames(list(frames)))
    return pixels
