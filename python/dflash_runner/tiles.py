"""The mask by tiles: which pieces of 128 x 128 are seen in part, which whole, and no Q x KV grid.

What a block sees of the keys is two spans, a stretch of context and the block itself, so how much it
sees of a tile is an overlap of spans. The work is the number of tiles times the blocks of one tile, and it
is the host's: on a GPU it would be a hundred small kernels, and the spans are known on the host anyway.

Shapes: B rows, N anchors of a row, K block size, Q = N*K noise tokens, S context tokens, X = S+Q keys,
M query tiles, U key tiles, P blocks that one query tile touches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dflash_runner.attention import Rule

SIZE = 128  # of a tile; smaller ones do not fit the kernels' own blocks


@dataclass(frozen=True, kw_only=True, slots=True)
class Tiles:
    """The tiles of a mask that hold anything; a tile in neither is empty."""

    partial_BMU: np.ndarray  # bool: something is seen, and something is not
    full_BMU: np.ndarray  # bool: every query sees every key


def lists(rule: Rule) -> tuple[Tensor, ...]:
    """What of a mask flex attention reads, int32, on the host: for a rule whose documents are runs.

    Partial tiles are masked element by element, full ones not at all. No row of the mask is empty, as
    a block always sees itself.

    Args:
        rule: on whatever device; on the host nothing is waited for.

    Returns:
        Count and index, as `listed` gives them, of partial and full tiles by queries, then by keys, which
        the backward reads; then the spans of context, first [B,N] and end [B,N].

    Source: `attention.Rule`; torch BlockMask.
    """
    first_BN, end_BN = (span_BN.int().cpu() for span_BN in rule.context_spans())
    length, size = rule.documents_BS.shape[1], rule.block_size
    found = tiles(first_BN.numpy(), end_BN.numpy(), block_size=size, length=length)
    by_queries = [*listed(found.partial_BMU), *listed(found.full_BMU)]
    by_keys = [*listed(found.partial_BMU.swapaxes(1, 2)), *listed(found.full_BMU.swapaxes(1, 2))]
    return (*by_queries, *by_keys, first_BN, end_BN)


def tiles(
    first_BN: np.ndarray, end_BN: np.ndarray, *, block_size: int, length: int, size: int = SIZE
) -> Tiles:
    """The tiles of the mask in which block j sees context first_j .. end_j - 1 and all of itself.

    Exact: a tile is full only where its queries and keys all exist and see each other, and is listed
    only where some query sees some key. Anchors need not be sorted; where they are, and documents are
    long, few tiles are partial.

    Args:
        first_BN: int32, place of the first context token that each block sees.
        end_BN: int32, one past the last; equal where it sees none. At most S.
        block_size: K.
        length: S.
        size: of a tile, in tokens.

    Source: DFlash (arXiv 2602.06036) section 4, as `attention.Rule` has it.
    """
    anchors = first_BN.shape[1]
    queries = anchors * block_size
    start_M = np.arange(0, queries, size, dtype=np.int32)
    last_M = np.minimum(start_M + size, queries) - 1
    touched = -(-size // block_size) + (size % block_size != 0)
    block_MP = start_M[:, None] // block_size + np.arange(touched, dtype=np.int32)
    live_MP1 = (block_MP <= last_M[:, None] // block_size)[..., None]
    block_MP = np.minimum(block_MP, anchors - 1)
    left_U = np.arange(0, length + queries, size, dtype=np.int32)
    own_MP = length + block_MP * block_size
    seen_BMPU = _overlap(first_BN[:, block_MP], end_BN[:, block_MP], left_U, size)
    seen_BMPU += _overlap(own_MP, own_MP + block_size, left_U, size)
    whole_M1 = (start_M + size <= queries)[:, None]
    full_BMU = ((seen_BMPU == size) | ~live_MP1).all(axis=2) & whole_M1
    some_BMU = ((seen_BMPU > 0) & live_MP1).any(axis=2)
    return Tiles(partial_BMU=some_BMU & ~full_BMU, full_BMU=full_BMU)


def listed(tiles_BMU: np.ndarray) -> tuple[Tensor, Tensor]:
    """(count [B,1,M], index [B,1,M,U]) of the true tiles of each line, int32: the form kernels read.

    The true ones stand first, in rising order; what follows them means nothing.
    """
    count_BM = tiles_BMU.sum(axis=-1, dtype=np.int32)
    index_BMU = np.argsort(~tiles_BMU, axis=-1, kind="stable").astype(np.int32, order="C")
    return torch.from_numpy(count_BM)[:, None], torch.from_numpy(index_BMU)[:, None]


def _overlap(first: np.ndarray, end: np.ndarray, left_U: np.ndarray, size: int) -> np.ndarray:
    """How many places of each tile lie in the span, with one more dimension for the tiles."""
    last = np.minimum(end[..., None], left_U + size)
    return np.maximum(last - np.maximum(first[..., None], left_U), 0)
