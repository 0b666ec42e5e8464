"""The drafter as it serves: cached context, fused projections, one block at a time.

Shapes: S context tokens, W capacity of the cache, D hidden size, C captured width, I layers,
K block size, J = K-1, H query heads, G key-value heads, E head size, M = (H+2G)*E.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dflash_runner.head import FrozenHead
from dflash_runner.model import Drafter, Layer, Rotary
from dflash_runner.operations import turn


@dataclass(frozen=True, kw_only=True, slots=True)
class _FusedLayer:
    """One layer's weights, joined so that a small model spends its time in matrices, not in calls."""

    query_key_value_MD: Tensor
    norms_XE: Tensor  # weights of q_norm for each query head, then of k_norm
    output: Tensor
    gate_up: Tensor
    down: Tensor
    input_norm_D: Tensor
    mlp_norm_D: Tensor

    @staticmethod
    def of(layer: Layer) -> _FusedLayer:
        attention, mlp = layer.self_attn, layer.mlp
        heads = attention.q_proj.out_features // attention.head_dim
        kv_heads = attention.k_proj.out_features // attention.head_dim
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        norms = [attention.q_norm.weight] * heads + [attention.k_norm.weight] * kv_heads
        return _FusedLayer(
            query_key_value_MD=torch.cat([p.weight for p in projections]),
            norms_XE=torch.stack(norms),
            output=attention.o_proj.weight,
            gate_up=torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
            down=mlp.down_proj.weight,
            input_norm_D=layer.input_layernorm.weight,
            mlp_norm_D=layer.post_attention_layernorm.weight,
        )


class ServingDrafter:
    """A drafter that guesses the next J tokens of one text, its context's keys and values cached.

    The same function as `Drafter.forward` for one block, tested to be; the weights are copies, so a
    drafter that is trained on must be made again.

    Source: DFlash (arXiv 2602.06036) section 4.1.
    """

    @torch.no_grad()
    def __init__(self, drafter: Drafter, *, head: FrozenHead) -> None:
        self.config = drafter.config
        self._head = head
        self._fc, self._hidden_norm = drafter.fc.weight.detach(), drafter.hidden_norm.weight.detach()
        self._norm = drafter.norm.weight.detach()
        self._layers = [_FusedLayer.of(layer) for layer in drafter.layers]
        attentions = [layer.self_attn for layer in drafter.layers]
        self._context_keys = torch.cat([a.k_proj.weight for a in attentions])
        self._context_values = torch.cat([a.v_proj.weight for a in attentions])
        self._key_norms_I11E = torch.stack([a.k_norm.weight for a in attentions])[:, None, None]
        masks = torch.full((self.config.block_size - 1,), self.config.mask_token_id, device=self._fc.device)
        self._masks_JD = head.embed(masks).to(self._fc.dtype)
        self._eps = torch.tensor(self.config.rms_norm_eps, device=self._fc.device)
        self._length = 0

    def begin(self, *, capacity: int) -> None:
        """Start a text of at most `capacity` tokens."""
        config, like = self.config, self._fc
        shape = (config.layers, config.kv_heads, capacity + config.block_size, config.head_dim)
        self._keys_IGWE, self._values_IGWE = like.new_empty(shape), like.new_empty(shape)
        self._length = 0
        places = torch.arange(shape[2], device=like.device)[None]
        rotary = Rotary.at(places, head_dim=config.head_dim, theta=config.rope_theta, dtype=like.dtype)
        self._cos_WE, self._sin_WE = rotary.cos_B1SE[0, 0], rotary.sin_B1SE[0, 0]

    def _rms_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """As `operations.norm`, in fewer calls than the composite that F.rms_norm is on a CPU."""
        wide = x.float()
        size = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = torch.addcmul(self._eps, size, size, value=1 / x.shape[-1]).rsqrt_()
        return (wide * scale).to(x.dtype) * weight

    def extend(self, hidden_SC: Tensor) -> None:
        """Take in the hidden states of the next S accepted tokens: all layers in two products."""
        config, (low, high) = self.config, (self._length, self._length + len(hidden_SC))
        feature_SD = self._rms_norm(F.linear(hidden_SC.to(self._fc.dtype), self._fc), self._hidden_norm)

        def split(x_SM: Tensor) -> Tensor:
            return x_SM.view(len(x_SM), config.layers, config.kv_heads, config.head_dim).permute(1, 2, 0, 3)

        key_IGSE = self._rms_norm(split(F.linear(feature_SD, self._context_keys)), self._key_norms_I11E)
        self._keys_IGWE[:, :, low:high] = turn(
            key_IGSE, cos=self._cos_WE[low:high], sin=self._sin_WE[low:high]
        )
        self._values_IGWE[:, :, low:high] = split(F.linear(feature_SD, self._context_values))
        self._length = high

    def _attend(self, index: int, layer: _FusedLayer, x_KD: Tensor) -> Tensor:
        config, low, high = self.config, self._length, self._length + self.config.block_size
        turned = config.heads + config.kv_heads
        joined_KXE = F.linear(x_KD, layer.query_key_value_MD).unflatten(-1, (-1, config.head_dim))
        normed_KXE = self._rms_norm(joined_KXE[:, :turned], layer.norms_XE)
        turned_KXE = turn(normed_KXE, cos=self._cos_WE[low:high, None], sin=self._sin_WE[low:high, None])
        keys_GWE, values_GWE = self._keys_IGWE[index], self._values_IGWE[index]
        keys_GWE[:, low:high] = turned_KXE[:, config.heads :].transpose(0, 1)
        values_GWE[:, low:high] = joined_KXE[:, turned:].transpose(0, 1)
        mixed_1HKE = F.scaled_dot_product_attention(
            turned_KXE[:, : config.heads].transpose(0, 1)[None],
            keys_GWE[None, :, :high],
            values_GWE[None, :, :high],
            enable_gqa=config.heads != config.kv_heads,
        )
        return F.linear(mixed_1HKE[0].transpose(0, 1).flatten(1), layer.output)

    def logits(self, token: int) -> Tensor:
        """float32 logits [J,V] of the J tokens after `token`, which follows the context taken in so far.

        The block's own keys and values lie behind the context's and are overwritten by the next call.
        """
        ids = torch.tensor([token], device=self._fc.device)
        x_KD = torch.cat([self._head.embed(ids).to(self._fc.dtype), self._masks_JD])
        for index, layer in enumerate(self._layers):
            x_KD = x_KD + self._attend(index, layer, self._rms_norm(x_KD, layer.input_norm_D))
            gate, up = F.linear(self._rms_norm(x_KD, layer.mlp_norm_D), layer.gate_up).chunk(2, dim=-1)
            x_KD = x_KD + F.linear(F.silu(gate) * up, layer.down)
        return self._head.logits(self._rms_norm(x_KD[1:], self._norm))

    def guess(self, token: int) -> Tensor:
        """The likeliest J tokens after `token`, int64 [J]."""
        return self.logits(token).argmax(dim=-1)
