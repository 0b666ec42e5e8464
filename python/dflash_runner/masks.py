"""What a target's blocks are handed where no line of Python may look at a row: masks of packed documents.

A model makes its own masks after it has asked the device whether a row is packed at all, and takes another
kernel where it is not. These follow from positions alone, by kernels whose shapes the bucket fixes, so they
can be recorded with the blocks. Bit for bit they are the model's own of a packed row.

Shapes: S tokens of the row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

FULL, SLIDING = "full_attention", "sliding_attention"


def kinds_of(config: Any) -> tuple[str, ...]:
    """The kinds of attention layers that a text decoder has, in the order of their names.

    Families say it in two ways: a kind for each layer, or a window alone, which is every layer's.

    Args:
        config: of the text decoder.
    """
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return tuple(sorted(set(kinds)))
    return (SLIDING,) if getattr(config, "sliding_window", None) is not None else (FULL,)


def masks(positions_1S: Tensor, *, kinds: tuple[str, ...], window: int | None) -> Tensor | dict[str, Tensor]:
    """Which keys each token sees, bool [1,1,S,S]: those of its own document up to itself, and of a sliding
    layer the last `window` of them; by kind of layer, where a decoder has several.

    Args:
        positions_1S: int64, from 0 again with every document, as `Packed.positions` gives them.
        kinds: of the decoder's layers.
        window: of its sliding layers, in tokens; None where it has none.

    Source: transformers, masking_utils: create_causal_mask, create_sliding_window_causal_mask.
    Compile: may be recorded: nothing waits for the device, nothing is copied to it, S is static.
    """
    place_S = torch.arange(positions_1S.shape[1], device=positions_1S.device)
    sequence_S = (positions_1S[0] == 0).cumsum(dim=0)
    full_SS = (place_S[None, :] <= place_S[:, None]) & (sequence_S[None, :] == sequence_S[:, None])
    made = {FULL: full_SS}
    if SLIDING in kinds:
        if window is None:
            raise AssertionError("make masks: want a window of sliding layers, got none")
        made[SLIDING] = full_SS & (place_S[None, :] > place_S[:, None] - window)
    by_kind = {kind: made[kind][None, None] for kind in kinds}
    return by_kind[kinds[0]] if len(kinds) == 1 else by_kind
