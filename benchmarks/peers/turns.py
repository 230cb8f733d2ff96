"""The rows of the comparison, and one turn of one of them: a process of its own, watched from outside."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import process_tree
from setup import environment, is_ready, libraries

import ddlp

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
SAMPLE_S = 0.5  # between two looks at the memory
LIMIT_S = 240.0  # for everything but the measuring: FFCV compiles for half a minute


class TurnError(Exception):
    """A driver did not come to its end; the message has its last words."""


class Row(NamedTuple):
    """One loader.

    name         on the command line
    environment  of benchmarks/peers/setup.py; empty: ddlp's own
    driver       module:class in benchmarks/peers/drivers
    title        in the report
    converts     it reads the set in a format of its own, which is written first
    """

    name: str
    environment: str
    driver: str
    title: str
    converts: bool = False

    def missing(self) -> str:
        """Why it cannot run here, or the empty string."""
        if self.name == "ddlp-cached" and "cache" not in inspect.signature(ddlp.Loader).parameters:
            return "this release of ddlp has no cache"
        if self.environment and not is_ready(self.environment):
            return f"not set up: python benchmarks/peers/setup.py {self.environment}"
        return ""


BASELINE, OURS = "torch", "ddlp"
ROWS = (
    Row(BASELINE, "", "torch_loader:TorchLoader", "torch DataLoader, Pillow (baseline)"),
    Row(OURS, "", "ddlp_loader:Ddlp", "**ddlp**"),
    Row("ddlp-cached", "", "ddlp_loader:DdlpCached", '**ddlp**, `cache="decoded"`, from the second epoch on'),
    Row("dali", "dali", "dali:Dali", "NVIDIA DALI, CPU"),
    Row("ffcv-jpeg", "ffcv", "ffcv:FfcvJpeg", "FFCV, files encoded anew as JPEG, quality 95", converts=True),
    Row("ffcv-raw", "ffcv", "ffcv:FfcvRaw", "FFCV, files decoded in advance", converts=True),
    Row("tf", "tf", "tf_data:TfData", "tf.data"),
    Row("spdl-ffmpeg", "spdl", "spdl_pipeline:SpdlFfmpeg", "SPDL, FFmpeg"),
    Row("spdl-pillow", "spdl", "spdl_pipeline:SpdlPillow", "SPDL, Pillow"),
    Row("webdataset", "webdataset", "webdataset_tars:WebDataset", "WebDataset, Pillow", converts=True),
    Row("grain", "grain", "grain_threads:Grain", "Grain, Pillow"),
    Row("litdata", "litdata", "litdata_chunks:LitData", "LitData, Pillow", converts=True),
    Row("streaming", "streaming", "streaming_shards:Streaming", "MosaicML Streaming, Pillow", converts=True),
)


class Turn(NamedTuple):
    """What one turn showed.

    images_s     images per second, in the measured time
    cpu_ms       CPU milliseconds per image, of all its processes
    pss_mb       the most memory of all its processes together, after the first batch
    first_s      seconds from the start of the process to the first batch
    others       cores that other processes of the machine kept busy in the measured time
    mean         of all pixels, by which a wrong normalisation shows
    """

    images_s: float
    cpu_ms: float
    pss_mb: float
    first_s: float
    others: float
    mean: float


class Work(NamedTuple):
    """What every row has to do; see driver.Job."""

    folder: Path
    cache: Path
    batch_size: int
    workers: int
    seconds: float


def prepare(row: Row, work: Work) -> None:
    """Have the peer write the set in its own format, if it has one. Raises TurnError."""
    for _ in _events(row, work, "--prepare") if row.converts else ():
        pass


def pixels(row: Row, work: Work, crops: Path) -> None:
    """Have the peer make the crops of a JSON file: which it made goes there, and .npy beside it. Raises TurnError."""
    for _ in _events(row, work, f"--crops={crops}"):
        pass


def turn(row: Row, work: Work, *, float32: bool) -> Turn:
    """Run the row once. Raises TurnError."""
    begun = time.monotonic()
    first: dict[str, Any] = {}
    result: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        for event, pid in _events(row, work, f"--seconds={work.seconds}", *(["--float32"] if float32 else [])):
            if event["event"] == "first":
                first, memory = event, stack.enter_context(PeakMemory(pid))
            elif event["event"] == "result":
                result = event
    return Turn(
        images_s=result["images"] / result["seconds"],
        cpu_ms=1e3 * result["cpu_s"] / result["images"],
        pss_mb=memory.nbytes / 1e6,
        first_s=first["at_s"] - begun,
        others=result["others_s"] / result["seconds"],
        mean=result["mean"],
    )


class PeakMemory:
    """The most memory that a process and its descendants hold together, while inside `with`."""

    def __init__(self, pid: int) -> None:
        self.nbytes = 0
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self.nbytes = max(self.nbytes, process_tree.pss_nbytes(self._pid))
            if self._over.wait(SAMPLE_S):
                break


def _events(row: Row, work: Work, *arguments: str) -> Iterator[tuple[dict[str, Any], int]]:
    """What the row's process says, and its id. It and its children have ended afterwards."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            _command(row, work, *arguments),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=_environment(row),
            start_new_session=True,
        )
        limit = threading.Timer(LIMIT_S + 2 * work.seconds, process.kill)
        limit.start()
        done = False
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("@"):
                    event = json.loads(line[1:])
                    yield event, process.pid
                    if done := event["event"] == "done":
                        break
        finally:
            limit.cancel()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if not done:
            errors.seek(0)
            raise TurnError(f"{row.name} did not come to its end: {errors.read()[-1500:].strip() or 'not a word'}")


def _command(row: Row, work: Work, *arguments: str) -> list[str]:
    python = environment(row.environment) / "bin" / "python" if row.environment else Path(sys.executable)
    options = (f"--folder={work.folder}", f"--cache={work.cache}", f"--batch-size={work.batch_size}")
    return [str(python), str(HERE / "drive.py"), row.driver, *options, f"--workers={work.workers}", *arguments]


def _environment(row: Row) -> dict[str, str]:
    """Ours; each process and thread of a loader uses one core, whatever libraries it has."""
    ours = {"PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    found = libraries(row.environment) if row.environment else ""
    return {**os.environ, **ours, **({"LD_LIBRARY_PATH": found} if found else {})}
