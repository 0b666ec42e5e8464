"""What an image says of itself: the safetensors header with its metadata.

The header's size depends on the tensors alone, so an image has one size at every step.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dflash_runner.errors import Kind, WorkerError

FORMAT = "dflash-runner-image/1"
_KEYS = ("format", "step", "optimizer_step", "chain", "parameters")
_COUNT_DIGITS = 20  # of the largest u64: the header keeps its size while steps grow
_ALIGNMENT = 64  # where the first tensor starts


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """What an image says of itself."""

    step: int
    optimizer_step: int
    chain: bytes
    parameters: bytes


def header(tensors: Mapping[str, Tensor], head: Head) -> bytes:
    """The length and JSON header of the file; its size depends on the tensors alone."""
    entries: dict[str, Any] = {
        "__metadata__": {
            "format": FORMAT,
            "step": f"{head.step:0{_COUNT_DIGITS}d}",
            "optimizer_step": f"{head.optimizer_step:0{_COUNT_DIGITS}d}",
            "chain": head.chain.hex(),
            "parameters": head.parameters.hex(),
        }
    }
    begin = 0
    for name, tensor in tensors.items():
        if tensor.dtype != torch.float32:
            raise AssertionError(f"{name}: images hold float32, got {tensor.dtype}")
        end = begin + tensor.nbytes
        entries[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    raw = json.dumps(entries, separators=(",", ":")).encode()
    raw += b" " * (-(8 + len(raw)) % _ALIGNMENT)
    return struct.pack("<Q", len(raw)) + raw


def blank() -> Head:
    """A head of the right size."""
    return Head(step=0, optimizer_step=0, chain=bytes(32), parameters=bytes(32))


def parse(mapping: mmap.mmap) -> tuple[dict[str, Any], Mapping[str, Any], int]:
    """The header's entries, its metadata, and where the tensors start."""
    (length,) = struct.unpack_from("<Q", mapping)
    if length > len(mapping) - 8:
        raise invalid(f"header: want at most {len(mapping) - 8} bytes, got {length}")
    try:
        entries = json.loads(mapping[8 : 8 + length])
    except ValueError as err:
        raise invalid(f"header: {err}") from err
    metadata = entries.pop("__metadata__", None) if isinstance(entries, dict) else None
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise invalid(f"__metadata__.format: want {FORMAT}, got {metadata}")
    return entries, metadata, 8 + length


def head_of(metadata: Mapping[str, Any]) -> Head:
    """The head that the metadata says."""
    if tuple(metadata) != _KEYS:
        raise invalid(f"__metadata__: want {list(_KEYS)}, got {list(metadata)}")
    try:
        head = Head(
            step=int(metadata["step"]),
            optimizer_step=int(metadata["optimizer_step"]),
            chain=bytes.fromhex(metadata["chain"]),
            parameters=bytes.fromhex(metadata["parameters"]),
        )
    except (TypeError, ValueError) as err:
        raise invalid(f"__metadata__: {err}") from err
    if len(head.chain) != 32 or len(head.parameters) != 32:
        raise invalid("__metadata__: want digests of 32 bytes")
    return head


def invalid(message: str) -> WorkerError:
    """An image that is refused."""
    return WorkerError(Kind.INVALID, f"read image: {message}")
