"""The compiled pixels are Pillow's pixels, for every size, crop and file, and no file can hurt the process."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

import ddlp
from ddlp.data import decode, image_rows, pixels
from ddlp.data.decode import View
from ddlp.data.maker import Preparation
from ddlp.data.pixels import part_of
from ddlp.data.sampling import Plan

KERNEL = pixels.kernel()
needs_kernel = pytest.mark.skipif(KERNEL is None, reason="the extension _pixels was not built here: no C compiler")
needs_decoder = pytest.mark.skipif(
    KERNEL is None or not KERNEL.decodes, reason="the extension _pixels was built without jpeglib.h"
)


def photo(width, height, seed):
    """Smooth colours and some noise."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (height // 6 + 1, width // 6 + 1, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC), np.int16)
    return np.clip(smooth + rng.integers(-9, 10, smooth.shape), 0, 255).astype(np.uint8)


@st.composite
def cases(draw, most=160):
    """(width, height, view): an image and a crop, resize, crop and mirror of it, each there or not."""
    extent = st.integers(1, most)
    width, height = draw(extent), draw(extent)
    view = View(height, width)
    if draw(st.booleans()):
        view = view.cropped(*draw_part(draw, view))
    if draw(st.integers(0, 5)):
        view = view.resized(*(draw(st.one_of(extent, st.just(side))) for side in view.shape))
        if draw(st.booleans()):
            view = view.cropped(*draw_part(draw, view))
    return width, height, view.mirrored() if draw(st.booleans()) else view


def draw_part(draw, view):
    height, width = draw(st.integers(1, view.height)), draw(st.integers(1, view.width))
    return draw(st.integers(0, view.height - height)), draw(st.integers(0, view.width - width)), height, width


def reference(image, view):
    return decode.pixels_of(image, view).transpose(2, 0, 1)


@needs_kernel
@settings(max_examples=400, deadline=None)
@given(case=cases(), seed=st.integers(0, 1 << 30))
def test_resampling_gives_pillow_s_bytes(case, seed):
    """Any crop, size, window and mirror of any pixels: not one value differs, as bytes and through a table."""
    width, height, view = case
    image = photo(width, height, seed)
    part = part_of(view, height, width)
    out = np.full((3, view.height, view.width), 7, np.uint8)
    KERNEL.fill_from_pixels(image, part, None, out)
    expected = reference(Image.fromarray(image), view)
    np.testing.assert_array_equal(out, expected)
    table = np.random.default_rng(seed).random((3, 256), dtype=np.float32)
    floats = np.empty(out.shape, np.float32)
    KERNEL.fill_from_pixels(image, part, table, floats)
    np.testing.assert_array_equal(floats, np.stack([table[c][expected[c]] for c in range(3)]))


FORMS = st.fixed_dictionaries(
    {
        "quality": st.integers(20, 98),
        "subsampling": st.integers(0, 2),
        "progressive": st.booleans(),
        "optimize": st.booleans(),
        "restart_marker_blocks": st.sampled_from([0, 0, 1, 5]),
    }
)


def jpeg(image, **form):
    file = io.BytesIO()
    image.save(file, "JPEG", **form)
    return file.getvalue()


@needs_decoder
@settings(max_examples=300, deadline=None)
@given(case=cases(), seed=st.integers(0, 1 << 30), form=FORMS, grey=st.booleans())
def test_decoding_a_part_gives_pillow_s_bytes(case, seed, form, grey):
    """Any part of any ordinary JPEG file has the bytes of Pillow's full decode: edges, chroma, restarts and all."""
    width, height, view = case
    image = Image.fromarray(photo(width, height, seed))
    data = jpeg(image.convert("L") if grey else image, **form)
    assert KERNEL.size_of_jpeg(data) == (height, width)
    out = np.full((3, view.height, view.width), 7, np.uint8)
    assert KERNEL.fill_from_jpeg(data, part_of(view, height, width), None, out)
    np.testing.assert_array_equal(out, reference(decode.converted(decode.open_image(data), "RGB"), view))


