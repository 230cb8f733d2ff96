"""`python -m ddlp.agent`: the program on the device side. What it speaks is described in `ddlp.agent.protocol`."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import multiprocessing.process
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from ddlp.agent.channel import Channel
from ddlp.agent.faults import Faults
from ddlp.agent.server import Server
from ddlp.agent.store import FileStore, SlotStore
from ddlp.memory import load_shared

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddlp.agent.protocol import Grant
    from ddlp.agent.store import Store
    from ddlp.data.maker import Preparation

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Serve one host, then end at once, whatever threads a user's data set has started."""
    arguments = _parser().parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the host too, which decides
    channel = _stdio() if arguments.fd is None else Channel(arguments.fd, arguments.fd)
    if arguments.cpus is not None:
        os.sched_setaffinity(0, arguments.cpus)
    server = Server(
        channel,
        functools.partial(_store, arguments),
        job=None if arguments.job is None else functools.partial(_handed_over, arguments.job, arguments.main),
        worker=arguments.worker,
        slowdown=arguments.slowdown,
        faults=arguments.faults,
    )
    signal.signal(signal.SIGTERM, functools.partial(_end, server))
    if arguments.parent is not None:
        # A store of files is to be removed first; an agent with nothing to leave behind ends even while it is stuck.
        _tell_us_its_end(signal.SIGTERM if arguments.slots is None else signal.SIGKILL)
        if os.getppid() != arguments.parent:  # it ended before we could ask
            _end(server)
    server.serve()
    _end(server)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ddlp.agent", description="Makes batches for a ddlp host.")
    add = parser.add_argument
    add("--fd", type=int, help="socket to the host, inherited; without it standard input and output")
    add("--parent", type=int, help="process id of the host; the agent ends when that process does")
    add("--cpus", type=_numbers, help="cores that it may use: 0,1")
    add("--slowdown", type=float, default=1.0, help="behave like a device so many times slower than one core")
    add("--faults", type=functools.partial(msgspec.json.decode, type=Faults), help="JSON of ddlp.agent.faults.Faults")
    add("--slots", type=int, help="memory file to write batches into, inherited; without it they become files")
    add("--folder", help="folder for the files, removed at the end; without it a new one")
    add("--store-bytes", type=int, help="bound on the bytes of all files")
    add("--job", type=_numbers, help="descriptor and size of a memory file that holds the preparation: 5,4096")
    add("--worker", type=int, default=0, help="its number among the workers that share the job")
    add("--main", type=msgspec.json.decode, help="JSON that says how the host's main module is imported")
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


def _stdio() -> Channel:
    """Keep standard input and output to ourselves, so that what a library prints does not get into the conversation."""
    channel = Channel(os.dup(0), os.dup(1))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return channel


def _store(arguments: argparse.Namespace, grow: Callable[[int, int], Grant]) -> Store:
    if arguments.slots is not None:
        return SlotStore(arguments.slots, grow)
    return FileStore(arguments.folder, arguments.store_bytes)


def _handed_over(job: tuple[int, int], main_module: dict[str, Any] | None) -> Preparation:
    if main_module is not None:
        _import_main(main_module)
    preparation: Preparation = load_shared(*job)
    return preparation


def _import_main(main_module: dict[str, Any]) -> None:
    """Import the host's main module as multiprocessing does, under the name __mp_main__, so that its guard is false."""
    from multiprocessing.spawn import prepare  # takes a while to import, and is hardly ever needed

    process: Any = multiprocessing.process.current_process()
    process._inheriting = True
    try:
        prepare(main_module)
    finally:
        del process._inheriting


def _tell_us_its_end(signum: int) -> None:
    """Get `signum` when the parent ends, even if somebody else, forked from it, still holds the other end."""
    with contextlib.suppress(Exception):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signum))


def _end(server: Server, *_: object) -> None:
    server.close()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
