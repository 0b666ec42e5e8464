"""Memory-mapped reading and exact writing of safetensors files.

The public safetensors loader copies what it returns; training data is read in
place. Both ends are strict: a header that the format forbids is refused, with
the file and the field.

Source: the safetensors format: u64 little-endian header length, a JSON header
`{name: {dtype, shape, data_offsets}, "__metadata__": {str: str}}`, then the
tensors' bytes without holes, offsets counted from the end of the header.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

__all__ = ["DTYPES", "MAX_HEADER_BYTES", "FileError", "TensorFile", "header_bytes", "open_tensors"]

MAX_HEADER_BYTES = 100_000_000
DTYPES: Mapping[str, str] = MappingProxyType({"I64": "<i8", "I32": "<i4", "U8": "|u1", "F32": "<f4"})


class FileError(ValueError):
    """A file that is not what it should be: message with file and field, and a hint."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorFile:
    """An open safetensors file: read-only views over its mapping.

    The mapping lives as long as any view of it.
    """

    path: Path
    nbytes: int
    tensors: Mapping[str, np.ndarray]
    metadata: Mapping[str, str]

    def take(self, name: str, dtype: str, shape: Sequence[int | None]) -> np.ndarray:
        """The tensor `name`, checked against dtype and shape (None: any length).

        Raises:
            FileError: it is missing, or of another dtype or shape.
        """
        if name not in self.tensors:
            raise FileError(f"read {self.path}: want tensor {name!r}, got {sorted(self.tensors)}")
        array = self.tensors[name]
        got = [n for n, t in DTYPES.items() if array.dtype == np.dtype(t)]
        if dtype not in got:
            raise FileError(f"read {self.path}: {name}: want dtype {dtype}, got {got}")
        if len(array.shape) != len(shape) or any(
            w is not None and w != g for w, g in zip(shape, array.shape, strict=True)
        ):
            want = ["any" if w is None else w for w in shape]
            raise FileError(f"read {self.path}: {name}: want shape {want}, got {list(array.shape)}")
        return array


def open_tensors(path: Path | str) -> TensorFile:
    """An open file with a view of every tensor in it.

    Args:
        path: a safetensors file of the dtypes in `DTYPES`.

    Raises:
        FileError: no such file, or not a whole, canonical safetensors file.

    Source: the format's rules in the module's docstring.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            if size < 8:
                raise FileError(f"read {path}: want a safetensors file, got {size} bytes")
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as err:
        raise FileError(f"open {path}: {err.strerror}") from err
    header, start = _header(path, mapping)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or any(not isinstance(v, str) for v in metadata.values()):
        raise FileError(f"read {path}: __metadata__: want a map of strings")
    tensors: dict[str, np.ndarray] = {}
    end = 0
    for name, entry in sorted(header.items(), key=lambda item: _offsets(path, item)[0]):
        begin, stop = _offsets(path, (name, entry))
        if begin != end:
            raise FileError(f"read {path}: {name}: want data_offsets from {end}, got {begin}")
        tensors[name] = _view(path, mapping, name, entry, start + begin, stop - begin)
        end = stop
    if start + end != size:
        raise FileError(
            f"read {path}: want {start + end} bytes, got {size}", hint="the file was cut or altered"
        )
    return TensorFile(path=path, nbytes=size, tensors=tensors, metadata=metadata)


def header_bytes(tensors: Mapping[str, tuple[str, Sequence[int]]], metadata: Mapping[str, str]) -> bytes:
    """The length and header of a file that holds `tensors` in this order.

    Args:
        tensors: name to (dtype, shape).
        metadata: written as `__metadata__`, in this order.

    Source: the format's rules; padded with blanks to 8 bytes, as the public writer does.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, (dtype, shape) in tensors.items():
        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(DTYPES[dtype]).itemsize
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + nbytes]}
        offset += nbytes
    raw = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw)) + raw


def _header(path: Path, mapping: mmap.mmap) -> tuple[dict[str, Any], int]:
    """The parsed header and where the tensors' bytes start."""
    (length,) = struct.unpack_from("<Q", mapping)
    if length > min(MAX_HEADER_BYTES, len(mapping) - 8):
        raise FileError(f"read {path}: header: want at most {len(mapping) - 8} bytes, got {length}")
    try:
        header = json.loads(mapping[8 : 8 + length])
    except ValueError as err:
        raise FileError(f"read {path}: header: {err}", hint="this is not a safetensors file") from err
    if not isinstance(header, dict):
        raise FileError(f"read {path}: header: want a map, got {type(header).__name__}")
    return header, 8 + length


def _offsets(path: Path, item: tuple[str, Any]) -> tuple[int, int]:
    """A tensor's data_offsets, checked to be two rising counts."""
    name, entry = item
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    counts = isinstance(offsets, list) and all(type(n) is int and n >= 0 for n in offsets)
    if not counts or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise FileError(f"read {path}: {name}.data_offsets: want [begin, end], got {offsets!r}")
    return offsets[0], offsets[1]


def _view(path: Path, mapping: mmap.mmap, name: str, entry: Any, at: int, nbytes: int) -> np.ndarray:
    """A read-only view of one tensor's bytes."""
    dtype, shape = entry.get("dtype"), entry.get("shape")
    if dtype not in DTYPES:
        raise FileError(f"read {path}: {name}.dtype: want one of {list(DTYPES)}, got {dtype!r}")
    if not isinstance(shape, list) or any(type(n) is not int or n < 0 for n in shape):
        raise FileError(f"read {path}: {name}.shape: want counts, got {shape!r}")
    kind = np.dtype(DTYPES[dtype])
    count = 1
    for n in shape:
        count *= n
    if count * kind.itemsize != nbytes or at + nbytes > len(mapping):
        raise FileError(f"read {path}: {name}: want {count * kind.itemsize} bytes in the file, got {nbytes}")
    if not count:
        return np.empty(shape, kind)
    return np.frombuffer(mapping, dtype=kind, count=count, offset=at).reshape(shape)
