"""What every other trainer is told and gives: a model built from its checkout, a forward and an update.

Shapes: B rows of a step, S tokens of a row, C captured width, V vocabulary, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from shape import TARGET_LAYERS, Shape
from torch import Tensor, nn

GAMMA = 7.0  # of the weights along a block, as ours
CLIP = 1.0
LR = 1e-5
STEPS = 100_000  # that a schedule of the learning rate is told


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """The question to a trainer."""

    trainer: str
    checkout: Path
    shape: Shape
    rows: int  # that are timed
    batch: int  # B
    fsdp: bool
    compile: bool
    device: str
    threads: int

    @classmethod
    def told(cls, asked: dict[str, Any]) -> Asked:
        """From a question's JSON."""
        kept = {name: asked[name] for name in cls.__dataclass_fields__ if name in asked}
        return cls(
            **(kept | {"checkout": Path(asked["checkout"]), "shape": Shape.told(asked["shape"])}),
        )

    @property
    def dtype(self) -> torch.dtype:
        """Of the model and the hidden states."""
        return getattr(torch, self.shape.dtype)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """What a target would give: B rows of one document each, every token supervised."""

    tokens_BS: Tensor
    hidden_BSC: Tensor
    mask_BS: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Trainer:
    """A trainer's step, cut where a figure is taken."""

    model: nn.Module
    embedding: nn.Module  # of the noise
    head: nn.Module
    masters: list[Tensor]
    loss: Callable[[], Tensor]  # of all rows: anchors, mask, noise and head in it
    update: Callable[[], None]  # after the backward: clipping and the optimiser
    parts: dict[str, str]  # what is in it, in words, by the part's name
    failed: Callable[[str, Exception], Exception]  # what is told of an exception of its code


def rows_of(asked: Asked) -> Rows:
    """Random rows on the device."""
    shape, device = asked.shape, asked.device
    generator = torch.Generator(device).manual_seed(1)
    sizes = (asked.batch, shape.tokens)
    return Rows(
        tokens_BS=torch.randint(shape.mask_token_id, sizes, generator=generator, device=device),
        hidden_BSC=torch.randn(
            *sizes, shape.captured * shape.hidden, generator=generator, device=device, dtype=asked.dtype
        ),
        mask_BS=torch.ones(sizes, device=device),
    )


def embedding_and_head(asked: Asked) -> tuple[nn.Embedding, nn.Linear]:
    """A frozen target's random embedding, and a head that is the same matrix, as ours has it."""
    shape = asked.shape
    with torch.device(asked.device):
        embedding = nn.Embedding(shape.vocabulary, shape.hidden, dtype=asked.dtype)
        head = nn.Linear(shape.hidden, shape.vocabulary, bias=False, dtype=asked.dtype, device="meta")
    embedding.weight.data.normal_(std=0.02)
    head.weight = embedding.weight
    return embedding.requires_grad_(False), head.requires_grad_(False)


def target_settings(shape: Shape) -> dict[str, Any]:
    """Of a Qwen3 with a drafter's sizes: what transformers' configuration class takes."""
    return {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": TARGET_LAYERS,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "max_position_embeddings": 40_960,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
    }


def join_alone(asked: Asked) -> None:
    """A process group of this process alone: what some trainers want before they do anything."""
    import torch.distributed as dist

    gpu = asked.device != "cpu"
    dist.init_process_group(
        "nccl" if gpu and asked.fsdp else "gloo",
        store=dist.HashStore(),
        rank=0,
        world_size=1,
        **({"device_id": torch.device(asked.device)} if gpu and asked.fsdp else {}),
    )
