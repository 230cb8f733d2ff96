"""The image files of the demo: the user's own, or photo-like ones that are made once and kept."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from ddlp.data.folder import ImageFolder
from ddlp.data.synthetic import make_photos
from ddlp.demo.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ddlp.demo.progress import Interrupts

CLASSES = 10
_VERSION = 1  # of the photos; another number makes them anew


def image_folder(path: str | None, images: int, interrupts: Interrupts) -> ImageFolder:
    """The images in `path`, or at least `images` of our own.

    Raises:
        DataError: there are no images in `path`.
        OSError: the cache cannot be written.
        KeyboardInterrupt: at Ctrl-C; then no part of a set is left.
    """
    return ImageFolder(path or _photos(-(-images // CLASSES), interrupts))


def cache_folder() -> Path:
    """Where the photos are kept: $XDG_CACHE_HOME/ddlp or ~/.cache/ddlp."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ddlp"


def _photos(per_class: int, interrupts: Interrupts) -> Path:
    """A whole set; it is made under another name, whose leftovers the next run removes, however this one ends."""
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"photos-{_VERSION}-{CLASSES}x{per_class}"
    partial = folder.with_suffix(".partial")
    with _lock(cache / "photos.lock"):
        if not folder.exists():
            shutil.rmtree(partial, ignore_errors=True)
            try:
                _make(partial, per_class, interrupts)
                partial.rename(folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    return folder


def _make(folder: Path, per_class: int, interrupts: Interrupts) -> None:
    with Progress(f"making photos in {folder.parent}", CLASSES * per_class) as progress:

        def one_more(_done: int, _total: int) -> None:
            progress.advance()
            interrupts.check()

        make_photos(folder, CLASSES, per_class, progress=one_more)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """One process at a time makes photos; the others then find them."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
