"""The masks of a target's packed row by tiles: no S x S grid, and no element looked at but where it matters.

What a token sees is one span of keys: from its document's first token, or in a sliding layer from the
window's, up to itself. That span's start never falls along the row, so a tile is judged by the first and
the last of its queries. The work is one comparison a tile, and the host's, which has the row anyway.

Shapes: S tokens of the row, M query tiles, U = M key tiles, B = 1 row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dflash_runner.masks import SLIDING
from dflash_runner.tiles import SIZE, Tiles, listed

PER_KIND = 5
"""Tensors that `lists` gives for each kind of layer."""


def lists(documents_S: Tensor, *, kinds: Sequence[str], window: int | None) -> list[Tensor]:
    """What of a row's masks flex attention reads, int32, on the host; kind by kind.

    Args:
        documents_S: of the row, on whatever device; runs of one id, and a stretch of padding is one as well.
        kinds: of the decoder's layers, as `masks.kinds_of` gives them.
        window: of its sliding layers, in tokens; None where it has none.

    Returns:
        For each kind `PER_KIND` tensors: count and index of partial tiles, then of full ones, as
        `tiles.listed` gives them; then the first key that each token sees, [S].

    Source: `masks.masks`, whose rule this is.
    """
    begin_S = starts(documents_S.cpu().numpy())
    found: list[Tensor] = []
    for kind in kinds:
        first_S = first_keys(begin_S, window=window) if kind == SLIDING else begin_S
        made = tiles(first_S)
        found += [*listed(made.partial_BMU), *listed(made.full_BMU), torch.from_numpy(first_S)]
    return found


def starts(documents_S: np.ndarray) -> np.ndarray:
    """The place where each token's document starts, int32 [S]."""
    place_S = np.arange(len(documents_S), dtype=np.int32)
    fresh_S = np.ones(len(documents_S), dtype=bool)
    fresh_S[1:] = documents_S[1:] != documents_S[:-1]
    return np.maximum.accumulate(np.where(fresh_S, place_S, 0))


def first_keys(begin_S: np.ndarray, *, window: int | None) -> np.ndarray:
    """The first key that each token sees in a sliding layer, int32 [S].

    Args:
        begin_S: where each token's document starts.
        window: in tokens, the token itself counted.
    """
    if window is None:
        raise AssertionError("make tiles: want a window of sliding layers, got none")
    return np.maximum(begin_S, np.arange(len(begin_S), dtype=np.int32) - np.int32(window - 1))


def tiles(first_S: np.ndarray, *, size: int = SIZE) -> Tiles:
    """The tiles of the mask in which token q sees keys first_q .. q.

    Exact: a tile is full only where its queries all exist and see every key, and is listed only where some
    query sees some key. Nearly all below the diagonal are full or empty where documents are long.

    Args:
        first_S: int32, at most q, and never falling.
        size: of a tile, in tokens.
    """
    length = len(first_S)
    begin_M = np.arange(0, length, size, dtype=np.int32)
    last_M = np.minimum(begin_M + size, length) - 1
    below_MU = begin_M[None, :] < begin_M[:, None]
    diagonal_MU = np.eye(len(begin_M), dtype=bool)
    full_MU = below_MU & (first_S[last_M][:, None] <= begin_M[None, :])
    full_MU &= (begin_M + size <= length)[:, None]
    some_MU = diagonal_MU | (below_MU & (first_S[begin_M][:, None] < begin_M[None, :] + size))
    return Tiles(partial_BMU=(some_MU & ~full_MU)[None], full_BMU=full_MU[None])
