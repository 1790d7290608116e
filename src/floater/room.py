"""Checks before any work starts: folders and files to write to, disk space and memory."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from .errors import ArgumentError, ConfigError, FloaterError, RunError


def check_folder(path: Path, option: str = "--out") -> None:
    """Raise an error if a folder cannot be created or written to; leaves no files behind.

    Args:
        path: the folder, which need not exist yet.
        option: the command-line option it comes from.
    """
    for folder in (path, *path.parents):
        try:
            if not os.path.lexists(folder):
                continue
            if not folder.is_dir():
                broken = folder.is_symlink() and not folder.exists()
                kind = "a broken link" if broken else "a file"
                raise ArgumentError(
                    f"`{option}` must be a folder or a new name, but {folder} is {kind}."
                )
            with tempfile.TemporaryFile(dir=folder):
                return
        except OSError as error:
            raise ArgumentError(
                f"`{option}` must be a folder that can be written to, but {folder} cannot: "
                f"{error.strerror or error}; choose another."
            ) from None


_RUN_FILES = (
    "config.yaml",
    "run.json",
    "metrics.jsonl",
    "scores.json",
    "scores.old.json",
    "positions.safetensors",
)
_RUN_FOLDERS = ("model", "checkpoints", "vocabulary", "attachment", "predictions")


def check_output(path: Path, option: str, *inputs: Path | None) -> None:
    """Raise an error if a file to write would replace a file of a run or an input.

    Args:
        path: the file to write.
        option: the command-line option it comes from.
        inputs: files that the command reads.
    """
    if path.is_dir():
        raise ArgumentError(f"`{option}` must be a file, but {path} is a folder.")
    resolved = path.resolve()
    if any(file is not None and file.resolve() == resolved for file in inputs):
        raise ArgumentError(
            f"`{option}` must be another file than the one that is read, but both are {path}."
        )
    parents = resolved.parents
    run = next((parent for parent in parents if (parent / "config.yaml").is_file()), None)
    if run is not None and resolved.relative_to(run).parts[0] in (*_RUN_FOLDERS, *_RUN_FILES):
        raise ArgumentError(
            f"`{option}` must not replace a part of the run {run.name}, but is {path}; choose "
            "another."
        )


def check_disk(path: Path, needed: float) -> None:
    """Raise an error if the disk has not enough space left.

    Args:
        path: folder to write to, which need not exist yet.
        needed: bytes.
    """
    absolute = path.absolute()
    existing = next(folder for folder in (absolute, *absolute.parents) if folder.is_dir())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise RunError(
            f"{path} needs about {_size(needed)}, but its disk has {_size(free)} left; make room, "
            "or choose another --out."
        )


def check_memory(
    needed: float,
    what: str,
    advice: str,
    share: float = 1.0,
    error: type[FloaterError] = ConfigError,
) -> None:
    """Raise an error if something would need more memory than is free.

    Args:
        needed: a lower bound in bytes.
        what: what needs them; the start of the message.
        advice: what to do; the end of the message.
        share: fraction of the free memory that may be used.
        error: the class to raise.
    """
    free = available_memory()
    if free is not None and needed > share * free:
        limit = f"{_size(share * free)} may be used" if share < 1 else f"{_size(free)} are free"
        raise error(f"{what} would take at least {_size(needed)} of memory, but {limit}; {advice}.")


def available_memory() -> int | None:
    """Bytes that a new process could use; None if the system does not report it."""
    limits = []
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                limits.append(1024 * int(line.split()[1]))
        maximum, used = (Path("/sys/fs/cgroup", name) for name in ("memory.max", "memory.current"))
        if maximum.exists() and (text := maximum.read_text(encoding="ascii").strip()) != "max":
            limits.append(max(0, int(text) - int(used.read_text(encoding="ascii"))))
    except (OSError, ValueError, IndexError):
        pass
    if not limits and hasattr(os, "sysconf"):
        try:
            limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        except (OSError, ValueError):
            return None
    return min(limits) if limits else None


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} PB"
