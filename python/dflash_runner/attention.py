"""Which positions a block may see, and the attention that obeys it.

Shapes: B rows, S context tokens, N anchors of a row, K block size, Q = N*K noise tokens,
H query heads, G key-value heads, E head size, X = S+Q keys ([context | noise]).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""An attention: (query_BHQE, key_BGXE, value_BGXE) -> output_BHQE. The seam where flex joins."""

Over = Callable[["Rule"], Attend]
"""A kind of attention: what makes the attention of some rows from their rule, once for all layers."""


@dataclass(kw_only=True, slots=True)
class AttentionCounter:
    """How often attention ran; the certificate states it. One integer addition per call."""

    calls: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """The mask of packed rows, as a rule: what a noise token may see.

    A query of block j sees the context of its anchor's document strictly before the anchor, and
    its own block, both ways. A block that is not kept sees its own block only: no row of the mask
    is empty, so no softmax gives NaN, and its output carries no weight.

    Source: DFlash (arXiv 2602.06036) section 4.
    """

    anchors_BN: Tensor  # int64, place in the row
    keep_BN: Tensor  # bool; false: a padding place
    documents_BS: Tensor  # int64; -1: padding
    block_size: int
    lists: tuple[Tensor, ...] | None = None  # of its tiles (`tiles.lists`), on its device, where made before

    def visible(self, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Whether `query` may see `key` in `row`: the rule element by element, on broadcastable indices.

        Args:
            row: index of the row, 0..B-1.
            query: index of the noise token, 0..Q-1.
            key: index of the key, 0..S+Q-1.
        """
        length = self.documents_BS.shape[1]
        block = query // self.block_size
        anchor = self.anchors_BN[row, block]
        document = self.documents_BS[row, anchor]
        place = key.clamp(max=length - 1)
        context = (key < anchor) & (self.documents_BS[row, place] == document) & (document >= 0)
        own = (key >= length) & ((key - length) // self.block_size == block)
        return (self.keep_BN[row, block] & (key < length) & context) | own

    def dense_mask(self) -> Tensor:
        """The whole mask, bool [B,1,Q,S+Q]; true means visible."""
        rows, length = self.documents_BS.shape
        anchors, size = self.anchors_BN.shape[1], self.block_size
        document_BN = self.documents_BS.gather(1, self.anchors_BN)
        place_S = torch.arange(length, device=self.anchors_BN.device)
        context_BNS = (
            (place_S < self.anchors_BN[..., None])
            & (self.documents_BS[:, None] == document_BN[..., None])
            & ((document_BN >= 0) & self.keep_BN)[..., None]
        )
        block_Q = torch.arange(anchors * size, device=place_S.device) // size
        own_QQ = block_Q[:, None] == block_Q
        mask_BQX = torch.cat([context_BNS.repeat_interleave(size, dim=1), own_QQ.expand(rows, -1, -1)], dim=2)
        return mask_BQX[:, None]

    def context_spans(self) -> tuple[Tensor, Tensor]:
        """(first_BN, end_BN), int64: the context that each block sees, as a span; first = end where none.

        It is one span because a document is a run: no id comes twice in a row with another between.
        """
        document_BN = self.documents_BS.gather(1, self.anchors_BN)
        sees_BN = self.keep_BN & (document_BN >= 0)
        first_BN = document_starts(self.documents_BS).gather(1, self.anchors_BN)
        return torch.where(sees_BN, first_BN, 0), torch.where(sees_BN, self.anchors_BN, 0)


def document_starts(documents_BS: Tensor) -> Tensor:
    """The place where each token's document starts, int64 [B,S]: a document is a run of one id."""
    place_BS = torch.arange(documents_BS.shape[1], device=documents_BS.device).expand_as(documents_BS)
    fresh_BS = torch.ones_like(documents_BS, dtype=torch.bool)
    fresh_BS[:, 1:] = documents_BS[:, 1:] != documents_BS[:, :-1]
    return torch.where(fresh_BS, place_BS, 0).cummax(dim=1).values


def sdpa(rule: Rule, *, dtype: torch.dtype, counter: AttentionCounter | None = None) -> Attend:
    """The attention of `attention: sdpa`: dense-mask scaled dot product, explicit, never a fallback.

    The mask is built once and shared by all layers.

    Args:
        rule: the mask.
        dtype: of the queries; the additive mask has it too.
        counter: counts the calls, where given.
    """
    bias_B1QX = torch.zeros((), dtype=dtype, device=rule.anchors_BN.device).masked_fill(
        ~rule.dense_mask(), float("-inf")
    )
    return masked(bias_B1QX, counter=counter)


class Attention(Protocol):
    """What `attention` in the configuration chooses; one object for all rows of a worker."""

    def over(self, rule: Rule) -> Attend:
        """The attention of some rows, its mask made once for all layers."""

    @property
    def counter(self) -> AttentionCounter | None:
        """Calls of a compiled attention; None where torch's own function is called, and counted there."""

    def check(self) -> None:
        """Refuse to go on, where a compiled attention has refused a call or another thread asks.

        Raises:
            WorkerError: fatal.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class Dense:
    """`attention: sdpa`."""

    dtype: torch.dtype  # of the queries
    counter: None = None

    def check(self) -> None:
        """Nothing is compiled, so nothing is refused."""

    def over(self, rule: Rule) -> Attend:
        """Dense-mask attention under `rule`."""
        return sdpa(rule, dtype=self.dtype)


def masked(bias_B1QX: Tensor | None, *, counter: AttentionCounter | None = None) -> Attend:
    """Scaled dot-product attention under an additive mask; None: everything is visible."""

    def attend(query_BHQE: Tensor, key_BGXE: Tensor, value_BGXE: Tensor) -> Tensor:
        if counter is not None:
            counter.calls += 1
        grouped = query_BHQE.shape[1] != key_BGXE.shape[1]
        return F.scaled_dot_product_attention(
            query_BHQE, key_BGXE, value_BGXE, attn_mask=bias_B1QX, enable_gqa=grouped
        )

    return attend
