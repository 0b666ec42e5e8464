"""What of a target is warmed up: making a row per bucket, and packed rows against documents alone."""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch
from torch import Tensor

from dflash_runner.config import Configuration
from dflash_runner.frozen import FrozenTarget
from dflash_runner.packing import Packed
from dflash_runner.warmup import Difference, Ran
from dflash_runner.watch import AttentionCalls, Calls

_TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 5e-2}
_ORACLE_LENGTHS, _ORACLE_PADDING = (5, 7), 3


class TargetSubject:
    """A frozen target as warm-up sees it."""

    def __init__(self, target: FrozenTarget, *, configuration: Configuration) -> None:
        """Keep the target."""
        self._target = target
        self._configuration = configuration

    def run(self, bucket: int) -> Ran:
        """One row of two documents and padding, through the function that makes rows."""
        first = bucket // 2
        row = self._row([first, max(1, bucket - first - max(1, bucket // 8))], bucket)
        start = time.perf_counter()
        hidden_SC = self._target.hidden_states(row)
        step_ms = (time.perf_counter() - start) * 1000
        return Ran(gradients=hidden_SC.requires_grad, padded_anchors=False, step_ms=step_ms)

    def calls(self, *, named: bool) -> Calls:  # noqa: ARG002 it costs nothing here
        """Counts calls of torch's own attention, which the model makes."""
        return AttentionCalls()

    @torch.inference_mode()
    def oracle(self) -> Difference:
        """Hidden states of a packed row against those of each document run alone by the whole model.

        The other way shares no mask, no positions, no hook and no early end with the real one. The
        difference is in units of the largest hidden state, where that is above 1: no norm bounds them.
        """
        bucket = sum(_ORACLE_LENGTHS) + _ORACLE_PADDING
        row = self._row(list(_ORACLE_LENGTHS), bucket)
        got_SC, largest, scale, start = self._target.hidden_states(row), 0.0, 1.0, 0
        for length in _ORACLE_LENGTHS:
            tokens_1S = row.tokens_S[None, start : start + length].long()
            output = self._target.model(input_ids=tokens_1S, output_hidden_states=True, use_cache=False)
            want_SC = torch.cat([output.hidden_states[i + 1] for i in self._target.layer_ids], dim=-1)[0]
            part_SC = got_SC[start : start + length]
            largest = max(largest, float((part_SC.double() - want_SC.double()).abs().max()))
            scale = max(scale, float(want_SC.abs().max()))
            start += length
        return Difference(largest=largest / scale, tolerance=_TOLERANCE[self._target.dtype])

    def state(self) -> Mapping[str, Tensor]:
        """The frozen parameters: nothing may change them."""
        return dict(self._target.model.named_parameters())

    @torch.no_grad()
    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Nothing changed them, so nothing is put back: the digests prove it."""

    def shapes(self) -> Mapping[str, object]:
        """The model's configuration, as far as it decides shapes."""
        config = self._target.model.config.get_text_config()
        names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
        shape = {name: getattr(config, name) for name in names}
        return {**shape, "dtype": str(self._target.dtype), "captured": list(self._target.layer_ids)}

    def _row(self, lengths: list[int], bucket: int) -> Packed:
        """Documents of these lengths, then padding; drawn from the bucket alone."""
        vocabulary = self._target.model.config.get_text_config().vocab_size
        generator = torch.Generator().manual_seed(bucket)
        documents_S = torch.full((bucket,), -1, dtype=torch.int32)
        start = 0
        for document, length in enumerate(lengths):
            documents_S[start : start + length] = document
            start += length
        return Packed(
            tokens_S=torch.randint(vocabulary, (bucket,), generator=generator, dtype=torch.int32),
            loss_mask_S=(documents_S >= 0).to(torch.uint8),
            documents_S=documents_S,
        )
