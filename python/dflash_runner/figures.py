"""What a step came to, as the vote tells it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class RowLoss:
    """One row's own loss, as the vote carries it."""

    row: int
    numerator: float
    denominator: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """What a step came to: own rows, and the reduced weight and norm as float32 values."""

    rows: tuple[RowLoss, ...]
    weight: float
    norm: float

    @property
    def finite(self) -> bool:
        """Whether every loss and the norm are finite."""
        own = [value for row in self.rows for value in (row.numerator, row.denominator)]
        return all(map(math.isfinite, [*own, self.weight, self.norm]))


def rows_of(draws: Iterable[tuple[int, float, float]]) -> tuple[RowLoss, ...]:
    """The losses of rows from those of their draws, (row, numerator, denominator) each."""
    summed: dict[int, tuple[float, float]] = {}
    for row, numerator, denominator in draws:
        before = summed.get(row, (0.0, 0.0))
        summed[row] = before[0] + numerator, before[1] + denominator
    return tuple(RowLoss(row=row, numerator=n, denominator=d) for row, (n, d) in summed.items())