@needs_decoder
@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 50),
    form=FORMS,
    damage=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=6),
    cut=st.one_of(st.none(), st.floats(0, 1)),
)
def test_a_damaged_file_is_left_to_pillow_or_gives_its_bytes(seed, form, damage, cut):
    """Bytes changed and cut at random: the kernel refuses, or gives what Pillow gives; it never harms the process."""
    data = bytearray(jpeg(Image.fromarray(photo(90, 70, seed)), **form))
    for where, value in damage:
        data[int(where * len(data))] = value
    data = bytes(data if cut is None else data[: int(cut * len(data))])
    size = KERNEL.size_of_jpeg(data)
    if size is None or size[0] * size[1] > 1 << 20:
        return
    view = View(*size).resized(20, 30)
    out = np.empty((3, 20, 30), np.uint8)
    if KERNEL.fill_from_jpeg(data, part_of(view, *size), None, out):
        assert not ImageFile.LOAD_TRUNCATED_IMAGES
        np.testing.assert_array_equal(out, reference(decode.converted(decode.open_image(data), "RGB"), view))


@needs_decoder
@pytest.mark.parametrize("kind", ["cmyk", "png", "no end", "empty", "text"])
def test_what_is_no_ordinary_jpeg_is_left_to_pillow(kind):
    """Other modes and formats, and files without an end marker, are refused by size_of_jpeg or by the decoder."""
    image = Image.fromarray(photo(40, 30, 0))
    png = io.BytesIO()
    image.save(png, "PNG")
    data = {
        "cmyk": jpeg(image.convert("CMYK")),
        "png": png.getvalue(),
        "no end": jpeg(image)[:-2],
        "empty": b"",
        "text": b"\xff\xd8 no image at all \xff\xd9",
    }[kind]
    assert KERNEL.size_of_jpeg(data) is None


@needs_kernel
@pytest.mark.parametrize(
    ("box", "size", "window"),
    [
        ((0, 0, 41, 30), (8, 8), (0, 0, 8, 8)),
        ((0, 1, 40, 30), (8, 8), (0, 0, 8, 8)),
        ((-1, 0, 9, 9), (8, 8), (0, 0, 8, 8)),
        ((0, 0, 0, 9), (8, 8), (0, 0, 8, 8)),
        ((0, 0, 9, 9), (8, 0), (0, 0, 8, 8)),
        ((0, 0, 9, 9), (8, 8), (0, 0, 9, 8)),
        ((0, 0, 9, 9), (8, 8), (4, 0, 4, 8)),
        ((0, 0, 9, 9), (8, 8), (0, 0, 7, 8)),
    ],
)
def test_numbers_that_do_not_fit_are_refused(box, size, window):
    """Whatever does not lie inside the image, or does not fill `out`, raises ValueError and touches nothing."""
    out = np.full((3, 8, 8), 7, np.uint8)
    with pytest.raises(ValueError, match=r"fit|beyond"):
        KERNEL.module.from_pixels(photo(40, 30, 0), box, size, window, False, True, None, out, 40)
    assert (out == 7).all()


@pytest.mark.parametrize("recipe", ["imagenet_train", "imagenet_eval"])
@pytest.mark.parametrize("normalised", [True, False])
def test_with_and_without_the_extension_the_bytes_are_the_same(photos, monkeypatch, recipe, normalised):
    """The pure path is the definition: a machine without compiler makes the same batches, of all kinds of files."""
    operations = list(getattr(ddlp.recipes, recipe)(96))[: None if normalised else -1]
    data = ddlp.ImageFolder(photos)

    def batch():
        maker = Preparation(data, ddlp.Recipe(operations)).maker()
        maker.begin(Plan(len(data), len(data), False, True, 3, 1))
        out = [np.empty((len(data), 3, 96, 96), np.float32 if normalised else np.uint8), np.empty(len(data), np.int64)]
        maker.make(0, 0, len(data), out, lambda: None)
        return out

    fast = batch()
    monkeypatch.setattr(image_rows, "kernel", lambda: None)
    for one, other in zip(fast, batch(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@needs_decoder
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc to build with sanitizers")
def test_the_sanitizers_find_nothing(tmp_path):
    """Built with address and undefined-behaviour sanitizers, it runs over odd sizes and damaged files in silence."""
    source = Path(pixels.__file__).with_name("_pixels.c")
    module = tmp_path / f"_pixels{sysconfig.get_config_var('EXT_SUFFIX')}"
    flags = ["-O1", "-g", "-std=c11", "-fPIC", "-shared", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    include = f"-I{sysconfig.get_path('include')}"
    built = subprocess.run(
        ["gcc", *flags, "-ffp-contract=off", include, str(source), "-o", str(module), "-lm"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    asan = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    environment = {**os.environ, "LD_PRELOAD": asan.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0"}
    arguments = [sys.executable, str(Path(__file__).with_name("fuzz_kernel.py")), str(tmp_path), "400"]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=110, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[-4000:]
    assert done.stdout.startswith("400 files")
