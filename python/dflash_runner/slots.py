"""What every arena is: equal slots that each hold a row, in whatever memory; see `arena`, `cuda_arena`.

A slot is a 64-byte header and a payload of tensors (proto/lane.md, Slots). The producer
writes version 0 before it touches the payload and the version after everything else, and the
reader compares the header before and after its copy and the checksum over what it copied: a
row that was half written, overwritten or damaged is noticed. Who may use which slot is
decided in Go (runner/lease); nothing here waits or locks.

torch is imported where it is used, so that a worker's control plane answers before it.

Shape letters: `S` tokens of the row, `L` captured layers, `D` the target's hidden size.
"""

from __future__ import annotations

import abc
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dflash_runner.errors import Kind, WorkerError
from dflash_runner.frames import ELEMENT_BYTES, SLOT_HEADER_BYTES, Handle, Tensor
from dflash_runner.parts import Parts, dtype_name, spec_of

if TYPE_CHECKING:
    import torch

MAGIC: Final = b"DFSLOT01"
ALIGN: Final = 64  # where tensors start
_PAGE: Final = 4096  # what a slot's size is rounded up to
_HEADER: Final = struct.Struct("<8sQQQI")  # magic, version (word 1), row, payload bytes, crc; then zeros
VERSION_AT: Final = 8  # bytes from the slot's start
CRC_AT: Final = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """A slot's header; version 0 says that the slot is empty or being written."""

    version: int
    row: int
    payload_bytes: int
    crc: int

    def pack(self) -> bytes:
        """Its 64 bytes."""
        packed = _HEADER.pack(MAGIC, self.version, self.row, self.payload_bytes, self.crc)
        return packed.ljust(SLOT_HEADER_BYTES, b"\0")

    @classmethod
    def unpack(cls, raw: bytes | bytearray | memoryview) -> Header | None:
        """The header in a slot's first bytes, or None where no row was ever written."""
        magic, version, row, payload_bytes, crc = _HEADER.unpack_from(raw)
        if magic != MAGIC:
            return None
        return cls(version=version, row=row, payload_bytes=payload_bytes, crc=crc)


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
    return tensors, round_up(end_of(tensors), _PAGE)


def place(specs: Iterable[tuple[str, str, list[int]]]) -> list[Tensor]:
    """Tensors one after the other behind the header, each at a multiple of 64 bytes.

    Args:
        specs: name, safetensors dtype and shape of each.
    """
    tensors, end = [], SLOT_HEADER_BYTES
    for name, dtype, shape in specs:
        offset = round_up(end, ALIGN)
        nbytes = math.prod(shape) * ELEMENT_BYTES[dtype]
        tensors.append(Tensor(name, dtype, shape, offset, nbytes))
        end = offset + nbytes
    return tensors


