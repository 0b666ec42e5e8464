"""The loss of packed rows: noise blocks, labels, weights, and the frozen head fused with cross-entropy.

Shapes: B rows, S context tokens, L captured layers, D hidden size, C = L*D, N anchors per row,
K block size, J = K-1 predicted slots of a block, Q = N*K noise tokens, V vocabulary, R = B*N*J.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dflash_runner.attention import Attend, Rule, document_starts
from dflash_runner.head import FrozenHead
from dflash_runner.model import Drafter, DrafterConfig, Rotary
from dflash_runner.operations import PLAIN, Operations, Score


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """What a drafter is given of rows, their anchors included."""

    hidden_BSC: Tensor  # the drafter's dtype
    tokens_BS: Tensor  # int64
    loss_mask_BS: Tensor  # bool; supervised
    documents_BS: Tensor  # int64; -1: padding
    anchors_BN: Tensor  # int64
    keep_BN: Tensor  # bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Blocks:
    """What follows from rows without any weights; see `preparation`."""

    noise_BQ: Tensor  # int64 ids: the anchor's token, then mask tokens
    positions_BS: Tensor  # int64, within the document
    noise_positions_BQ: Tensor  # int64, likewise
    labels_BNJ: Tensor  # int64
    valid_BNJ: Tensor  # bool: the label counts
    weights_BNJ: Tensor  # float32
    rule: Rule
    rotaries: tuple[Rotary, Rotary] | None = None  # of context and noise, where they were made before


@dataclass(frozen=True, kw_only=True, slots=True)
class RowTerms:
    """A loss per row as numerator and denominator, and figures that cost no wait."""

    numerator_B: Tensor  # float32, differentiable: sum of weight * cross-entropy
    denominator_B: Tensor  # float32: sum of weights
    hits_BJ: Tensor  # int64: right guesses by slot
    labels_BJ: Tensor  # int64: labels by slot
    accepted_B: Tensor  # int64: sum of teacher-forced acceptance lengths over whole blocks, bonus counted
    blocks_B: Tensor  # int64: how many whole blocks (all J labels count)


def document_positions(documents_BS: Tensor) -> Tensor:
    """Each token's place in its document, int64 [B,S]: it restarts where the document id changes."""
    place_S = torch.arange(documents_BS.shape[1], device=documents_BS.device)
    return place_S - document_starts(documents_BS)


def blocks(rows: Rows, *, block_size: int, mask_token_id: int, gamma: float) -> Blocks:
    """Noise, positions, labels and weights of the rows' blocks.

    w_k = exp(-(k-1)/gamma) where the anchor is kept, a+k lies in the anchor's document and is
    supervised; 0 elsewhere. The label of slot k is token a+k: the same place, no shift.

    Source: DFlash (arXiv 2602.06036) section 4.2.
    """
    length = rows.tokens_BS.shape[1]
    anchors_BN, device = rows.anchors_BN, rows.tokens_BS.device
    offset_K = torch.arange(block_size, device=device)
    place_BNJ = anchors_BN[..., None] + offset_K[1:]
    inside_BNJ = place_BNJ.clamp(max=length - 1)

    def at(values_BS: Tensor) -> Tensor:
        return values_BS.gather(1, inside_BNJ.flatten(1)).view_as(inside_BNJ)

    document_BN = rows.documents_BS.gather(1, anchors_BN)
    valid_BNJ = (
        (place_BNJ < length) & (at(rows.documents_BS) == document_BN[..., None]) & at(rows.loss_mask_BS)
    )
    valid_BNJ &= (rows.keep_BN & (document_BN >= 0))[..., None]
    decay_J = torch.exp(-(offset_K[1:] - 1).float() / gamma)
    noise_BNK = torch.full((*anchors_BN.shape, block_size), mask_token_id, dtype=torch.int64, device=device)
    noise_BNK[..., 0] = rows.tokens_BS.gather(1, anchors_BN)
    positions_BS = document_positions(rows.documents_BS)
    return Blocks(
        noise_BQ=noise_BNK.flatten(1),
        positions_BS=positions_BS,
        noise_positions_BQ=(positions_BS.gather(1, anchors_BN)[..., None] + offset_K).flatten(1),
        labels_BNJ=at(rows.tokens_BS),
        valid_BNJ=valid_BNJ,
        weights_BNJ=decay_J * valid_BNJ,
        rule=Rule(
            anchors_BN=anchors_BN,
            keep_BN=rows.keep_BN,
            documents_BS=rows.documents_BS,
            block_size=block_size,
        ),
    )


def rotaries(blocks: Blocks, *, config: DrafterConfig, dtype: torch.dtype) -> tuple[Rotary, Rotary]:
    """The rotations of context and noise, for a drafter of `dtype`."""
    positions = blocks.positions_BS, blocks.noise_positions_BQ
    context, noise = (config.rotary(places, dtype=dtype) for places in positions)
    return context, noise


