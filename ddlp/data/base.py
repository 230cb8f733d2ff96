"""What ddlp's own data sets share."""

from __future__ import annotations

import contextlib
import hashlib
import os
from abc import ABC, abstractmethod
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


class Source(ABC):
    """A data set that an agent near the data can open by itself.

    It pickles cheaply: what is large lies in numpy arrays (out of band with protocol 5) or is mapped from its file.
    """

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> tuple[Any, ...]: ...

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What `open_source` opens elsewhere, fit for JSON. Raises UsageError where only this process has the data."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Sixteen hex digits, the same on two machines whose copies agree."""

    def _checked(self, index: int) -> int:
        """The sample id of a Python index. Raises IndexError out of range."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of a data set of {len(self)}")
        return int(index) % len(self)


def digest(*parts: bytes | NDArray[Any]) -> str:
    """Sixteen hex digits of SHA-256 over the parts and their lengths."""
    state = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else part.tobytes()
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()[:16]


def read(path: str) -> bytes:
    """The bytes of a file. Raises OSError."""
    with open(path, "rb", buffering=0) as file:
        return file.readall()


@contextlib.contextmanager
def replacing(path: str) -> Iterator[IO[bytes]]:
    """A file to write that becomes `path` at the end, so that `path` is whole or absent whatever happens."""
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
