"""The error tree, named for who did it: you, the data, the device, or ddlp itself."""

from __future__ import annotations


class DdlpError(Exception):
    """Base of every error that ddlp raises by itself."""


# --- you -------------------------------------------------------------------------------------------------------------


class UsageError(DdlpError, ValueError):
    """An argument, or a combination of them, makes no sense. The message names it and what to do."""


class ClosedError(DdlpError, RuntimeError):
    """The loader or device was used after it was closed."""


class BusyError(DdlpError, RuntimeError):
    """A second iteration was started while the first one still runs."""


# --- the data --------------------------------------------------------------------------------------------------------


class DataError(DdlpError):
    """The data set itself is unusable: an empty folder, a wrong file, a record of the wrong size."""


class SampleError(DataError):
    """One sample could not be read or processed.

    `sample_id` is its index in the data set; `path` is the file, where there is one.
    """

    def __init__(self, message: str, sample_id: int | None = None, path: str | None = None) -> None:
        super().__init__(message)
        self.sample_id = sample_id
        self.path = path

    def __str__(self) -> str:
        where = [f"sample {self.sample_id}"] if self.sample_id is not None else []
        where += [repr(self.path)] if self.path is not None else []
        return f"{' '.join(where)}: {self.args[0]}" if where else str(self.args[0])

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.args[0], self.sample_id, self.path)


# --- the device ------------------------------------------------------------------------------------------------------


class DeviceError(DdlpError):
    """A device did something wrong. Only its subclasses leave a driver."""


class DeviceLost(DeviceError):
    """The device is gone: its process died, its connection broke, or it did not answer in time."""


class BatchFailed(DeviceError):
    """The device could not make or hand over this batch; another try, there or elsewhere, may succeed."""


class StoreFull(BatchFailed):
    """The device has no room for this batch now."""


class BatchTimeout(DdlpError, TimeoutError):
    """A batch did not come within `timeout` seconds. The message says who had it and for how long."""


# --- ddlp ------------------------------------------------------------------------------------------------------------


class IllegalMove(DdlpError):
    """A batch was moved from a place where it is not. Nothing was changed. A bug in the caller, never in the data."""


class StaleTicket(IllegalMove):
    """An answer to a claim that was given up meanwhile. Drop it."""


class ProtocolError(DdlpError):
    """A peer sent bytes that are not the protocol: a frame too large, of an unknown kind, or out of order."""
