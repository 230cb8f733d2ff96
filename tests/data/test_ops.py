"""The operations: parameters, forms, and that whole batches and single images give the same bytes."""

import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from PIL import Image

from ddlp.data.decode import View, pixels_of
from ddlp.data.operation import Form
from ddlp.data.ops import (
    CenterCrop,
    Cutout,
    Decode,
    Map,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    Shrink,
)
from ddlp.data.sampling import draws
from ddlp.data.windows import Windows
from ddlp.errors import DataError, UsageError

FILES = Form(None, None, 3, "uint8")


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: Decode("BGR"), "mode"),
        (lambda: Resize(0), "size"),
        (lambda: Resize("256"), "size"),
        (lambda: Resize((1, 2, 3)), "size"),
        (lambda: Shrink(0), "longest_side"),
        (lambda: Shrink((8, 8)), "longest_side"),
        (lambda: CenterCrop(2.5), "size"),
        (lambda: CenterCrop(True), "size"),
        (lambda: RandomCrop(8, padding=-1), "padding"),
        (lambda: RandomCrop(-8), "size"),
        (lambda: RandomResizedCrop(224, scale=(0.5, 0.1)), "scale"),
        (lambda: RandomResizedCrop(224, scale=(0.0, 1.0)), "scale"),
        (lambda: RandomResizedCrop(224, scale=0.5), "scale"),
        (lambda: RandomResizedCrop(224, ratio=(2, 1)), "ratio"),
        (lambda: RandomResizedCrop(224, ratio=(1, 2, 3)), "ratio"),
        (lambda: RandomHorizontalFlip(1.5), "p"),
        (lambda: RandomHorizontalFlip("often"), "p"),
        (lambda: Normalize((0.5,), (0.1, 0.2)), "std"),
        (lambda: Normalize((0.5,), (0,)), "std"),
        (lambda: Normalize((), ()), "mean"),
        (lambda: Normalize((math.nan,), (1,)), "mean"),
        (lambda: Cutout(0), "size"),
        (lambda: Map("fn"), "function"),
        (lambda: Map(abs, shape=(3, 3)), "shape"),
        (lambda: Map(abs, dtype="complex64"), "dtype"),
    ],
)
def test_bad_parameters_are_named(build, name):
    """A parameter that makes no sense is a UsageError at construction that names operation and parameter."""
    with pytest.raises(UsageError, match=rf"^\w+: {name} must"):
        build()


def test_lists_and_integers_are_the_same_operation():
    """Lists become tuples and integers floats, so equal operations are equal and hash alike."""
    assert Normalize([0, 0.5], [1, 1]) == Normalize((0.0, 0.5), (1.0, 1.0))
    assert Resize([3, 4]) == Resize((3, 4))
    assert hash(RandomResizedCrop(8, scale=[0.5, 1])) == hash(RandomResizedCrop(8, scale=(0.5, 1.0)))


@pytest.mark.parametrize(
    ("op", "form", "expected"),
    [
        (Decode("L"), FILES, Form(None, None, 1, "uint8")),
        (Resize(256), FILES, FILES),
        (Resize(256), Form(100, 50, 3, "uint8"), Form(512, 256, 3, "uint8")),
        (Resize((3, 4)), FILES, Form(3, 4, 3, "uint8")),
        (Shrink(256), FILES, FILES),
        (Shrink(20), Form(100, 50, 1, "uint8"), Form(20, 10, 1, "uint8")),
        (RandomResizedCrop((3, 4)), FILES, Form(3, 4, 3, "uint8")),
        (CenterCrop(7), Form(9, 7, 3, "float32"), Form(7, 7, 3, "float32")),
        (RandomCrop(9, padding=1), Form(7, 8, 1, "uint8"), Form(9, 9, 1, "uint8")),
        (RandomHorizontalFlip(), FILES, FILES),
        (Map(abs, shape=(1, 2, 5), dtype="float32"), FILES, Form(1, 2, 5, "float32")),
        (Map(abs), FILES, FILES),
        (Normalize((0,), (1,)), Form(4, 4, 1, "uint8"), Form(4, 4, 1, "float32")),
        (Cutout(4), FILES, FILES),
    ],
)
def test_output_forms_are_declared(op, form, expected):
    """Each operation says what it makes of a form."""
    assert op.output(form) == expected


