"""Writing files and folders atomically: under a temporary name, synced, then renamed."""

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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import DataError, FloaterError, RunError, first_line

HASHES = "hashes.json"
"""File in a saved folder with the SHA-256 of the other files."""
_UNHASHED = (HASHES, "README.md", ".gitattributes")  # users may edit these
_DISK_ERRORS = {
    errno.ENOSPC,
    errno.EFBIG,
    errno.EIO,
    errno.EROFS,
    getattr(errno, "EDQUOT", errno.ENOSPC),
}
_DISK_MESSAGES = re.compile(
    r"os error \d+|no space left|file too large|disk quota|unexpected pos|PytorchStreamWriter",
    re.IGNORECASE,
)
"""Messages of libraries that could not write: safetensors and tokenizers wrap the system's error,
torch reports a wrong number of bytes.
"""


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, _mode(path, 0o666))
            os.replace(temporary, path)
        finally:
            Path(temporary).unlink(missing_ok=True)


def _mode(path: Path, new: int) -> int:
    """The permissions of a file or folder; if there is none, `new` without the umask."""
    with suppress(OSError):
        return stat.S_IMODE(path.stat().st_mode)
    # os.umask can only be read by changing it, which other threads would notice
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return new & ~int(next(line for line in lines if line.startswith("Umask:")).split()[1], 8)
    mask = os.umask(0o077)
    os.umask(mask)
    return new & ~mask


@contextmanager
def writing(path: Path, error: type[FloaterError] = RunError) -> Iterator[None]:
    """Turn errors about a full or broken disk, from any library, into one line.

    Args:
        path: what is being written, for the message.
        error: the class to raise.
    """
    try:
        yield
    except FloaterError:
        raise
    except OSError as cause:
        if cause.errno not in _DISK_ERRORS:
            raise
        raise error(_not_written(path, cause.strerror or first_line(cause))) from cause
    except Exception as cause:
        if _DISK_MESSAGES.search(str(cause)) is None:
            raise
        raise error(_not_written(path, first_line(cause))) from cause


def _not_written(path: Path, reason: str) -> str:
    return (
        f"{path} cannot be written: {reason.rstrip('.')}; make room on the disk (or choose another "
        "one) and try again. The previous content is unchanged."
    )


@contextmanager
def reading(what: object, error: type[FloaterError], advice: str) -> Iterator[None]:
    """Turn whatever a library raises about a damaged file into one line.

    Only for calls of libraries: it would hide defects of our own code.

    Args:
        what: what is being read, for the message.
        error: the class to raise.
        advice: what to do; the end of the message.
    """
    try:
        yield
    except FloaterError:
        raise
    except Exception as cause:
        raise error(f"{what} cannot be read: {first_line(cause).rstrip('.')}; {advice}") from cause


@contextmanager
def new_folder(folder: Path, error: type[FloaterError] = RunError) -> Iterator[Path]:
    """Write a folder atomically; an existing folder of that name is replaced.

    Args:
        folder: the folder.
        error: the class to raise if the disk is full.

    Yields:
        A temporary folder to write to, which is renamed at the end.
    """
    with writing(folder, error):
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        temporary.chmod(_mode(folder, 0o777))
        try:
            yield temporary
            publish(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def publish(written: Path, folder: Path) -> None:
    """Sync a folder to disk and rename it; an existing folder of that name is removed.

    On Linux, there is a complete folder of that name at every moment.
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


def _exchange(first: Path, second: Path) -> bool:
    """Swap the names of two folders atomically; False if the system cannot (only Linux can)."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):
        return False
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(rename(here, os.fsencode(first), here, os.fsencode(second), swap) == 0)


def link_tree(source: Path, target: Path) -> None:
    """Give files a second name on the same disk: by hard links if possible, otherwise by copies."""

    def link(file: str, name: str) -> str:
        try:
            os.link(file, name)
        except OSError:
            shutil.copy2(file, name)
        return name

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
    """Write the hashes of the files in a folder to its `hashes.json`.

    Args:
        folder: the folder.
        names: the files; default: all.
    """
    if names is None:
        names = [path.name for path in folder.iterdir() if path.is_file()]
    hashes = {
        name: file_hash(folder / name)
        for name in sorted(names)
        if name not in _UNHASHED and not name.startswith(".")
    }
    write_text(folder / HASHES, json.dumps({"format": 1, "sha256": hashes}, indent=1) + "\n")


def check_hashes(folder: Path, error: type[FloaterError], advice: str) -> None:
    """Raise if a file is missing or has changed since `record_hashes`.

    A folder without `hashes.json` passes.

    Args:
        folder: what is about to be read.
        error: the class to raise.
        advice: what to do; the end of the message.
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


def iterate_lines(path: Path) -> Iterator[str]:
    """Read a UTF-8 text file, plain or .gz, line by line, without line endings."""
    count = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                line = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
                if not line:
                    continue  # the file holds nothing but a byte order mark
                count = number
                yield _decoded(line, path, number).removesuffix("\n").removesuffix("\r")
    except FileNotFoundError:
        raise DataError(f"{path} must be a text file, but there is none; check the path.") from None
    except IsADirectoryError:
        raise DataError(f"{path} must be a text file, but is a folder.") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"{path} must be gzip by its name, but cannot be unpacked: {error}."
        ) from None
    if not count:
        raise DataError(f"{path} must hold at least one line, but is empty.")


def _decoded(line: bytes, path: Path, number: int) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}, line {number}: must be UTF-8, but holds the byte 0x{line[error.start]:02x}; "
            "convert the file (iconv -t utf-8)."
        ) from None


def read_lines(path: Path) -> list[str]:
    """Read the lines of a UTF-8 text file, plain or .gz, without line endings."""
    return list(iterate_lines(path))


def digest(lines: Iterable[str]) -> str:
    """SHA-256 of lines of text."""
    sha256 = hashlib.sha256()
    for line in lines:
        sha256.update(line.encode())
        sha256.update(b"\n")
    return sha256.hexdigest()
