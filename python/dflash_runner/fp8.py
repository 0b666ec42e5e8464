"""Matrix products of eight-bit operands, as plain functions that a compiler can make kernels of.

A layer's input and weight are rounded to e4m3, gradients to e5m2: each tensor with one scale, taken from its
own largest magnitude. Products are summed in float32 and come out in the drafter's dtype.

Nothing is clamped: scaled by its largest magnitude, no value is beyond the format. What is infinite or no
number makes the scale so, and with it all of the product, in which the step's finite check finds it.

Shapes: R tokens or slots, M inputs and N outputs of a layer, D hidden size, V vocabulary, U = V up to a
multiple of 16.
Source: FP8 Formats for Deep Learning (arXiv 2209.05433): e4m3 forward, e5m2 for gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dflash_runner.operations import Score

FORWARD, GRADIENT = torch.float8_e4m3fn, torch.float8_e5m2
MULTIPLE = 16
"""Of the inner and the last size of a product: what the kernels of GPUs take."""

_MOST = {FORWARD: torch.finfo(FORWARD).max, GRADIENT: torch.finfo(GRADIENT).max}
_LEAST = torch.finfo(torch.float32).tiny  # of a scale: zeros have one too, and it divides without overflow
_CHANGE = 2.0**-15
"""Scale of the loss's gradient by the logits: a softmax less one at the label is never above 1, so it needs
no look at the values. What is below 2**-32 becomes 0."""

Eight = tuple[Tensor, Tensor, Tensor]
"""A matrix in eight bits: (values, values of its transpose, scale as 0-d float32), both contiguous."""


def rounded(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(x / scale in eight bits, scale)."""
    scale = (x.abs().amax().float() / _MOST[dtype]).clamp(min=_LEAST)
    return (x.float() / scale).to(dtype), scale


def cast(x_RM: Tensor) -> Eight:
    """A layer's input, or its weight."""
    x8_RM, scale = rounded(x_RM, FORWARD)
    return x8_RM, x8_RM.t().contiguous(), scale


def cast_into(weight_NM: Tensor, w8_NM: Tensor, w8_MN: Tensor, scale: Tensor) -> None:
    """Write a weight's eight bits where they are kept."""
    for place, value in zip((w8_NM, w8_MN, scale), cast(weight_NM), strict=True):
        place.copy_(value)


def product(
    x_RM: Tensor,
    weight_NM: Tensor,
    x8_RM: Tensor,
    x8_MR: Tensor,
    x_scale: Tensor,
    w8_NM: Tensor,
    w8_MN: Tensor,
    w_scale: Tensor,
) -> Tensor:
    """x @ weight.T in the dtype of x, and its gradients by both, from their eight bits.

    Args:
        x_RM: whose gradient is made; its values are read from `x8_RM`.
        weight_NM: likewise.
        x8_RM: with its transpose and its scale, as `cast` gives them.
        x8_MR: the transpose, which is what is kept for the backward.
        x_scale: of both.
        w8_NM: likewise of the weight.
        w8_MN: likewise.
        w_scale: likewise.

    Compile: all dimensions static.
    """
    return _Product.apply(x_RM, weight_NM, x8_RM, x8_MR, x_scale, w8_NM, w8_MN, w_scale)


class _Product(torch.autograd.Function):
    """One product forward, two backward."""

    @staticmethod
    def forward(
        ctx: Any,
        x_RM: Tensor,
        weight_NM: Tensor,  # noqa: ARG004
        x8_RM: Tensor,
        x8_MR: Tensor,
        x_scale: Tensor,
        w8_NM: Tensor,
        w8_MN: Tensor,
        w_scale: Tensor,
    ) -> Tensor:
        """Sums may be rounded on the way, as is usual for activations: `use_fast_accum`."""
        ctx.save_for_backward(x8_MR, x_scale, w8_MN, w_scale)
        return torch._scaled_mm(  # noqa: SLF001
            x8_RM, w8_NM.t(), x_scale, w_scale, out_dtype=x_RM.dtype, use_fast_accum=True
        )

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        """By the input and by the weight; the gradient is rounded once for both."""
        x8_MR, x_scale, w8_MN, w_scale = ctx.saved_tensors
        gradient_RN = outer[0]
        g8_RN, g_scale = rounded(gradient_RN, GRADIENT)
        by_x_RM = torch._scaled_mm(g8_RN, w8_MN.t(), g_scale, w_scale, out_dtype=gradient_RN.dtype)  # noqa: SLF001
        g8_NR = g8_RN.t().contiguous()
        by_weight_NM = torch._scaled_mm(g8_NR, x8_MR.t(), g_scale, x_scale, out_dtype=gradient_RN.dtype)  # noqa: SLF001
        return by_x_RM, by_weight_NM, None, None, None, None, None, None


def score(
    hidden_RD: Tensor,
    head8_UD: Tensor,
    head8_DU: Tensor,
    head_scale: Tensor,
    labels_R: Tensor,
    gradient: bool,
    vocabulary: int,
) -> Score:
    """As `operations.score`, both of its products in eight bits; softmax and loss in float32.

    Args:
        hidden_RD: final hidden states.
        head8_UD: the frozen head, with rows of zeros up to U, and its transpose and scale.
        head8_DU: the transpose.
        head_scale: of both.
        labels_R: int64.
        gradient: whether that of the hidden states is wanted.
        vocabulary: V; rows beyond it are no tokens.
    """
    hidden8_RD, scale = rounded(hidden_RD, FORWARD)
    logits_RU = torch._scaled_mm(  # noqa: SLF001
        hidden8_RD, head8_UD.t(), scale, head_scale, out_dtype=hidden_RD.dtype, use_fast_accum=True
    ).float()
    place_U = torch.arange(head8_UD.shape[0], device=labels_R.device)
    if vocabulary < head8_UD.shape[0]:
        logits_RU = logits_RU.masked_fill(place_U >= vocabulary, float("-inf"))
    total_R1 = logits_RU.logsumexp(dim=-1, keepdim=True)
    label_R1 = labels_R[:, None]
    loss_R = (total_R1 - logits_RU.gather(1, label_R1))[:, 0]
    hit_R = logits_RU.argmax(dim=-1) == labels_R
    if not gradient:
        return loss_R, hit_R, None
    change_RU = (logits_RU - total_R1).exp() - (place_U == label_R1).float()
    change8_RU = (change_RU / _CHANGE).to(GRADIENT)
    change_scale = torch.full_like(head_scale, _CHANGE)
    gradient_RD = torch._scaled_mm(  # noqa: SLF001
        change8_RU, head8_DU.t(), change_scale, head_scale, out_dtype=hidden_RD.dtype
    )
    return loss_R, hit_R, gradient_RD
