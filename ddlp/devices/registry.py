"""Devices by URL: `emu://?slowdown=4&store_bytes=1GiB`. Packages register theirs in the entry points `ddlp.devices`.

The scheme is the name of the entry point, loaded when it is asked for. The query holds the driver's keyword arguments;
what stands before it (`csd+ssh://user@host/folder`) is its first argument.
"""

from __future__ import annotations

import contextlib
import inspect
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

from ddlp.devices.base import Device
from ddlp.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "ddlp.devices"
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def open_device(url: str) -> Device:
    """The device that `url` names; it still is to be opened.

    Raises:
        UsageError: no such scheme or option; the message lists those that there are. Or the driver refuses the values.
    """
    scheme, found, rest = url.partition("://")
    if not found:
        raise UsageError(f"{url!r} is not the URL of a device, such as emu://?slowdown=4")
    address, _, query = rest.partition("?")
    driver = _load(_entry_point(scheme))
    arguments = [unquote(address)] if address else []
    return _made(driver, url, arguments, _options(url, query))


def _entry_point(scheme: str) -> EntryPoint:
    known = {entry.name: entry for entry in entry_points(group=GROUP)}
    if scheme not in known:
        names = ", ".join(sorted(known)) or "none, for ddlp itself is not installed"
        raise UsageError(f"no device is called {scheme}://; known are: {names}")
    return known[scheme]


def _load(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except ImportError as error:
        package = "" if entry.dist is None else f"; see what the package {entry.dist.name} needs"
        raise UsageError(f"the driver of {entry.name}:// cannot be imported: {error}{package}") from error


def _options(url: str, query: str) -> dict[str, Any]:
    try:
        return {
            name: _value(text) for name, text in parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
        }
    except ValueError as error:
        raise UsageError(f"{url!r}: the part behind the question mark is not name=value&name=value: {error}") from error


def _value(text: str) -> Any:
    """4 -> int, 2.5 -> float, 1GiB -> int, 0,1 -> tuple, anything else stays text."""
    if "," in text:
        return tuple(_value(part) for part in text.split(","))
    for number in (int, float, _size):
        with contextlib.suppress(ValueError):
            return number(text)
    return text


def _size(text: str) -> int:
    if text[-3:] not in _UNITS:
        raise ValueError(text)
    return int(float(text[:-3]) * _UNITS[text[-3:]])


def _made(driver: Any, url: str, arguments: list[str], options: dict[str, Any]) -> Device:
    try:
        inspect.signature(driver).bind(*arguments, **options)
    except TypeError as error:
        raise UsageError(f"{url!r}: {error}; options are {inspect.signature(driver)}") from error
    device = driver(*arguments, **options)
    if not isinstance(device, Device):
        raise UsageError(f"{url!r}: the driver made {device!r:.200}, which is not a ddlp Device")
    return device
