"""The frozen target: a causal language model, and its hidden states of packed rows.

Shapes: S tokens of the row, L captured layers, D hidden size, C = L*D.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor, nn

from dflash_runner.capture import Capture, decoder_layers
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.packing import Packed


class _Enough(Exception):
    """Ends a forward after the last captured block; never seen outside."""


class FrozenTarget:
    """A causal language model of transformers, and its hidden states of packed rows."""

    def __init__(self, directory: Path, *, dtype: torch.dtype, layer_ids: tuple[int, ...]) -> None:
        """Read the whole model: evaluation needs all of it.

        Args:
            directory: config.json and safetensors.
            dtype: of weights and hidden states.
            layer_ids: captured, 0-based, rising.

        Raises:
            WorkerError: not_found or invalid, where the directory holds no such model.
        """
        self.model = _read_model(directory, dtype)
        self.layer_ids = layer_ids
        self.dtype = dtype
        self._last = decoder_layers(self.model)[layer_ids[-1]]

    @property
    def width(self) -> int:
        """C: elements of hidden states per token."""
        return len(self.layer_ids) * self.model.config.get_text_config().hidden_size

    @torch.inference_mode()
    def hidden_states(self, row: Packed) -> Tensor:
        """hidden_SC of a packed row, every document as if it were alone; zeros at padding.

        Layers above the last captured one do not run.

        Args:
            row: its documents apart by mask and positions.

        Source: the published captured layers, after the block.
        Compile: not compiled; S is static per bucket.
        """
        decoder = self.model.get_decoder()
        with Capture(self.model, layer_ids=self.layer_ids) as capture:
            stop = self._last.register_forward_hook(_enough)  # after the capture's own hook
            try:
                decoder(
                    input_ids=row.tokens_S[None].long(),
                    attention_mask=row.causal_mask(),
                    position_ids=row.positions(),
                    use_cache=False,
                )
                raise AssertionError("the last captured block never ran")
            except _Enough:
                hidden_SC = capture.take()[0]
            finally:
                stop.remove()
        return hidden_SC.masked_fill(row.documents_S[:, None] < 0, 0.0)


def _enough(_module: nn.Module, _inputs: object, _output: object) -> None:
    raise _Enough


def _read_model(directory: Path, dtype: torch.dtype) -> nn.Module:
    """The frozen model, in eval mode."""
    if not (directory / "config.json").is_file():
        raise WorkerError(
            Kind.NOT_FOUND,
            f"load target {directory}: want config.json, got none",
            hint="target.directory must hold a model saved by transformers",
        )
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=dtype, attn_implementation="sdpa", local_files_only=True
        )
    except (OSError, ValueError, KeyError, json.JSONDecodeError) as err:
        raise WorkerError(Kind.INVALID, f"load target {directory}: {err}") from err
    return model.eval().requires_grad_(False)
