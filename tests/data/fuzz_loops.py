"""Run the loops over random sizes and windows: `fuzz_loops.py FOLDER COUNT`, FOLDER holding a built _arrays."""

import sys

import numpy as np

sys.path.insert(0, sys.argv[1])
import _arrays


def main():
    rng = np.random.default_rng(0)
    count = int(sys.argv[2])
    for _ in range(count):
        item = int(rng.choice([1, 1, 2, 4, 8]))
        shape = tuple(rng.integers(1, (5, 40, 40, 5)).tolist())
        size = tuple(rng.integers(0, 45, 2).tolist())
        ids = rng.integers(0, shape[0], rng.integers(0, 4))
        windows = rng.integers(-60, 60, (7, len(ids)), dtype=np.int32)
        windows[2] = rng.integers(0, 2, len(ids))
        # Buffers of their very sizes, so that a byte too far is seen.
        images = np.empty(np.prod(shape) * item, np.uint8)
        scale = rng.random((2, shape[3])).astype(np.float32) if item == 1 and rng.random() < 0.5 else None
        out = np.empty(len(ids) * shape[3] * size[0] * size[1] * (item if scale is None else 4), np.uint8)
        _arrays.cut(images, (*shape, item), ids, windows, size, scale, out)
        item = item if scale is None else 4
        corners = rng.integers(-50, 50, (len(ids), 2))
        _arrays.clear(out, (len(ids), shape[3], *size), item, corners, int(rng.integers(0, 60)))
        places = np.arange(20)
        _arrays.permute(places, 1500, 39, 39, rng.integers(0, 1 << 63, 8))
        _arrays.draws(places, int(rng.integers(1 << 62)), 3, np.empty((20, 3)))
    print(f"{count} parts")


main()
