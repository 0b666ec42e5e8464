"""A drafter's whole state in one file descriptor, laid out as a safetensors file.

The supervisor makes the memfd, of exactly the size that `image_bytes` says, and keeps it: the
state outlives every worker, and a checkpoint is the same bytes on disk. Each parameter appears
three times, under `masters.`, `exp_avg.` and `exp_avg_sq.`, always float32.

What an image costs is its digests: SHA-256 over the masters and over the whole file, four times the masters'
bytes (16.8 GB for 1.05 B parameters, at 1 to 2 GB/s of one core). They are made beside the training, of a
copy on the host (`snapshot`).
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dflash_runner.image_header import Head, blank, head_of, header, invalid, parse
from dflash_runner.staging import Pieces

_PREFIXES = ("masters.", "exp_avg.", "exp_avg_sq.")
_DTYPES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class Bytes(Protocol):
    """What gives tensors' bytes on the host."""

    def of(self, tensor: Tensor) -> Iterable[Tensor]:
        """Of one tensor, uint8 in order; a part is good until the next one is asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """What an image holds. The tensors are the worker's own: a load writes into them.

    The three maps have the same names and shapes; all tensors are contiguous float32.
    """

    masters: Mapping[str, Tensor]
    exp_avg: Mapping[str, Tensor]
    exp_avg_sq: Mapping[str, Tensor]

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by its name in the file, in the file's order."""
        parts = zip(_PREFIXES, (self.masters, self.exp_avg, self.exp_avg_sq), strict=True)
        return {prefix + name: part[name] for prefix, part in parts for name in sorted(part)}


