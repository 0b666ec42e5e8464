"""Writing datasets and prompts: the other half of data.py, used by jobs and tests.

Samples are appended to two spool files, so memory holds the index alone, and
the safetensors files are put together at the end. Equal input gives equal bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

import numpy as np

from dflash_runner.data import (
    DATA_FILE,
    INDEX_FILE,
    INDEX_FORMAT,
    PROMPTS_FORMAT,
    Skipped,
    count_anchors,
)
from dflash_runner.tensorfile import DTYPES, header_bytes

__all__ = ["DatasetWriter", "write_prompts", "write_tensors"]

_CHUNK_BYTES = 1 << 22


class DatasetWriter:
    """Collects samples of one dataset; `finish` makes its two files.

    Used as a context manager: leaving it removes the spool files. Called from
    one thread. After an error the directory holds no dataset.
    """

    def __init__(self, directory: Path | str, *, sources: Sequence[str], tokenizer_sha256: str) -> None:
        self.directory = Path(directory)
        self.sources = tuple(sources)
        self.tokenizer_sha256 = tokenizer_sha256
        self.samples = self.total_tokens = self.total_supervised = self.without_anchor = 0
        self._columns = {
            "tokens": array("i"),
            "supervised": array("i"),
            "anchors": array("i"),
            "source": array("i"),
        }
        self._spools = [self.directory / f".{name}.spool" for name in ("tokens", "loss_mask")]
        self._files = [path.open("wb") for path in self._spools]

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file, path in zip(self._files, self._spools, strict=True):
            file.close()
            path.unlink(missing_ok=True)

    def add(self, tokens: Sequence[int], loss_mask: Sequence[int], *, source: int) -> int:
        """Appends one sample and returns how many valid anchors it has.

        Args:
            tokens: at least one token id below 2**31.
            loss_mask: 1 where the token is supervised, else 0; as long as `tokens`.
            source: index into `sources`.

        Source: SpecForge since #731 (valid anchor).
        """
        ids, mask = np.asarray(tokens, dtype=np.int64), np.asarray(loss_mask, dtype=np.uint8)
        assert ids.ndim == 1 and ids.shape == mask.shape and ids.size, (
            "a sample has as many mask bits as tokens"
        )
        assert 0 <= ids.min() and ids.max() < 2**31, "token ids are 31-bit counts"
        assert mask.max() <= 1 and 0 <= source < len(self.sources)
        self._files[0].write(ids.astype("<i4").tobytes())
        self._files[1].write(mask.tobytes())
        supervised, anchors = int(mask.sum()), count_anchors(mask)
        for name, value in zip(self._columns, (ids.size, supervised, anchors, source), strict=True):
            self._columns[name].append(value)
        self.samples += 1
        self.total_tokens += ids.size
        self.total_supervised += supervised
        self.without_anchor += anchors == 0
        return anchors

    def finish(self, *, skipped: Iterable[Skipped] = ()) -> str:
        """Writes both files and returns the SHA-256 of data.safetensors, in hex.

        Args:
            skipped: documents that became no sample; recorded in the index.

        Source: proto/dflash_runner/job/v1/job.proto, Prepare.
        """
        for file in self._files:
            file.flush()
        shapes = {"tokens": ("I32", [self.total_tokens]), "loss_mask": ("U8", [self.total_tokens])}
        digest, nbytes = hashlib.sha256(), 0
        with (self.directory / DATA_FILE).open("wb") as out:
            for chunk in _chunks(header_bytes(shapes, {}), self._spools):
                digest.update(chunk)
                nbytes += out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
        lengths = np.frombuffer(self._columns["tokens"], dtype=np.int32).astype(np.int64)
        offset = np.cumsum(lengths) - lengths
        columns = {name: np.frombuffer(column, dtype=np.int32) for name, column in self._columns.items()}
        metadata = {
            "format": INDEX_FORMAT,
            "sources": json.dumps(self.sources),
            "data_sha256": digest.hexdigest(),
            "data_bytes": str(nbytes),
            "tokenizer_sha256": self.tokenizer_sha256,
            "skipped": json.dumps([asdict(s) for s in skipped]),
        }
        write_tensors(self.directory / INDEX_FILE, {"offset": offset, **columns}, metadata)
        return digest.hexdigest()


def write_prompts(path: Path | str, prompts: np.ndarray) -> None:
    """Writes prompts.safetensors: I32 of shape [P, T].

    Source: proto/dflash_runner/job/v1/job.proto, Regenerate.
    """
    assert prompts.ndim == 2 and prompts.size, "prompts have one length and are not empty"
    write_tensors(path, {"tokens": prompts.astype(np.int32)}, {"format": PROMPTS_FORMAT})


def write_tensors(path: Path | str, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Writes a safetensors file and waits until it is on disk.

    Source: the safetensors format; see tensorfile.py.
    """
    names = {np.dtype(t): name for name, t in DTYPES.items()}
    shapes = {name: (names[a.dtype], a.shape) for name, a in tensors.items()}
    with Path(path).open("wb") as out:
        out.write(header_bytes(shapes, metadata))
        for array_ in tensors.values():
            out.write(np.ascontiguousarray(array_).tobytes())
        out.flush()
        os.fsync(out.fileno())


def _chunks(head: bytes, paths: Sequence[Path]) -> Iterable[bytes]:
    """The head, then every file's bytes, a few megabytes at a time."""
    yield head
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk
