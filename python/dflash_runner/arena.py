"""Rows in shared host memory: an arena of kind `memfd` is one sealed memfd, cut into equal slots.

See `slots` for what a slot is and what is promised of it. torch is imported where it is used, so
that a worker's control plane answers before it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from dflash_runner.checksum import checksum
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.frames import SLOT_HEADER_BYTES, Handle, Tensor
from dflash_runner.parts import Parts, copy_parts, torch_dtype
from dflash_runner.slots import (
    ALIGN,
    MAGIC,
    Header,
    RowArena,
    end_of,
    layout,
    place,
)

if TYPE_CHECKING:
    import torch

__all__ = ["MAGIC", "Arena", "Header", "layout", "place"]

_F_GET_SEALS: Final = 1034
_SEALS: Final = 0x2 | 0x4  # SHRINK, GROW
_POPULATE_READ: Final = 22  # madvise(2), Linux 5.14
_POPULATE_WRITE: Final = 23


class Arena(RowArena):
    """A memfd mapped into this process; a store through a mapping for reading ends the process."""

    def __init__(self, fd: int, *, arena: int, slots: int, slot_bytes: int, write: bool) -> None:
        """Map `fd`, which is closed in every case, and fault its pages in.

        Args:
            fd: a memfd of `slots * slot_bytes` bytes that can neither shrink nor grow.
            arena: the arena's number, which handles name.
            slots: how many slots it has.
            slot_bytes: size of a slot, header included.
            write: whether rows are to be written.

        Raises:
            WorkerError: INVALID when the descriptor is not as described, EXHAUSTED when its
                pages cannot be had.
        """
        super().__init__(arena=arena, slots=slots, slot_bytes=slot_bytes, write=write)
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
        """Copy `tensors` into `slot` and give the handle that opens them; see `RowArena`."""
        placed = self.placed(slot, row=row, tensors=tensors)
        start = self.start(slot, end_of(placed))
        self._words[start // 8 + 1] = 0
        crc, end = 0, SLOT_HEADER_BYTES
        for tensor, parts in zip(placed, tensors.values(), strict=True):
            self._bytes[start + end : start + tensor.offset] = bytes(tensor.offset - end)
            copy_parts(self._view(slot, tensor), parts)
            end = tensor.offset + tensor.nbytes
            crc = checksum(self._bytes[start + tensor.offset : start + end], crc)
        header = Header(version=0, row=row, payload_bytes=end - SLOT_HEADER_BYTES, crc=crc)
        self._bytes[start : start + SLOT_HEADER_BYTES] = header.pack()
        self._words[start // 8 + 1] = version
        return Handle(self.arena, slot, version, crc, placed)

    def read_row(self, handle: Handle, *, row: int, out: Mapping[str, torch.Tensor]) -> None:
        """Copy the row that `handle` opens into `out`; see `RowArena`."""
        self.check_read(handle, row=row, out=out)
        self.judge_header(self.header(handle.slot), handle, row, when="before")
        crc = 0
        for tensor in handle.tensors:
            crc = self._copy_out(handle.slot, tensor, out[tensor.name], crc)
        self.judge_header(self.header(handle.slot), handle, row, when="after")
        self.judge_crc(crc, handle, row)

    def header(self, slot: int) -> Header | None:
        """The header of `slot`, or None where no row was ever written."""
        start = self.start(slot, SLOT_HEADER_BYTES)
        return Header.unpack(self._bytes[start : start + SLOT_HEADER_BYTES])

    def close(self) -> None:
        """Unmap; nothing may be reading or writing a slot."""
        self._words.release()
        self._bytes.release()
        self._map.close()

    def _copy_out(self, slot: int, tensor: Tensor, out: torch.Tensor, crc: int) -> int:
        """Copy one tensor and carry `crc` over what was copied."""
        source = self._view(slot, tensor)
        out.copy_(source)
        kept = out if out.device.type == "cpu" else source
        return checksum(_raw(kept), crc)

    def _view(self, slot: int, tensor: Tensor) -> torch.Tensor:
        """The tensor in the slot, without a copy; it must not outlive the mapping."""
        import torch

        start = slot * self.slot_bytes + tensor.offset
        if tensor.nbytes == 0:
            return torch.empty(tensor.shape, dtype=torch_dtype(tensor.dtype))
        # Made by address: torch.frombuffer warns of a buffer that is not writable, and a
        # mapping for reading is just that. A store to it ends the process.
        memory = (ctypes.c_ubyte * tensor.nbytes).from_address(_address(self._bytes) + start)
        return torch.frombuffer(memory, dtype=torch_dtype(tensor.dtype)).view(tensor.shape)


def _check_descriptor(fd: int, size: int, arena: int) -> None:
    """Refuse a descriptor of another size, or one that could shrink under a reader (SIGBUS)."""
    got = os.fstat(fd).st_size
    if got != size or size % ALIGN:
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


def _raw(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, without a copy."""
    import torch

    return memoryview(tensor.detach().reshape(-1).view(torch.uint8).numpy())


def _address(view: memoryview) -> int:
    """Where `view` lies in this process, writable or not."""
    import numpy as np

    return np.frombuffer(view, dtype=np.uint8).ctypes.data
