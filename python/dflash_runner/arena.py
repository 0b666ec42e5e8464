"""Rows in shared memory: an arena is one memfd, cut into equal slots that each hold a row.

A slot is a 64-byte header and a payload of tensors (proto/lane.md, Slots). The producer
writes version 0 before it touches the payload and the version after everything else, and the
reader compares the header before and after its copy and the checksum over what it copied: a
row that was half written, overwritten or damaged is noticed. Who may use which slot is
decided in Go (runner/lease); nothing here waits or locks.

torch is imported where it is used, so that a worker's control plane answers before it.

Shape letters: `S` tokens of the row, `L` captured layers, `D` the target's hidden size.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import math
import mmap
import os
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from dflash_runner.checksum import checksum
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.frames import ELEMENT_BYTES, SLOT_HEADER_BYTES, Handle, Tensor

if TYPE_CHECKING:
    import torch

MAGIC: Final = b"DFSLOT01"
_ALIGN: Final = 64  # where tensors start
_PAGE: Final = 4096  # what a slot's size is rounded up to
_HEADER: Final = struct.Struct("<8sQQQI")  # magic, version (word 1), row, payload bytes, crc; then zeros
_F_GET_SEALS: Final = 1034
_SEALS: Final = 0x2 | 0x4  # SHRINK, GROW
_POPULATE_READ: Final = 22  # madvise(2), Linux 5.14
_POPULATE_WRITE: Final = 23

Parts: TypeAlias = "torch.Tensor | Sequence[torch.Tensor]"


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """A slot's header; version 0 says that the slot is empty or being written."""

    version: int
    row: int
    payload_bytes: int
    crc: int


def layout(bucket_tokens: int, width: int, dtype: str) -> tuple[list[Tensor], int]:
    """Where a row's tensors lie in a slot, and the slot's size in bytes.

    Args:
        bucket_tokens: length S of the row.
        width: L*D, elements of hidden states a token.
        dtype: of the hidden states, "F32" or "BF16".

    Returns:
        `hidden`, `tokens`, `loss_mask`, `documents`, and the size, a multiple of the page.

    Source: proto/lane.md, Slots; `arena.Layout` in Go gives the same (proto/golden/layouts.json).
    """
    tensors = place(
        [
            ("hidden", dtype, [bucket_tokens, width]),
            ("tokens", "I32", [bucket_tokens]),
            ("loss_mask", "U8", [bucket_tokens]),
            ("documents", "I32", [bucket_tokens]),
        ]
    )
    return tensors, _round_up(_end(tensors), _PAGE)


def place(specs: Iterable[tuple[str, str, list[int]]]) -> list[Tensor]:
    """Tensors one after the other behind the header, each at a multiple of 64 bytes.

    Args:
        specs: name, safetensors dtype and shape of each.
    """
    tensors, end = [], SLOT_HEADER_BYTES
    for name, dtype, shape in specs:
        offset = _round_up(end, _ALIGN)
        nbytes = math.prod(shape) * ELEMENT_BYTES[dtype]
        tensors.append(Tensor(name, dtype, shape, offset, nbytes))
        end = offset + nbytes
    return tensors


