"""What a trainer is made of, as the worker's configuration says."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from dflash_runner.attention import Attention, Dense
from dflash_runner.config import Configuration, DrafterSettings, TargetSettings
from dflash_runner.head import FrozenHead
from dflash_runner.model import Drafter, DrafterConfig
from dflash_runner.operations import PLAIN, Operations


def drafter_config(drafter: DrafterSettings | Any, target: TargetSettings | Any) -> DrafterConfig:
    """The model's configuration, from the worker's.

    Args:
        drafter: settings, or the message with the same fields that a job is given.
        target: likewise.
    """
    return DrafterConfig(
        layers=drafter.layers,
        hidden_size=drafter.hidden_size,
        intermediate_size=drafter.intermediate_size,
        heads=drafter.heads,
        kv_heads=drafter.kv_heads,
        head_dim=drafter.head_dim,
        vocab_size=drafter.vocab_size,
        rms_norm_eps=drafter.rms_norm_eps,
        rope_theta=drafter.rope_theta,
        block_size=drafter.block_size,
        mask_token_id=drafter.mask_token_id,
        target_layer_ids=tuple(target.layer_ids),
        target_layers=drafter.target_layers,
        max_position_embeddings=drafter.max_position_embeddings,
    )


def attention(configuration: Configuration, dtype: torch.dtype) -> Attention:
    """The configured attention; the compiler is imported for the compiled one alone."""
    if configuration.attention == "sdpa":
        return Dense(dtype=dtype)
    from dflash_runner.flex import Flex

    return Flex(configuration.flex)


def operations(configuration: Configuration) -> Operations:
    """Compiled where the attention is, else plain."""
    if configuration.attention == "sdpa":
        return PLAIN
    from dflash_runner.kernels import kernels

    return kernels()


def initial(config: DrafterConfig, configuration: Configuration) -> Drafter:
    """A float32 drafter: the exported one of `init_from`, or one drawn from the seed."""
    if not configuration.drafter.init_from:
        return Drafter(config).initialise(configuration.seed)
    from dflash_runner.export import load_drafter

    exported = load_drafter(Path(configuration.drafter.init_from))
    for field in dataclasses.fields(config):
        want, got = getattr(config, field.name), getattr(exported.config, field.name)
        if want != got:
            raise ValueError(
                f"init from {configuration.drafter.init_from}: {field.name}: want {want}, got {got}"
            )
    return exported.drafter(dtype=torch.float32)


def check_head(frozen: FrozenHead, config: DrafterConfig) -> None:
    """The target's embedding fits the drafter."""
    want = (config.vocab_size, config.hidden_size)
    if tuple(frozen.embedding_VD.shape) != want:
        raise ValueError(
            f"build drafter: vocab_size, hidden_size: want {tuple(frozen.embedding_VD.shape)} "
            f"as the target's embedding has, got {want}"
        )