class RowArena(abc.ABC):
    """An arena mapped into this process, for writing or for reading only.

    One writer or one reader uses a slot at a time; different slots may be used by different
    threads. Copies and checksums run without the GIL.
    """

    def __init__(self, *, arena: int, slots: int, slot_bytes: int, write: bool) -> None:
        """Keep the arena's shape.

        Args:
            arena: the arena's number, which handles name.
            slots: how many slots it has.
            slot_bytes: size of a slot, header included.
            write: whether rows are to be written.
        """
        self.arena, self.slots, self.slot_bytes, self.write = arena, slots, slot_bytes, write

    @abc.abstractmethod
    def write_row(self, slot: int, *, version: int, row: int, tensors: Mapping[str, Parts]) -> Handle:
        """Copy `tensors` into `slot` and give the handle that opens them; complete once it returns.

        Args:
            slot: index of a slot that this worker was given to write.
            version: of this use of the slot, at least 1.
            row: the row's number.
            tensors: by name, in the order in which they are to lie; several tensors under one
                name are laid side by side along the last dimension (the captured layers of
                `hidden`). On any device.

        Returns:
            The handle, with the checksum of its tensors.

        Raises:
            WorkerError: INVALID for a slot or size that the arena does not have.
        """

    @abc.abstractmethod
    def read_row(self, handle: Handle, *, row: int, out: Mapping[str, torch.Tensor]) -> None:
        """Copy the row that `handle` opens into `out`; complete once it returns.

        Args:
            handle: as it came with the order.
            row: the number that the slot must hold.
            out: by name, contiguous tensors of the handle's shapes and dtypes; all names.

        Raises:
            WorkerError: STALE when the slot holds another version or row, before or after the
                copy; INTERNAL when the checksum differs; INVALID when the handle does not
                fit the arena or `out`. After an error `out` holds nothing of use.
        """

    @abc.abstractmethod
    def header(self, slot: int) -> Header | None:
        """The header of `slot`, or None where no row was ever written."""

    @abc.abstractmethod
    def close(self) -> None:
        """Unmap; nothing may be reading or writing a slot."""

    def placed(self, slot: int, *, row: int, tensors: Mapping[str, Parts]) -> list[Tensor]:
        """Where the tensors of a row come to lie in `slot`.

        Raises:
            WorkerError: INVALID where they do not fit, or the arena is mapped for reading.
        """
        self.require(self.write, f"write row {row}: arena {self.arena} is mapped for reading")
        placed = place([(name, *spec_of(parts)) for name, parts in tensors.items()])
        self.start(slot, end_of(placed))
        return placed

    def check_read(self, handle: Handle, *, row: int, out: Mapping[str, torch.Tensor]) -> None:
        """Refuse a handle that does not fit the arena or `out`.

        Raises:
            WorkerError: INVALID.
        """
        self.require(
            handle.arena == self.arena, f"read row {row}: want arena {self.arena}, got {handle.arena}"
        )
        names = [tensor.name for tensor in handle.tensors]
        self.require(sorted(names) == sorted(out), f"read row {row}: want tensors {sorted(out)}, got {names}")
        self.start(handle.slot, end_of(handle.tensors))
        for tensor in handle.tensors:
            into = out[tensor.name]
            got = (dtype_name(into), list(into.shape))
            self.require(
                got == (tensor.dtype, tensor.shape) and into.is_contiguous(),
                f"read {tensor.name}: want contiguous {got}, got {tensor.dtype} {tensor.shape}",
            )

    def judge_header(self, header: Header | None, handle: Handle, row: int, *, when: str) -> None:
        """Refuse the slot unless it held the handle's version of the row.

        Raises:
            WorkerError: STALE, or INTERNAL where the payload's size differs.
        """
        where = f"read row {row}: arena {self.arena} slot {handle.slot}, {when} the copy"
        if header is None:
            raise WorkerError(Kind.STALE, f"{where}: no row was ever written")
        if (header.version, header.row) != (handle.version, row):
            raise WorkerError(
                Kind.STALE,
                f"{where}: want version {handle.version} of row {row}, "
                f"got version {header.version} of row {header.row}",
            )
        if header.payload_bytes != end_of(handle.tensors) - SLOT_HEADER_BYTES:
            raise WorkerError(
                Kind.INTERNAL, f"{where}: the handle's tensors end elsewhere than the slot's {header}"
            )

    def judge_crc(self, crc: int, handle: Handle, row: int) -> None:
        """Refuse a copy whose checksum is not the handle's.

        Raises:
            WorkerError: INTERNAL.
        """
        if crc != handle.crc:
            raise WorkerError(
                Kind.INTERNAL,
                f"read row {row}: arena {self.arena} slot {handle.slot}: "
                f"want crc {handle.crc:08x}, got {crc:08x}",
                hint="the row's bytes changed between two processes: suspect memory, or a stray writer",
            )

    def start(self, slot: int, nbytes: int) -> int:
        """Where the slot starts, if it exists and has room for `nbytes`.

        Raises:
            WorkerError: INVALID.
        """
        self.require(slot < self.slots, f"arena {self.arena}: want a slot below {self.slots}, got {slot}")
        self.require(
            nbytes <= self.slot_bytes,
            f"arena {self.arena}: want at most {self.slot_bytes} bytes a slot, got {nbytes}",
        )
        return slot * self.slot_bytes

    def require(self, holds: bool, message: str) -> None:
        """Raise INVALID unless `holds`."""
        if not holds:
            raise WorkerError(Kind.INVALID, message)


def end_of(tensors: Sequence[Tensor]) -> int:
    """Where the last tensor ends, from the slot's start."""
    return tensors[-1].offset + tensors[-1].nbytes if tensors else SLOT_HEADER_BYTES


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple that is not below `value`."""
    return -(-value // multiple) * multiple
