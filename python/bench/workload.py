"""The workload that a bench names: a drafter as a worker is told it, its head, its rows, its arithmetic.

The reference, W: a drafter of 5 layers on a target with hidden size 4,096 and a vocabulary of 151,936, rows
of 3,072 tokens with 512 blocks of 16.

Shapes: S tokens of the row, V vocabulary, D hidden size, C captured width.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dflash_runner import packing
from dflash_runner.data import Dataset
from dflash_runner.frames import Piece
from dflash_runner.packing import Packed
from dflash_runner.worker.v1 import worker_pb2
from safetensors.torch import save_file
from shape import TARGET_LAYERS, Shape
from torch import Tensor, nn

_DOCUMENTS = (10, 8, 6, 5, 3)  # parts of 32: how a target's row is packed


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
            mask_token_id=shape.mask_token_id,
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
        flex=worker_pb2.Flex(backend="triton", copy_keys=True, replay=True) if gpu else None,
    )


def save_head(shape: Shape, directory: Path) -> None:
    """A target that is no more than a tied embedding, in bfloat16."""
    generator = torch.Generator().manual_seed(0)
    rows_VD = torch.randn(shape.vocabulary, shape.hidden, generator=generator).mul_(0.02).to(torch.bfloat16)
    save_file({"model.embed_tokens.weight": rows_VD}, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({"tie_word_embeddings": True}), encoding="utf-8")


def rows_of(shape: Shape, *, device: str, seed: int = 1) -> Callable[[], dict[str, Tensor]]:
    """A maker of rows of one document, every token supervised, on the device as a pull leaves them."""
    generator = torch.Generator(device).manual_seed(seed)
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A complete row, as a pull leaves it, and what it is packed of."""

    tensors: dict[str, Tensor]  # hidden, tokens, loss_mask, documents
    pieces: list[Piece]


def mixed_rows(asked: dict[str, Any], *, shape: Shape, like: dict[str, Tensor]) -> list[Row]:
    """Rows of documents of many lengths, where another row is, whose hidden states they share: no time
    depends on what these are.

    Args:
        asked: `documents`, tokens of each and the supervised ones at its end, and `rows`, each its pieces as
            five numbers, as cmd/internal/bench/documents.go packs them.
        shape: of the rows.
        like: the other row.

    Raises:
        WorkerError: invalid, where a piece is not the whole of its document.
    """
    data = _dataset(asked["documents"], vocabulary=shape.vocabulary)
    rows = []
    for told in asked["rows"]:
        pieces = [Piece(*numbers) for numbers in told]
        packed = packing.pack(data, pieces=pieces, bucket=shape.tokens).to(like["tokens"].device)
        small = {"tokens": packed.tokens_S, "loss_mask": packed.loss_mask_S, "documents": packed.documents_S}
        rows.append(Row(tensors={"hidden": like["hidden"], **small}, pieces=pieces))
    return rows


def _dataset(documents: Sequence[tuple[int, int]], *, vocabulary: int) -> Dataset:
    """Samples of random tokens, each a prompt and its supervised response."""
    lengths, supervised = (np.array(column, dtype=np.uint32) for column in zip(*documents, strict=True))
    offset = np.concatenate(([0], np.cumsum(lengths, dtype=np.uint64)[:-1])).astype(np.uint64)
    masks = [np.arange(length) >= length - kept for length, kept in documents]
    return Dataset(
        directory=Path(),
        digest="",
        tokenizer_digest="",
        sources=("bench",),
        skipped=(),
        offset=offset,
        tokens=lengths,
        supervised=supervised,
        anchors=supervised - 1,
        source=np.zeros(len(lengths), dtype=np.uint16),
        all_tokens=np.random.default_rng(1).integers(vocabulary, size=int(lengths.sum()), dtype=np.int32),
        all_loss_mask=np.concatenate(masks).astype(np.uint8),
    )


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


def random_target(shape: Shape, *, device: str) -> nn.Module:
    """A Qwen3 of the shape's sizes and 36 layers, of random weights that are drawn on the device."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    settings = Qwen3Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=TARGET_LAYERS,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=40_960,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
        dtype=getattr(torch, shape.dtype),
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen3ForCausalLM._from_config(settings)  # noqa: SLF001 as AutoModel.from_config does
    return model.eval().requires_grad_(False)


def document_lengths(tokens: int) -> tuple[int, ...]:
    """Of a target's row: 5/16 of it, 1/4, and so on down to 3/32, which may be a few tokens more."""
    lengths = [max(1, tokens * part // sum(_DOCUMENTS)) for part in _DOCUMENTS[:-1]]
    return (*lengths, tokens - sum(lengths))


def packed_row(shape: Shape) -> Packed:
    """A row of several documents and no padding, on the host."""
    lengths = document_lengths(shape.tokens)
    documents = [number for number, length in enumerate(lengths) for _ in range(length)]
    generator = torch.Generator().manual_seed(1)
    return Packed(
        tokens_S=torch.randint(shape.vocabulary, (shape.tokens,), generator=generator, dtype=torch.int32),
        loss_mask_S=torch.ones(shape.tokens, dtype=torch.uint8),
        documents_S=torch.tensor(documents, dtype=torch.int32),
    )


def target_teraflop(shape: Shape, *, logits: bool = False) -> float:
    """What a row's matrix products come to in a target, 1e12 operations: two a multiply-add.

    Layers up to the last captured one, or all of them with the head; attention counts the pairs of tokens
    that may see each other, each document's up to itself.
    """
    layers = TARGET_LAYERS if logits else shape.layer_ids[-1] + 1
    attention = shape.hidden * shape.head_dim * (2 * shape.heads + 2 * shape.kv_heads)
    linear = 2 * shape.tokens * layers * (attention + 3 * shape.hidden * shape.intermediate)
    visible = sum(length * (length + 1) / 2 for length in document_lengths(shape.tokens))
    scores = 4 * layers * visible * shape.heads * shape.head_dim
    head = 2 * shape.tokens * shape.hidden * shape.vocabulary if logits else 0
    return (linear + scores + head) / 1e12
