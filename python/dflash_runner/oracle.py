"""The mask rule once more, as loops, and attention in float64: written from the rule alone.

Shapes: S context tokens, N anchors, K block size, Q = N*K, H query heads, G key-value heads, E head
size, X = S+Q.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def visible_keys(
    query: int, *, anchors: list[int], keep: list[bool], documents: list[int], block_size: int
) -> list[int]:
    """The keys that one query sees, in a row of context and noise.

    Args:
        query: index of the noise token.
        anchors: places in the row.
        keep: whether each is more than padding.
        documents: of every context token; -1 is padding.
        block_size: K.

    Source: DFlash (arXiv 2602.06036) section 4: context of the anchor's document strictly before
    the anchor, and the whole own block.
    """
    block = query // block_size
    keys = []
    if keep[block]:
        anchor = anchors[block]
        for place in range(anchor):
            if documents[place] == documents[anchor] and documents[anchor] >= 0:
                keys.append(place)
    first = len(documents) + block * block_size
    keys.extend(range(first, first + block_size))
    return keys


def attend(query_HQE: Tensor, key_GXE: Tensor, value_GXE: Tensor, *, visible_QX: Tensor) -> Tensor:
    """Softmax attention of each query over its visible keys, one head at a time, [H,Q,E].

    The exponentials and their sum are written out: no attention of torch's own is in it.

    Args:
        query_HQE: float64.
        key_GXE: float64.
        value_GXE: float64.
        visible_QX: bool; every query sees some key.
    """
    group = query_HQE.shape[0] // key_GXE.shape[0]
    heads = []
    for head in range(query_HQE.shape[0]):
        score_QX = query_HQE[head] @ key_GXE[head // group].T / math.sqrt(query_HQE.shape[2])
        score_QX = score_QX.masked_fill(~visible_QX, -math.inf)
        weight_QX = torch.exp(score_QX - score_QX.detach().amax(dim=1, keepdim=True))
        heads.append(weight_QX @ value_GXE[head // group] / weight_QX.sum(dim=1, keepdim=True))
    return torch.stack(heads)
