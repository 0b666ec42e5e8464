"""A target of random weights, for a worker or a run that is to start fast and need not learn anything.

`python target.py '{"directory": "...", ...}'`: writes a Qwen3 there as transformers saves it, with the
byte-level tokenizer where its ids are among the vocabulary's, and where samples are asked for, files of
random tokens beside it. The weights are drawn on the device that is named: billions take seconds on a GPU,
and minutes on a core. The sizes of `bench dispatch` stand in cmd/internal/bench/dispatch.go too.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import told
import torch
from dflash_runner.tokenizer import BYTE_VOCABULARY, SPECIALS, write_byte_tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM

_HELDOUT = 16  # samples
_SHARD = "2GB"  # of weights: as much of the host is needed beside a device's


def measure(asked: dict[str, Any]) -> dict[str, Any]:
    """Make and save it; where the vocabulary has room for the tokenizer's, the tokenizer goes with it.

    Samples never hold one of the tokenizer's specials, of which the mask token is one.
    """
    directory = Path(asked["directory"])
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=asked["vocabulary"],
        hidden_size=asked["hidden"],
        intermediate_size=asked["intermediate"],
        num_hidden_layers=asked["layers"],
        num_attention_heads=asked["heads"],
        num_key_value_heads=asked["kv_heads"],
        head_dim=asked["head_dim"],
        max_position_embeddings=max(512, asked["max_tokens"]),
        tie_word_embeddings=asked["tied"],
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=1,
        dtype=getattr(torch, asked["dtype"]),
    )
    with torch.device(asked["device"]):
        model = Qwen3ForCausalLM._from_config(config)  # noqa: SLF001 as AutoModel.from_config does
    model.save_pretrained(directory, max_shard_size=_SHARD)
    if asked["vocabulary"] >= BYTE_VOCABULARY:
        write_byte_tokenizer(directory)
    if asked["samples"]:
        for name, count in (("train", asked["samples"]), ("heldout", _HELDOUT)):
            _write_samples(directory / f"{name}.jsonl", count=count, asked=asked)
    return {"directory": str(directory)}


def _write_samples(path: Path, *, count: int, asked: dict[str, Any]) -> None:
    """Random tokens, supervised throughout, of random lengths."""
    draws = random.Random(path.name)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(count):
            length = draws.randint(asked["min_tokens"], asked["max_tokens"])
            tokens = [draws.randrange(len(SPECIALS), asked["vocabulary"]) for _ in range(length)]
            file.write(json.dumps({"tokens": tokens, "loss_mask": [1] * length}) + "\n")


if __name__ == "__main__":
    told.answer(measure)
