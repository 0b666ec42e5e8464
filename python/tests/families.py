"""Small random targets of every family that is promised, and a packed row for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transformers
from dflash_runner.packing import Packed
from torch import nn

VOCABULARY = 97
LAYERS = 6
WINDOW = 8
MIXED = ["sliding_attention", "full_attention"] * (LAYERS // 2)
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,  # not hidden_size / heads
    "max_position_embeddings": 256,
    "initializer_range": 0.25,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
# name: (class's stem, settings beside SIZES, the window that the model slides by)
FAMILIES: dict[str, tuple[str, dict[str, Any], int | None]] = {
    "qwen3": ("Qwen3", {}, None),
    "qwen3-windows": (
        "Qwen3",
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2},
        WINDOW,
    ),
    "qwen3-moe": ("Qwen3Moe", EXPERTS, None),
    "qwen3-moe-windows": (
        "Qwen3Moe",
        EXPERTS | {"use_sliding_window": True, "sliding_window": WINDOW},
        WINDOW,
    ),
    "llama": ("Llama", {"tie_word_embeddings": True}, None),
    "gemma3": (
        "Gemma3",
        {
            "sliding_window": WINDOW,
            "layer_types": MIXED,
            "query_pre_attn_scalar": 12,
            "tie_word_embeddings": True,
        },
        WINDOW,
    ),
    "mistral": ("Mistral", {"sliding_window": WINDOW}, WINDOW),
    "mistral-full": ("Mistral", {"sliding_window": None}, None),
}
TILED_HEADS = 16  # elements: the least that compiled attention takes
WINDOWED = [name for name, (_, _, window) in FAMILIES.items() if window]
DENSE = [name for name in FAMILIES if "moe" not in name]
LENGTHS = (19, 1, 7, 1, 1, 14)
PADDING = 5


def config_of(name: str, **changes: Any) -> Any:
    """The configuration of a family's small model; `changes` are settings of others."""
    stem, settings, _ = FAMILIES[name]
    kind = "Gemma3TextConfig" if stem == "Gemma3" else f"{stem}Config"
    config = getattr(transformers, kind)(**SIZES | settings | changes)
    config._attn_implementation = "sdpa"  # noqa: SLF001 as from_pretrained sets it
    return config


def wrapped_config() -> Any:
    """Gemma 3 with a vision tower: its text configuration is nested."""
    vision = transformers.SiglipVisionConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        image_size=16,
        patch_size=8,
    )
    return transformers.Gemma3Config(
        text_config=config_of("gemma3").to_dict(),
        vision_config=vision.to_dict(),
        mm_tokens_per_image=4,
        image_token_index=90,
        boi_token_index=91,
        eoi_token_index=92,
    )


def make(name: str, *, seed: int = 5, **changes: Any) -> nn.Module:
    """A family's small random model, in eval mode, its norms not trivial either; see `config_of`."""
    model_class = getattr(transformers, f"{FAMILIES[name][0]}ForCausalLM")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = model_class(config_of(name, **changes))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval().requires_grad_(False)


def row_of(lengths: Sequence[int] = LENGTHS, *, padding: int = PADDING, seed: int = 0) -> Packed:
    """A packed row of documents of these lengths, then padding, all of random tokens."""
    documents = [number for number, length in enumerate(lengths) for _ in range(length)] + [-1] * padding
    generator = torch.Generator().manual_seed(seed)
    return Packed(
        tokens_S=torch.randint(3, VOCABULARY, (len(documents),), generator=generator, dtype=torch.int32),
        loss_mask_S=torch.ones(len(documents), dtype=torch.uint8),
        documents_S=torch.tensor(documents, dtype=torch.int32),
    )
