"""The shape of the package: imports point one way, start-up is light, and tasks have one home."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import ddlp

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(ddlp.__file__).parent

# From the bottom up; a package stands for its modules unless one is listed by itself. A module knows only lower rows
# and its own package. The rows of the design, with those that lean on each other drawn apart.
ROWS = (
    {"errors", "types"},
    {"queue", "meter", "data"},
    {"agent.protocol", "memory", "policies"},
    {"agent"},
    {"devices"},
    {"post", "stats", "transport"},
    {"engine"},
    {"bridge"},
    {"session", "tensors"},
    {"course"},
    {"loader"},
    {"testing", "demo"},
    {"cli", "__init__"},
    {"__main__"},
)

# What holds state that must be pure: no arrays, no clock, no chance, no I/O.
PURE = ("errors", "types", "queue", "meter", "policies", "agent.protocol")
IMPURE = {"torch", "numpy", "time", "datetime", "random", "asyncio", "threading", "os", "socket"}

# Of each package of drivers, the modules that drivers share; each of the others stands alone.
SHARED = {
    "devices": {"base", "registry", "remote", "connection", "process", "tuning"},
    "policies": {"base"},
    "transport": {"base", "choose"},
}


def modules() -> dict[str, Path]:
    """Every module of the package by its name below `ddlp`."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return found


MODULES = modules()
EVERY_MODULE = pytest.mark.parametrize("module", MODULES)


@functools.cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


def imported(module: str, *, when: str = "ever") -> set[str]:
    """Full names of what a module imports: "ever", or only at "start" (not inside functions or for typing)."""
    return set(_imports(tree(module), when == "ever"))


def _imports(node: ast.AST, deep: bool) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (_submodule(node.module or "", alias.name) for alias in node.names)
    elif deep or not (_is_typing(node) or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
        for child in ast.iter_child_nodes(node):
            yield from _imports(child, deep)


def _submodule(module: str, name: str) -> str:
    """`from ddlp.data import decode` imports a module, `from ddlp.types import Side` a name of one."""
    return f"{module}.{name}" if f"{module}.{name}".removeprefix("ddlp.") in MODULES else module


def _is_typing(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def own(names: set[str]) -> set[str]:
    """Those that are ours, by their names below `ddlp`."""
    return {name.removeprefix("ddlp.") for name in names if name.startswith("ddlp.")}


def row(module: str) -> int:
    package = module.split(".")[0]
    (found,) = [number for number, names in enumerate(ROWS) if module in names] or [
        number for number, names in enumerate(ROWS) if package in names
    ]
    return found


@EVERY_MODULE
def test_imports_point_one_way(module: str) -> None:
    """A module knows lower rows and its own package, be it inside a function or for typing only."""
    package = module.split(".")[0]
    upwards = [name for name in own(imported(module)) if row(name) >= row(module) and name.split(".")[0] != package]
    assert not upwards, f"ddlp.{module} imports {upwards}"


def test_no_module_needs_itself() -> None:
    """What is imported at start has no circle."""
    list(TopologicalSorter({module: own(imported(module, when="start")) for module in MODULES}).static_order())


@EVERY_MODULE
def test_a_driver_knows_no_other_driver(module: str) -> None:
    """Inside a package of drivers, a driver imports what they share, and never another driver."""
    package, _, name = module.partition(".")
    if package not in SHARED or name in SHARED[package] or not name:
        return
    neighbours = {other for other in own(imported(module)) if other.startswith(f"{package}.")}
    assert neighbours <= {f"{package}.{shared}" for shared in SHARED[package]}


@pytest.mark.parametrize("module", [m for m in MODULES if m in PURE or m.split(".")[0] in PURE])
def test_the_core_is_pure(module: str) -> None:
    """The queue, the policies and the messages have no clock, no randomness, no arrays and no I/O."""
    assert not {name.split(".")[0] for name in imported(module)} & IMPURE


@EVERY_MODULE
def test_tasks_have_one_home(module: str) -> None:
    """Only the engine creates tasks; only the bridge hands a coroutine to another thread's loop."""
    named = {node.attr for node in ast.walk(tree(module)) if isinstance(node, ast.Attribute)}
    assert module == "engine" or not named & {"create_task", "ensure_future", "TaskGroup", "gather"}
    assert module == "bridge" or not named & {"run_coroutine_threadsafe"}


@pytest.mark.parametrize("name", ["pytest", "hypothesis"])
@EVERY_MODULE
def test_the_wheel_needs_no_test_tools(module: str, name: str) -> None:
    """The conformance kit works with any test runner."""
    assert name not in {imported_name.split(".")[0] for imported_name in imported(module)}


@pytest.mark.parametrize(
    "module", ["ddlp", "ddlp.cli", "ddlp.agent.__main__", "ddlp.engine", "ddlp.devices.cpu", "ddlp.testing.simulate"]
)
def test_start_up_is_light(module: str) -> None:
    """Neither `import ddlp` nor an agent, a worker or the command line waits for torch."""
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_public_names() -> None:
    """An alphabetical list, each of which can be had."""
    assert list(ddlp.__all__) == sorted(ddlp.__all__)
    assert dir(ddlp) == ddlp.__all__
    for name in ddlp.__all__:
        assert getattr(ddlp, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        ddlp.nonsense  # noqa: B018  # looking is what is tested
