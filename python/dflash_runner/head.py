"""The target's embedding and head, frozen: what a drafter borrows and never owns.

Shapes: V vocabulary, D hidden size; ids and hidden states of any leading shape.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor, nn

from dflash_runner.errors import Kind, WorkerError

_EMBEDDING = "embed_tokens.weight"
_HEAD = "lm_head.weight"


@dataclass(frozen=True, kw_only=True, slots=True)
class FrozenHead:
    """Embedding rows and head of the target; the same tensor twice where they are tied."""

    embedding_VD: Tensor
    head_VD: Tensor

    def embed(self, ids: Tensor) -> Tensor:
        """Raw embedding rows of `ids`: never scaled, as no loader of drafters scales them.

        Source: the embedding trap: Gemma's own embedding multiplies by the
        root of D, and a drafter trained that way is wrong everywhere.
        """
        return F.embedding(ids, self.embedding_VD)

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 logits of final hidden states."""
        return F.linear(hidden.to(self.head_VD.dtype), self.head_VD).float()


def of_model(model: nn.Module) -> FrozenHead:
    """The embedding and head of a model that is there already: the same memory, the same rows as `load`'s.

    Args:
        model: a whole causal language model of transformers, frozen.

    Raises:
        WorkerError: invalid, where it caps its logits or has no head.
    """
    name = type(model).__name__
    if getattr(model.config.get_text_config(decoder=True), "final_logit_softcapping", None) is not None:
        raise WorkerError(Kind.INVALID, f"borrow head: {name}: final_logit_softcapping: want none, got a cap")
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if head is None:
        raise WorkerError(Kind.INVALID, f"borrow head: {name}: want output embeddings, got none")
    return FrozenHead(embedding_VD=embedding.weight, head_VD=head.weight)


def load(directory: Path, *, dtype: torch.dtype, device: torch.device | str = "cpu") -> FrozenHead:
    """The frozen embedding and head of a target's directory, read without building the target.

    Raises:
        WorkerError: not_found, where the directory has no config or weights; invalid, where they do not
            hold one embedding, or no head and no word that it is tied.
    """
    config = text_config(directory)
    if config.get("final_logit_softcapping") is not None:
        raise WorkerError(
            Kind.INVALID, f"load head: {directory}/config.json: final_logit_softcapping: want none, got a cap"
        )
    files = _files(directory)
    embedding = _read(files, _EMBEDDING, dtype=dtype, device=device)
    if embedding is None:
        raise WorkerError(Kind.INVALID, f"load head: {directory}: want one tensor *{_EMBEDDING}, got none")
    head = None if config.get("tie_word_embeddings") else _read(files, _HEAD, dtype=dtype, device=device)
    if head is None and config.get("tie_word_embeddings") is False:
        raise WorkerError(
            Kind.INVALID,
            f"load head: {directory}: want {_HEAD}, as config.json says tie_word_embeddings false, got none",
        )
    return FrozenHead(embedding_VD=embedding, head_VD=embedding if head is None else head)


def text_config(directory: Path) -> dict[str, Any]:
    """config.json of a target, or its text part where the model has several; ties are taken from both."""
    path = directory / "config.json"
    if not path.is_file():
        raise WorkerError(Kind.NOT_FOUND, f"load target: {path}: want a file, got none")
    config = json.loads(path.read_text(encoding="utf-8"))
    inner = config.get("text_config")
    return {"tie_word_embeddings": config.get("tie_word_embeddings"), **inner} if inner else config


def _files(directory: Path) -> dict[str, Path]:
    """Where each tensor of the target is."""
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        named = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {name: directory / file for name, file in named.items()}
    single = directory / "model.safetensors"
    if not single.is_file():
        raise WorkerError(
            Kind.NOT_FOUND,
            f"load head: {directory}: want model.safetensors or its index, got neither",
            hint="save the target with safetensors",
        )
    with safe_open(single, framework="pt") as opened:
        return {name: single for name in opened.keys()}


def _read(
    files: dict[str, Path], ending: str, *, dtype: torch.dtype, device: torch.device | str
) -> Tensor | None:
    """The one tensor whose name ends so, or None; a vision tower's do not count."""
    names = [
        n
        for n in files
        if (n == ending or n.endswith("." + ending)) and "visual" not in n and "vision" not in n
    ]
    if not names:
        return None
    if len(names) > 1:
        raise WorkerError(Kind.INVALID, f"load head: want one tensor *{ending}, got {sorted(names)}")
    with safe_open(files[names[0]], framework="pt") as opened:
        return opened.get_tensor(names[0]).to(device=device, dtype=dtype)
