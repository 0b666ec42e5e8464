"""The samples that may come next.

Shapes: P places of the pool.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

_TYPES = {1: "B", 2: "H", 4: "I"}  # of an array, by its numbers' width in bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A sample that may come next."""

    sample: int
    tokens: int
    supervised: int  # tokens with a label
    anchors: int  # places a block may start from
    source: int  # index into the request's sources


class _Packed(Sequence[Candidate]):
    """Columns as they travel, each made a list when it is first looked at: few look at all."""

    __slots__ = ("_raw",)
    _raw: Mapping[str, array[int]]  # by the field that is not set yet

    if not TYPE_CHECKING:  # checkers know the fields, and nothing else is to be had

        def __getattr__(self, name):
            if name == "_raw" or name not in getattr(self, "_raw", ()):
                raise AttributeError(f"{type(self).__name__} has no {name}")
            column = self._raw[name].tolist()
            object.__setattr__(self, name, column)
            return column


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool(_Packed):
    """The samples that may come next, in the built-in's order: as columns of P, and as candidates.

    Columns are fast, and read like lists; candidates are made when they are looked at. A sample that is
    drawn several times in an epoch stands here as often.
    """

    sample_P: Sequence[int]
    tokens_P: Sequence[int]
    supervised_P: Sequence[int]  # tokens with a label
    anchors_P: Sequence[int]  # places a block may start from
    source_P: Sequence[int]  # indices into the request's sources

    @staticmethod
    def of(candidates: Sequence[Candidate]) -> Pool:
        """A pool of candidates; for tests of plugins."""
        return Pool(
            sample_P=[c.sample for c in candidates],
            tokens_P=[c.tokens for c in candidates],
            supervised_P=[c.supervised for c in candidates],
            anchors_P=[c.anchors for c in candidates],
            source_P=[c.source for c in candidates],
        )

    @staticmethod
    def unpacked(places: int, columns: Mapping[str, bytes]) -> Pool:
        """A pool of columns as they travel.

        Args:
            places: P.
            columns: by the fields' names without the shape, P numbers of one width each.

        Raises:
            ValueError: a column is not of 1, 2 or 4 bytes a place.
        """
        pool = object.__new__(Pool)
        object.__setattr__(pool, "_raw", {f"{k}_P": numbers(k, places, raw) for k, raw in columns.items()})
        return pool

    def __len__(self) -> int:
        return len(self.sample_P)

    def __getitem__(self, place):
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        return Candidate(
            sample=self.sample_P[place],
            tokens=self.tokens_P[place],
            supervised=self.supervised_P[place],
            anchors=self.anchors_P[place],
            source=self.source_P[place],
        )

    def __iter__(self) -> Iterator[Candidate]:
        columns = (self.sample_P, self.tokens_P, self.supervised_P, self.anchors_P, self.source_P)
        for s, t, u, a, o in zip(*columns, strict=True):
            yield Candidate(sample=s, tokens=t, supervised=u, anchors=a, source=o)


def stranger(pool: Pool, sources: int) -> int | None:
    """The highest source that a pool names where it is none of so many, or None."""
    packed = getattr(pool, "_raw", {}).get("source_P")
    if packed is not None and packed.itemsize == 1:  # what is left of the bytes without the known: no loop
        return max(packed.tobytes().translate(None, bytes(range(min(sources, 256)))), default=None)
    highest = max(pool.source_P, default=-1)
    return highest if highest >= sources else None


def pack(column: Sequence[int]) -> bytes:
    """Numbers as they travel, 4 bytes each.

    Raises:
        TypeError, OverflowError: one is no whole number from 0 of 32 bits.
    """
    packed = array(_TYPES[4], column)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def numbers(name: str, places: int, raw: bytes) -> array[int]:
    """A column's numbers: what memory they take follows from the bytes that came.

    Raises:
        ValueError: the bytes are no `places` numbers.
    """
    for width, code in _TYPES.items():
        if len(raw) == width * places:
            column = array(code, raw)
            if sys.byteorder == "big":
                column.byteswap()
            return column
    raise ValueError(f"{name}: want 1, 2 or 4 bytes for each of {places} places, got {len(raw)} bytes")
