"""The compiled loops over arrays give the numbers of numpy, and a build without them is complete."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from unittest import mock

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from ddlp.data import compiled, recipes, sampling
from ddlp.data.maker import Preparation
from ddlp.data.ops import Cutout
from ddlp.data.sources import ArrayDataset
from tests.data.making import batches

needs_loops = pytest.mark.skipif(compiled.loops is None, reason="the extension _arrays was not built: no C compiler")
words = st.integers(0, 2**64 - 1)


def in_numpy(function, *arguments):
    with mock.patch.object(compiled, "loops", None):
        return function(*arguments)


@needs_loops
@given(n=st.one_of(st.integers(1025, 3000), st.integers(1025, 2**62)), key=words, data=st.data())
@settings(max_examples=200, deadline=None)
def test_the_permutation_is_the_same(n, key, data):
    """Any positions, of data sets of any size, go to the same places."""
    positions = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=20)), np.int64)
    places = sampling.permute(positions, n, key)
    assert places.dtype == np.int64
    np.testing.assert_array_equal(places, in_numpy(sampling.permute, positions, n, key))


@needs_loops
@given(
    seed=st.integers(-(2**63), 2**64 - 1),
    ids=st.lists(st.integers(0, 2**63 - 1), max_size=10),
    operation=st.integers(0, 9),
    count=st.integers(0, 30),
)
@settings(max_examples=200, deadline=None)
def test_the_draws_are_the_same(seed, ids, operation, count):
    """Any seed, ids, operation and number of draws: the same bits."""
    arguments = seed, 3, np.array(ids, np.int64), operation, count
    drawn = sampling.draws(*arguments)
    assert drawn.shape == (len(ids), count)
    assert drawn.tobytes() == in_numpy(sampling.draws, *arguments).tobytes()


@needs_loops
def test_what_does_not_fit_is_refused():
    """Positions outside of the range, and buffers of other sizes than they should have, raise and end no loop."""
    positions, keys = np.arange(4), np.zeros(8, np.uint64)
    for bad in (np.array([-1]), np.array([2000])):
        with pytest.raises(IndexError, match=r"0\.\.1999"):
            compiled.loops.permute(bad, 2000, 45, 45, keys)
    for arguments in [(2000, 45, 44, keys), (2000, 0, 45, keys), (2000, 45, 45, keys[:7]), (2000, 1 << 33, 45, keys)]:
        with pytest.raises(ValueError, match="do not fit"):
            compiled.loops.permute(positions, *arguments)
    images, corners = np.ones((2, 3, 4, 4), np.uint8), np.zeros((2, 2), np.int64)
    shape = images.shape
    for arguments in [(shape, 2, corners, 1), (shape, 1, corners[:1], 1), (shape, 1, corners, -1)]:
        with pytest.raises(ValueError, match="do not fit"):
            compiled.loops.clear(images, *arguments)
    with pytest.raises(ValueError, match="do not fit"):
        compiled.loops.clear(images, shape, 1, corners + (1 << 40), 1)
    for count, out in [(2, np.empty(7)), (-2, np.empty(8)), (3, np.empty(8)), (1, np.empty(8))]:
        with pytest.raises(ValueError, match="do not fit"):
            compiled.loops.draws(positions, 1, count, out)


@needs_loops
@given(
    shape=st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(1, 20), st.integers(1, 20)),
    size=st.integers(1, 30),
    dtype=st.sampled_from(["uint8", "float32", "float64"]),
    seed=st.integers(0, 99),
)
@settings(max_examples=100, deadline=None)
def test_the_same_squares_are_cut_out(shape, size, dtype, seed):
    """Cutout of any size, smaller and larger than the images, of any dtype."""
    uniforms = np.random.default_rng(seed).random((shape[0], 2))
    images, expected = np.ones(shape, dtype), np.ones(shape, dtype)
    Cutout(size).batch(images, uniforms)
    in_numpy(Cutout(size).batch, expected, uniforms)
    np.testing.assert_array_equal(images, expected)


def test_without_the_extension_batches_are_the_same():
    """A whole recipe with shuffling, crops, flips, normalisation and cutout does not need the compiled loops."""
    images = np.random.default_rng(0).integers(0, 256, (2000, 32, 32, 3), dtype=np.uint8)
    preparation = Preparation(ArrayDataset(images, np.arange(2000)), recipes.cifar_train(8))
    plan = sampling.Plan(2000, 500, drop_last=False, shuffle=True, seed=1, epoch=2)
    for ours, theirs in zip(batches(preparation, plan), in_numpy(batches, preparation, plan), strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert one.tobytes() == other.tobytes()


@pytest.mark.slow
@needs_loops
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc to build with sanitizers")
def test_the_sanitizers_find_nothing(tmp_path):
    """Built with address and undefined-behaviour sanitizers, the tests of the loops run in silence."""
    source = Path(compiled.__file__).with_name("_arrays.c")
    module = tmp_path / f"_arrays{sysconfig.get_config_var('EXT_SUFFIX')}"
    flags = ["-O1", "-g", "-std=c11", "-fPIC", "-shared", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    include = f"-I{sysconfig.get_path('include')}"
    built = subprocess.run(
        ["gcc", *flags, "-ffp-contract=off", include, str(source), "-o", str(module)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    asan = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    environment = {**os.environ, "LD_PRELOAD": asan.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0"}
    arguments = [sys.executable, str(Path(__file__).with_name("fuzz_loops.py")), str(tmp_path), "2000"]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=110, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "2000 parts\n"), done.stderr[-4000:]
