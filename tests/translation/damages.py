"""Ways to damage a file of a run, and commands that must notice or not be harmed."""

from __future__ import annotations

import io
import random
import shutil
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from safetensors.torch import load_file

from floater import cli


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _truncated(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def _noise(path: Path) -> None:
    path.write_bytes(random.Random(path.name).randbytes(max(path.stat().st_size, 8)))


def _flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for place in (len(data) // 3, len(data) // 2, len(data) - 9):
        data[max(place, 0)] ^= 0x41
    path.write_bytes(data)


def _a_list(path: Path) -> None:
    path.write_text("[1, 2]\n")


def _gone(path: Path) -> None:
    path.unlink()


def _a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Callable[[Path], None]] = {
    "empty": _empty,
    "truncated": _truncated,
    "noise": _noise,
    "flipped": _flipped,
    "a list": _a_list,
    "gone": _gone,
    "a folder": _a_folder,
}


@dataclass(frozen=True)
class Outcome:
    """How a command ended, and what it made."""

    code: int
    error: str
    made: object

    def fair(self, expected: object) -> bool:
        """Whether it did what it does with an undamaged run, or said in one line that it cannot."""
        said = [line for line in self.error.splitlines() if line.startswith("floater: ")]
        if self.code == 2:
            return len(said) == 1 and "Traceback" not in self.error
        return self.code == 0 and self.made == expected


def command(run: Path, name: str, config: Path) -> Outcome:
    """One command on a run, in this process, and what it made of it."""
    lines = run.parent / "lines.txt"
    lines.write_text("1 2 3\n4 5\n")
    arguments = {
        "resume": ["train", config, "--out", run, "--resume"],
        "evaluate": ["evaluate", run, "--name", "again"],
        "against": ["evaluate", run, "--against", run],
        "translate": ["translate", run, "--input", lines, "--output", run.parent / "out.txt"],
        "average": ["average", run, "--last", 2],
        "plot": ["plot", run, "--out", run.parent / "figure.svg"],
        "report": ["report", run, "--out", run.parent / "report.html"],
    }[name]
    before, sys.argv = sys.argv, ["floater", *map(str, arguments)]
    told, error = io.StringIO(), io.StringIO()
    console, cli.console = cli.console, Console(file=told, width=1000)
    code = 0
    try:
        with redirect_stdout(told), redirect_stderr(error):
            cli.main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except Exception as escaped:  # noqa: BLE001, RUF100  (what a user would see as a traceback)
        code, error = 99, io.StringIO(f"Traceback: {type(escaped).__name__}: {escaped}")
    finally:
        sys.argv, cli.console = before, console
    return Outcome(code, error.getvalue(), _made(run, name) if code == 0 else None)


def _made(run: Path, name: str) -> object:
    if name == "translate":
        return (run.parent / "out.txt").read_text()
    if name in ("evaluate", "against"):
        return (
            run / "predictions" / ("again.txt" if name == "evaluate" else "test.txt")
        ).read_text()
    if name in ("average", "resume"):
        found = load_file(run / "model" / "model.safetensors")
        return {key: tensor.numpy().tobytes() for key, tensor in found.items()}
    if name == "plot":
        tables = load_file(
            run / "positions.safetensors"
        )  # the order of the metadata is another in every process
        return {key: tensor.numpy().tobytes() for key, tensor in tables.items()}
    return None


def files_of(run: Path) -> list[str]:
    """The files of a run that a damage may hit."""
    found = (path for path in run.rglob("*") if path.is_file())
    return sorted(str(path.relative_to(run)) for path in found if path.name != "README.md")


def copied(run: Path, place: Path) -> Path:
    """A copy of a run that shares nothing with it."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(run, place)
    return place
