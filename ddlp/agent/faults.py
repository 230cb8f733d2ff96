"""What shall go wrong with an agent: for tests, demonstrations, and for judging a training job before a device does."""

from __future__ import annotations

import errno
import os
import signal

import msgspec


class Faults(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, repr_omit_defaults=True):
    """Faults by the number of the batch that the agent makes, counted from 0 over its life.

    crash_at             kills itself when the batch is made, before it answers
    stall_at             stops answering for `stall_s` seconds (None: for ever) before it makes the batch
    slow_at              from this batch on it is so many times slower, until the next entry
    corrupt_at           damages the last byte of the finished file
    lose_answer_at       makes the batch and does not answer
    duplicate_answer_at  answers twice
    full_at              finds no room for the batch
    """

    crash_at: tuple[int, ...] = ()
    stall_at: tuple[int, ...] = ()
    stall_s: float | None = None
    slow_at: dict[int, float] = {}
    corrupt_at: tuple[int, ...] = ()
    lose_answer_at: tuple[int, ...] = ()
    duplicate_answer_at: tuple[int, ...] = ()
    full_at: tuple[int, ...] = ()

    def slowdown(self, number: int) -> float:
        """How many times slower the device is at this batch."""
        begun = [first for first in self.slow_at if first <= number]
        return self.slow_at[max(begun)] if begun else 1.0

    def answers(self, number: int) -> int:
        """How often this batch is answered."""
        if number in self.lose_answer_at:
            return 0
        return 2 if number in self.duplicate_answer_at else 1

    def check_room(self, number: int) -> None:
        """Raises OSError where there shall be no room."""
        if number in self.full_at:
            raise OSError(errno.ENOSPC, "no room, by the script")

    def crash(self, number: int) -> None:
        """End as a process ends that the kernel or an operator kills."""
        if number in self.crash_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def corrupt(self, number: int, path: str) -> None:
        """Change the last byte of the file."""
        if number in self.corrupt_at:
            with open(path, "r+b") as file:
                file.seek(-1, os.SEEK_END)
                last = file.read(1)
                file.seek(-1, os.SEEK_END)
                file.write(bytes([last[0] ^ 0xFF]))
