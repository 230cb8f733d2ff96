"""What the documentation says is true: its Python runs, its commands exist, its links lead somewhere."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ddlp import cli
from ddlp.errors import UsageError

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
EVERY_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
_NOT_RUN = re.compile(r"<!-- not run: (.*?) -->\n+\Z")


class Block(NamedTuple):
    """A fenced block: its language, its text, the line where it begins, and why it is not run, if so."""

    language: str
    text: str
    line: int
    not_run: str | None

    @property
    def is_script(self) -> bool:
        """Whether it is a program of its own, because worker processes import it."""
        return 'if __name__ == "__main__":' in self.text


def blocks(page: Path, language: str) -> list[Block]:
    text = page.read_text()
    found = []
    for match in _FENCE.finditer(text):
        marker = _NOT_RUN.search(text, 0, match.start())
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(match[1], match[2], line, marker[1] if marker else None))
    return [block for block in found if block.language == language]


def pages_with(language: str) -> Any:
    pages = [page for page in PAGES if blocks(page, language)]
    return pytest.mark.parametrize("page", pages, ids=lambda page: str(page.relative_to(ROOT)))


@pytest.fixture
def beside_images(tmp_path: Path, small_images: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with 60 photographs in the folder `images`."""
    (tmp_path / "images").symlink_to(small_images)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.real
@pages_with("python")
def test_python_runs(page: Path, beside_images: Path, nothing_left: None) -> None:
    """Every block of a page, one after the other, in one namespace; a block that is not run says why."""
    namespace: dict[str, Any] = {"__name__": "page"}
    for block in blocks(page, "python"):
        if block.not_run is not None:
            assert len(block.not_run) > 10, f"{page.name}:{block.line} is not run, for no reason that one could read"
        elif block.is_script:
            run_script(block, beside_images)
        else:
            padding = "\n" * block.line  # so that a traceback shows the line of the page
            exec(compile(padding + block.text, page, "exec"), namespace)
    close_loaders(namespace)


def run_script(block: Block, folder: Path) -> None:
    script = folder / "script.py"
    script.write_text(block.text)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def close_loaders(namespace: dict[str, Any]) -> None:
    for value in namespace.values():
        if hasattr(value, "close") and type(value).__name__ == "Loader":
            value.close()


def commands(page: Path) -> list[list[str]]:
    """The words of every line in the page's shell blocks, without comments."""
    lines = [line for block in blocks(page, "sh") for line in block.text.splitlines()]
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


@pages_with("sh")
def test_commands_exist(page: Path) -> None:
    """`make` targets are in the Makefile, `ddlp` commands have these options, Python programs are there."""
    for words in commands(page):
        check_command(words)


def check_command(words: list[str]) -> None:
    match words:
        case ["make", *targets]:
            assert set(targets) <= make_targets(), f"make knows {make_targets()}"
        case ["ddlp", *arguments] | ["python", "-m", "ddlp", *arguments]:
            check_arguments(arguments)
        case ["python", program, *_]:
            assert (ROOT / program).is_file(), f"{program} is not there"
        case ["pip", "install", "."]:
            assert (ROOT / "pyproject.toml").is_file()
        case _:
            pytest.fail(f"nobody knows whether {words} works: teach this test, or leave it out")


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))


def check_arguments(arguments: list[str]) -> None:
    try:
        cli.parser().parse_args(arguments)
    except UsageError as error:
        pytest.fail(f"ddlp {' '.join(arguments)}: {error}")


@EVERY_PAGE
def test_commands_in_the_text_exist(page: Path) -> None:
    """So do those in the middle of a sentence: `make x` and `ddlp x`."""
    for words in map(str.split, re.findall(r"`((?:make|ddlp) [^`]*)`", page.read_text())):
        if words[0] == "make":
            assert set(words[1:]) <= make_targets()
        else:
            assert words[1] in {command.name for command in cli.COMMANDS}


@EVERY_PAGE
def test_links_lead_somewhere(page: Path) -> None:
    """Files that a page links to, or shows, are there."""
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@EVERY_PAGE
def test_files_in_the_text_exist(page: Path) -> None:
    """So are those that it names: `ddlp/queue.py`."""
    for name in re.findall(r"`((?:ddlp|docs|examples|tests|benchmarks)/[\w./-]+)`", page.read_text()):
        assert (ROOT / name).exists(), f"{page.name} names {name}"


def test_the_readme_promises_what_there_is() -> None:
    """Its table of what is not in this release agrees with what the loader refuses."""
    text = (ROOT / "README.md").read_text()
    for promise in (
        "GPUDirect Storage",
        "CSDs over SSH",
        "NVMe devices",
        "skipping or replacing bad samples",
        "Fastensor",
    ):
        assert promise in text
    import ddlp

    with pytest.raises(UsageError, match="in this release"):
        ddlp.Loader(ddlp.ArrayDataset([1, 2]), on_bad_sample="skip")
    with pytest.raises(UsageError, match="in this release"):
        ddlp.Loader(ddlp.ArrayDataset([1, 2]), transport="gds")
