"""A target's directory, read: a causal decoder whose blocks are found, or a refusal that says why.

Shapes: none; models and configurations only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dflash_runner.capture import decoder_layers
from dflash_runner.errors import Kind, WorkerError

PACKABLE = ("full_attention", "sliding_attention")
_CAUSAL = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")  # ends of class names


def read_target(directory: Path, *, dtype: torch.dtype) -> nn.Module:
    """The whole causal language model of a directory, frozen and in eval mode.

    Nothing is fetched, no code in the directory is run, and no weight is made up: transformers draws
    at random what a checkpoint leaves out, and only logs it.

    Args:
        directory: config.json and safetensors.
        dtype: of the weights.

    Raises:
        WorkerError: not_found, where there is no config.json; invalid, where the model is not a causal
            decoder, packed rows could not be exact in it, a weight is missing, or its blocks are not found.

    Source: transformers, AutoModelForCausalLM.from_pretrained.
    """
    config = _read_config(directory)
    _check_config(directory, config)
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            directory,
            config=config,
            dtype=dtype,
            attn_implementation="sdpa",
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # told below, with their names
        )
    except (OSError, ValueError, KeyError, json.JSONDecodeError) as err:
        raise WorkerError(Kind.INVALID, f"load target {directory}: {err}") from err
    _check_weights(directory, info)
    found, want = len(decoder_layers(model)), text_config(model).num_hidden_layers
    if found != want:
        raise _refuse(directory, f"find blocks: want {want} (num_hidden_layers), got {found}")
    return model.eval().requires_grad_(False)


def text_config(model: nn.Module) -> Any:
    """The configuration of the model's text decoder, where it has other parts as well."""
    return model.config.get_text_config(decoder=True)


def window_of(model: nn.Module) -> int | None:
    """Tokens that a sliding layer of the model sees, itself counted; None, where no layer slides.

    Families say it in two ways: a kind for each layer, or a window alone, which is every layer's.
    """
    config = text_config(model)
    kinds, window = getattr(config, "layer_types", None), getattr(config, "sliding_window", None)
    if kinds is not None and "sliding_attention" not in kinds:
        return None
    return window


def _refuse(directory: Path, what: str, *, hint: str = "") -> WorkerError:
    return WorkerError(Kind.INVALID, f"load target {directory}: {what}", hint=hint)


def _read_config(directory: Path) -> Any:
    """config.json as transformers understands it."""
    if not (directory / "config.json").is_file():
        raise WorkerError(
            Kind.NOT_FOUND,
            f"load target {directory}: want config.json, got none",
            hint="target.directory must hold a model saved by transformers",
        )
    from transformers import CONFIG_MAPPING, AutoConfig, __version__

    try:
        kind = json.loads((directory / "config.json").read_text(encoding="utf-8")).get("model_type")
        if kind not in CONFIG_MAPPING:
            raise _refuse(
                directory,
                f"config.json: model_type: want one that transformers {__version__} knows, got {kind!r}",
                hint="models that bring their own code are not run; a newer transformers may know it",
            )
        return AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as err:
        raise _refuse(directory, f"config.json: {err}") from err


def _check_config(directory: Path, config: Any) -> None:
    """Refuses what is no causal decoder, and one in which a packed row cannot be exact."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    names = list(config.architectures or [])
    causal = not names or any(name.endswith(_CAUSAL) for name in names)
    if config.is_encoder_decoder or not causal or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        got = f"model_type {config.model_type!r}, architectures {names}"
        raise _refuse(
            directory,
            f"config.json: want a causal language model, got {got}",
            hint="encoders, encoder-decoders and classifiers have no next token to draft",
        )
    text = config.get_text_config(decoder=True)
    if getattr(text, "use_bidirectional_attention", False) in (True, "all"):
        raise _refuse(directory, "config.json: use_bidirectional_attention: want false, got true")
    for layer, kind in enumerate(getattr(text, "layer_types", None) or []):
        if kind not in PACKABLE:
            raise _refuse(
                directory,
                f"config.json: layer_types[{layer}]: want {' or '.join(PACKABLE)}, got {kind}",
                hint="states that run on, and chunks counted from the row's start, mix packed documents",
            )


def _check_weights(directory: Path, info: dict[str, Any]) -> None:
    """Refuses a checkpoint that does not hold every weight in its shape."""
    mismatched = sorted(str(key[0] if isinstance(key, tuple) else key) for key in info["mismatched_keys"])
    for what, names in (("missing", sorted(info["missing_keys"])), ("of another shape", mismatched)):
        if names:
            raise _refuse(
                directory,
                f"want every weight of the model, got {len(names)} {what}: {names[:3]}",
                hint="the weights are of another class or size than config.json says",
            )
