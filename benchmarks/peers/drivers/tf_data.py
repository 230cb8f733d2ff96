"""tf.data with TensorFlow's fused decoding and cropping.

Accurate DCT and antialiasing: the defaults are another filter, and their pixels are darker. Batches have TensorFlow's
own layout, (image, height, width, 3). PNG files are left out: decode_and_crop_jpeg takes JPEG files only.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from driver import MEAN, RATIO, SCALE, SIZE, STD, Crop, Driver

os.environ |= {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray


class TfData(Driver):
    def batches(self) -> Iterator[Any]:
        workers = self.job.workers
        tf.config.threading.set_inter_op_parallelism_threads(workers)
        tf.config.threading.set_intra_op_parallelism_threads(1)
        files = [(path, label) for path, label in self.job.files() if _is_jpeg(path)]
        paths, labels = map(list, zip(*files, strict=True))
        images = tf.data.Dataset.from_tensor_slices((paths, labels)).shuffle(len(paths)).repeat()
        images = images.map(self._sample, num_parallel_calls=workers, deterministic=False)
        options = tf.data.Options()
        options.threading.private_threadpool_size = workers
        options.threading.max_intra_op_parallelism = 1
        return iter(images.batch(self.job.batch_size, drop_remainder=True).prefetch(2).with_options(options))

    def _sample(self, path: Any, label: Any) -> tuple[Any, Any]:
        data = tf.io.read_file(path)
        corner, size, _ = tf.image.sample_distorted_bounding_box(
            tf.image.extract_jpeg_shape(data),
            tf.zeros([1, 0, 4]),
            min_object_covered=0.0,
            aspect_ratio_range=RATIO,
            area_range=SCALE,
            max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )
        image = _resized(data, tf.concat([corner[:2], size[:2]], 0))
        image = tf.image.random_flip_left_right(image)
        if not self.job.float32:
            return _uint8(image), label
        scale, bias = 1 / (255 * np.float32(STD)), -np.float32(MEAN) / np.float32(STD)
        return image * scale + bias, label

    def _pixels_of(self, crops: Sequence[Crop]) -> NDArray[Any]:
        boxes = [(crop.top, crop.left, crop.height, crop.width) for crop in crops]
        files = [Path(crop.path).read_bytes() for crop in crops]
        return np.stack([_uint8(_resized(data, box)).numpy() for data, box in zip(files, boxes, strict=True)])


def _is_jpeg(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"\xff\xd8"


def _resized(data: Any, box: Any) -> Any:
    """A (top, left, height, width) part of a file, float32 (SIZE, SIZE, 3) of 0 to 255."""
    part = tf.image.decode_and_crop_jpeg(data, box, channels=3, dct_method="INTEGER_ACCURATE")
    return tf.image.resize(part, [SIZE, SIZE], method="bilinear", antialias=True)


def _uint8(image: Any) -> Any:
    return tf.cast(tf.clip_by_value(image + 0.5, 0, 255), tf.uint8)
