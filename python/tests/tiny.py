"""A tiny random target of transformers and drafters for it."""

from __future__ import annotations

import torch
from dflash_runner.head import FrozenHead
from dflash_runner.model import Drafter, DrafterConfig
from numerics import make_drafter
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 67


def make_target(*, layers: int = 5, window: int | None = None, tied: bool = False) -> nn.Module:
    """A random Qwen3, in eval mode; some of its layers slide where there is a window."""
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        initializer_range=0.25,
        use_sliding_window=window is not None,
        sliding_window=window,
        max_window_layers=layers // 2,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=1,
    )
    config._attn_implementation = "sdpa"  # noqa: SLF001 as from_pretrained sets it
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return Qwen3ForCausalLM(config).eval().requires_grad_(False)


def config_for(target: nn.Module, *, ids: tuple[int, ...] = (1, 2, 3), block_size: int = 6) -> DrafterConfig:
    """A small drafter's configuration for `target`."""
    config = target.config
    return DrafterConfig(
        layers=2,
        hidden_size=config.hidden_size,
        intermediate_size=40,
        heads=4,
        kv_heads=2,
        head_dim=8,
        vocab_size=config.vocab_size,
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        block_size=block_size,
        mask_token_id=VOCABULARY - 1,
        target_layer_ids=ids,
        target_layers=config.num_hidden_layers,
        max_position_embeddings=512,
    )


def head_of(target: nn.Module) -> FrozenHead:
    """The target's own embedding and head."""
    return FrozenHead(
        embedding_VD=target.get_input_embeddings().weight, head_VD=target.get_output_embeddings().weight
    )


def drafter_for(target: nn.Module, *, seed: int = 3) -> Drafter:
    """A random drafter for `target`, its norms not 1 either."""
    return make_drafter(config_for(target), seed=seed)


def prompt(length: int, *, seed: int = 0) -> Tensor:
    """Random ids."""
    return torch.randint(0, VOCABULARY - 1, (length,), generator=torch.Generator().manual_seed(seed))
