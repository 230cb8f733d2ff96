"""Small data sets on disk, made once, and generators that no test leaves changed."""

import random

import numpy as np
import pytest
import torch
from PIL import Image

from ddlp.data import packed
from ddlp.data.synthetic import make_photos


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """Two classes of photo-like files, and a third of the modes and shapes that real folders hold."""
    folder = tmp_path_factory.mktemp("photos")
    make_photos(folder, classes=2, per_class=6, seed=3)
    odd = folder / "odd"
    odd.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (300, 280, 4), dtype=np.uint8)
    colour = Image.fromarray(pixels[:, :, :3].copy())
    colour.convert("CMYK").save(odd / "cmyk.jpg")
    colour.convert("L").save(odd / "grey.png")
    colour.convert("P").save(odd / "palette.png")
    colour.convert("1").save(odd / "bits.png")
    Image.fromarray(pixels).save(odd / "alpha.png")
    colour.resize((900, 40)).save(odd / "wide.png")
    colour.resize((31, 700)).save(odd / "tall.png")
    colour.resize((224, 224)).save(odd / "exact.webp", lossless=True)
    return folder


@pytest.fixture(autouse=True)
def kept_generators():
    """Makers seed the global generators of the process that they run in, which here is pytest's."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


@pytest.fixture
def caches(tmp_path, monkeypatch):
    """The folder of kept indices, the test's own; what it writes counts as long unchanged."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setattr(packed, "_RACY_NS", -(10**18))
    return tmp_path / "caches/ddlp"