def tensors_digest(tensors: Mapping[str, Tensor], *, pieces: Bytes | None = None) -> bytes:
    """SHA-256 over the tensors' names, dtypes, shapes and bytes, in the order of their names.

    Each part is preceded by its length, so no two different sets read alike.

    Args:
        tensors: on any device; read, never changed.
        pieces: their bytes, for whoever has them; otherwise read here, through pinned memory from a device.

    Returns:
        32 bytes.

    Source: README, Invariants, I10 (a parameter digest at every image).
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        label = json.dumps([name, _DTYPES[tensor.dtype], list(tensor.shape)]).encode()
        digest.update(struct.pack("<QQ", len(label), tensor.nbytes) + label)
        if pieces is None and not tensor.is_cpu:
            pieces = Pieces(tensor.device)
        for raw in _bytes_of(tensor, pieces):
            digest.update(raw.numpy())
    return digest.digest()


def _bytes_of(tensor: Tensor, pieces: Bytes | None) -> Iterable[Tensor]:
    """The bytes of a tensor, piece by piece; without pieces the tensor is on the host, and whole."""
    if pieces is not None:
        return pieces.of(tensor)
    return (tensor.detach().contiguous().reshape(-1).view(torch.uint8),)


def image_bytes(state: State) -> int:
    """The size of the file that holds `state`, the same at every step.

    Args:
        state: of the worker.

    Returns:
        Bytes, header included.
    """
    tensors = state.tensors()
    return len(header(tensors, blank())) + sum(t.nbytes for t in tensors.values())


def check_size(fd: int, *, nbytes: int, state: State) -> None:
    """Refuse a descriptor or an order that is not of the image's size.

    Raises:
        WorkerError: invalid.
    """
    _check_size(fd, nbytes, image_bytes(state))


def write(fd: int, *, nbytes: int, state: State, head: Head, pieces: Bytes | None = None) -> bytes:
    """The SHA-256 of the image written into `fd`.

    Runs on a thread beside the main one, which goes on to change the state where `pieces` are a copy of it.

    Args:
        fd: a memfd of exactly `nbytes`, writable; not closed here.
        nbytes: as ordered.
        state: what is written.
        head: step, chain and the digest of the masters.
        pieces: the state's bytes; none where it is on the host and stands still.

    Returns:
        32 bytes, over the whole file.

    Raises:
        WorkerError: invalid, where the size is not that of the image.

    Source: proto/lane.md `image`.
    """
    tensors = state.tensors()
    first = header(tensors, head)
    want = len(first) + sum(t.nbytes for t in tensors.values())
    _check_size(fd, nbytes, want)
    digest = hashlib.sha256(first)
    with mmap.mmap(fd, nbytes) as mapping:
        mapping[: len(first)] = first
        at = len(first)
        for tensor in tensors.values():
            for raw in _bytes_of(tensor, pieces):
                # The view must be gone before the mapping is closed, hence no name that outlives the loop.
                torch.frombuffer(mapping, dtype=torch.uint8, count=len(raw), offset=at).copy_(raw)
                digest.update(raw.numpy())
                at += len(raw)
    return digest.digest()


def read(fd: int, *, nbytes: int, state: State, step: int) -> Head:
    """What the image in `fd` says of itself, its tensors copied into `state`.

    Everything is checked before the first tensor is changed.

    Args:
        fd: an image; only read, not closed here.
        nbytes: as ordered.
        state: of the same shapes as the image's; overwritten.
        step: that it must be of.

    Returns:
        The image's head.

    Raises:
        WorkerError: invalid, where it is not an image of this drafter, or not whole.

    Source: proto/lane.md `load`.
    """
    tensors = state.tensors()
    want = image_bytes(state)
    _check_size(fd, nbytes, want)
    with mmap.mmap(fd, nbytes, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as mapping:
        size, head = _parse(mapping, tensors)
        if head.step != step:
            raise invalid(f"step: want {step}, got {head.step}")
        starts = dict(zip(tensors, _starts(tensors, size), strict=True))
        masters = {
            name: _view(mapping, tensor, starts[_PREFIXES[0] + name])
            for name, tensor in state.masters.items()
        }
        got = tensors_digest(masters)
        del masters
        if got != head.parameters:
            raise invalid(f"parameters: want digest {head.parameters.hex()}, got {got.hex()}")
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.copy_(_view(mapping, tensor, starts[name]))
    return head


def read_masters(fd: int, *, nbytes: int) -> tuple[Head, dict[str, Tensor]]:
    """The head and a copy of the parameters of any image, for a worker that only uses them.

    Args:
        fd: an image; only read, not closed here.
        nbytes: as ordered.

    Returns:
        The head, and float32 tensors on the CPU by the drafter's names.

    Raises:
        WorkerError: invalid, where it is not a whole image.

    Source: proto/lane.md `evaluate`.
    """
    _check_size(fd, nbytes, nbytes)
    with mmap.mmap(fd, nbytes, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as mapping:
        entries, metadata, size = parse(mapping)
        head = head_of(metadata)
        masters: dict[str, Tensor] = {}
        for name, entry in entries.items():
            if not name.startswith(_PREFIXES[0]):
                continue
            begin, end = entry["data_offsets"]
            if entry["dtype"] != "F32" or not 0 <= begin <= end <= nbytes - size or (end - begin) % 4:
                raise invalid(f"{name}: want F32 within {nbytes - size} bytes, got {entry}")
            flat = torch.frombuffer(
                mapping, dtype=torch.float32, count=(end - begin) // 4, offset=size + begin
            )
            masters[name.removeprefix(_PREFIXES[0])] = flat.reshape(entry["shape"]).clone()
            del flat
        got = tensors_digest(masters)
        if got != head.parameters:
            raise invalid(f"parameters: want digest {head.parameters.hex()}, got {got.hex()}")
        return head, masters


def _parse(mapping: mmap.mmap, tensors: Mapping[str, Tensor]) -> tuple[int, Head]:
    """The header's size and the head, the header being exactly what `tensors` need."""
    _, metadata, size = parse(mapping)
    head = head_of(metadata)
    want = header(tensors, head)
    if size != len(want) or mapping[:size] != want:
        raise invalid("header: want the names, shapes and offsets of this drafter, got others")
    return size, head


def _starts(tensors: Mapping[str, Tensor], size: int) -> Iterable[int]:
    """Where each tensor's bytes start, in the file's order."""
    at = size
    for tensor in tensors.values():
        yield at
        at += tensor.nbytes


def _view(mapping: mmap.mmap, tensor: Tensor, at: int) -> Tensor:
    """The file's bytes of one tensor, in its shape; to be dropped before the mapping is closed."""
    return torch.frombuffer(mapping, dtype=torch.float32, count=tensor.numel(), offset=at).reshape(
        tensor.shape
    )


def _check_size(fd: int, nbytes: int, want: int) -> None:
    """The descriptor, the order and the drafter agree on the size."""
    got = os.fstat(fd).st_size
    if nbytes != want or got != want or want < 8:
        raise invalid(f"size: want {want} bytes, got {nbytes} ordered and {got} in the file")
