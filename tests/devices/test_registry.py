"""The laws of device URLs: what is registered opens, and what does not is told what there is."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlp.devices import registry
from ddlp.devices.cpu import CpuPool
from ddlp.devices.emulated import EmulatedCsd
from ddlp.devices.registry import GROUP, open_device
from ddlp.errors import UsageError

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


class Remote(EmulatedCsd):
    """A driver with an address."""

    def __init__(self, address: str, *, tags: tuple = (), token: str = "") -> None:
        super().__init__()
        self.address, self.tags, self.token = address, tags, token


class NotADevice:
    """Something else."""


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """What this project's metadata registers, and what others might."""
    ours = tomllib.loads(PYPROJECT.read_text())["project"]["entry-points"][GROUP]
    theirs = {
        "csd+remote": f"{__name__}:Remote",
        "broken": "a_package_that_is_not_here:Device",
        "other": f"{__name__}:NotADevice",
    }
    entries = [EntryPoint(name, value, GROUP) for name, value in {**ours, **theirs}.items()]
    monkeypatch.setattr(registry, "entry_points", lambda group: entries if group == GROUP else [])


def test_a_url_is_a_driver_and_its_arguments():
    """Options reach the driver with the types that they look like."""
    csd = open_device("emu://?slowdown=2.5&store_bytes=1.5GiB&cpus=0,1&name=csd3")
    assert isinstance(csd, EmulatedCsd)
    assert csd.name == "csd3"
    assert csd.capabilities.store_bytes == 3 << 29
    assert isinstance(open_device("cpu://?workers=3"), CpuPool)
    assert isinstance(open_device("emu://"), EmulatedCsd)


def test_the_address_is_the_first_argument():
    """What stands before the query goes to the driver as it is, unquoted."""
    remote = open_device("csd+remote://user@host:22/a%20folder?tags=a,1,2.5&token=")
    assert (remote.address, remote.tags, remote.token) == ("user@host:22/a folder", ("a", 1, 2.5), "")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nvme://x", r"no device is called nvme://; known are: broken, cpu, csd\+remote, emu, other"),
        ("emu", "is not the URL of a device"),
        ("emu://?speed=4", "unexpected keyword argument 'speed'; options are .*slowdown"),
        ("emu://?slowdown", "not name=value"),
        ("emu://?slowdown=0.5", "slowdown must be at least 1"),
        ("csd+remote://?tags=1", "missing a required argument: 'address'"),
        ("broken://", "the driver of broken:// cannot be imported: No module named"),
        ("other://", "which is not a ddlp Device"),
    ],
)
def test_what_cannot_be_opened_is_explained(url, message):
    """The message names what is wrong and what there is."""
    with pytest.raises(UsageError, match=message):
        open_device(url)


@given(st.integers(0, 1 << 20), st.sampled_from(["KiB", "MiB", "GiB", "TiB"]))
def test_sizes_are_powers_of_1024(count, unit):
    """1KiB is 1024 bytes, and so on."""
    power = ["KiB", "MiB", "GiB", "TiB"].index(unit) + 1
    assert registry._value(f"{count}{unit}") == count * 1024**power


@given(st.text())
def test_any_text_is_a_value(text):
    """Whatever is neither number nor size stays text, or becomes a tuple of such."""
    value = registry._value(text)
    assert isinstance(value, (int, float, str, tuple))
