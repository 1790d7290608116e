"""Whether there is room for what is asked: a folder to write to, disk space, memory; known before
any work.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from .errors import ArgumentError, ConfigError, FloaterError, RunError


def check_folder(path: Path, option: str = "--out") -> None:
    """Refuse a place that cannot become a folder with files in it; nothing is left there.

    Args:
        path: the folder, which need not exist yet.
        option: what it was given by.
    """
    for place in (path, *path.parents):
        try:
            if not os.path.lexists(place):
                continue
            if not place.is_dir():
                what = (
                    "a link that leads nowhere"
                    if place.is_symlink() and not place.exists()
                    else "a file"
                )
                raise ArgumentError(
                    f"`{option}` must be a folder or a new name, but {place} is {what}."
                )
            with tempfile.TemporaryFile(dir=place):
                return
        except OSError as error:
            raise ArgumentError(
                f"`{option}` must be a folder that can be written to, but {place} cannot: "
                f"{error.strerror or error}; choose another."
            ) from None


_RECORDS = (
    "config.yaml",
    "run.json",
    "metrics.jsonl",
    "scores.json",
    "scores.old.json",
    "positions.safetensors",
)
_PARTS = ("model", "checkpoints", "vocabulary", "attachment", "predictions")


def check_output(path: Path, option: str, *inputs: Path | None) -> None:
    """Refuse to write over a part of a run, or over what is read.

    Args:
        path: the file to write.
        option: what it was given by.
        inputs: files that are read.
    """
    if path.is_dir():
        raise ArgumentError(f"`{option}` must be a file, but {path} is a folder.")
    whole = path.resolve()
    if any(other is not None and other.resolve() == whole for other in inputs):
        raise ArgumentError(
            f"`{option}` must be another file than the one that is read, but both are {path}."
        )
    inside = next((parent for parent in whole.parents if (parent / "config.yaml").is_file()), None)
    if inside is not None:
        first = whole.relative_to(inside).parts[0]
        if first in _PARTS or first in _RECORDS:
            raise ArgumentError(
                f"`{option}` must not replace a part of the run {inside.name}, but is {path}; "
                "choose another."
            )


def check_disk(path: Path, needed: float) -> None:
    """Refuse to start what the disk of a folder (which need not exist yet) has no room for.

    Args:
        path: the folder.
        needed: bytes.
    """
    place = next(one for one in (path.absolute(), *path.absolute().parents) if one.is_dir())
    free = shutil.disk_usage(place).free
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
    """Refuse what memory has no room for, before any of it is taken.

    Args:
        needed: bytes, rather too few than too many.
        what: takes them.
        advice: what to do.
        share: of the memory that is free, which this may take.
        error: the class to raise.
    """
    free = available_memory()
    if free is not None and needed > share * free:
        most = f"{_size(share * free)} may be used" if share < 1 else f"{_size(free)} are free"
        raise error(f"{what} would take at least {_size(needed)} of memory, but {most}; {advice}.")


def available_memory() -> int | None:
    """Bytes that a new process could use, None where the system does not tell."""
    found = []
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                found.append(1024 * int(line.split()[1]))
        limit, used = (Path("/sys/fs/cgroup", name) for name in ("memory.max", "memory.current"))
        if limit.exists() and (text := limit.read_text(encoding="ascii").strip()) != "max":
            found.append(max(0, int(text) - int(used.read_text(encoding="ascii"))))
    except (OSError, ValueError, IndexError):
        pass
    if not found and hasattr(os, "sysconf"):
        try:
            found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        except (OSError, ValueError):
            return None
    return min(found) if found else None


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} PB"
