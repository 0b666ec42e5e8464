"""A tiny target of random weights, for a worker that is to start fast and do nothing.

`python target.py DIRECTORY`: writes a Qwen3 of two layers there, as transformers saves it.
"""

from __future__ import annotations

import sys

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 64
HIDDEN = 32
HEADS = 2
LAYERS = 2


def main() -> None:
    """Make and save it; cmd/internal/bench/dispatch.go states the same sizes."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        head_dim=HIDDEN // HEADS,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=1,
    )
    Qwen3ForCausalLM(config).save_pretrained(sys.argv[1])


if __name__ == "__main__":
    main()
