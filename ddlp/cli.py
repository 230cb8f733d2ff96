"""The `ddlp` command: its subcommands, and how errors reach people. Heavy modules are imported when they are used."""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
from importlib import metadata
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from ddlp import __version__
from ddlp.errors import DdlpError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ddlp.policies.base import Policy
    from ddlp.testing.simulate import Simulation

USER_ERROR, INTERRUPTED = 2, 130  # exit codes


class Command(NamedTuple):
    """A subcommand: what it says of itself, its options, what it does."""

    name: str
    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code: 0, USER_ERROR with one line on stderr, or INTERRUPTED.

    Ctrl-C is ignored from then on: what is left to do is quick, and no place for a traceback.
    """
    try:
        chosen = parser().parse_args(arguments)
        chosen.run(chosen)
    except KeyboardInterrupt:
        return INTERRUPTED
    except (DdlpError, OSError, ExceptionGroup) as error:
        return _complain(error)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return 0


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = _Parser(prog="ddlp", description="Stream one training set from both ends at once.")
    top.add_argument("--version", action="version", version=f"ddlp {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        sub = commands.add_parser(command.name, help=command.summary, description=command.summary)
        command.add_arguments(sub)
        sub.set_defaults(run=command.run)
    return top


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def _complain(error: Exception) -> int:
    """Say in a line what the user can mend. Raises what nobody but us can."""
    if isinstance(error, ExceptionGroup):
        _, ours = error.split((DdlpError, OSError))
        if ours is not None:
            raise ours
    print(f"ddlp: {_first(error)}", file=sys.stderr)
    return USER_ERROR


def _first(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


# --- ddlp demo -------------------------------------------------------------------------------------------------------


def _add_demo(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--images", type=int, default=1600, help="images of an epoch (default: %(default)s)")
    add("--batch-size", type=int, default=16, help="images per batch (default: %(default)s)")
    add("--workers", type=int, help="worker processes of the host (default: one per core that the host has)")
    add("--slowdown", type=float, default=4.0, help="how much slower the CSD is than one core (default: %(default)s)")
    add("--step-ms", type=float, default=5.0, help="what a training step takes (default: %(default)s)")
    add("--train", action="store_true", help="train a small network instead of waiting for --step-ms")
    add("--epochs", type=int, default=2, help="epochs of each loader; the last one is shown (default: %(default)s)")
    add("--data", metavar="FOLDER", help="your own images, FOLDER/class/name.jpg (default: made once, and kept)")


def _demo(arguments: argparse.Namespace) -> None:
    from ddlp.demo.progress import Interrupts

    with Interrupts() as interrupts:
        from ddlp.demo.run import run

        run(arguments, interrupts)


# --- ddlp simulate ---------------------------------------------------------------------------------------------------


def _add_simulate(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--batches", type=int, required=True, metavar="N", help="batches of an epoch")
    add("--cpu-ms", type=float, required=True, metavar="MS", help="per batch, of all host workers together")
    add("--csd-ms", type=float, required=True, metavar="MS", help="per batch, of the CSD")
    add("--accel-ms", type=float, required=True, metavar="MS", help="per batch, of the accelerator")
    add("--read-ms", type=float, default=0.0, metavar="MS", help="more of it for the direct read of a CSD batch")
    add("--policy", choices=_POLICIES, default="wrr", help="(default: %(default)s)")
    add("--epochs", type=int, default=1, help="what an epoch has measured, the next one knows (default: %(default)s)")


_POLICIES = ("mte", "mte-proportional", "wrr")


def _simulate(arguments: argparse.Namespace) -> None:
    from ddlp.testing.simulate import simulate

    for name in ("batches", "epochs"):
        _check_range(name, getattr(arguments, name), 1)
    for name in ("cpu_ms", "csd_ms", "accel_ms", "read_ms"):
        _check_range(name, getattr(arguments, name), 0.0)
    found = simulate(
        arguments.batches,
        _policy(arguments.policy),
        cpu_s=arguments.cpu_ms / 1e3,
        csd_s=arguments.csd_ms / 1e3,
        accel_head_s=arguments.accel_ms / 1e3,
        accel_tail_s=(arguments.accel_ms + arguments.read_ms) / 1e3,
        epochs=arguments.epochs,
    )
    print("\n".join(_simulated(found)))


def _check_range(name: str, value: float, least: float) -> None:
    if not value >= least:
        raise UsageError(f"--{name.replace('_', '-')} must be at least {least}, not {value}")


def _policy(name: str) -> Policy:
    from ddlp.policies.mte import MTE
    from ddlp.policies.wrr import WRR

    if name == "wrr":
        return WRR()
    return MTE(split="proportional" if name == "mte-proportional" else "balanced")


def _simulated(found: Simulation) -> Iterator[str]:
    """The lines of the answer; the last epoch stands for all."""
    yield f"{found.policy}, in virtual time"
    for number, seconds in enumerate(found.epoch_s):
        yield _seconds(f"epoch {number}", seconds, found)
    yield f"  CPU {found.head} batches, CSD {found.tail} ({found.tail / (found.head + found.tail):.1%})"
    yield f"  the accelerator waited {found.wait_s:.3f} s for batches"
    yield "theory"
    yield _seconds("CPU alone", found.cpu_only_s, found)
    yield _seconds("MTE proportional", found.proportional_s, found)
    yield _seconds("MTE balanced, WRR", found.shared_s, found)
    yield _seconds("no policy is faster than", found.bound_s, found)


def _seconds(name: str, seconds: float, found: Simulation) -> str:
    speed = f"{found.cpu_only_s / seconds:.3f}" if seconds else "inf"
    return f"  {name:<25}{seconds:>12.3f} s  {speed:>7} x the speed of the CPU alone"


# --- ddlp info -------------------------------------------------------------------------------------------------------


def _info(_arguments: argparse.Namespace) -> None:
    import torch

    print(f"ddlp {__version__}, Python {platform.python_version()}, {platform.platform()}")
    print(", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "numpy", "pillow", "msgspec", "uvloop")))
    print(f"cores     {len(os.sched_getaffinity(0))} of {os.cpu_count()}")
    print(f"CUDA      {torch.cuda.get_device_name() if torch.cuda.is_available() else 'torch sees no device here'}")
    print("devices   CpuPool and EmulatedCsd; SSH and NVMe devices are not in this release")
    print("transport through host memory; GPUDirect Storage is not in this release")


def _add_nothing(_parser: argparse.ArgumentParser) -> None:
    """`ddlp info` has no options."""


COMMANDS = (
    Command("demo", "Stream one set of images four ways and compare them.", _add_demo, _demo),
    Command(
        "simulate", "What a policy makes of given speeds, in virtual time, beside the theory.", _add_simulate, _simulate
    ),
    Command("info", "Versions, cores, and what works here.", _add_nothing, _info),
)
