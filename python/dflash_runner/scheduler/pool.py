"""The samples that may come next.

Shapes: P places of the pool.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
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

    __slots__ = ("_places", "_raw")
    _places: int
    _raw: Mapping[str, bytes]  # by the field that is not set yet

    if not TYPE_CHECKING:  # checkers know the fields, and nothing else is to be had

        def __getattr__(self, name):
            if name in ("_places", "_raw") or name not in getattr(self, "_raw", ()):
                raise AttributeError(f"{type(self).__name__} has no {name}")
            column = numbers(self._places, self._raw[name])
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
        for name, raw in columns.items():
            if len(raw) not in (places, 2 * places, 4 * places):
                want = f"{name}: want 1, 2 or 4 bytes for each of {places} places"
                raise ValueError(f"{want}, got {len(raw)} bytes")
        pool = object.__new__(Pool)
        object.__setattr__(pool, "_places", places)
        object.__setattr__(pool, "_raw", {f"{name}_P": raw for name, raw in columns.items()})
        return pool

    def first(self, count: int) -> list[int]:
        """The first samples: `min(count, P)` of them, without a look at the others."""
        raw = getattr(self, "_raw", {}).get("sample_P")
        if not raw:
            return list(islice(self.sample_P, count))
        places = min(count, self._places)
        return numbers(places, raw[: places * (len(raw) // self._places)])

    def stranger(self, sources: int) -> int | None:
        """The highest index of a source that is none of so many, or None."""
        raw = getattr(self, "_raw", {}).get("source_P")
        if raw and len(raw) == self._places:  # what is left of the bytes without the known ones: no loop
            return max(raw.translate(None, bytes(range(min(sources, 256)))), default=None)
        highest = max(self.source_P, default=-1)
        return highest if highest >= sources else None

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


def pack(column: Sequence[int]) -> bytes:
    """Numbers as they travel, 4 bytes each.

    Raises:
        TypeError, OverflowError: one is no whole number from 0 of 32 bits.
    """
    packed = array(_TYPES[4], column)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def numbers(places: int, raw: bytes) -> list[int]:
    """So many numbers of one width, as they travel."""
    if not places:
        return []
    column = array(_TYPES[len(raw) // places], raw)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tolist()
