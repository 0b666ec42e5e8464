"""Training the embedded target: a small real Qwen3ForCausalLM, from scratch.

Work is budgeted in steps, so a loaded machine takes longer and gets the same
weights. In float32 on every device: a model of this size spends a GPU's time in
launches, not in products. Shapes: B windows, S tokens of a window.
"""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dflash_runner.corpus import Corpus, Document
from dflash_runner.job.models import set_up_device, set_up_torch
from dflash_runner.job.reporter import Reporter
from dflash_runner.job.v1 import job_pb2
from dflash_runner.tensorfile import FileError
from dflash_runner.tokenizer import BYTE_VOCABULARY, write_byte_tokenizer

__all__ = ["train_target"]

_MOMENTA = (0.9, 0.95)
_WARM_SHARE, _FLOOR = 0.04, 0.05  # of the steps; of the learning rate
_CLIP_NORM = 1.0
_HELDOUT_WINDOWS = 128
_ROPE_THETA = 10_000.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Heldout:
    """How well the target predicts held-out text."""

    top1: float
    loss: float
    tokens: int


def train_target(
    job: job_pb2.BuildTarget, *, corpus: Corpus, directory: Path, threads: int, reporter: Reporter
) -> dict[str, Any]:
    """Trains a target, writes it to `directory`, and returns what is to be known of it.

    Args:
        job: checked settings.
        corpus: the text.
        directory: takes model, configuration and tokenizer.
        threads: of torch; part of what fixes the bits.
        reporter: takes the progress.

    Raises:
        FileError: too little text for one window, or a loss that is not finite.

    Source: python/bench/LOG.md for the recipe.
    """
    set_up_torch(threads)
    device = set_up_device(job.device)
    tokenizer = write_byte_tokenizer(directory)
    train, heldout = (_stream(tokenizer, part) for part in (corpus.train, corpus.heldout))
    for name, stream in (("training", train), ("held-out", heldout)):
        if len(stream) <= job.sequence + 1:
            raise FileError(
                f"build target: corpus: want more than {job.sequence + 1} {name} tokens, got {len(stream)}",
                hint="give more text, or a shorter sequence",
            )
    torch.manual_seed(job.seed)
    model = _model(job).to(device)  # drawn on the host: the same start on every device
    _train(job, model, train.to(device), reporter)
    model.eval()
    measured = _measure(model, heldout.to(device), sequence=job.sequence)
    model.save_pretrained(directory)
    return {
        "format": "dflash-runner-target/1",
        "heldout_top1": measured.top1,
        "heldout_loss": measured.loss,
        "heldout_tokens": measured.tokens,
        "steps": job.steps,
        "parameters": sum(p.numel() for p in model.parameters()),
        "corpus_sha256": corpus.digest,
        "train_tokens": len(train),
        "python": platform.python_version(),
    }


def _stream(tokenizer: Any, documents: tuple[Document, ...]) -> Tensor:
    """All documents' tokens, each followed by the end of text, int64 in one dimension."""
    end = tokenizer.eos_token_id
    ids: list[int] = []
    for encoding in tokenizer.backend_tokenizer.encode_batch([document.text for document in documents]):
        ids += encoding.ids
        ids.append(end)
    return torch.tensor(ids)


def _model(job: job_pb2.BuildTarget) -> Any:
    """A fresh model in float32 with eager-free attention."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=BYTE_VOCABULARY,
        hidden_size=job.hidden_size,
        intermediate_size=job.intermediate_size,
        num_hidden_layers=job.layers,
        num_attention_heads=job.heads,
        num_key_value_heads=job.kv_heads,
        head_dim=job.head_dim,
        initializer_range=job.initializer_range,
        max_position_embeddings=max(1024, 4 * job.sequence),
        rope_parameters={"rope_type": "default", "rope_theta": _ROPE_THETA},
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=1,
        attn_implementation="sdpa",
    )
    return Qwen3ForCausalLM(config)


def _train(job: job_pb2.BuildTarget, model: Any, stream: Tensor, reporter: Reporter) -> None:
    """The training loop: random windows, AdamW, cosine."""
    draws, device = torch.Generator().manual_seed(job.seed), stream.device
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    optimiser = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": job.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        lr=job.learning_rate,
        betas=_MOMENTA,
        fused=True,
    )
    model.train()
    for step in range(job.steps):
        for group in optimiser.param_groups:
            group["lr"] = job.learning_rate * _schedule(step, job.steps)
        starts = torch.randint(0, len(stream) - job.sequence, (job.batch,), generator=draws)
        window_BS = stream[(starts[:, None] + torch.arange(job.sequence + 1)).to(device)]
        loss = _loss(model, window_BS)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), _CLIP_NORM)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if step % 20 == 0 or step + 1 == job.steps:
            value = loss.item()
            if not math.isfinite(value):
                raise FileError(f"build target: step {step + 1}: loss is {value}", hint="lower learning_rate")
            reporter.progress("target", step + 1, job.steps, loss=value)
        else:
            reporter.progress("target", step + 1, job.steps)


def _loss(model: Any, window_BS: Tensor) -> Tensor:
    """Mean cross-entropy of the next token over windows of S+1 tokens."""
    hidden = model.model(input_ids=window_BS[:, :-1], use_cache=False).last_hidden_state
    return F.cross_entropy(model.lm_head(hidden).flatten(0, 1), window_BS[:, 1:].flatten())


def _schedule(step: int, steps: int) -> float:
    """The share of the learning rate at a step: linear warm-up, then a cosine down to the floor.

    Source: DFlash (arXiv 2602.06036) A.1, cosine with 4 % warm-up.
    """
    warm = max(1, int(steps * _WARM_SHARE))
    if step < warm:
        return (step + 1) / warm
    done = (step - warm) / max(1, steps - warm)
    return _FLOOR + (1 - _FLOOR) * 0.5 * (1 + math.cos(math.pi * done))


@torch.no_grad()
def _measure(model: Any, stream: Tensor, *, sequence: int) -> Heldout:
    """Accuracy and loss of the next token over evenly spread windows of held-out text."""
    count = min(_HELDOUT_WINDOWS, (len(stream) - 1) // sequence)
    starts = torch.linspace(0, len(stream) - 1 - sequence, count).long()
    hits, loss, tokens = 0, 0.0, 0
    for part in starts.split(32):
        window_BS = stream[(part[:, None] + torch.arange(sequence + 1)).to(stream.device)]
        logits = model(window_BS[:, :-1], use_cache=False).logits
        labels = window_BS[:, 1:]
        hits += int((logits.argmax(-1) == labels).sum())
        loss += F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum").item()
        tokens += labels.numel()
    return Heldout(top1=hits / tokens, loss=loss / tokens, tokens=tokens)
