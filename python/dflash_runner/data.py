"""What `prepare` writes and workers read: tokens, loss masks, index, prompts.

A dataset is a directory with two safetensors files. `data.safetensors` has
every sample's tokens and loss mask end to end; `index.safetensors` says where
each sample lies and what it holds. The supervisor packs rows from the index
alone; workers map the data and copy pieces out of it.

Letters: n samples, P prompts, T tokens of a prompt.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dflash_runner.tensorfile import FileError, TensorFile, open_tensors

__all__ = [
    "DATA_FILE",
    "INDEX_FILE",
    "INDEX_FORMAT",
    "PROMPTS_FORMAT",
    "Dataset",
    "Skipped",
    "count_anchors",
    "file_digest",
    "read_prompts",
]

DATA_FILE, INDEX_FILE = "data.safetensors", "index.safetensors"
INDEX_FORMAT, PROMPTS_FORMAT = "dflash-runner-index/1", "dflash-runner-prompts/1"
_DIGEST_CHUNK_BYTES = 1 << 22


@dataclass(frozen=True, kw_only=True, slots=True)
class Skipped:
    """A document that became no sample: where it stood and why."""

    source: str
    line: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """An open dataset: the index in memory, tokens and loss masks mapped.

    `digest` is the SHA-256 of data.safetensors as the index records it;
    `verify` proves it against the bytes.
    """

    directory: Path
    digest: str
    tokenizer_digest: str
    sources: tuple[str, ...]
    skipped: tuple[Skipped, ...]
    offset: np.ndarray
    tokens: np.ndarray
    supervised: np.ndarray
    anchors: np.ndarray
    source: np.ndarray
    all_tokens: np.ndarray
    all_loss_mask: np.ndarray

    @classmethod
    def open(cls, directory: Path | str) -> Dataset:
        """The dataset in `directory`, its two files checked against each other.

        Raises:
            FileError: a file is missing, altered in length, or contradicts the other.

        Source: proto/dflash_runner/job/v1/job.proto, Prepare.
        """
        directory = Path(directory)
        if not directory.is_dir():
            raise FileError(f"open {directory}: no such directory", hint="prepare the data first")
        index, data = open_tensors(directory / INDEX_FILE), open_tensors(directory / DATA_FILE)
        facts = _index_facts(index)
        if facts["data_bytes"] != data.nbytes:
            raise FileError(
                f"read {data.path}: want {facts['data_bytes']} bytes as {INDEX_FILE} says, got {data.nbytes}",
                hint="the two files are not of one `prepare`; prepare the data again",
            )
        total = len(data.take("tokens", "I32", [None]))
        columns = _columns(index, total, len(facts["sources"]))
        return cls(
            directory=directory,
            digest=facts["data_sha256"],
            tokenizer_digest=facts["tokenizer_sha256"],
            sources=facts["sources"],
            skipped=facts["skipped"],
            all_tokens=data.take("tokens", "I32", [total]),
            all_loss_mask=data.take("loss_mask", "U8", [total]),
            **columns,
        )

    def __len__(self) -> int:
        """The number of samples, those without a valid anchor included."""
        return len(self.offset)

    def sample(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens (I32) and loss mask (U8) of one sample, as read-only views of the mapping.

        Copy before handing them to torch: a tensor over read-only memory is refused there.

        Raises:
            IndexError: no such sample.

        Source: proto/dflash_runner/job/v1/job.proto, Prepare.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index}: want 0 to {len(self) - 1}")
        begin = int(self.offset[index])
        end = begin + int(self.tokens[index])
        return self.all_tokens[begin:end], self.all_loss_mask[begin:end]

    def verify(self) -> None:
        """Proves digest, loss masks, and every count of the index. Reads all the data once.

        Raises:
            FileError: something differs; with the sample's number.

        Source: proto/dflash_runner/job/v1/job.proto, Prepare.
        """
        path = self.directory / DATA_FILE
        got = file_digest(path)
        if got != self.digest:
            raise FileError(
                f"verify {path}: want sha256 {self.digest}, got {got}", hint="prepare the data again"
            )
        for i in range(len(self)):
            mask = self.sample(i)[1]
            if mask.size and int(mask.max()) > 1:
                raise FileError(f"verify {path}: loss_mask of sample {i}: want 0 or 1, got {int(mask.max())}")
            for name, value in (("supervised", int(mask.sum())), ("anchors", count_anchors(mask))):
                if value != int(getattr(self, name)[i]):
                    where = f"{self.directory / INDEX_FILE}: {name}[{i}]"
                    raise FileError(f"verify {where}: want {value}, got {int(getattr(self, name)[i])}")


def count_anchors(loss_mask: np.ndarray) -> int:
    """How many valid anchors a sample has: t with t and t+1 both supervised.

    Source: SpecForge since #731 (valid anchor).
    """
    on = loss_mask.astype(bool)
    return int(np.count_nonzero(on[:-1] & on[1:]))


def file_digest(path: Path | str) -> str:
    """SHA-256 of a file, in hex.

    Source: FIPS 180-4, by hashlib.
    """
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while chunk := file.read(_DIGEST_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def read_prompts(path: Path | str) -> np.ndarray:
    """The prompts of prompts.safetensors: I32 of shape [P, T], read-only.

    Raises:
        FileError: not such a file, or no prompt in it.

    Source: proto/dflash_runner/job/v1/job.proto, Regenerate.
    """
    file = open_tensors(path)
    if (got := file.metadata.get("format")) != PROMPTS_FORMAT:
        raise FileError(f"read {path}: __metadata__.format: want {PROMPTS_FORMAT!r}, got {got!r}")
    prompts = file.take("tokens", "I32", [None, None])
    if not prompts.size:
        raise FileError(
            f"read {path}: tokens: want at least one prompt of one token, got {list(prompts.shape)}"
        )
    return prompts


def _index_facts(index: TensorFile) -> dict[str, Any]:
    """What the index's metadata says, typed."""
    meta, path = index.metadata, index.path
    want = ("format", "sources", "data_sha256", "data_bytes", "tokenizer_sha256", "skipped")
    for key in want:
        if key not in meta:
            raise FileError(f"read {path}: __metadata__.{key}: missing, got {sorted(meta)}")
    if meta["format"] != INDEX_FORMAT:
        raise FileError(f"read {path}: __metadata__.format: want {INDEX_FORMAT!r}, got {meta['format']!r}")
    sources = _json_list(path, meta, "sources")
    if any(not isinstance(s, str) for s in sources):
        raise FileError(f"read {path}: __metadata__.sources: want a list of names")
    if not meta["data_bytes"].isdecimal():
        raise FileError(f"read {path}: __metadata__.data_bytes: want a count, got {meta['data_bytes']!r}")
    for key in ("data_sha256", "tokenizer_sha256"):
        if len(meta[key]) != 64 or set(meta[key]) - set("0123456789abcdef"):
            raise FileError(f"read {path}: __metadata__.{key}: want 64 hex digits, got {meta[key]!r}")
    try:
        skipped = tuple(Skipped(**entry) for entry in _json_list(path, meta, "skipped"))
    except TypeError as err:
        raise FileError(f"read {path}: __metadata__.skipped: {err}") from err
    return {
        "sources": tuple(sources),
        "skipped": skipped,
        "data_sha256": meta["data_sha256"],
        "tokenizer_sha256": meta["tokenizer_sha256"],
        "data_bytes": int(meta["data_bytes"]),
    }


