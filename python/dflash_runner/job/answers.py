"""Answers of a target to windows of text. Shapes: B prompts, S tokens of a prompt, V vocabulary."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from dflash_runner.corpus import Corpus, Document
from dflash_runner.data_writer import write_prompts
from dflash_runner.job.models import load_target, set_up_device, set_up_torch
from dflash_runner.job.reporter import Reporter
from dflash_runner.job.v1 import job_pb2
from dflash_runner.tensorfile import FileError
from dflash_runner.tokenizer import load_tokenizer

__all__ = ["decode", "draw_windows", "write_answers"]


def write_answers(
    job: job_pb2.Regenerate, *, corpus: Corpus, directory: Path, threads: int, reporter: Reporter
) -> dict[str, Any]:
    """Draws prompts, decodes, writes samples and prompts, and returns what is to be known of them.

    Args:
        job: checked settings.
        corpus: the text.
        directory: takes train.jsonl, heldout.jsonl and, where asked for, the evaluation prompts.
        threads: of torch; part of what fixes the bits.
        reporter: takes the progress.

    Raises:
        FileError: too little text, or an unusable target.

    Source: paper arXiv 2602.06036 section 5: responses are the target's own.
    """
    set_up_torch(threads)
    device = set_up_device(job.device)
    tokenizer = load_tokenizer(job.target_directory)
    model = load_target(job.target_directory, dtype=job.dtype, device=device)
    draws = torch.Generator().manual_seed(job.seed)
    # windows are drawn on the host, the same for every device; a GPU draws its answers' tokens itself
    sampled = draws if device.type == "cpu" else torch.Generator(device).manual_seed(job.seed)
    longest = max(job.prompt_tokens, job.eval_prompt_tokens)
    train = draw_windows(
        _encode(tokenizer, corpus.train), count=job.samples, tokens=job.prompt_tokens, apart=1, draws=draws
    )
    held = draw_windows(
        _encode(tokenizer, corpus.heldout),
        count=job.eval_prompts + job.heldout_samples,
        tokens=longest,
        apart=longest,
        draws=draws,
    )
    heldout = held[job.eval_prompts :, longest - job.prompt_tokens :]
    total, done, made = len(train) + len(heldout), 0, 0
    began = time.monotonic()
    for name, windows in (("train", train), ("heldout", heldout)):
        with (directory / f"{name}.jsonl").open("w") as file:
            for part in windows.split(job.batch) if len(windows) else ():
                made += _write_batch(job, model, part.to(device), tokenizer.eos_token_id, sampled, file)
                done += len(part)
                reporter.progress("regenerate", done, total, tokens_per_s=made / (time.monotonic() - began))
    _write_eval(directory, held[: job.eval_prompts, longest - job.eval_prompt_tokens :], tokenizer)
    return {
        "format": "dflash-runner-regenerated/1",
        "samples": len(train),
        "heldout_samples": len(heldout),
        "prompts": job.eval_prompts,
        "new_tokens": made,
    }


def _write_batch(
    job: job_pb2.Regenerate,
    model: Any,
    prompts_BS: Tensor,
    end: int | None,
    draws: torch.Generator,
    file: IO[str],
) -> int:
    """Answers one batch of prompts, writes a line each, and returns how many tokens are new."""
    answers = decode(model, prompts_BS, new_tokens=job.new_tokens, temperature=job.temperature, draws=draws)
    made = 0
    for prompt, answer in zip(prompts_BS.tolist(), answers.tolist(), strict=True):
        answer = _up_to_end(answer, end)
        made += len(answer)
        mask = [0] * len(prompt) + [1] * len(answer)
        file.write(json.dumps({"tokens": prompt + answer, "loss_mask": mask}) + "\n")
    return made


def _encode(tokenizer: Any, documents: Sequence[Document]) -> list[np.ndarray]:
    """Each document's token ids."""
    texts = [document.text for document in documents]
    return [np.array(ids, dtype=np.int64) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]


def draw_windows(
    documents: Sequence[np.ndarray], *, count: int, tokens: int, apart: int, draws: torch.Generator
) -> Tensor:
    """`count` different windows of `tokens` tokens, int64 [count, tokens], each inside one document.

    Args:
        documents: token ids.
        count: how many; the same windows come first when fewer are asked for.
        tokens: length of a window.
        apart: windows start at multiples of this in their document; `tokens` keeps them disjoint.
        draws: the random choice.

    Raises:
        FileError: the documents hold fewer such windows.
    """
    starts = [np.arange(0, len(ids) - tokens + 1, apart) for ids in documents]
    places = [(d, start) for d, offsets in enumerate(starts) for start in offsets.tolist()] if count else []
    if len(places) < count:
        raise FileError(
            f"draw prompts: want {count} windows of {tokens} tokens, got {len(places)}",
            hint="give more text, fewer samples, or shorter prompts",
        )
    order = torch.randperm(len(places), generator=draws)[:count].tolist()
    windows = [documents[d][start : start + tokens] for d, start in (places[i] for i in order)]
    return torch.from_numpy(np.stack(windows)) if windows else torch.empty((0, tokens), dtype=torch.int64)


@torch.no_grad()
def decode(
    model: Any, prompts_BS: Tensor, *, new_tokens: int, temperature: float, draws: torch.Generator
) -> Tensor:
    """The target's answers to prompts of one length, int64 [B, new_tokens].

    Args:
        model: a causal language model in evaluation mode.
        prompts_BS: token ids.
        new_tokens: decoded for every prompt, also past an end of text.
        temperature: 0 takes the most likely token, else tokens are sampled.
        draws: the random choice when sampling.

    Source: transformers, DynamicCache: one forward a token, keys and values kept.
    """
    from transformers import DynamicCache

    cache, step, out = DynamicCache(config=model.config), prompts_BS, []
    for _ in range(new_tokens):
        logits_BV = model(step, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1].float()
        if temperature > 0:
            step = torch.multinomial(torch.softmax(logits_BV / temperature, -1), 1, generator=draws)
        else:
            step = logits_BV.argmax(-1, keepdim=True)
        out.append(step)
    return torch.cat(out, 1)


def _up_to_end(answer: list[int], end: int | None) -> list[int]:
    """An answer up to and with its first end of text."""
    return answer[: answer.index(end) + 1] if end is not None and end in answer else answer


def _write_eval(directory: Path, prompts: Tensor, tokenizer: Any) -> None:
    """The evaluation prompts: for workers as safetensors, for people as .jsonl with the text."""
    if not len(prompts):
        return
    write_prompts(directory / "prompts.safetensors", prompts.numpy())
    with (directory / "prompts.jsonl").open("w") as file:
        for ids in prompts.tolist():
            file.write(json.dumps({"tokens": ids, "text": tokenizer.decode(ids)}) + "\n")
