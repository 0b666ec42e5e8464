"""A DFlash block written plainly: one document, one anchor, one query at a time, in float64."""

from __future__ import annotations

import math

import torch
from dflash_runner.head import FrozenHead
from dflash_runner.loss import Rows
from dflash_runner.model import DrafterConfig
from torch import Tensor

State = dict[str, Tensor]


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def _turn(x: Tensor, position: int, theta: float) -> Tensor:
    size = x.shape[-1]
    turned = x.clone()
    for i in range(size // 2):
        angle = position * theta ** (-2 * i / size)
        a, b = x[..., i], x[..., i + size // 2]
        turned[..., i] = a * math.cos(angle) - b * math.sin(angle)
        turned[..., i + size // 2] = b * math.cos(angle) + a * math.sin(angle)
    return turned


def _attend(
    state: State, config: DrafterConfig, at: str, normed: list[Tensor], context: list[Tensor], anchor: int
) -> list[Tensor]:
    """Each noise token's attention output; the context is raw, the noise already normed."""

    def heads(x: Tensor, name: str) -> Tensor:
        return (state[f"{at}.{name}.weight"] @ x).view(-1, config.head_dim)

    keys, values = [], []
    for place, x in enumerate(context + normed):
        position = place if place < len(context) else anchor + place - len(context)
        key = _norm(heads(x, "k_proj"), state[f"{at}.k_norm.weight"], config.rms_norm_eps)
        keys.append(_turn(key, position, config.rope_theta))
        values.append(heads(x, "v_proj"))
    outputs = []
    share = config.heads // config.kv_heads
    for offset, x in enumerate(normed):
        query = _norm(heads(x, "q_proj"), state[f"{at}.q_norm.weight"], config.rms_norm_eps)
        query = _turn(query, anchor + offset, config.rope_theta)
        mixed = []
        for head in range(config.heads):
            scores = torch.stack([query[head] @ key[head // share] for key in keys]) / math.sqrt(
                config.head_dim
            )
            chances = torch.softmax(scores, 0)
            mixed.append(sum(c * v[head // share] for c, v in zip(chances, values, strict=True)))
        outputs.append(state[f"{at}.o_proj.weight"] @ torch.cat(mixed))
    return outputs


def block_logits(
    state: State, config: DrafterConfig, head: FrozenHead, *, hidden: Tensor, token: int
) -> Tensor:
    """Logits [K-1, V] of the block after the context `hidden` (places 0 to anchor-1) and a known token."""
    anchor, eps = len(hidden), config.rms_norm_eps
    embedding, out = head.embedding_VD.double(), head.head_VD.double()
    context = [_norm(state["fc.weight"] @ h.double(), state["hidden_norm.weight"], eps) for h in hidden]
    noise = [embedding[token]] + [embedding[config.mask_token_id]] * (config.block_size - 1)
    for layer in range(config.layers):
        at = f"layers.{layer}"
        normed = [_norm(x, state[f"{at}.input_layernorm.weight"], eps) for x in noise]
        mixed = _attend(state, config, f"{at}.self_attn", normed, context, anchor)
        noise = [x + m for x, m in zip(noise, mixed, strict=True)]
        for i, x in enumerate(noise):
            y = _norm(x, state[f"{at}.post_attention_layernorm.weight"], eps)
            gate, up = state[f"{at}.mlp.gate_proj.weight"] @ y, state[f"{at}.mlp.up_proj.weight"] @ y
            noise[i] = x + state[f"{at}.mlp.down_proj.weight"] @ (gate * torch.sigmoid(gate) * up)
    return torch.stack([out @ _norm(x, state["norm.weight"], eps) for x in noise[1:]])


def row_terms(
    state: State, config: DrafterConfig, head: FrozenHead, *, rows: Rows, gamma: float
) -> tuple[Tensor, float]:
    """(numerator, denominator) over all rows: every kept block alone, from its own document's tokens."""
    numerator, denominator = torch.zeros((), dtype=torch.float64), 0.0
    for row in range(len(rows.tokens_BS)):
        documents = rows.documents_BS[row].tolist()
        for anchor, keep in zip(rows.anchors_BN[row].tolist(), rows.keep_BN[row].tolist(), strict=True):
            if not keep:
                continue
            start = documents.index(documents[anchor])
            logits = block_logits(
                state,
                config,
                head,
                hidden=rows.hidden_BSC[row, start:anchor],
                token=int(rows.tokens_BS[row, anchor]),
            )
            for slot in range(1, config.block_size):
                place = anchor + slot
                if place >= len(documents) or documents[place] != documents[anchor]:
                    break
                if rows.loss_mask_BS[row, place]:
                    weight = math.exp(-(slot - 1) / gamma)
                    chances = torch.log_softmax(logits[slot - 1], 0)
                    numerator = numerator - weight * chances[int(rows.tokens_BS[row, place])]
                    denominator += weight
    return numerator, denominator