def _json_list(path: Path, meta: Mapping[str, str], key: str) -> list[Any]:
    """One metadata value that holds a JSON list."""
    try:
        value = json.loads(meta[key])
    except ValueError as err:
        raise FileError(f"read {path}: __metadata__.{key}: {err}") from err
    if not isinstance(value, list):
        raise FileError(f"read {path}: __metadata__.{key}: want a list, got {type(value).__name__}")
    return value


def _columns(index: TensorFile, total: int, sources: int) -> dict[str, np.ndarray]:
    """The index's columns, checked: samples end to end, counts possible."""
    offset = index.take("offset", "I64", [None])
    n = len(offset)
    columns = {name: index.take(name, "I32", [n]) for name in ("tokens", "supervised", "anchors", "source")}
    ends = offset + columns["tokens"]
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])[:n]
    bad = {
        "tokens": columns["tokens"] < 1,
        "offset": offset != starts,
        "supervised": (columns["supervised"] < 0) | (columns["supervised"] > columns["tokens"]),
        "anchors": (columns["anchors"] < 0) | (columns["anchors"] > np.maximum(columns["supervised"] - 1, 0)),
        "source": (columns["source"] < 0) | (columns["source"] >= sources),
    }
    for name, where in bad.items():
        if where.any():
            i = int(where.argmax())
            value = int(offset[i] if name == "offset" else columns[name][i])
            raise FileError(
                f"read {index.path}: {name}[{i}]: {value} does not fit the sample before or the data"
            )
    if (int(ends[-1]) if n else 0) != total:
        raise FileError(
            f"read {index.path}: want samples over {total} tokens, got {int(ends[-1]) if n else 0}"
        )
    return {"offset": offset, **columns}
