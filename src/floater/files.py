"""Files that are whole or not there: everything is written aside, synced, and renamed."""

from __future__ import annotations

import codecs
import ctypes
import errno
import gzip
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import DataError, FloaterError, RunError, first_line

HASHES = "hashes.json"
"""File of a saved folder that holds the SHA-256 of the others."""
_UNHASHED = (HASHES, "README.md", ".gitattributes")  # people edit these
_FULL = {errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EROFS, getattr(errno, "EDQUOT", errno.ENOSPC)}
_SAYS_FULL = re.compile(
    r"os error \d+|no space left|file too large|disk quota|unexpected pos|PytorchStreamWriter",
    re.IGNORECASE,
)
"""What libraries say that could not write: safetensors and tokenizers wrap the system's error,
torch counts its bytes.
"""


def write_text(path: Path, text: str) -> None:
    """Write a text file as a whole."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file as a whole."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, _mode(path, 0o666))
            os.replace(name, path)
        finally:
            Path(name).unlink(missing_ok=True)


def _mode(path: Path, new: int) -> int:
    """The permissions that a file or folder has, or would have if it were made in the
    ordinary way.
    """
    with suppress(OSError):
        return stat.S_IMODE(path.stat().st_mode)
    with suppress(
        OSError, ValueError, StopIteration
    ):  # asking for the mask in any other way changes it for a moment
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return new & ~int(next(line for line in lines if line.startswith("Umask:")).split()[1], 8)
    mask = os.umask(0o077)
    os.umask(mask)
    return new & ~mask


@contextmanager
def writing(place: Path, error: type[FloaterError] = RunError) -> Iterator[None]:
    """Inside, a full or broken disk is told in one line, in whatever words a library reports it.

    Args:
        place: what is being written, for the message.
        error: the class to raise.
    """
    try:
        yield
    except FloaterError:
        raise
    except Exception as found:
        full = (
            found.errno in _FULL
            if isinstance(found, OSError)
            else _SAYS_FULL.search(str(found)) is not None
        )
        if not full:
            raise
        why = (
            (found.strerror or first_line(found))
            if isinstance(found, OSError)
            else first_line(found)
        )
        raise error(
            f"{place} cannot be written: {why.rstrip('.')}; make room on the disk (or choose "
            "another one) and try again. What was there before is kept."
        ) from found


@contextmanager
def reading(what: object, error: type[FloaterError], advice: str) -> Iterator[None]:
    """Inside, whatever a library raises over a damaged file becomes one line; to be put around
    calls of libraries only.

    Args:
        what: what is being read, for the message.
        error: the class to raise.
        advice: what to do, the end of the message.
    """
    try:
        yield
    except FloaterError:
        raise
    except Exception as found:
        raise error(f"{what} cannot be read: {first_line(found).rstrip('.')}; {advice}") from found


@contextmanager
def new_folder(folder: Path, error: type[FloaterError] = RunError) -> Iterator[Path]:
    """A folder that appears under its name only when all of it is written; an older one of that
    name is replaced.
    """
    with writing(folder, error):
        folder.parent.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        place.chmod(_mode(folder, 0o777))
        try:
            yield place
            publish(place, folder)
        finally:
            shutil.rmtree(place, ignore_errors=True)


def publish(written: Path, folder: Path) -> None:
    """Sync a folder to disk and rename it; an older one of that name is removed.

    There is one of them at every moment.
    """
    sync(written)
    if folder.is_dir() and _exchange(written, folder):
        shutil.rmtree(written, ignore_errors=True)
    elif folder.exists():
        old = folder.with_name(f".{folder.name}-old")
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
        written.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    else:
        written.rename(folder)
    _sync_one(folder.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders change their names in one step; False where the system cannot (only Linux
    can).
    """
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):
        return False
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(rename(here, os.fsencode(one), here, os.fsencode(other), swap) == 0)


def link_tree(source: Path, target: Path) -> None:
    """The same files under another name on the same disk: linked where that can be done, else
    copied.
    """

    def link(one: str, other: str) -> str:
        try:
            os.link(one, other)
        except OSError:
            shutil.copy2(one, other)
        return other

    if source.is_dir() and not source.is_symlink():
        shutil.copytree(source, target, copy_function=link, symlinks=True)
    elif source.is_symlink():
        target.symlink_to(os.readlink(source))
    else:
        link(os.fspath(source), os.fspath(target))


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


def file_hash(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def record_hashes(folder: Path, names: Sequence[str] | None = None) -> None:
    """Write the hash of every file of a folder (or of some of them) into its `hashes.json`."""
    chosen = [path.name for path in folder.iterdir() if path.is_file()] if names is None else names
    hashes = {
        name: file_hash(folder / name)
        for name in sorted(chosen)
        if name not in _UNHASHED and not name.startswith(".")
    }
    write_text(folder / HASHES, json.dumps({"format": 1, "sha256": hashes}, indent=1) + "\n")


def check_hashes(folder: Path, error: type[FloaterError], advice: str) -> None:
    """Raise if a file that `record_hashes` recorded is missing or has changed since. Folders
    without `hashes.json` pass.

    Args:
        folder: what is about to be read.
        error: the class to raise.
        advice: what to do, the end of the message.
    """
    path = folder / HASHES
    if not path.exists():
        return
    try:
        recorded = json.loads(path.read_text(encoding="utf-8"))["sha256"]
        items = sorted((str(name), str(value)) for name, value in recorded.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise error(
            f"{path} must hold the hashes of the files beside it, but is damaged; {advice}"
        ) from None
    for name, value in items:
        if Path(name).name != name:
            raise error(f"{path} must name files beside it, but names {name!r}; {advice}")
        if not (folder / name).is_file():
            raise error(f"{folder} must hold {name}, but does not; {advice}")
        if file_hash(folder / name) != value:
            raise error(
                f"{folder / name} is damaged or was changed after it was saved: its hash is not the"
                f" recorded one; {advice}"
            )


def read_lines(path: Path) -> list[str]:
    """Lines of a UTF-8 text file, plain or .gz, without their ends.

    What is wrong with it is said in one line.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data: bytes = file.read()
    except FileNotFoundError:
        raise DataError(f"{path} must be a text file, but there is none; check the path.") from None
    except IsADirectoryError:
        raise DataError(f"{path} must be a text file, but is a folder.") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"{path} must be gzip by its name, but cannot be unpacked: {error}."
        ) from None
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}, line {line}: must be UTF-8, but holds the byte 0x{data[error.start]:02x}; "
            "convert the file (iconv -t utf-8)."
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