class Arena:
    """An arena mapped into this process, for writing or for reading only.

    One writer or one reader uses a slot at a time; different slots may be used by different
    threads. Copies and checksums run without the GIL.
    """

    def __init__(self, fd: int, *, arena: int, slots: int, slot_bytes: int, write: bool) -> None:
        """Map `fd`, which is closed in every case, and fault its pages in.

        Args:
            fd: a memfd of `slots * slot_bytes` bytes that can neither shrink nor grow.
            arena: the arena's number, which handles name.
            slots: how many slots it has.
            slot_bytes: size of a slot, header included.
            write: whether rows are to be written; otherwise a store ends the process.

        Raises:
            WorkerError: INVALID when the descriptor is not as described, EXHAUSTED when its
                pages cannot be had.
        """
        self.arena, self.slots, self.slot_bytes, self.write = arena, slots, slot_bytes, write
        size = slots * slot_bytes
        try:
            _check_descriptor(fd, size, arena)
            protection = mmap.PROT_READ | (mmap.PROT_WRITE if write else 0)
            self._map = mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=protection)
        except OSError as error:
            raise WorkerError(Kind.INVALID, f"map arena {arena}: {error}") from error
        finally:
            os.close(fd)
        _populate(self._map, write=write, arena=arena)
        self._words = memoryview(self._map).cast("Q")
        self._bytes = memoryview(self._map)

    def write_row(self, slot: int, *, version: int, row: int, tensors: Mapping[str, Parts]) -> Handle:
        """Copy `tensors` into `slot` and give the handle that opens them.

        Args:
            slot: index of a slot that this worker was given to write.
            version: of this use of the slot, at least 1.
            row: the row's number.
            tensors: by name, in the order in which they are to lie; several tensors under one
                name are laid side by side along the last dimension (the captured layers of
                `hidden`). On any device; a device copy has to be complete when this returns.

        Returns:
            The handle, with the checksum of its tensors.

        Raises:
            WorkerError: INVALID for a slot or size that the arena does not have.
        """
        self._require(self.write, f"write row {row}: arena {self.arena} is mapped for reading")
        specs = [(name, *_spec(parts)) for name, parts in tensors.items()]
        placed = place(specs)
        start = self._start(slot, _end(placed))
        payload_bytes = _end(placed) - SLOT_HEADER_BYTES
        self._words[start // 8 + 1] = 0
        crc, end = 0, SLOT_HEADER_BYTES
        for tensor, parts in zip(placed, tensors.values(), strict=True):
            self._bytes[start + end : start + tensor.offset] = bytes(tensor.offset - end)
            _copy_parts(self._view(slot, tensor), parts)
            end = tensor.offset + tensor.nbytes
            crc = checksum(self._bytes[start + tensor.offset : start + end], crc)
        header = _HEADER.pack(MAGIC, 0, row, payload_bytes, crc).ljust(SLOT_HEADER_BYTES, b"\0")
        self._bytes[start : start + SLOT_HEADER_BYTES] = header
        self._words[start // 8 + 1] = version
        return Handle(self.arena, slot, version, crc, placed)

    def read_row(self, handle: Handle, *, row: int, out: Mapping[str, torch.Tensor]) -> None:
        """Copy the row that `handle` opens into `out`.

        Args:
            handle: as it came with the order.
            row: the number that the slot must hold.
            out: by name, contiguous tensors of the handle's shapes and dtypes; all names.

        Raises:
            WorkerError: STALE when the slot holds another version or row, before or after the
                copy; INTERNAL when the checksum differs; INVALID when the handle does not
                fit the arena or `out`. After an error `out` holds nothing of use.
        """
        self._require(
            handle.arena == self.arena, f"read row {row}: want arena {self.arena}, got {handle.arena}"
        )
        names = [tensor.name for tensor in handle.tensors]
        self._require(
            sorted(names) == sorted(out), f"read row {row}: want tensors {sorted(out)}, got {names}"
        )
        self._start(handle.slot, _end(handle.tensors))
        self._check_header(handle, row, when="before")
        crc = 0
        for tensor in handle.tensors:
            crc = self._copy_out(handle.slot, tensor, out[tensor.name], crc)
        self._check_header(handle, row, when="after")
        if crc != handle.crc:
            raise WorkerError(
                Kind.INTERNAL,
                f"read row {row}: arena {self.arena} slot {handle.slot}: "
                f"want crc {handle.crc:08x}, got {crc:08x}",
                hint="the row's bytes changed between two processes: suspect memory, or a stray writer",
            )

    def header(self, slot: int) -> Header | None:
        """The header of `slot`, or None where no row was ever written."""
        start = self._start(slot, SLOT_HEADER_BYTES)
        magic, version, row, payload_bytes, crc = _HEADER.unpack_from(self._bytes, start)
        if magic != MAGIC:
            return None
        return Header(version=version, row=row, payload_bytes=payload_bytes, crc=crc)

    def close(self) -> None:
        """Unmap; nothing may be reading or writing a slot."""
        self._words.release()
        self._bytes.release()
        self._map.close()

    def _check_header(self, handle: Handle, row: int, *, when: str) -> None:
        """Refuse the slot unless it holds the handle's version of the row."""
        header = self.header(handle.slot)
        where = f"read row {row}: arena {self.arena} slot {handle.slot}, {when} the copy"
        if header is None:
            raise WorkerError(Kind.STALE, f"{where}: no row was ever written")
        if (header.version, header.row) != (handle.version, row):
            raise WorkerError(
                Kind.STALE,
                f"{where}: want version {handle.version} of row {row}, "
                f"got version {header.version} of row {header.row}",
            )
        if header.payload_bytes != _end(handle.tensors) - SLOT_HEADER_BYTES:
            raise WorkerError(
                Kind.INTERNAL, f"{where}: the handle's tensors end elsewhere than the slot's {header}"
            )

    def _copy_out(self, slot: int, tensor: Tensor, out: torch.Tensor, crc: int) -> int:
        """Copy one tensor and carry `crc` over what was copied."""
        got = (_dtype_name(out), list(out.shape))
        self._require(
            got == (tensor.dtype, tensor.shape) and out.is_contiguous(),
            f"read {tensor.name}: want contiguous {got}, got {tensor.dtype} {tensor.shape}",
        )
        source = self._view(slot, tensor)
        out.copy_(source)
        kept = out if out.device.type == "cpu" else source
        return checksum(_raw(kept), crc)

    def _view(self, slot: int, tensor: Tensor) -> torch.Tensor:
        """The tensor in the slot, without a copy; it must not outlive the mapping."""
        import torch

        start = slot * self.slot_bytes + tensor.offset
        if tensor.nbytes == 0:
            return torch.empty(tensor.shape, dtype=_torch_dtype(tensor.dtype))
        # Made by address: torch.frombuffer warns of a buffer that is not writable, and a
        # mapping for reading is just that. A store to it ends the process.
        memory = (ctypes.c_ubyte * tensor.nbytes).from_address(_address(self._bytes) + start)
        return torch.frombuffer(memory, dtype=_torch_dtype(tensor.dtype)).view(tensor.shape)

    def _start(self, slot: int, nbytes: int) -> int:
        """Where the slot starts, if it exists and has room for `nbytes`."""
        self._require(slot < self.slots, f"arena {self.arena}: want a slot below {self.slots}, got {slot}")
        self._require(
            nbytes <= self.slot_bytes,
            f"arena {self.arena}: want at most {self.slot_bytes} bytes a slot, got {nbytes}",
        )
        return slot * self.slot_bytes

    def _require(self, holds: bool, message: str) -> None:
        """Raise INVALID unless `holds`."""
        if not holds:
            raise WorkerError(Kind.INVALID, message)


def _check_descriptor(fd: int, size: int, arena: int) -> None:
    """Refuse a descriptor of another size, or one that could shrink under a reader (SIGBUS)."""
    got = os.fstat(fd).st_size
    if got != size or size % _ALIGN:
        raise WorkerError(Kind.INVALID, f"map arena {arena}: want {size} bytes, a multiple of 64, got {got}")
    seals = fcntl.fcntl(fd, _F_GET_SEALS)
    if seals & _SEALS != _SEALS:
        raise WorkerError(Kind.INVALID, f"map arena {arena}: want it sealed against resizing, got {seals:#x}")
    if sys.byteorder != "little":
        raise WorkerError(Kind.INVALID, f"map arena {arena}: want a little-endian machine")


def _populate(mapping: mmap.mmap, *, write: bool, arena: int) -> None:
    """Fault all pages in now, once, so that no copy of a row pays for it.

    A kernel before 5.14 does not know the advice: pages are then faulted in by first use,
    which is slower and changes nothing else.

    Source: measured on two cores (first copy 1.1-1.6 s a row, 0.22 s once populated).
    """
    try:
        mapping.madvise(_POPULATE_WRITE if write else _POPULATE_READ)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise WorkerError(Kind.EXHAUSTED, f"fault in arena {arena}: {error}") from error


def _spec(parts: Parts) -> tuple[str, list[int]]:
    """The dtype and shape of what `parts` make side by side."""
    import torch

    if isinstance(parts, torch.Tensor):
        return _dtype_name(parts), list(parts.shape)
    heads = {(part.dtype, part.shape[:-1]) for part in parts}
    if len(heads) != 1:
        raise WorkerError(Kind.INVALID, f"write row: want parts of one dtype and height, got {heads}")
    return _dtype_name(parts[0]), [*parts[0].shape[:-1], sum(part.shape[-1] for part in parts)]


def _copy_parts(into: torch.Tensor, parts: Parts) -> None:
    """Copy `parts` side by side: the only copy of a row's bytes on the producer's side."""
    import torch

    if isinstance(parts, torch.Tensor):
        into.copy_(parts)
        return
    at = 0
    for part in parts:
        into.narrow(-1, at, part.shape[-1]).copy_(part)
        at += part.shape[-1]


def _dtype_name(tensor: torch.Tensor) -> str:
    """The safetensors name of the tensor's dtype."""
    for name in ELEMENT_BYTES:
        if _torch_dtype(name) == tensor.dtype:
            return name
    raise WorkerError(Kind.INVALID, f"want a dtype of {sorted(ELEMENT_BYTES)}, got {tensor.dtype}")


def _torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a safetensors name."""
    import torch

    return {
        "F32": torch.float32,
        "BF16": torch.bfloat16,
        "F16": torch.float16,
        "I64": torch.int64,
        "I32": torch.int32,
        "U8": torch.uint8,
        "BOOL": torch.bool,
    }[name]


def _raw(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, without a copy."""
    import torch

    return memoryview(tensor.detach().reshape(-1).view(torch.uint8).numpy())


def _address(view: memoryview) -> int:
    """Where `view` lies in this process, writable or not."""
    import numpy as np

    return np.frombuffer(view, dtype=np.uint8).ctypes.data


def _end(tensors: Sequence[Tensor]) -> int:
    """Where the last tensor ends, from the slot's start."""
    return tensors[-1].offset + tensors[-1].nbytes if tensors else SLOT_HEADER_BYTES


def _round_up(value: int, multiple: int) -> int:
    """The smallest multiple that is not below `value`."""
    return -(-value // multiple) * multiple
