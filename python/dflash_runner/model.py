"""The drafter: Qwen3-shaped layers that read the target's hidden states as context.

Shapes: B rows, S context tokens, Q noise tokens, L captured layers, D hidden size, C = L*D,
H query heads, G key-value heads, E head size, V vocabulary.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dflash_runner.attention import Attend
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.operations import PLAIN, Operations

Context = list[tuple[Tensor, Tensor]]
"""Per layer the context's (key_BGSE, value_BGSE): what serving caches."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DrafterConfig:
    """Everything that fixes the drafter's shape and how it is served."""

    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]  # 0-based; the output of that block
    target_layers: int  # of the whole target
    max_position_embeddings: int

    def rotary(self, positions_BS: Tensor, *, dtype: torch.dtype) -> Rotary:
        """The rotation of each position, for operands of `dtype`."""
        return Rotary.at(positions_BS, head_dim=self.head_dim, theta=self.rope_theta, dtype=dtype)

    def __post_init__(self) -> None:
        for name in ("layers", "hidden_size", "intermediate_size", "heads", "kv_heads", "head_dim"):
            _check(getattr(self, name) > 0, name, "a positive number", getattr(self, name))
        _check(
            self.heads % self.kv_heads == 0, "heads", f"a multiple of kv_heads {self.kv_heads}", self.heads
        )
        _check(self.head_dim % 2 == 0, "head_dim", "an even number", self.head_dim)
        _check(self.block_size >= 2, "block_size", "at least 2", self.block_size)
        _check(
            0 <= self.mask_token_id < self.vocab_size,
            "mask_token_id",
            f"an id below vocab_size {self.vocab_size}",
            self.mask_token_id,
        )
        ids = self.target_layer_ids
        _check(len(ids) > 0, "target_layer_ids", "at least one layer", ids)
        _check(
            all(0 <= i < self.target_layers for i in ids) and sorted(set(ids)) == list(ids),
            "target_layer_ids",
            f"rising ids from 0 to {self.target_layers - 1}",
            ids,
        )


def _check(true: bool, name: str, want: str, got: object) -> None:
    if not true:
        raise WorkerError(Kind.INVALID, f"build drafter: {name}: want {want}, got {got}")


