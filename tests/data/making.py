"""Helpers: makers as workers get them, and data sets to feed them."""

import pickle
import random

import numpy as np
import torch
from PIL import Image

from ddlp.data.python import Column, unpack
from ddlp.data.sampling import Plan


def tick(folder):
    """Wait until a change has another time than what was changed before."""
    file = folder / "tick"
    file.touch()
    before = file.stat().st_ctime_ns
    while file.stat().st_ctime_ns == before:
        file.touch()
    file.unlink()


def idle():
    """A check that finds nothing."""


def plan_of(preparation, batch_size=4, epoch=0):
    return Plan(preparation.samples, batch_size, drop_last=False, shuffle=True, seed=5, epoch=epoch)


def rebuilt(preparation):
    """The maker as a worker gets it: through a pickle."""
    return pickle.loads(pickle.dumps(preparation, protocol=5)).maker()


def batches(preparation, plan=None, lo=0, hi=None):
    """All batches of fixed form, or the same rows of each."""
    plan = plan or plan_of(preparation)
    maker = rebuilt(preparation)
    maker.begin(plan)
    made = []
    for index in range(len(plan)):
        end = plan.rows(index) if hi is None else hi
        out = [np.full((end - lo, *field.shape), 99, field.dtype) for field in preparation.layout.fields]
        maker.make(index, lo, end, out, idle)
        made.append(out)
    return made


def collected(preparation, plan=None):
    """All batches of free form, unpacked."""
    plan = plan or plan_of(preparation)
    maker = rebuilt(preparation)
    maker.begin(plan)
    made = []
    for index in range(len(plan)):
        arrays, skeleton = maker.collect(index, 0, plan.rows(index), idle)
        made.append(unpack(skeleton, [torch.from_numpy(joined(array)) for array in arrays]))
    return made


def joined(array):
    """The array that a column stands for; any other is itself."""
    if not isinstance(array, Column):
        return array
    out = np.full(array.shape, 77, array.dtype)
    assert out.nbytes == array.nbytes
    array.into(out)
    return out


class Pairs:
    """A PyTorch-style data set of (picture, label, weight), as pictures or arrays, with randomness of its own."""

    def __init__(self, n=10, pictures=True, size=(40, 36)):
        self.pixels = np.random.default_rng(1).integers(0, 256, (n, *size, 3), dtype=np.uint8)
        self.pictures = pictures

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, index):
        image = self.pixels[index]
        return Image.fromarray(image) if self.pictures else image, index % 3, np.float32(random.random())


class Broken:
    """A data set whose sample 5 raises."""

    def __init__(self, error):
        self.error = error

    def __len__(self):
        return 10

    def __getitem__(self, index):
        if index == 5:
            raise self.error
        return Image.new("RGB", (8, 8)), index


def brighter(pixels):
    pixels += 1  # the array is the function's own
    return pixels


def noisy(pixels):
    return pixels + np.random.randint(0, 9, pixels.shape).astype(np.uint8)


def wrong_shape(pixels):
    return pixels[1:]


def fails(samples):
    raise RuntimeError("no luck")
