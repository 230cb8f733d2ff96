"""`ddlp demo`, run as people run it, and its parts."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ddlp
from ddlp.demo.accounting import CpuTime, cpu_time
from ddlp.demo.baseline import PlainImageNet, random_box
from ddlp.demo.loaders import Result
from ddlp.demo.photos import image_folder
from ddlp.demo.progress import Interrupts, Progress
from ddlp.demo.report import table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WHOLE_SET = 40
LOADERS = ("PyTorch DataLoader", "ddlp, CPU alone", "ddlp, CPU + CSD, MTE", "ddlp, CPU + CSD, WRR")


class Demo:
    """A demo in a session of its own, whose cache and temporary files are in `folder`."""

    def __init__(self, folder: Path, *options: str, images: int = WHOLE_SET) -> None:
        self.cache = folder / "cache" / "ddlp"
        self.temporary = folder / "temporary"
        self.temporary.mkdir(exist_ok=True)
        self.output = folder / "output"
        command = [sys.executable, "-m", "ddlp", "demo", f"--images={images}", "--batch-size=4", "--step-ms=20"]
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [*command, *options],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "XDG_CACHE_HOME": str(self.cache.parent), "TMPDIR": str(self.temporary)},
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        return self.output.read_text()

    def wait_until(self, happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not happened():
            assert time.monotonic() < deadline, f"it did not happen: {self.text}"
            assert self.process.poll() is None, f"the demo has ended: {self.text}"
            time.sleep(0.005)

    def processes(self) -> set[int]:
        """All processes of its session that run."""
        return {pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._session(pid)}

    def _session(self, pid: int) -> bool:
        try:
            state, _, _, session, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return False
        return int(session) == self.process.pid and state != "Z"

    def assert_nothing_left(self) -> None:
        deadline = time.monotonic() + 5  # multiprocessing's resource tracker ends after us
        while self.processes():
            assert time.monotonic() < deadline, f"processes {self.processes()} are left"
            time.sleep(0.01)
        assert not list(self.temporary.iterdir())

    def close(self) -> None:
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    """Starts a demo in the test's folder."""
    started: list[Demo] = []

    def start(*options: str, images: int = WHOLE_SET) -> Demo:
        started.append(Demo(tmp_path, *options, images=images))
        return started[-1]

    yield start
    for demo in started:
        demo.close()


def rows(text: str) -> dict[str, list[str]]:
    """The figures of each loader in the table."""
    return {
        name: line.removeprefix(name).split()
        for name in LOADERS
        for line in re.findall(f"^{re.escape(name)}  .*", text, re.M)
    }


@pytest.mark.real
def test_the_demo_compares_four_loaders(start: Callable[..., Demo]) -> None:
    """A row for each loader, with figures that fit each other; it says what is emulated; the images are kept."""
    demo = start("--slowdown=1.5", "--step-ms=1", images=80)
    assert demo.process.wait(100) == 0, demo.text
    found = rows(demo.text)
    assert tuple(found) == LOADERS, demo.text
    for name, (rate, speed, _, seconds, waited, share, *_) in found.items():
        assert float(rate) == pytest.approx(80 / float(seconds), rel=0.1)
        assert float(waited) <= float(seconds)
        assert float(speed) == pytest.approx(float(rate) / float(found[LOADERS[0]][0]), abs=0.02)
        assert (share == "-") == ("CSD" not in name)
        assert share == "-" or 0 <= float(share.removesuffix("%")) < 100
    assert any(float(found[name][5].removesuffix("%")) > 0 for name in LOADERS[2:])
    assert "CSD       emulated: " in demo.text
    assert "a stand-in that takes 1 ms per batch" in demo.text
    assert len(ddlp.ImageFolder(demo.cache / "photos-1-10x8")) == 80
    demo.assert_nothing_left()


@pytest.mark.real
def test_it_trains_a_network_on_ones_own_images(start: Callable[..., Demo], small_images: Path) -> None:
    """--train and --data: two epochs of a real network, and no photos are made."""
    demo = start("--train", f"--data={small_images}", "--epochs=2", "--workers=1", images=24)
    assert demo.process.wait(100) == 0, demo.text
    assert tuple(rows(demo.text)) == LOADERS
    assert "a small network on " in demo.text
    assert not demo.cache.exists()


def making(demo: Demo) -> bool:
    return any(demo.cache.glob("*.partial/*/*"))


@pytest.mark.real
@pytest.mark.parametrize("after", ["photos", "training", *LOADERS[:-1]])
def test_ctrl_c_ends_it_cleanly(start: Callable[..., Demo], after: str) -> None:
    """At any moment: exit code 130, no traceback, no process, no temporary file, and no half of a set of photos."""
    demo = start(images=600 if after == "photos" else WHOLE_SET)
    demo.wait_until(
        lambda: making(demo) if after == "photos" else re.search(f"^{re.escape(after)}.*$", demo.text, re.M) is not None
    )
    os.killpg(demo.process.pid, signal.SIGINT)
    assert demo.process.wait(30) == 130, demo.text
    assert "Traceback" not in demo.text
    assert "Exception ignored" not in demo.text
    demo.assert_nothing_left()
    kept = {path.name for path in demo.cache.iterdir()}
    assert kept == {"photos.lock"} if after == "photos" else {"photos.lock", f"photos-1-10x{WHOLE_SET // 10}"}


