"""Run a kernel over random sizes and damaged files: `fuzz_kernel.py FOLDER COUNT`, FOLDER holding a built _pixels."""

import io
import random
import sys

import numpy as np
from PIL import Image

sys.path.insert(0, sys.argv[1])
import _pixels

from ddlp.data.pixels import _libraries


def main():
    chance, rng = random.Random(0), np.random.default_rng(0)
    assert any(map(_pixels.use_libjpeg, _libraries()))
    done = 0
    for _ in range(int(sys.argv[2])):
        width, height = chance.randint(1, 90), chance.randint(1, 90)
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        box = (chance.randrange(width), chance.randrange(height))
        box += (chance.randint(1, width - box[0]), chance.randint(1, height - box[1]))
        size = (chance.randint(1, 70), chance.randint(1, 70))
        window = (chance.randrange(size[0]), chance.randrange(size[1]))
        window += (chance.randint(window[0] + 1, size[0]), chance.randint(window[1] + 1, size[1]))
        out = np.empty((3, window[3] - window[1], window[2] - window[0]), np.uint8)
        _pixels.from_pixels(pixels, box, size, window, chance.random() < 0.5, True, None, out, width)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", subsampling=chance.randint(0, 2), progressive=chance.random() < 0.3)
        data = bytearray(file.getvalue())
        for _ in range(chance.choice([0, 1, 4])):
            data[chance.randrange(len(data))] = chance.randrange(256)
        known = _pixels.size_of_jpeg(bytes(data))
        if known is not None and known[0] * known[1] <= 1 << 20:
            done += _pixels.from_jpeg(bytes(data), box, size, window, False, True, None, out)
    print(f"{sys.argv[2]} files, {done} decoded")


main()
