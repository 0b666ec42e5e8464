"""Which anchors a row gets, and that nothing but (seed, epoch, sample, draw) decides it."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch
from dflash_runner.anchors import draw, valid_places
from dflash_runner.errors import Kind, WorkerError
from numerics import Part
from torch import Tensor


def mask_of(length: int, *, seed: int = 0) -> Tensor:
    """A loss mask with gaps."""
    chooser = random.Random(seed)
    return torch.tensor([chooser.random() < 0.8 for _ in range(length)])


def drawn(
    mask: Tensor, *parts: Part, places: int, seed: int = 0, epoch: int = 0
) -> tuple[list[int], list[bool]]:
    """Anchors and keep, as lists."""
    got = draw(mask, pieces=parts, seed=seed, epoch=epoch, places=places)
    return got.anchors_N.tolist(), got.keep_N.tolist()


def part(*, sample: int = 4, draw: int = 0, start: int = 0, tokens: int = 40, anchors: int = 8) -> Part:
    return Part(sample=sample, draw=draw, start=start, tokens=tokens, anchors=anchors)


@pytest.mark.parametrize("seed", range(8))
def test_valid_places_equal_the_loop(seed: int) -> None:
    mask = mask_of(1 + 4 * seed, seed=seed)
    supervised = mask.tolist()
    want = [t for t in range(len(supervised) - 1) if supervised[t] and supervised[t + 1]]
    assert valid_places(mask.numpy()).tolist() == want
    assert valid_places(mask.to(torch.uint8).numpy()).tolist() == want


@pytest.mark.parametrize("seed", range(8))
def test_anchors_are_distinct_valid_sorted_and_padded(seed: int) -> None:
    chooser = random.Random(seed)
    parts, start = [], 0
    for sample in range(3):
        tokens = chooser.randint(12, 30)
        parts.append(part(sample=sample, start=start, tokens=tokens, anchors=chooser.randint(0, 3)))
        start += tokens
    mask = mask_of(start + 4, seed=seed)
    places = sum(p.anchors for p in parts) + 2
    anchors, keep = drawn(mask, *parts, places=places)
    kept = anchors[: places - 2]
    assert keep == [True] * (places - 2) + [False] * 2
    assert anchors == sorted(anchors)
    assert len(set(kept)) == len(kept)
    assert all(0 <= a < len(mask) for a in anchors)
    for piece in parts:
        inside = [a for a in kept if piece.start <= a < piece.start + piece.tokens]
        assert len(inside) == piece.anchors
        assert all(mask[a] and mask[a + 1] and a + 1 < piece.start + piece.tokens for a in inside)


def test_anchors_are_the_same_whatever_the_packing() -> None:
    one, two = mask_of(40, seed=1), mask_of(30, seed=2)
    first, second = part(sample=4), part(sample=9, tokens=30, anchors=5)
    alone = drawn(one, first, places=8)[0], drawn(two, second, places=5)[0]
    moved = dataclasses.replace(first, start=30)
    both = drawn(torch.cat([two, one, one[:7]]), second, moved, places=20)
    assert both[0][:13] == alone[1] + [a + 30 for a in alone[0]]
    assert both[1] == [True] * 13 + [False] * 7


def test_each_key_changes_the_draw() -> None:
    mask = mask_of(40)
    base = drawn(mask, part(), places=8)
    assert base == drawn(mask, part(), places=8)
    assert base != drawn(mask, part(), places=8, seed=1)
    assert base != drawn(mask, part(), places=8, epoch=1)
    assert base != drawn(mask, part(sample=5), places=8)
    assert base != drawn(mask, part(draw=1), places=8)


def test_the_draw_never_changes_between_releases() -> None:
    """A resumed run draws what it drew: pinned values, from Philox words and SHA-256 alone."""
    mask = torch.ones(64, dtype=torch.bool)
    anchors, _ = drawn(mask, part(sample=7, draw=1, tokens=64), places=8, seed=3, epoch=2)
    assert anchors == [6, 7, 14, 18, 20, 24, 31, 52]


def test_every_valid_place_is_drawn_about_as_often() -> None:
    mask = torch.ones(21, dtype=torch.bool)
    counts = [0] * 20
    for epoch in range(400):
        for anchor in drawn(mask, part(tokens=21, anchors=5), places=5, epoch=epoch)[0]:
            counts[anchor] += 1
    assert sum(counts) == 2000
    assert min(counts) > 65 and max(counts) < 135  # 100 expected; deviation 8.7


def test_all_valid_places_can_be_taken() -> None:
    mask = mask_of(40)
    valid = valid_places(mask.numpy()).tolist()
    assert drawn(mask, part(anchors=len(valid)), places=len(valid))[0] == valid


@pytest.mark.parametrize(
    ("piece", "places", "message"),
    [
        pytest.param(
            part(anchors=40), 50, r"sample 4 at 0 with 40 tokens: want 40 valid places, got \d+", id="few"
        ),
        pytest.param(part(start=9), 8, "want an end of at most 40, got 49", id="beyond the row"),
        pytest.param(part(anchors=8), 7, "want at most 7 anchors, got 8", id="more than places"),
    ],
)
def test_a_row_that_cannot_be_drawn_is_refused(piece: Part, places: int, message: str) -> None:
    with pytest.raises(WorkerError, match=message) as caught:
        drawn(mask_of(40), piece, places=places)
    assert caught.value.kind is Kind.INVALID


def test_a_row_without_anchors_has_padding_only() -> None:
    assert drawn(mask_of(40), part(anchors=0), places=3) == ([0, 0, 0], [False] * 3)
