"""Every program in `examples/` does what it says, on data small enough for a test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.real

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(example: str, *arguments: str | os.PathLike[str], folder: Path) -> str:
    """What the example prints; it must end well, without a word on stderr, and leave no temporary file."""
    temporary = folder / "temporary"
    temporary.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, EXAMPLES / example, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert not [path for path in temporary.iterdir() if not path.name.startswith("torchinductor")]
    return done.stdout


def test_minimal(tmp_path: Path) -> None:
    """Each of the 20 batches once, from both devices, and the explanation."""
    text = run("minimal.py", folder=tmp_path)
    assert sorted(map(int, re.findall(r"^batch +(\d+) from", text, re.M))) == list(range(20))
    assert set(re.findall(r"from (\w+):", text)) == {"cpu0", "csd0"}
    assert "epoch 0: 20 of 20 batches" in text


@pytest.mark.parametrize("share", [0.0, 0.2])
def test_custom_policy(tmp_path: Path, share: float) -> None:
    """The policy's promise: no more than this share comes from the CSD."""
    text = run("custom_policy.py", f"--share={share}", "--images=4000", folder=tmp_path)
    found = re.search(r"^(\d+) of 20 batches came from the CSD", text)
    assert found is not None, text
    assert int(found[1]) <= round(20 * share)


def test_train_image_folder_goes_on_where_it_stopped(tmp_path: Path, small_images: Path) -> None:
    """A run that stops in the middle of an epoch and is started again trains on every batch of two epochs once."""
    options: Sequence[str | os.PathLike[str]] = (
        small_images,
        "--size=32",
        "--batch-size=6",
        "--workers=1",
        "--save-every=1",
        f"--checkpoint={tmp_path / 'run.pt'}",
    )
    first = run("train_image_folder.py", *options, "--stop-after=4", folder=tmp_path)
    assert "stopped in epoch 0" in first
    second = run("train_image_folder.py", *options, "--epochs=2", folder=tmp_path)
    assert "goes on in epoch 0 after 4 batches in all" in second
    assert "epoch 0: 6 of 10 batches" in second
    assert "epoch 1: 10 of 10 batches" in second
    third = run("train_image_folder.py", *options, "--epochs=2", folder=tmp_path)
    assert third == "goes on in epoch 2 after 20 batches in all\n"


def test_every_example_is_tested() -> None:
    """This file knows all of them."""
    assert {path.name for path in EXAMPLES.glob("*.py")} == {"minimal.py", "custom_policy.py", "train_image_folder.py"}
