"""Crops and flips of whole batches: what they do to each image, in the compiled loop and in numpy alike."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from PIL import Image

from ddlp.data import compiled
from ddlp.data.decode import View, pixels_of
from ddlp.data.ops import CenterCrop, Normalize, RandomCrop, RandomHorizontalFlip
from ddlp.data.sampling import draws
from ddlp.data.windows import Windows
from ddlp.types import ITEM_NBYTES

needs_loops = pytest.mark.skipif(compiled.loops is None, reason="the extension _arrays was not built: no C compiler")
DTYPES = [name for name in ITEM_NBYTES if name != "bfloat16"]


@st.composite
def batches(draw, dtypes=("uint8",)):
    """(images, ids): sizes around the block of the compiled loop, and ids in any order, more than once."""
    shape = draw(st.integers(1, 4)), draw(st.integers(1, 40)), draw(st.integers(1, 40)), draw(st.integers(1, 4))
    bytes_ = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 256, (*shape, 8), dtype=np.uint8)
    images = np.ascontiguousarray(bytes_[..., : ITEM_NBYTES[dtype := draw(st.sampled_from(dtypes))]])
    images = images % 2 == 0 if dtype == "bool" else images.view(dtype)
    ids = draw(st.lists(st.integers(0, shape[0] - 1), max_size=5))
    return images.reshape(shape), np.array(ids, np.int64)


@st.composite
def arrangements(draw, height, width):
    """Up to four crops and flips that fit images of (height, width), over the edges and into each other's padding."""
    ops = []
    for _ in range(draw(st.integers(0, 4))):
        padding = draw(st.integers(0, 5))
        size = draw(st.integers(1, height + 2 * padding)), draw(st.integers(1, width + 2 * padding))
        kind = draw(st.sampled_from(["flip", "random", "centre"]))
        if kind == "flip":
            ops.append(RandomHorizontalFlip(0.5))
        elif kind == "random":
            ops.append(RandomCrop(size, padding))
            height, width = size
        elif size[0] <= height and size[1] <= width:
            ops.append(CenterCrop(size))
            height, width = size
    return ops


def arranged(data, images, ids):
    """(windows, ops, uniforms) of some recipe for the samples `ids`."""
    ops = data.draw(arrangements(*images.shape[1:3]))
    uniforms = [draws(data.draw(st.integers(0, 9)), 0, ids, k, op.DRAWS) for k, op in enumerate(ops)]
    windows = Windows(len(ids), *images.shape[1:3])
    for op, numbers in zip(ops, uniforms, strict=True):
        op.choose(windows, numbers)
    return windows, ops, uniforms


def cut(windows, images, ids, scale=None):
    shape = (len(ids), images.shape[3], windows.height, windows.width)
    out = np.full(shape, 77, images.dtype.newbyteorder("=") if scale is None else np.float32)
    windows.cut(images, ids, out, scale)
    return out


@given(batch=batches(), data=st.data())
@settings(max_examples=300, deadline=None)
def test_each_sample_is_what_pillow_makes_of_its_image(batch, data):
    """Any crops and flips, one after the other, give the pixels of the same moves of each image through Pillow."""
    images, ids = batch
    windows, ops, uniforms = arranged(data, images, ids)
    for row, (id_, part) in enumerate(zip(ids, cut(windows, images, ids), strict=True)):
        view = View(*images.shape[1:3])
        for op, numbers in zip(ops, uniforms, strict=True):
            view = op.view(view, numbers[row].tolist())
        for channel, pixels in enumerate(part):
            picture = Image.fromarray(images[id_, :, :, channel])
            np.testing.assert_array_equal(pixels, pixels_of(picture, view)[:, :, 0])


@needs_loops
@given(batch=batches(DTYPES), data=st.data())
@settings(max_examples=300, deadline=None)
def test_the_compiled_loop_and_numpy_give_the_same_bytes(batch, data):
    """For every dtype; and for bytes that are normalised on the way."""
    images, ids = batch
    windows, _, _ = arranged(data, images, ids)
    channels = images.shape[3]
    scale = Normalize([0.1 * k for k in range(channels)], [0.3 + 0.1 * k for k in range(channels)])
    for normalize in (None, scale) if images.dtype == np.uint8 else (None,):
        out = cut(windows, images, ids, normalize)
        expected = np.full_like(out, 99)
        windows._cut(images, ids, expected, normalize)
        assert out.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    "rearrange",
    [
        np.asfortranarray,
        lambda x: x[:, ::2],
        lambda x: x.astype(">u2"),
        lambda x: np.moveaxis(x, 3, 1).copy().swapaxes(1, 3),
    ],
)
def test_images_may_lie_in_any_order(rearrange):
    """Images that the compiled loop cannot walk, in foreign byte order too, are cut by numpy."""
    images = rearrange(np.random.default_rng(0).integers(0, 999, (3, 8, 8, 3)).astype(np.uint16))
    windows = Windows(3, *images.shape[1:3])
    windows.crop(-1, 2, 4, 5)
    ids = np.array([2, 0, 2])
    expected = np.zeros((3, 3, 4, 5), np.uint16)
    expected[:, :, 1:, :] = images[ids, :3, 2:7].transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(cut(windows, images, ids), expected)


@needs_loops
def test_what_does_not_fit_is_refused():
    """No argument leads the compiled loop outside of its buffers: it raises, or clips what a window asks for."""
    images, ids = np.ones((2, 4, 4, 3), np.uint8), np.array([0, 1])
    windows, out = np.zeros((7, 2), np.int32), np.zeros((2, 3, 4, 4), np.uint8)
    good = [images, (2, 4, 4, 3, 1), ids, windows, (4, 4), None, out]
    compiled.loops.cut(*good)
    for place, value, error in [
        (1, (2, 4, 4, 4, 1), ValueError),
        (1, (2, 4, -4, -3, 1), ValueError),
        (1, (1 << 62, 4, 4, 3, 1), ValueError),
        (2, np.array([0, 2]), IndexError),
        (2, np.array([0, -1]), IndexError),
        (3, np.zeros((6, 2), np.int32), ValueError),
        (4, (4, 5), ValueError),
        (5, np.ones((2, 2), np.float32), ValueError),
        (6, np.zeros((2, 3, 4, 4), np.float32), ValueError),
    ]:
        with pytest.raises(error):
            compiled.loops.cut(*good[:place], value, *good[place + 1 :])
    windows[:] = np.random.default_rng(0).integers(-(2**31), 2**31, (7, 2))
    windows[3::2], windows[4::2] = -(2**31), 2**31 - 1
    compiled.loops.cut(*good)
    assert not out.any()
