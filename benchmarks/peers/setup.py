"""Make the environments of the peers: one virtual environment each, with every package pinned.

    python benchmarks/peers/setup.py [NAME ...]

Without a name, all of them: several minutes, and 10 GB. They lie outside the tree, under $XDG_CACHE_HOME/ddlp/peers or
~/.cache/ddlp/peers. What is there and up to date is left alone. torch is meant to be its CPU build: where that is not
what pip finds, set PIP_EXTRA_INDEX_URL to PyTorch's index of CPU builds.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent / "environments"
NAMES = sorted(path.stem for path in HERE.glob("*.txt") if path.stem != "plain")

# FFCV asks pkg-config for all of OpenCV and includes all of it, but uses one module.
_OPENCV_PC = """\
Name: opencv4
Description: the part that FFCV uses
Version: 4
Cflags: -I{folder} -I/usr/include/opencv4
Libs: -lopencv_imgproc -lopencv_core
"""
_OPENCV_HPP = "#include <opencv2/core.hpp>\n#include <opencv2/imgproc.hpp>\n"


def environment(name: str) -> Path:
    """Where the environment of a peer is, or would be."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "ddlp" / "peers" / name


def is_ready(name: str) -> bool:
    """Whether it is there, with the packages of today's list."""
    stamp = environment(name) / ".ready"
    return stamp.exists() and stamp.read_text() == _digest(name)


def libraries(name: str) -> str:
    """A folder of shared libraries that the loader of the peer's extensions must know, or the empty string."""
    return next(map(str, environment(name).glob("lib/*/site-packages/av.libs")), "")


def make(name: str) -> None:
    """Make the environment anew.

    Raises:
        subprocess.CalledProcessError: a package cannot be had, or does not compile; pip has said which.
    """
    folder = environment(name)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "-r", HERE / f"{name}.txt"], check=True, env=_build_environment(folder))
    _name_ffmpeg(libraries(name))
    (folder / ".ready").write_text(_digest(name))


def _digest(name: str) -> str:
    """Of the lists of packages."""
    return hashlib.sha256(b"".join((HERE / f"{part}.txt").read_bytes() for part in (name, "plain"))).hexdigest()


def _build_environment(folder: Path) -> dict[str, str]:
    """With what FFCV's build looks for."""
    headers = folder / "ffcv-build"
    (headers / "opencv2").mkdir(parents=True)
    (headers / "opencv2" / "opencv.hpp").write_text(_OPENCV_HPP)
    (headers / "opencv4.pc").write_text(_OPENCV_PC.format(folder=headers))
    return {**os.environ, "PKG_CONFIG_PATH": str(headers)}


def _name_ffmpeg(folder: str) -> None:
    """Give PyAV's libraries the names by which others look for FFmpeg's: libavutil-5809.so.60.26 is libavutil.so.60."""
    for path in Path(folder).glob("lib[as][vw]*-*.so.*") if folder else ():
        stem, version = path.name.split("-")[0], path.name.split(".so.")[1]
        path.with_name(f"{stem}.so.{version.split('.')[0]}").symlink_to(path.name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    names = parser.parse_args().names or NAMES
    if unknown := set(names) - set(NAMES):
        parser.error(f"no such peer: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    failed = []
    for name in names:
        if is_ready(name):
            print(f"{name}: ready")
            continue
        print(f"{name}: making {environment(name)}", flush=True)
        try:
            make(name)
        except subprocess.CalledProcessError as error:
            failed.append(name)
            print(f"{name}: NOT MADE, {error}", flush=True)
    if failed:
        print(f"not made: {', '.join(failed)}; the runner leaves them out and says so")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