@pytest.mark.real
def test_the_second_ctrl_c_does_not_wait(start: Callable[..., Demo]) -> None:
    """A step that takes a minute is broken off by the second Ctrl-C, and still nothing is left."""
    demo = start("--step-ms=60000")
    demo.wait_until(lambda: "training  " in demo.text and len(demo.processes()) > 1)
    time.sleep(0.5)  # so that it is most likely inside of its step
    os.killpg(demo.process.pid, signal.SIGINT)
    time.sleep(0.2)
    os.killpg(demo.process.pid, signal.SIGINT)
    assert demo.process.wait(30) == 130, demo.text
    assert "Traceback" not in demo.text
    demo.assert_nothing_left()


# --- the photos ------------------------------------------------------------------------------------------------------


def test_photos_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same number of images gives the same files again; another number gives another set."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = image_folder(None, 20, Interrupts())
    made = os.stat(first.path(0)).st_mtime_ns
    assert image_folder(None, 11, Interrupts()).root == first.root
    assert os.stat(first.path(0)).st_mtime_ns == made
    assert image_folder(None, 21, Interrupts()).root != first.root


def test_what_a_killed_demo_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a set, of a demo that could not clean up, never becomes part of a whole one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    stale = tmp_path / "ddlp" / "photos-1-10x1.partial" / "class_999"
    stale.mkdir(parents=True)
    (stale / "half.jpg").write_bytes(b"half")
    assert len(image_folder(None, 10, Interrupts())) == 10
    assert not list((tmp_path / "ddlp").glob("*.partial"))


# --- what it compares with -------------------------------------------------------------------------------------------


def test_the_baseline_gives_normalised_images(small_images: Path) -> None:
    """(3, size, size) float32 with the values that ImageNet's mean and deviation give, and the file's own label."""
    folder = ddlp.ImageFolder(small_images)
    dataset = PlainImageNet(folder, size=32)
    assert len(dataset) == len(folder)
    for index in (0, 17, 59):
        pixels, label = dataset[index]
        assert pixels.shape == (3, 32, 32)
        assert pixels.dtype == torch.float32
        assert label == folder.labels[index]
        lowest, highest = (0 - 0.485) / 0.229, (1 - 0.406) / 0.225
        assert lowest <= pixels.min() < pixels.max() <= highest


@given(st.integers(1, 2000), st.integers(1, 2000))
def test_the_baseline_crops_inside_the_image(width: int, height: int) -> None:
    """Whatever the size of the image."""
    left, top, w, h = random_box(width, height)
    assert left >= 0
    assert top >= 0
    assert 0 < w <= width - left
    assert 0 < h <= height - top


# --- what it prints --------------------------------------------------------------------------------------------------


def test_the_table_lines_up() -> None:
    """Every row is as long as the head; a loader without a CSD has no figures for one."""
    results = [
        Result("first", 100, 10.0, 5.0, CpuTime(12.0, 0.0)),
        Result("second, longer", 100, 8.0, 3.0, CpuTime(9.0, 2.0), csd_share=0.2),
    ]
    head, first, second = table(results).splitlines()
    assert len(head) == len(first) == len(second)
    assert first.split() == ["first", "10.0", "1.00", "x", "10.00", "5.00", "-", "12.00", "-"]
    assert second.split()[2:] == ["12.5", "1.25", "x", "8.00", "3.00", "20.0%", "9.00", "2.00"]


def test_cpu_time_counts_children() -> None:
    """What a child burns is ours while it runs and after it has ended."""
    before = cpu_time()
    code = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert cpu_time().since(before).host_s > 0.25
        child.communicate(b"\n")
    host_s, csd_s = cpu_time().since(before)
    assert 0.25 < host_s < 3
    assert csd_s == 0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_line_in_a_file() -> None:
    """No control characters where nobody sees them."""
    file = io.StringIO()
    with Progress("counting", 3, file) as progress:
        for _ in range(3):
            progress.advance()
    assert re.fullmatch(r"counting: 3 of 3, done in \d\.\d s\n", file.getvalue())


def test_progress_is_a_bar_on_a_terminal() -> None:
    """The bar is redrawn in place, fits the terminal, and gives way to one line."""
    terminal = Terminal()
    with contextlib.suppress(KeyError), Progress("counting", 2, terminal) as progress:
        progress.advance()
        raise KeyError
    bar, line = terminal.getvalue().split("\r\x1b[K")[-2:]
    assert bar.startswith("counting [")
    assert len(bar) < 80
    assert re.fullmatch(r"counting: 1 of 2, ended after \d\.\d s\n", line)


def test_ctrl_c_waits_for_a_check_once() -> None:
    """The first one is noticed by `check`, the second one does not wait; outside of `with` all is as it was."""
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        interrupts.check()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
