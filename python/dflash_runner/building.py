"""What a trainer is made of, as the worker's configuration says."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dflash_runner.attention import Attention, Dense
from dflash_runner.config import FP8, Configuration, DrafterSettings, TargetSettings
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.head import FrozenHead
from dflash_runner.model import Drafter, DrafterConfig
from dflash_runner.operations import PLAIN, Operations

if TYPE_CHECKING:
    from dflash_runner.compiled import Backend
    from dflash_runner.products import Products

_FP8_CAPABILITY = (8, 9)


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


def products(
    configuration: Configuration,
    drafter: Drafter,
    *,
    frozen: FrozenHead,
    by: Operations,
    backend: Backend | None = None,
) -> Products | None:
    """The products of `drafter.precision: fp8`, compiled where the attention is; None where the drafter's
    dtype computes them.

    Raises:
        WorkerError: invalid, for a GPU that has no such products.
    """
    if configuration.drafter.precision != FP8:
        return None
    from dflash_runner.products import Products

    device = torch.device(configuration.device)
    if device.type == "cuda" and (has := torch.cuda.get_device_capability(device)) < _FP8_CAPABILITY:
        want, got = (".".join(map(str, version)) for version in (_FP8_CAPABILITY, has))
        raise WorkerError(
            Kind.INVALID,
            f"build drafter: drafter.precision: want compute capability {want} or more for fp8, got {got}",
            hint="leave drafter.precision at compute_dtype",
        )
    if backend is None and configuration.attention != "sdpa":
        backend = "inductor"
    return Products(drafter, frozen, by=by, backend=backend)


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
