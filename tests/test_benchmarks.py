"""The programs in `benchmarks/` run, on work small enough for a test; whether goals are met is not asked here."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"

# Each program with tiny arguments, and what it must say.
PROGRAMS = {
    "busy_main.py": ("--images=32 --batch-size=8 --rounds=1", "an epoch with a busy step takes"),
    "cifar.py": ("--images=1280 --rounds=1", "ddlp is .* as fast"),
    "first_batch.py": ("--images=32 --batch-size=8 --rounds=1", "first batch after"),
    "memory.py": ("--images=64 --epochs=2", "MB beyond that"),
    "overhead.py": ("--batches=400 --rounds=1", "10 devices"),
    "overlap.py": ("--images=64 --batch-size=8 --rounds=1", "WRR .* of the bound"),
    "same_bytes.py": ("--images=40 --batch-size=8", "Replay: 40 samples, 2 epochs, the same bytes"),
    "python_dataset.py": ("--images=32 --samples=640 --rounds=1", "tiny: all 10 batches are identical"),
    "scaling.py": ("--images=32 --batch-size=8 --rounds=1", "two workers are"),
}


def run(program: str, *arguments: str, cache: Path) -> str:
    """What it prints; it must come to its end, without a word of complaint."""
    done = subprocess.run(
        [sys.executable, BENCHMARKS / program, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(cache)},
    )
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr
    assert "Warning" not in done.stderr
    return done.stdout


@pytest.mark.real
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_benchmark_runs(program: str, tmp_path: Path) -> None:
    """It comes to its end and prints its figures, and its goal where it has one."""
    arguments, said = PROGRAMS[program]
    text = run(program, *arguments.split(), cache=tmp_path)
    if "one core only" not in text:
        assert re.search(said, text), text
        assert "GOAL" not in (BENCHMARKS / program).read_text() or re.search(r"^goal: .*: (True|False)$", text, re.M)


def test_every_benchmark_is_tested() -> None:
    """This file knows all of them; the rest of the folder is no program of its own."""
    shared = {"common.py", "process_tree.py", "make_images.py"}
    assert {path.name for path in BENCHMARKS.glob("*.py")} == shared | set(PROGRAMS)


@pytest.mark.real
@pytest.mark.slow
def test_peers_are_compared_turn_by_turn(small_images: Path, tmp_path: Path) -> None:
    """The report has a table for each kind of batches, says where ddlp loses, and leaves the rest of the page alone."""
    page = tmp_path / "page.md"
    page.write_text("before\n\n<!-- peers: written by benchmarks/peers/run.py -->\nold\n<!-- /peers -->\n\nafter\n")
    arguments = ("--only=ddlp", "--rounds=1", "--seconds=0.5", "--batch-size=8", f"--images={small_images}")
    text = run("peers/run.py", *arguments, f"--report={page}", cache=tmp_path)
    assert "pixels of ddlp: identical" in text
    report = page.read_text()
    assert report.startswith("before\n")
    assert report.endswith("\nafter\n")
    assert "old" not in report
    assert len(re.findall(r"^\| \*\*ddlp\*\* \| [\d.]+ \| \d+ \|", report, re.M)) == 2
    assert report.count("Where ddlp loses:") == 2


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of the benchmarks can be imported."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.syspath_prepend(BENCHMARKS / "peers")


def test_the_report_names_what_others_do_better(modules: None) -> None:
    """In the median of the rounds, each against ddlp's turn of the same round."""
    import report
    import turns

    def turn(images_s: float, pss_mb: float) -> Any:
        return turns.Turn(images_s, cpu_ms=2.0, pss_mb=pss_mb, first_s=1.0, others=0.0, mean=0.0)

    rounds = {
        ("torch", True): {1: turn(100, 500), 2: turn(100, 500)},
        ("ddlp", True): {1: turn(200, 400), 2: turn(100, 400)},
        ("dali", True): {1: turn(100, 100), 2: turn(250, 100)},
    }
    work = turns.Work(Path(), Path(), batch_size=64, workers=2, seconds=1.0)
    text = report.report(rounds, {}, {"tf": "not set up"}, work, "command")
    assert "Where ddlp loses: images per second: dali 1.50x; memory: dali 4.00x." in text
    assert "| **ddlp** | 1.50 (1.00 to 2.00) | 150 |" in text
    assert "Not measured: tf (not set up)." in text


@pytest.mark.real
def test_the_image_set_is_the_same_each_time(modules: None, tmp_path: Path) -> None:
    """The same photographs make the same files, of the kinds that ImageNet has."""
    import make_images

    sets = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        made = make_images.make_set(tmp_path / name, [photograph(0), photograph(1)], 20)
        sets.append({path.name: path.read_bytes() for path in sorted((tmp_path / name).glob("*/*"))})
        assert [one.nbytes for one in made] == [len(sets[-1][f"n{k % 10:08}_{k:05}.JPEG"]) for k in range(20)]
    assert sets[0] == sets[1]
    images = [Image.open(io.BytesIO(data)) for _, data in sorted(sets[0].items(), key=lambda item: item[0][10:])]
    assert {(image.format, image.mode) for image in images} == {
        ("JPEG", "RGB"),
        ("JPEG", "CMYK"),
        ("JPEG", "L"),
        ("PNG", "RGB"),
    }
    assert images[4].getexif()[0x0112] in (3, 6, 8)


def photograph(seed: int) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((640, 480)).save(file, "PNG")
    return file.getvalue()
