"""The text that targets are built from and prompts are taken from, split by file.

Two sources: the Python standard library's own modules, found on every machine
that has Python, and files that the user names. Every Nth file is held out, so
no line of a held-out file is ever trained on.
"""

from __future__ import annotations

import hashlib
import json
import os
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash_runner.tensorfile import FileError

__all__ = ["TEXT_SUFFIXES", "Corpus", "Document", "read_corpus", "read_text", "split_lines", "stdlib_files"]

TEXT_SUFFIXES = (".txt", ".py", ".md")
# Not modules of the library, or tables and tests that read unlike the rest of it.
_LEFT_OUT = frozenset(
    "__pycache__ dist-packages encodings ensurepip idle_test idlelib lib2to3 site-packages "
    "test tests turtledemo".split()
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One text: a whole file, or one line of a .jsonl file (line counts from 1, 0 for a whole file)."""

    source: str
    line: int
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """Training and held-out documents, in a fixed order, and the SHA-256 of both, in hex."""

    train: tuple[Document, ...]
    heldout: tuple[Document, ...]
    digest: str


def read_corpus(source: str, *, files: Sequence[str] = (), max_bytes: int = 0, heldout_every: int) -> Corpus:
    """The corpus of one source, split by file.

    Args:
        source: "python-stdlib" or "files".
        files: for "files": .txt, .py and .md are one document, .jsonl one a line.
        max_bytes: files are taken in order until their text has this size; 0 takes all.
        heldout_every: the first file and every Nth after it are held out; at least 2.

    Raises:
        FileError: an unknown source, a file that cannot be read, or nothing to train on.

    Source: proto/dflash_runner/job/v1/job.proto, Corpus.
    """
    if heldout_every < 2:
        raise FileError(f"read corpus: heldout_every: want at least 2, got {heldout_every}")
    if source == "python-stdlib":
        if files:
            raise FileError(f"read corpus: files: want none with source python-stdlib, got {len(files)}")
        groups: Iterable[tuple[Document, ...]] = _stdlib_documents()
    elif source == "files":
        groups = (tuple(_file_documents(Path(name))) for name in files)
    else:
        raise FileError(f"read corpus: source: want python-stdlib or files, got {source!r}")
    split: tuple[list[Document], list[Document]] = ([], [])
    size = 0
    for number, group in enumerate(groups):
        split[number % heldout_every == 0].extend(group)
        size += sum(len(document.text.encode()) for document in group)
        if max_bytes and size >= max_bytes:
            break
    train, heldout = split
    for name, documents in (("training", train), ("held-out", heldout)):
        if not any(document.text for document in documents):
            raise FileError(
                f"read corpus: nothing to train on: the {name} part is empty",
                hint="name at least two files with text in them; every heldout_every-th is held out",
            )
    return Corpus(train=tuple(train), heldout=tuple(heldout), digest=_digest(train, heldout))


def stdlib_files() -> list[tuple[str, Path]]:
    """The standard library's modules as (name, path), in an order that looks random but is fixed.

    The order is that of the names' SHA-256, so a file keeps its neighbours from
    one Python version to the next.

    Raises:
        FileError: this Python has no library sources.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    names: list[Path] = []
    for folder, below, files in os.walk(root):
        below[:] = [name for name in below if name not in _LEFT_OUT]  # site-packages may be huge
        names += [Path(folder, name).relative_to(root) for name in files if name.endswith(".py")]
    if not names:
        raise FileError(
            f"read corpus: no Python sources in {root}",
            hint="this Python has no library sources (a zipped or frozen one); use another",
        )
    names.sort(key=lambda name: hashlib.sha256(name.as_posix().encode()).digest())
    return [(name.as_posix(), root / name) for name in names]


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, without a byte-order mark, line ends as they are.

    Raises:
        FileError: no such file, or not UTF-8; with the byte's place.
    """
    try:
        raw = path.read_bytes()
    except OSError as err:
        raise FileError(f"read {path}: {err.strerror}") from err
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as err:
        line = raw[: err.start].count(b"\n") + 1
        raise FileError(
            f"read {path}: want UTF-8, got byte 0x{raw[err.start]:02x} at byte {err.start} (line {line})",
            hint=f"convert the file, for example with iconv -f {_encoding(raw)} -t utf-8",
        ) from err
    if "\0" in text and _encoding(raw) != "latin1":  # UTF-16 of English is UTF-8 with NULs
        raise FileError(
            f"read {path}: want UTF-8, got NUL bytes as {_encoding(raw)} has them",
            hint=f"convert the file, for example with iconv -f {_encoding(raw)} -t utf-8",
        )
    return text


def _encoding(raw: bytes) -> str:
    """What a file that is not UTF-8 probably is, as iconv names it: by its mark, or by where its NULs are."""
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"  # the mark says which
    part = raw[:4096]
    even, odd = part[0::2].count(0), part[1::2].count(0)
    if 4 * max(even, odd) < len(part):
        return "latin1"
    return "utf-16le" if odd > even else "utf-16be"


def split_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a .jsonl file that hold anything, numbered from 1. Only newline ends a line."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, line


def _stdlib_documents() -> Iterator[tuple[Document, ...]]:
    """One group a module; those that are not ASCII are left out, as a cut could fall inside a character."""
    for name, path in stdlib_files():
        raw = path.read_bytes()
        if raw.isascii():
            yield (Document(source=name, line=0, text=raw.decode("ascii")),)


def _file_documents(path: Path) -> Iterator[Document]:
    """The documents of one file that the user named."""
    if path.suffix in TEXT_SUFFIXES:
        yield Document(source=str(path), line=0, text=read_text(path))
    elif path.suffix == ".jsonl":
        for number, line in split_lines(read_text(path)):
            yield Document(source=str(path), line=number, text=_line_text(path, number, line))
    else:
        want = ", ".join((*TEXT_SUFFIXES, ".jsonl"))
        raise FileError(f"read {path}: want a file ending in {want}")


def _line_text(path: Path, number: int, line: str) -> str:
    """The plain text of one .jsonl line: `text`, or `prompt` and `response`, or the messages' contents."""
    try:
        value = json.loads(line)
    except ValueError as err:
        raise FileError(f"read {path}:{number}: {err}") from err
    if isinstance(value, dict):
        if isinstance(value.get("text"), str):
            return value["text"]
        if isinstance(value.get("prompt"), str):
            return value["prompt"] + (value["response"] if isinstance(value.get("response"), str) else "")
        messages = value.get("messages")
        if isinstance(messages, list) and all(isinstance(m, dict) for m in messages):
            return "\n".join(m["content"] for m in messages if isinstance(m.get("content"), str))
    raise FileError(f"read {path}:{number}: want an object with text, prompt or messages, got {line[:60]!r}")


def _digest(*parts: Sequence[Document]) -> str:
    """SHA-256 over every part's documents, each field with its length before it."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        for document in part:
            for field in (document.source, str(document.line), document.text):
                raw = field.encode()
                digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.hexdigest()
