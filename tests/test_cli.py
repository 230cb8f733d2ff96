"""The command line: what it prints, and how errors reach people."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import ddlp
from ddlp import cli
from ddlp.testing import theory

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from pathlib import Path

SIMULATE = ("simulate", "--batches=400", "--cpu-ms=10", "--csd-ms=40", "--accel-ms=2", "--read-ms=1")


@pytest.fixture(autouse=True)
def _ctrl_c_as_before() -> Iterator[None]:
    """`main` is the last thing that a process does, and leaves Ctrl-C ignored."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a command line which makes no sense gets."""
    assert cli.main(arguments) == cli.USER_ERROR
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"ddlp: .+\n", err), err
    return err


def figure(text: str, name: str) -> float:
    """The seconds in the line of this name."""
    found = re.search(rf"^  {re.escape(name)} +([\d.]+) s ", text, re.M)
    assert found is not None, text
    return float(found[1])


@pytest.mark.parametrize("program", [("-m", "ddlp"), ("-c", "import sys; from ddlp.cli import main; sys.exit(main())")])
def test_version(program: tuple[str, ...]) -> None:
    """`python -m ddlp` and the installed command say the package's version."""
    found = subprocess.run(
        [sys.executable, *program, "--version"], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout == f"ddlp {ddlp.__version__}\n"


@pytest.mark.parametrize("policy", ["mte", "mte-proportional", "wrr"])
def test_simulate_sets_the_policy_beside_the_theory(capsys: pytest.CaptureFixture[str], policy: str) -> None:
    """The closed forms are those of the theory, and the simulation lies between the bound and the CPU alone."""
    assert cli.main([*SIMULATE, f"--policy={policy}", "--epochs=2"]) == 0
    text = capsys.readouterr().out
    tau, s, rho = 0.010, 0.040, 0.003
    assert figure(text, "CPU alone") == pytest.approx(theory.cpu_only_s(400, tau), abs=1e-3)
    assert figure(text, "MTE proportional") == pytest.approx(theory.proportional_s(400, tau, s, rho), abs=1e-3)
    assert figure(text, "MTE balanced, WRR") == pytest.approx(theory.shared_s(400, tau, s, rho), abs=1e-3)
    bound = theory.bound_s(400, 0.010, 0.040, 0.002, 0.003)
    assert figure(text, "no policy is faster than") == pytest.approx(bound, abs=1e-3)
    for epoch in (0, 1):
        assert bound <= figure(text, f"epoch {epoch}") < theory.cpu_only_s(400, tau)
    head, tail = map(int, re.findall(r"(?:CPU|CSD) (\d+)", text)[-2:])
    assert head + tail == 400


def test_info_says_what_does_not_work(capsys: pytest.CaptureFixture[str]) -> None:
    """Versions, and what is not in this release."""
    assert cli.main(["info"]) == 0
    text = capsys.readouterr().out
    assert f"ddlp {ddlp.__version__}, Python " in text
    assert "GPUDirect Storage is not in this release" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "arguments are required: COMMAND"),
        (("dance",), "invalid choice: 'dance'"),
        (("demo", "--images=many"), "--images: invalid int value: 'many'"),
        (("demo", "--images=0"), "--images must be at least 1, not 0"),
        (("demo", "--slowdown=nan"), "--slowdown must be at least 1, not nan"),
        (("demo", "--data=/nowhere"), "cannot read the image folder '/nowhere'"),
        (("simulate", "--batches=1"), "arguments are required: --cpu-ms"),
        ((*SIMULATE, "--csd-ms=-1"), "--csd-ms must be at least 0.0, not -1.0"),
        ((*SIMULATE, "--policy=best"), "invalid choice: 'best'"),
    ],
)
def test_what_the_user_can_mend_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    """Exit code 2, `ddlp: ` and what is wrong; no traceback."""
    assert message in refused(capsys, *arguments)


def test_a_cache_that_cannot_be_written_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The system's own error, with the path."""
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    assert str(file) in refused(capsys, "demo")


def command_that_raises(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def run(_arguments: argparse.Namespace) -> None:
        raise error

    monkeypatch.setattr(cli, "COMMANDS", (cli.Command("fail", "Fails.", lambda _parser: None, run),))


def test_the_users_errors_in_a_group_are_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of them, however deep."""
    errors = [ExceptionGroup("inner", [ddlp.UsageError("too little"), ddlp.DataError("no data")])]
    command_that_raises(monkeypatch, ExceptionGroup("outer", errors))
    assert refused(capsys, "fail") == "ddlp: too little\n"


@pytest.mark.parametrize(
    "error", [ValueError("ours"), ExceptionGroup("both", [ddlp.UsageError("theirs"), ValueError("ours")])]
)
def test_our_own_errors_are_not_hidden(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """A bug keeps its traceback, be it in the company of an error of the user."""
    command_that_raises(monkeypatch, error)
    with pytest.raises((ValueError, ExceptionGroup), match=r"ours|both"):
        cli.main(["fail"])


def test_ctrl_c_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a shell expects of a program that was interrupted."""
    command_that_raises(monkeypatch, KeyboardInterrupt())
    assert cli.main(["fail"]) == cli.INTERRUPTED == 130
