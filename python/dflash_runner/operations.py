"""What a drafter computes besides matrix products and attention, as plain functions.

Each is pure and works row by row, so that a compiler can make one kernel of it: `kernels` does, for
GPUs. Compiled, a function keeps float32 where the plain one rounds between two calls of torch.

Shapes: B rows, S tokens of any kind, D hidden size, M = heads * E projected, H heads, E head size,
I intermediate size, V vocabulary, R slots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x with its last dimension normed by its root mean square, times a learned weight; same dtype.

    Source: transformers Qwen3RMSNorm: in float32, rounded to the input's dtype before the weight.
    """
    if x.dtype == torch.float32:
        return F.rms_norm(x, (x.shape[-1],), weight, eps)
    return F.rms_norm(x.float(), (x.shape[-1],), None, eps).to(x.dtype) * weight


def add_norm(x_BSD: Tensor, change_BSD: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(x + change, the norm of that): what stands between two halves of a layer."""
    total_BSD = x_BSD + change_BSD
    return total_BSD, norm(total_BSD, weight_D, eps)


def gate(gate_BSI: Tensor, up_BSI: Tensor) -> Tensor:
    """silu(gate) * up, [B,S,I]."""
    return F.silu(gate_BSI) * up_BSI


def turn(x: Tensor, *, cos: Tensor, sin: Tensor) -> Tensor:
    """x with its last dimension turned; cos and sin as `model.Rotary` has them, broadcasting."""
    first, second = x.chunk(2, dim=-1)
    return torch.addcmul(x * cos, torch.cat([second, first], dim=-1), sin)


def heads(x_BSM: Tensor, weight_E: Tensor, cos_B1SE: Tensor, sin_B1SE: Tensor, eps: float) -> Tensor:
    """Projected queries or keys as heads, each normed and turned by its place, [B,S,H,E].

    A token's heads stay side by side, as they are projected: whoever wants heads first takes a view, and
    neither it nor its gradient is ever copied into another order.
    """
    normed_BSHE = norm(x_BSM.unflatten(-1, (-1, weight_E.shape[0])), weight_E, eps)
    return turn(normed_BSHE, cos=cos_B1SE.transpose(1, 2), sin=sin_B1SE.transpose(1, 2))


def operand(x: Tensor) -> Tensor:
    """What layers multiply: itself."""
    return x


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """x times the layer's weight."""
    return layer(x)


Score = tuple[Tensor, Tensor, Tensor | None]
"""(cross-entropy [R] in float32, whether the best guess is the label [R], its gradient [R,D] or None)."""


def score(hidden_RD: Tensor, head_VD: Tensor, labels_R: Tensor, gradient: bool) -> Score:
    """The cross-entropy of slots.

    The logits are there once, in the head's dtype, and everything else is computed from them in float32.

    Args:
        hidden_RD: final hidden states.
        head_VD: of the target, frozen.
        labels_R: int64.
        gradient: whether that of the hidden states is wanted, in their dtype.

    Source: the derivative of cross-entropy by the logits is softmax less one at the label.
    """
    logits_RV = F.linear(hidden_RD.to(head_VD.dtype), head_VD).float()
    total_R1 = logits_RV.logsumexp(dim=-1, keepdim=True)
    label_R1 = labels_R[:, None]
    loss_R = (total_R1 - logits_RV.gather(1, label_R1))[:, 0]
    hit_R = logits_RV.argmax(dim=-1) == labels_R
    if not gradient:
        return loss_R, hit_R, None
    place_V = torch.arange(head_VD.shape[0], device=labels_R.device)
    change_RV = (logits_RV - total_R1).exp() - (place_V == label_R1).float()
    return loss_R, hit_R, (change_RV.to(head_VD.dtype) @ head_VD).to(hidden_RD.dtype)


def score_in_place(
    hidden_RD: Tensor,
    head_VD: Tensor,
    labels_R: Tensor,
    gradient: bool,
) -> Score:
    """As `score`, with one buffer of logits that is overwritten: what is best where nothing is compiled."""
    logits_RV = F.linear(hidden_RD.to(head_VD.dtype), head_VD).float()
    label_R1 = labels_R[:, None]
    total_R1 = logits_RV.logsumexp(dim=-1, keepdim=True)
    loss_R = (total_R1 - logits_RV.gather(1, label_R1))[:, 0]
    hit_R = logits_RV.argmax(dim=-1) == labels_R
    if not gradient:
        return loss_R, hit_R, None
    change_RV = logits_RV.sub_(total_R1).exp_()
    change_RV.scatter_add_(1, label_R1, torch.full_like(change_RV[:, :1], -1.0))
    return loss_R, hit_R, (change_RV.to(head_VD.dtype) @ head_VD).to(hidden_RD.dtype)


@dataclass(frozen=True, kw_only=True, slots=True)
class Operations:
    """Who computes them. The context's are apart from the noise's, as its length is one of several."""

    norm: Callable[..., Tensor]
    add_norm: Callable[..., tuple[Tensor, Tensor]]
    gate: Callable[..., Tensor]
    heads: Callable[..., Tensor]
    context_norm: Callable[..., Tensor]
    context_heads: Callable[..., Tensor]
    score: Callable[..., Score]
    operand: Callable[[Tensor], Any] = operand  # made once for all layers that multiply the same
    linear: Callable[[nn.Linear, Any], Tensor] = linear
    context_operand: Callable[[Tensor], Any] = operand
    context_linear: Callable[[nn.Linear, Any], Tensor] = linear
    score_bytes: int  # most bytes of one chunk's logits, as `score` holds them
    logit_bytes: int  # of one of them there


PLAIN = Operations(
    norm=norm,
    add_norm=add_norm,
    gate=gate,
    heads=heads,
    context_norm=norm,
    context_heads=heads,
    score=score_in_place,
    score_bytes=256 << 20,
    logit_bytes=4,
)
"""Torch's own functions, one after the other: every CPU, and serving."""
