"""The masks of a target's rows by tiles equal those by elements, and nothing is listed in vain."""

from __future__ import annotations

import random

import pytest
import torch
from dflash_runner import row_tiles
from dflash_runner.masks import FULL, SLIDING, masks
from dflash_runner.packing import Packed
from dflash_runner.row_kernels import block_mask
from families import row_of
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_tiles import listed
from torch import Tensor
from torch.nn.attention.flex_attention import create_mask

SIZE = 128


def packed(*, seed: int, length: int, documents: int) -> Packed:
    """A row of documents, some of a token, with padding after them and, at times, between."""
    chooser = random.Random(seed)
    edges = [edge + by for edge in range(SIZE, length, SIZE) for by in (-1, 0, 1) if 0 < edge + by < length]
    places = {chooser.choice(edges) if edges and chooser.random() < 0.4 else chooser.randrange(1, length)}
    while len(places) < min(documents, length - 1):
        places.add(chooser.randrange(1, length))
    ids: list[int] = []
    for number, (start, end) in enumerate(zip([0, *sorted(places)], [*sorted(places), length], strict=True)):
        ids += [-1 if end == length or chooser.random() < 0.1 else number] * (end - start)
    return Packed(
        tokens_S=torch.zeros(length, dtype=torch.int32),
        loss_mask_S=torch.zeros(length, dtype=torch.uint8),
        documents_S=torch.tensor(ids, dtype=torch.int32),
    )


def by_elements(row: Packed, kind: str, window: int | None) -> Tensor:
    """The mask that the model's own attention is handed, bool [S,S]."""
    made = masks(row.positions(), kinds=(kind,), window=window)
    assert isinstance(made, Tensor)
    return made[0, 0]


def in_tiles(mask_SS: Tensor) -> tuple[Tensor, Tensor]:
    """(whether something is seen, whether all is) of each tile, by looking at every element."""
    length = len(mask_SS)
    lines = -(-length // SIZE)
    padded = torch.zeros(lines * SIZE, lines * SIZE, dtype=torch.bool)
    padded[:length, :length] = mask_SS
    tiles_MMXX = padded.unflatten(0, (lines, SIZE)).unflatten(2, (lines, SIZE)).transpose(1, 2)
    return tiles_MMXX.any(-1).any(-1), tiles_MMXX.all(-1).all(-1)


@given(
    seed=st.integers(0, 2**32),
    length=st.integers(2, 900),
    documents=st.integers(1, 12),
    window=st.sampled_from([None, 1, 2, 100, 127, 128, 129, 300, 1000]),
)
@example(seed=0, length=128, documents=1, window=None)
@example(seed=0, length=640, documents=1, window=256)
@example(seed=1, length=900, documents=1, window=None)  # a last tile that is not whole, all seen
@settings(deadline=None, max_examples=60)
def test_tiles_are_those_of_the_elements(seed: int, length: int, documents: int, window: int | None) -> None:
    """Partial where something is seen and something not, full where all is, and else not there; the rule by
    elements is the same too, which is what kernels evaluate in partial tiles."""
    row = packed(seed=seed, length=length, documents=documents)
    kind = FULL if window is None else SLIDING
    want_SS = by_elements(row, kind, window)
    lists = row_tiles.lists(row.documents_S, kinds=(kind,), window=window)
    assert len(lists) == row_tiles.PER_KIND and all(one.dtype == torch.int32 for one in lists)
    some, full = in_tiles(want_SS)
    assert torch.equal(listed(*lists[:2])[0, 0], some & ~full)
    assert torch.equal(listed(*lists[2:4])[0, 0], full)
    rule = block_mask(lists).mask_mod
    assert torch.equal(create_mask(rule, 1, 1, length, length, device="cpu")[0, 0], want_SS)


def test_kinds_one_after_the_other() -> None:
    """In the order they are asked for in, each with its own window or none."""
    row = row_of((200, 90, 30), padding=20)
    both = row_tiles.lists(row.documents_S, kinds=(FULL, SLIDING), window=40)
    for kind, part in ((FULL, both[: row_tiles.PER_KIND]), (SLIDING, both[row_tiles.PER_KIND :])):
        alone = row_tiles.lists(row.documents_S, kinds=(kind,), window=40)
        assert all(torch.equal(one, other) for one, other in zip(part, alone, strict=True))
    assert not torch.equal(both[4], both[9])
    with pytest.raises(AssertionError, match="want a window of sliding layers"):
        row_tiles.lists(row.documents_S, kinds=(SLIDING,), window=None)


def test_the_rule_holds_beyond_the_row() -> None:
    """A kernel's last tile asks for queries that are not there: it reads nothing out of bounds."""
    row = row_of((130,), padding=0)
    rule = block_mask(row_tiles.lists(row.documents_S, kinds=(FULL,), window=None)).mask_mod
    nothing, query = torch.tensor(0), torch.arange(250, 256)
    assert rule(nothing, nothing, query, torch.tensor(5)).shape == (6,)


def test_long_documents_leave_few_tiles_to_look_into() -> None:
    """Of a row of 3,072 tokens packed of five: 95 of 576, and a causal mask alone would list 300."""
    row = row_of((900, 700, 600, 500, 300), padding=72)
    count, _, full, *_ = row_tiles.lists(row.documents_S, kinds=(FULL,), window=None)
    assert (int(count.sum()), int(full.sum())) == (59, 36)
