"""The mask by tiles: which pieces of 128 x 128 are seen in part, which whole, and no Q x KV grid.

What a block sees of the keys is two spans, a stretch of context and the block itself, so how much it
sees of a tile is an overlap of spans. The work is the number of tiles times the blocks of one tile.

Shapes: B rows, N anchors of a row, K block size, Q = N*K noise tokens, S context tokens, X = S+Q keys,
M query tiles, U key tiles, P blocks that one query tile touches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from dflash_runner.attention import Rule

SIZE = 128  # of a tile; smaller ones do not fit the kernels' own blocks


@dataclass(frozen=True, kw_only=True, slots=True)
class Tiles:
    """The tiles of a mask that hold anything; a tile in neither is empty."""

    partial_BMU: Tensor  # bool: something is seen, and something is not
    full_BMU: Tensor  # bool: every query sees every key


def block_mask(rule: Rule) -> BlockMask:
    """The mask that flex attention reads, of a rule whose documents are runs.

    Partial tiles are masked element by element, full ones not at all. No row of the mask is empty, as
    a block always sees itself.

    Measured on one CPU core at S 3,072, N 512, K 16 and two documents: 3.7 ms (p50 of 30), where torch's
    `create_block_mask`, which makes the grid, took 2.6 s.

    Args:
        rule: its device is the mask's.

    Source: `attention.Rule`; torch BlockMask.
    """
    first_BN, end_BN = rule.context_spans()
    length, size = rule.documents_BS.shape[1], rule.block_size
    found = tiles(first_BN, end_BN, block_size=size, length=length)
    mask = BlockMask.from_kv_blocks(
        *listed(found.partial_BMU),
        *listed(found.full_BMU),
        BLOCK_SIZE=SIZE,
        mask_mod=_visible(first_BN.int(), end_BN.int(), length=length, size=size),
        seq_lengths=(first_BN.shape[1] * size, length + first_BN.shape[1] * size),
        compute_q_blocks=False,
    )
    # the backward's lists, by keys: torch makes them from the forward's, element by element under vmap
    mask.q_num_blocks, mask.q_indices = listed(found.partial_BMU.mT)
    mask.full_q_num_blocks, mask.full_q_indices = listed(found.full_BMU.mT)
    return mask


def _visible(first_BN: Tensor, end_BN: Tensor, *, length: int, size: int) -> Callable[..., Tensor]:
    """The rule element by element, as the kernels evaluate it in partial tiles."""
    last = first_BN.shape[1] - 1

    def visible(row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        block = (query // size).clamp(max=last)  # the last tile may reach beyond the queries
        own = length + block * size
        context = (key >= first_BN[row, block]) & (key < end_BN[row, block])
        return context | ((key >= own) & (key < own + size))

    return visible


def tiles(first_BN: Tensor, end_BN: Tensor, *, block_size: int, length: int, size: int = SIZE) -> Tiles:
    """The tiles of the mask in which block j sees context first_j .. end_j - 1 and all of itself.

    Exact: a tile is full only where its queries and keys all exist and see each other, and is listed
    only where some query sees some key. Anchors need not be sorted; where they are, and documents are
    long, few tiles are partial.

    Args:
        first_BN: int, place of the first context token that each block sees.
        end_BN: int, one past the last; equal where it sees none. At most S.
        block_size: K.
        length: S.
        size: of a tile, in tokens.

    Source: DFlash (arXiv 2602.06036) section 4, as `attention.Rule` has it.
    """
    device, anchors = first_BN.device, first_BN.shape[1]
    queries = anchors * block_size
    start_M = torch.arange(0, queries, size, device=device)
    last_M = (start_M + size).clamp(max=queries) - 1
    touched = -(-size // block_size) + (size % block_size != 0)
    block_MP = start_M[:, None] // block_size + torch.arange(touched, device=device)
    live_MP1 = (block_MP <= last_M[:, None] // block_size)[..., None]
    block_MP = block_MP.clamp(max=anchors - 1)
    left_U = torch.arange(0, length + queries, size, device=device)
    own_MP = length + block_MP * block_size
    seen_BMPU = _overlap(first_BN[:, block_MP], end_BN[:, block_MP], left_U, size)
    seen_BMPU = seen_BMPU + _overlap(own_MP, own_MP + block_size, left_U, size)
    whole_M1 = (start_M + size <= queries)[:, None]
    full_BMU = ((seen_BMPU == size) | ~live_MP1).all(dim=2) & whole_M1
    some_BMU = ((seen_BMPU > 0) & live_MP1).any(dim=2)
    return Tiles(partial_BMU=some_BMU & ~full_BMU, full_BMU=full_BMU)


def listed(tiles_BMU: Tensor) -> tuple[Tensor, Tensor]:
    """(count [B,1,M], index [B,1,M,U]) of the true tiles of each line, int32: the form kernels read.

    The true ones stand first, in rising order; what follows them means nothing.
    """
    tiles_BMU = tiles_BMU.contiguous()
    count_B1M = tiles_BMU.sum(dim=-1, dtype=torch.int32)[:, None]
    index_BMU = torch.argsort(tiles_BMU.to(torch.uint8), dim=-1, descending=True, stable=True)
    return count_B1M, index_BMU.to(torch.int32)[:, None]


def _overlap(first: Tensor, end: Tensor, left_U: Tensor, size: int) -> Tensor:
    """How many places of each tile lie in the span, with one more dimension for the tiles."""
    last = torch.minimum(end[..., None], left_U + size)
    return (last - torch.maximum(first[..., None], left_U)).clamp(min=0)
