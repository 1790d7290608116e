"""Files that are whole or not there: everything is written aside, synced, and renamed."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import DataError


def write_text(path: Path, text: str) -> None:
    """Write a text file as a whole."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder that appears under its name only when all of it is written; an older one of that name is replaced."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    place.chmod(0o755)
    try:
        yield place
        publish(place, folder)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def publish(written: Path, folder: Path) -> None:
    """Sync a folder to disk and rename it; an older one of that name is removed."""
    sync(written)
    if folder.exists():
        old = folder.with_name(f".{folder.name}-old")
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
        written.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    else:
        written.rename(folder)
    _sync_one(folder.parent)


def sync(folder: Path) -> None:
    """Force every file below a folder, and the folder itself, to disk."""
    for path in folder.rglob("*"):
        _sync_one(path)
    _sync_one(folder)


def _sync_one(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_lines(path: Path) -> list[str]:
    """Lines of a UTF-8 text file, plain or .gz, without their ends. What is wrong with it is said in one line."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data: bytes = file.read()
    except FileNotFoundError:
        raise DataError(f"{path} must be a text file, but there is none; check the path.") from None
    except IsADirectoryError:
        raise DataError(f"{path} must be a text file, but is a folder.") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} must be gzip by its name, but cannot be unpacked: {error}.") from None
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}, line {line}: must be UTF-8, but holds the byte 0x{data[error.start]:02x}; convert the file (iconv -t utf-8)."
        ) from None
    lines = text.split("\n")  # not splitlines: a text may hold other separators
    if lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise DataError(f"{path} must hold at least one line, but is empty.")
    return [line.removesuffix("\r") for line in lines]


def digest(lines: list[str]) -> str:
    """A fingerprint of lines of text."""
    found = hashlib.sha256()
    for line in lines:
        found.update(line.encode())
        found.update(b"\n")
    return found.hexdigest()
