"""Directories that appear whole or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dflash_runner.tensorfile import FileError

__all__ = ["whole_directory"]


@contextmanager
def whole_directory(path: Path | str) -> Iterator[Path]:
    """A directory to fill that becomes `path` when the block ends well, and goes when it does not.

    It is made beside `path` and renamed at the end, after every file is on
    disk. Leftovers of builders that were killed are removed: a live builder
    holds a lock on its own.

    Raises:
        FileError: `path` is there already.

    Source: rename(2), flock(2): a lock goes with its process.
    """
    path = Path(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FileError(f"make {path}: there already", hint="remove it, or choose another directory")
    path.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{path.name}.partial-"
    for leftover in sorted(path.parent.glob(prefix + "*")):
        _remove_unless_held(leftover)
    partial = Path(tempfile.mkdtemp(prefix=prefix, dir=path.parent))
    lock = os.open(partial, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield partial
        _sync(partial)
        partial.chmod(0o755)
        os.rename(partial, path)
        _sync_one(path.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        os.close(lock)


def _remove_unless_held(partial: Path) -> None:
    """Removes a directory whose builder is dead."""
    try:
        lock = os.open(partial, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(partial, ignore_errors=True)
    except BlockingIOError:
        return
    finally:
        os.close(lock)


def _sync(directory: Path) -> None:
    """Waits until every file below `directory` and the directory itself are on disk."""
    for entry in sorted(directory.rglob("*")):
        _sync_one(entry)
    _sync_one(directory)


def _sync_one(path: Path) -> None:
    """Waits for one file or directory."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