def target_layer_ids(layers: int, *, count: int) -> tuple[int, ...]:
    """The captured layers for a target of `layers` layers: evenly from the 2nd to the 3rd from last.

    Raises:
        WorkerError: invalid, where the rule would name a layer twice (it needs layers >= count + 3).

    Source: z-lab dflash `build_target_layer_ids`.
    """
    if count == 1:
        return (layers // 2,)
    ids = tuple(round(1 + i * (layers - 4) / (count - 1)) for i in range(count))
    if len(set(ids)) != count or ids[0] < 0:
        raise WorkerError(
            Kind.INVALID,
            f"choose captured layers: want at least {count + 3} target layers for {count} ids, got {layers}",
        )
    return ids


class RMSNorm(nn.Module):
    """The learned weight of a norm, which `operations.norm` computes."""

    def __init__(self, size: int, *, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps


@dataclass(frozen=True, kw_only=True, slots=True)
class Rotary:
    """cos and sin of some positions, ready to turn heads by."""

    cos_B1SE: Tensor
    sin_B1SE: Tensor  # with the sign of the first half turned, so that halves are swapped and not negated

    @staticmethod
    def at(positions_BS: Tensor, *, head_dim: int, theta: float, dtype: torch.dtype) -> Rotary:
        """The rotation of each position. Source: transformers Qwen3RotaryEmbedding (Neox halves)."""
        exponent = torch.arange(0, head_dim, 2, device=positions_BS.device, dtype=torch.float32) / head_dim
        angle = positions_BS[:, None, :, None].float() * theta**-exponent
        cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
        return Rotary(cos_B1SE=torch.cat([cos, cos], dim=-1), sin_B1SE=torch.cat([-sin, sin], dim=-1))


class Attention(nn.Module):
    """Queries from the noise alone; keys and values from the context and the noise."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        size, width = config.hidden_size, config.head_dim
        self.head_dim = width
        self.q_proj = nn.Linear(size, config.heads * width, bias=False)
        self.k_proj = nn.Linear(size, config.kv_heads * width, bias=False)
        self.v_proj = nn.Linear(size, config.kv_heads * width, bias=False)
        self.o_proj = nn.Linear(config.heads * width, size, bias=False)
        self.q_norm = RMSNorm(width, eps=config.rms_norm_eps)
        self.k_norm = RMSNorm(width, eps=config.rms_norm_eps)

    def query(self, operand: Any, *, rotary: Rotary, by: Operations) -> Tensor:
        """query_BHQE of the noise, which comes as `by.operand` gives it."""
        weight_E, eps = self.q_norm.weight, self.q_norm.eps
        projected = by.linear(self.q_proj, operand)
        query_BQHE = by.heads(projected, weight_E, rotary.cos_B1SE, rotary.sin_B1SE, eps)
        return query_BQHE.transpose(1, 2)

    def key_value(
        self,
        operand: Any,
        *,
        rotary: Rotary,
        heads: Callable[..., Tensor],
        linear: Callable[[nn.Linear, Any], Tensor],
    ) -> tuple[Tensor, Tensor]:
        """(key_BGSE, value_BGSE) of context or noise: k_norm is per token, so it commutes with joining."""
        projected, norm = linear(self.k_proj, operand), self.k_norm
        key = projected, norm.weight, rotary.cos_B1SE, rotary.sin_B1SE, norm.eps
        value_BSGE = linear(self.v_proj, operand).unflatten(-1, (-1, self.head_dim))
        return heads(*key).transpose(1, 2), value_BSGE.transpose(1, 2)

    def forward(
        self,
        x_BQD: Tensor,
        *,
        context: tuple[Tensor, Tensor],
        rotary: Rotary,
        attend: Attend,
        by: Operations,
    ) -> Tensor:
        """The attention's output for the noise, [B,Q,D]."""
        operand = by.operand(x_BQD)
        query = self.query(operand, rotary=rotary, by=by)
        key, value = self.key_value(operand, rotary=rotary, heads=by.heads, linear=by.linear)
        key, value = _joined(context[0], key), _joined(context[1], value)
        return by.linear(self.o_proj, by.operand(attend(query, key, value).transpose(1, 2).flatten(2)))


def _joined(context_BGSE: Tensor, noise_BGQE: Tensor) -> Tensor:
    """Keys or values of both, [B,G,X,E], in the memory order that all have: a token's heads side by side."""
    return torch.cat([context_BGSE.transpose(1, 2), noise_BGQE.transpose(1, 2)], dim=1).transpose(1, 2)


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, *, by: Operations) -> Tensor:
        """down(silu(gate(x)) * up(x))."""
        operand = by.operand(x)
        gated = by.gate(by.linear(self.gate_proj, operand), by.linear(self.up_proj, operand))
        return by.linear(self.down_proj, by.operand(gated))


class Layer(nn.Module):
    """One decoder layer; the context passes through its keys and values only."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(
        self,
        x_BQD: Tensor,
        normed_BQD: Tensor,
        *,
        context: tuple[Tensor, Tensor],
        rotary: Rotary,
        attend: Attend,
        by: Operations,
    ) -> tuple[Tensor, Tensor]:
        """The noise after attention, and what the MLP has still to add to it, [B,Q,D] both.

        Args:
            x_BQD: the noise.
            normed_BQD: the same under `input_layernorm`: made with the sum before it, in one go.
            context: the context's keys and values.
            rotary: of the noise.
            attend: the attention.
            by: who computes the operations.
        """
        change_BQD = self.self_attn(normed_BQD, context=context, rotary=rotary, attend=attend, by=by)
        after = self.post_attention_layernorm
        x_BQD, normed_BQD = by.add_norm(x_BQD, change_BQD, after.weight, after.eps)
        return x_BQD, self.mlp(normed_BQD, by=by)


class Drafter(nn.Module):
    """A DFlash drafter: 3 + 11 * layers tensors, named as z-lab names them; no embedding, no head.

    Source: DFlash (arXiv 2602.06036) section 4 and A.3.
    """

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(len(config.target_layer_ids) * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    @torch.no_grad()
    def initialise(self, seed: int) -> Drafter:
        """Itself with every parameter drawn from (seed, name) alone: the order of modules, the number of
        threads and the device change nothing.

        Norms are 1. Matrices are normal with deviation max(0.02, 0.5 / sqrt(fan in)): upstream's 0.02
        from 625 inputs on, and enough signal below for drafters of a few hundred. A generator draws on one
        core, a billion numbers in a quarter of a minute, so every core draws a parameter of its own.
        """

        @torch.no_grad()
        def draw(named: tuple[str, nn.Parameter]) -> None:
            name, parameter = named
            if parameter.ndim < 2:
                parameter.fill_(1.0)
                return
            digest = hashlib.sha256(f"dflash-runner drafter {seed} {name}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
            deviation = max(0.02, 0.5 * parameter.shape[1] ** -0.5)
            drawn = torch.empty(parameter.shape, dtype=torch.float32)
            parameter.copy_(drawn.normal_(0.0, deviation, generator=generator))

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            for _ in pool.map(draw, self.named_parameters()):  # raises what a thread raised
                pass
        return self

    def context(self, hidden_BSC: Tensor, *, rotary: Rotary, by: Operations = PLAIN) -> Context:
        """Each layer's keys and values of the context: projected, then normed, once for all layers.

        Args:
            hidden_BSC: the target's hidden states, captured layers side by side; the drafter's dtype.
            rotary: of each token's place within the document.
            by: who computes the operations.
        """
        norm = self.hidden_norm
        feature_BSD = by.context_norm(self.fc(hidden_BSC), norm.weight, norm.eps)
        operand, heads, linear = by.context_operand(feature_BSD), by.context_heads, by.context_linear
        return [
            layer.self_attn.key_value(operand, rotary=rotary, heads=heads, linear=linear)
            for layer in self.layers
        ]

    def draft(
        self,
        noise_BQD: Tensor,
        *,
        context: Context,
        rotary: Rotary,
        attend: Attend,
        by: Operations = PLAIN,
    ) -> Tensor:
        """Final hidden states of the noise, [B,Q,D], given the context's keys and values.

        `rotary` is of the noise's places: anchor + offset, within the document.
        """
        norms = [*(layer.input_layernorm for layer in self.layers), self.norm]
        hidden_BQD, normed_BQD = noise_BQD, by.norm(noise_BQD, norms[0].weight, norms[0].eps)
        for layer, cached, after in zip(self.layers, context, norms[1:], strict=True):
            hidden_BQD, change_BQD = layer(
                hidden_BQD, normed_BQD, context=cached, rotary=rotary, attend=attend, by=by
            )
            hidden_BQD, normed_BQD = by.add_norm(hidden_BQD, change_BQD, after.weight, after.eps)
        return normed_BQD

    def forward(
        self,
        noise_BQD: Tensor,
        *,
        hidden_BSC: Tensor,
        context_rotary: Rotary,
        noise_rotary: Rotary,
        attend: Attend,
        by: Operations = PLAIN,
    ) -> Tensor:
        """Final hidden states of the noise, [B,Q,D]: the training forward.

        The hidden state at offset k of a block predicts the token at anchor + k: same place, no shift.

        Args:
            noise_BQD: embedded noise blocks: the anchor's token, then mask tokens.
            hidden_BSC: the target's hidden states, captured layers side by side.
            context_rotary: of each context token's place within its document.
            noise_rotary: of anchor + offset, likewise.
            attend: the attention, which holds the mask.
            by: who computes the operations.

        Compile: all dimensions static.
        """
        context = self.context(hidden_BSC, rotary=context_rotary, by=by)
        return self.draft(noise_BQD, context=context, rotary=noise_rotary, attend=attend, by=by)
