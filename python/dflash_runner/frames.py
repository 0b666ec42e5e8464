"""What all frames of the lane are made of; the frames stand in `orders` and `replies`.

Fields stand in the order of proto/lane.md, which is their order on the wire. Values that the
schema forbids whatever the state of the receiver are refused when a struct is made, so on
both ways; `runner/lane/check.go` refuses the same. Nothing here needs torch.
"""

from __future__ import annotations

import math
import struct
from typing import Annotated, Final, Literal

import msgspec

LANE_VERSION: Final = 1
MAX_FRAME_BYTES: Final = 65_536
SLOT_HEADER_BYTES: Final = 64
ELEMENT_BYTES: Final = {"F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "U8": 1, "BOOL": 1}

U32 = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF_FFFF)]
U64 = Annotated[int, msgspec.Meta(ge=0)]  # msgpack has no larger integer
Digest = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
DType = Literal["F32", "BF16", "F16", "I64", "I32", "U8", "BOOL"]
KindName = Literal[
    "internal", "invalid", "not_found", "exhausted", "stale", "unavailable", "canceled", "fatal"
]
What = Literal["decode", "plain", "loss"]
ArenaKind = Literal["memfd", "cuda_vmm"]

_MAX_END: Final = 2**63 - 1


class Piece(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One sample's place in a row, in tokens."""

    sample: U32
    draw: U32
    start: U32
    tokens: U32
    anchors: U32


class Tensor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One tensor in a slot; `offset` counts bytes from the slot's start, header included."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    dtype: DType
    shape: Annotated[list[U64], msgspec.Meta(max_length=8)]
    offset: U64
    nbytes: U64

    def __post_init__(self) -> None:
        """Refuse a size that does not follow from shape and dtype."""
        want = math.prod(self.shape) * ELEMENT_BYTES[self.dtype]
        if self.nbytes != want:
            raise ValueError(f"nbytes: want {want} for {self.dtype} {self.shape}, got {self.nbytes}")
        if len(self.name.encode()) > 64:
            raise ValueError("name: want at most 64 bytes")


class Handle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a row's bytes in a slot are opened with."""

    arena: U32
    slot: U32
    version: U64
    crc: U32
    tensors: Annotated[list[Tensor], msgspec.Meta(min_length=1, max_length=16)]

    def __post_init__(self) -> None:
        """Refuse tensors that overlap, are not aligned, or lie in the header."""
        require(self.arena >= 1 and self.version >= 1, "handle: want arena and version of at least 1")
        end = SLOT_HEADER_BYTES
        for index, tensor in enumerate(self.tensors):
            if tensor.offset < end or tensor.offset % SLOT_HEADER_BYTES:
                raise ValueError(
                    f"handle.tensors[{index}].offset: want a multiple of 64, at least {end}, "
                    f"got {tensor.offset}"
                )
            end = tensor.offset + tensor.nbytes
            require(end <= _MAX_END, f"handle.tensors[{index}]: ends beyond 2^63-1")


class RowLoss(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One row's own loss numerator and weight."""

    row: U64
    numerator: float
    denominator: float


class Prompt(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One evaluated prompt."""

    tokens: U32
    forwards: U32
    looping: bool
    equal: bool
    busy_us: U64


class Frame(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """What every frame starts with, after its type."""

    v: Literal[1] = LANE_VERSION
    seq: U64

    def __post_init__(self) -> None:
        """Refuse sequence number 0."""
        require(self.seq >= 1, "seq: want at least 1")


class Place(Frame, frozen=True, kw_only=True, tag=False):
    """An order about one state: lineage, communicator and step."""

    lineage: U32
    communicator: U32
    step: U64


class RowOrder(Frame, frozen=True, kw_only=True, tag=False):
    """An order about one row, with everything that decides what the row holds."""

    row: U64
    epoch: U32
    bucket: U32
    pieces: Annotated[list[Piece], msgspec.Meta(min_length=1)]

    def __post_init__(self) -> None:
        """Refuse row 0 and pieces that overlap or leave the bucket."""
        Frame.__post_init__(self)
        require(self.row >= 1, "row: want at least 1")
        end = 0
        for index, piece in enumerate(self.pieces):
            require(
                piece.tokens >= 1 and piece.start >= end,
                f"pieces[{index}]: want tokens, and a start of at least {end}",
            )
            end = piece.start + piece.tokens
        require(end <= self.bucket, f"pieces: want an end of at most {self.bucket}, got {end}")


def bits_of(value: float) -> int:
    """The IEEE-754 float32 bits of `value`, as `Voted` carries them.

    Raises:
        OverflowError: `value` is finite and beyond float32.
    """
    return struct.unpack("<I", struct.pack("<f", value))[0]


def float_of(bits: int) -> float:
    """The value of float32 `bits`; the inverse of `bits_of` for all but NaN."""
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def require(holds: bool, message: str) -> None:
    """Raise `ValueError` unless `holds`; the decoder adds where."""
    if not holds:
        raise ValueError(message)