def terms(
    drafter: Drafter,
    *,
    head: FrozenHead,
    hidden_BSC: Tensor,
    blocks: Blocks,
    attend: Attend,
    by: Operations = PLAIN,
) -> RowTerms:
    """The rows' loss terms and figures: the one call site of training, warm-up and held-out loss.

    Nothing in it waits for the device.

    Args:
        drafter: with gradients on or off.
        head: the target's.
        hidden_BSC: the rows' hidden states.
        blocks: of the same rows.
        attend: the attention under `blocks.rule`.
        by: who computes the drafter's operations and its score.

    Compile: all dimensions static.
    """
    context_rotary, noise_rotary = blocks.rotaries or rotaries(
        blocks, config=drafter.config, dtype=hidden_BSC.dtype
    )
    hidden_BQD = drafter(
        head.embed(blocks.noise_BQ).to(hidden_BSC.dtype),
        hidden_BSC=hidden_BSC,
        context_rotary=context_rotary,
        noise_rotary=noise_rotary,
        attend=attend,
        by=by,
    )
    size = blocks.rule.block_size
    predicted_RD = hidden_BQD.unflatten(1, (-1, size))[:, :, 1:].flatten(0, 2)
    loss_R, hit_R = cross_entropy(
        predicted_RD,
        head=head,
        labels_R=blocks.labels_BNJ.flatten(),
        weights_R=blocks.weights_BNJ.flatten(),
        by=by,
    )
    hit_BNJ = hit_R.view_as(blocks.valid_BNJ) & blocks.valid_BNJ
    whole_BN = blocks.valid_BNJ.all(dim=-1)
    accepted_BN = 1 + hit_BNJ.long().cumprod(dim=-1).sum(dim=-1)
    return RowTerms(
        numerator_B=loss_R.view_as(blocks.weights_BNJ).sum(dim=(1, 2)),
        denominator_B=blocks.weights_BNJ.sum(dim=(1, 2)),
        hits_BJ=hit_BNJ.sum(dim=1),
        labels_BJ=blocks.valid_BNJ.sum(dim=1),
        accepted_B=(accepted_BN * whole_BN).sum(dim=1),
        blocks_B=whole_BN.sum(dim=1),
    )


def cross_entropy(
    hidden_RD: Tensor, *, head: FrozenHead, labels_R: Tensor, weights_R: Tensor, by: Operations = PLAIN
) -> tuple[Tensor, Tensor]:
    """(weight * cross-entropy, whether the best guess is the label) of each slot, [R] both.

    The head is frozen and the loss a weighted sum, so the gradient of the hidden states is made in the
    forward, chunk by chunk, where the logits are at hand: they are never kept and never made twice.
    """
    if head.head_VD.requires_grad:
        raise AssertionError("the head must be frozen: its gradient is not computed")
    rows = chunk_rows(len(hidden_RD), most=by.score_bytes // (by.logit_bytes * head.head_VD.shape[0]))
    weighted_R, hit_R = _HeadLoss.apply(hidden_RD, head.head_VD, labels_R, weights_R, by.score, rows)
    return weighted_R, hit_R


def chunk_rows(slots: int, *, most: int) -> int:
    """How many slots a chunk has: at most `most`, at least one.

    The largest number that divides `slots`, so that all chunks have one shape, unless that would be less
    than half of what is allowed: then the last chunk is a shorter one.
    """
    most = max(1, min(most, slots))
    even = next(rows for rows in range(most, 0, -1) if slots % rows == 0)
    return even if 2 * even >= most else most


class _HeadLoss(torch.autograd.Function):
    """Head and weighted cross-entropy in one, with the gradient made in the forward."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_RD: Tensor,
        head_VD: Tensor,
        labels_R: Tensor,
        weights_R: Tensor,
        score: Callable[..., Score],
        rows: int,
    ) -> tuple[Tensor, Tensor]:
        """Loop over chunks of `rows` slots."""
        wanted = hidden_RD.requires_grad
        chunks = [
            score(hidden_RD[low : low + rows], head_VD, labels_R[low : low + rows], wanted)
            for low in range(0, len(hidden_RD), rows)
        ]
        losses, hits, gradients = zip(*chunks, strict=True)
        if wanted:
            ctx.save_for_backward(torch.cat(gradients), weights_R)
        hit_R = torch.cat(hits)
        ctx.mark_non_differentiable(hit_R)
        return torch.cat(losses) * weights_R, hit_R

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        """Scale each slot's gradient by its weight and by what came from above."""
        gradient_RD, weights_R = ctx.saved_tensors
        scale_R = outer[0] * weights_R
        return (gradient_RD.float() * scale_R[:, None]).to(gradient_RD.dtype), None, None, None, None, None
