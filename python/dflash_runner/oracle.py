"""The mask rule and attention once more, as loops: slow, in float64, and written from the rule alone.

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


def attend(query_HQE: Tensor, key_GXE: Tensor, value_GXE: Tensor, *, visible: list[list[int]]) -> Tensor:
    """Softmax attention of each query over its visible keys, one head and query at a time, [H,Q,E].

    Args:
        query_HQE: float64.
        key_GXE: float64.
        value_GXE: float64.
        visible: keys of each query.
    """
    group = query_HQE.shape[0] // key_GXE.shape[0]
    heads = []
    for head in range(query_HQE.shape[0]):
        key_XE, value_XE = key_GXE[head // group], value_GXE[head // group]
        outputs = []
        for place, keys in enumerate(visible):
            scores = [
                (query_HQE[head, place] * key_XE[key]).sum() / math.sqrt(query_HQE.shape[2]) for key in keys
            ]
            top = max(float(score.detach()) for score in scores)
            weights = [torch.exp(score - top) for score in scores]
            total = torch.stack(weights).sum()
            terms = [weight / total * value_XE[key] for weight, key in zip(weights, keys, strict=True)]
            outputs.append(torch.stack(terms).sum(dim=0))
        heads.append(torch.stack(outputs))
    return torch.stack(heads)