@pytest.mark.parametrize(
    ("op", "form", "shape"),
    [
        (CenterCrop(33), Form(32, 40, 3, "uint8"), "height 32"),
        (RandomCrop((32, 41)), Form(32, 40, 3, "uint8"), "width 40"),
        (RandomCrop(41, padding=4), Form(32, 40, 3, "uint8"), "height 32"),
        (Normalize((0, 0, 0), (1, 1, 1)), Form(32, 32, 1, "uint8"), "1 channels"),
        (Normalize((0,), (1,)), Form(32, 32, 1, "int64"), "int64"),
        (Resize(4), Form(32, 32, 3, "float32"), "float32"),
        (Shrink(64), Form(32, 32, 3, "float32"), "float32"),
        (RandomResizedCrop(4), Form(32, 32, 3, "uint16"), "uint16"),
        (Decode(), Form(32, 32, 3, "float32"), "float32"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_first_batch(op, form, shape):
    """A form that an operation cannot work on is a UsageError that names the operation and the form."""
    with pytest.raises(UsageError, match=shape) as caught:
        op.output(form)
    assert type(op).__name__ in str(caught.value)


@pytest.mark.parametrize("op", [CenterCrop(33), RandomCrop(50, padding=4)])
def test_a_single_image_that_is_too_small_is_the_data_s_fault(op):
    """Where sizes are known late, a crop larger than the image is a DataError that names both."""
    with pytest.raises(DataError, match=rf"{type(op).__name__}.*height 32 and width 60"):
        op.view(View(32, 60), [0.5, 0.5])


def chosen(op, images, uniforms):
    """What `op` makes of a batch (sample, height, width, channel), (sample, channel, height, width)."""
    windows = Windows(len(images), *images.shape[1:3])
    op.choose(windows, uniforms)
    out = np.empty((len(images), images.shape[3], windows.height, windows.width), images.dtype)
    windows.cut(images, np.arange(len(images)), out)
    return out


images = st.builds(
    lambda n, height, width, channels, seed: np.random.default_rng(seed).integers(
        0, 256, (n, height, width, channels), dtype=np.uint8
    ),
    st.integers(0, 5),
    st.integers(6, 20),
    st.integers(6, 20),
    st.sampled_from([1, 3]),
    st.integers(0, 99),
)
rearrangements = st.one_of(
    st.builds(CenterCrop, st.tuples(st.integers(1, 6), st.integers(1, 6))),
    st.builds(RandomCrop, st.tuples(st.integers(1, 8), st.integers(1, 8)), st.integers(1, 3)),
    st.builds(RandomCrop, st.integers(1, 6)),
    st.builds(RandomHorizontalFlip, st.floats(0, 1)),
)


@given(batch=images, op=rearrangements, seed=st.integers(0, 1000))
@settings(max_examples=200, deadline=None)
def test_batches_and_single_images_give_the_same_bytes(batch, op, seed):
    """What an operation does to a whole batch of arrays is what it does to each image through Pillow."""
    uniforms = draws(seed, 0, np.arange(len(batch)), 0, op.DRAWS)
    whole = chosen(op, batch, uniforms)
    for image, numbers, result in zip(batch, uniforms.tolist(), whole, strict=True):
        picture = Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)
        pixels = pixels_of(picture, op.view(View(*image.shape[:2]), numbers))
        np.testing.assert_array_equal(result, pixels.transpose(2, 0, 1))


def test_random_crops_are_uniform_over_all_places():
    """RandomCrop reaches every place, first and last, equally often."""
    uniforms = draws(0, 0, np.arange(9000), 0, 2)
    image = np.arange(1, 17, dtype=np.uint8).reshape(1, 4, 4, 1)
    parts = chosen(RandomCrop(2), np.repeat(image, 9000, 0), uniforms)
    counts = np.unique(parts[:, 0, 0, 0], return_counts=True)
    assert counts[0].tolist() == [1, 2, 3, 5, 6, 7, 9, 10, 11]
    assert abs(counts[1] - 1000).max() < 4.5 * math.sqrt(1000)


def test_flips_happen_with_their_probability():
    """RandomHorizontalFlip mirrors about p of the images, all of them for 1 and none for 0."""
    batch = np.tile(np.array([[1], [2]], np.uint8), (5000, 1, 1, 1))
    for p in (0.0, 0.3, 1.0):
        uniforms = draws(0, 0, np.arange(5000), 0, 1)
        flipped = chosen(RandomHorizontalFlip(p), batch, uniforms)[:, 0, 0, 0] == 2
        assert abs(flipped.mean() - p) <= 4.5 * math.sqrt(p * (1 - p) / 5000)


def test_random_resized_crop_covers_its_range():
    """Areas are uniform over `scale`, ratios are log-uniform over `ratio`, and parts lie inside the image."""
    op = RandomResizedCrop(10, scale=(0.2, 0.4), ratio=(0.5, 2.0))
    parts = np.array([op.part(1000, 1000, row) for row in draws(0, 0, np.arange(4000), 0, 22).tolist()])
    top, left, height, width = parts.T
    assert top.min() >= 0
    assert left.min() >= 0
    assert (top + height).max() <= 1000
    assert (left + width).max() <= 1000
    area, ratio = height * width / 1e6, np.log(width / height) / math.log(2)
    for values, low, high in ((area, 0.2, 0.4), (ratio, -1, 1)):
        assert low - 0.01 < values.min() < low + 0.01
        assert high - 0.01 < values.max() < high + 0.01
        quantiles = np.quantile(values, [0.25, 0.5, 0.75])
        np.testing.assert_allclose(
            quantiles, low + np.array([0.25, 0.5, 0.75]) * (high - low), atol=0.03 * (high - low)
        )
    assert abs(np.mean(top / (1000 - height)) - 0.5) < 0.03


@pytest.mark.parametrize(
    ("height", "width", "part"),
    [(10, 1000, (0, 493, 10, 13)), (1000, 10, (493, 0, 13, 10)), (10, 11, (0, 0, 10, 11))],
)
def test_random_resized_crop_falls_back_to_the_centre(height, width, part):
    """Where no try fits, the largest central part with an allowed ratio is taken, as torchvision does."""
    hopeless = [0.999] * 22
    never_fits = RandomResizedCrop(8, scale=(1.0, 1.0), ratio=(3 / 4, 4 / 3))
    assert never_fits.part(height, width, hopeless) == part


@pytest.mark.parametrize(
    ("size", "height", "width", "expected"),
    [(256, 375, 500, (256, 341)), (256, 500, 375, (341, 256)), (10, 10, 10, (10, 10)), ((7, 9), 50, 3, (7, 9))],
)
def test_resize_follows_torchvision_s_rule(size, height, width, expected):
    """The shorter side becomes `size`, and the longer one is cut to an integer."""
    assert Resize(size).view(View(height, width), []).shape == expected


@settings(deadline=None)
@given(height=st.integers(1, 5000), width=st.integers(1, 5000), side=st.integers(1, 5000))
def test_shrink_bounds_the_longer_side(height, width, side):
    """The longer side becomes `longest_side` and the other one follows; what is no larger stays as it is."""
    view = Shrink(side).view(View(height, width), [])
    if max(height, width) <= side:
        assert view == View(height, width)
    else:
        assert max(view.shape) == side
        assert min(view.shape) == max(1, round(min(height, width) * (side / max(height, width))))
    assert Shrink(side).view(View(*view.shape), []) == View(*view.shape)


@pytest.mark.parametrize(("side", "size", "first"), [(5, 2, 2), (7, 2, 2), (8, 3, 2), (9, 4, 2), (4, 4, 0)])
def test_center_crop_rounds_half_to_even(side, size, first):
    """The place of a central crop is rounded as Python, and so torchvision, rounds."""
    image = np.arange(side).reshape(1, 1, side, 1)
    assert chosen(CenterCrop((1, size)), image, np.empty((1, 0)))[0, 0, 0, 0] == first


def test_normalize_gives_torch_s_floats():
    """Every byte value, each channel: exactly torch's float32."""
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    pixels = np.stack([np.arange(256, dtype=np.uint8).reshape(16, 16)] * 3, axis=2)
    x = torch.from_numpy(pixels).permute(2, 0, 1).float().div(255)
    expected = x.sub(torch.tensor(mean).view(3, 1, 1)).div(torch.tensor(std).view(3, 1, 1)).numpy()
    out = np.empty((2, 3, 16, 16), np.float32)
    Normalize(mean, std).batch(np.stack([pixels, pixels]).transpose(0, 3, 1, 2), out)
    np.testing.assert_array_equal(out, np.stack([expected, expected]))


def test_normalize_leaves_the_scale_of_floats():
    """Floating-point images are taken to be scaled already, as torchvision takes them."""
    pixels = np.random.default_rng(0).random((2, 1, 5, 5), dtype=np.float32)
    out = np.empty_like(pixels)
    Normalize((0.3,), (0.7,)).batch(pixels, out)
    np.testing.assert_array_equal(out, torch.from_numpy(pixels).sub(0.3).div(0.7).numpy())


@pytest.mark.parametrize("size", [1, 2, 5, 16, 99])
def test_cutout_clears_a_square_around_a_uniform_centre(size):
    """The cut square has side `size`, is clipped at the edges, and its centre is uniform over the image."""
    batch = np.ones((2000, 2, 12, 9), np.float32)
    Cutout(size).batch(batch, draws(0, 0, np.arange(2000), 0, 2))
    np.testing.assert_array_equal(batch[:, 0], batch[:, 1])
    assert not np.signbit(batch).any()
    holes = batch[:, 0] == 0
    rows, columns = holes.any(2), holes.any(1)
    np.testing.assert_array_equal(holes, rows[:, :, None] & columns[:, None, :])
    for covered, extent in ((rows, 12), (columns, 9)):
        lengths = covered.sum(1)
        assert lengths.max() == min(size, extent)
        possible = {len(range(max(0, c - size // 2), min(extent, c - size // 2 + size))) for c in range(extent)}
        assert set(lengths.tolist()) == possible
    centre = covered_probability(size, 12)
    np.testing.assert_allclose(rows.mean(0), centre, atol=0.06)


def covered_probability(size, extent):
    """How often each position is covered if the centre is uniform."""
    first = np.arange(extent)[:, None] - size // 2
    position = np.arange(extent)
    return ((position >= first) & (position < first + size)).mean(0)
