"""The workload that a bench names: a drafter as a worker is told it, its head, its rows, its arithmetic.

The reference, W: a drafter of 5 layers on a target with hidden size 4,096 and a vocabulary of 151,936, rows
of 3,072 tokens with 512 blocks of 16. Names and sizes come from cmd/internal/bench/shape.go.

Shapes: S tokens of the row, V vocabulary, D hidden size, C captured width.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from dflash_runner.worker.v1 import worker_pb2
from safetensors.torch import save_file
from torch import Tensor

TARGET_LAYERS = 36
_SPREAD = 32  # layers between the first captured one and the last


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Sizes of a drafter and its rows."""

    tokens: int  # S
    anchors: int  # N
    block: int  # K
    vocabulary: int  # V
    hidden: int  # D
    intermediate: int
    layers: int
    captured: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: str  # float32 or bfloat16; of compute
    precision: str = ""  # of matrix products: fp8, or none: dtype

    @classmethod
    def told(cls, asked: dict[str, Any]) -> Shape:
        """The shape of a question's JSON, in which S and N have their letters."""
        names = {"tokens": "S", "anchors": "N"}
        own = [name for name in cls.__dataclass_fields__ if name != "precision"]
        told = {name: asked[names.get(name, name)] for name in own}
        return cls(**told, precision=asked.get("precision", ""))

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """Captured layers, spread over the target as the reference's: 1, 9, 17, 25, 33."""
        return tuple(1 + i * _SPREAD // max(1, self.captured - 1) for i in range(self.captured))


def message(shape: Shape, directory: Path, *, device: str, threads: int) -> worker_pb2.Configuration:
    """The workload as a worker is told it: compiled attention on a GPU, dense on a CPU.

    Args:
        shape: of everything.
        directory: of the target, as `save_head` leaves it.
        device: cuda:0 or cpu.
        threads: of torch on the host.
    """
    gpu = device != "cpu"
    return worker_pb2.Configuration(
        role=worker_pb2.ROLE_DRAFTER,
        world_size=1,
        generation=1,
        device=device,
        threads=threads,
        seed=1,
        attention="flex" if gpu else "sdpa",
        target=worker_pb2.Target(directory=str(directory), dtype=shape.dtype, layer_ids=shape.layer_ids),
        drafter=worker_pb2.Drafter(
            layers=shape.layers,
            hidden_size=shape.hidden,
            intermediate_size=shape.intermediate,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            vocab_size=shape.vocabulary,
            rms_norm_eps=1e-6,
            rope_theta=1e6,
            block_size=shape.block,
            mask_token_id=shape.vocabulary - 1,
            target_layers=TARGET_LAYERS,
            max_position_embeddings=40_960,
            precision=shape.precision,
        ),
        training=worker_pb2.Training(
            buckets=[shape.tokens],
            anchors=shape.anchors,
            rows_per_step=1,
            gamma=7.0,
            weight_constant=1000.0,
            beta1=0.9,
            beta2=0.95,
            epsilon=1e-8,
            clip_norm=1.0,
            compute_dtype=shape.dtype,
        ),
        flex=worker_pb2.Flex(backend="triton", replay=True) if gpu else None,
    )


def save_head(shape: Shape, directory: Path) -> None:
    """A target that is no more than a tied embedding, in bfloat16."""
    generator = torch.Generator().manual_seed(0)
    rows_VD = torch.randn(shape.vocabulary, shape.hidden, generator=generator).mul_(0.02).to(torch.bfloat16)
    save_file({"model.embed_tokens.weight": rows_VD}, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({"tie_word_embeddings": True}), encoding="utf-8")


def rows_of(shape: Shape, *, device: str) -> Callable[[], dict[str, Tensor]]:
    """A maker of rows of one document, every token supervised, on the device as a pull leaves them."""
    generator = torch.Generator(device).manual_seed(1)
    dtype = getattr(torch, shape.dtype)

    def make() -> dict[str, Tensor]:
        count = shape.tokens
        hidden_SC = torch.randn(
            count, shape.captured * shape.hidden, device=device, generator=generator, dtype=dtype
        )
        tokens_S = torch.randint(
            shape.vocabulary, (count,), device=device, generator=generator, dtype=torch.int32
        )
        return {
            "hidden": hidden_SC,
            "tokens": tokens_S,
            "loss_mask": torch.ones(count, device=device, dtype=torch.uint8),
            "documents": torch.zeros(count, device=device, dtype=torch.int32),
        }

    return make


def teraflop(shape: Shape) -> float:
    """What a row's matrix products come to, 1e12 operations: two a multiply-add, forward and backward.

    The noise goes through every layer (three products each for its linear maps: forward, to the input, to
    the weights), the context through fc (its input needs no gradient) and each layer's keys and values; the
    head is a product forward and one to the input; attention counts the visible pairs only, three forwards.
    """
    queries = shape.anchors * shape.block
    attention = shape.hidden * shape.head_dim * (2 * shape.heads + 2 * shape.kv_heads)
    layer = attention + 3 * shape.hidden * shape.intermediate
    noise = 6 * queries * shape.layers * layer
    context = 4 * shape.tokens * shape.captured * shape.hidden**2
    context += 6 * shape.tokens * shape.layers * 2 * shape.hidden * shape.kv_heads * shape.head_dim
    head = 4 * shape.anchors * (shape.block - 1) * shape.hidden * shape.vocabulary
    visible = queries * (shape.tokens / 2 + shape.block)
    scores = 3 * 4 * shape.layers * visible * shape.heads * shape.head_dim
    return (noise + context + head + scores) / 1e12
