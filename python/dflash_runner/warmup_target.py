"""What of a target is warmed up: making a row per bucket, and packed rows against documents alone and, where
rows are compiled, against the model's own.

Shapes: S tokens, L captured layers, D hidden size, C = L*D.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from dflash_runner import devices
from dflash_runner.config import PRECISIONS, Configuration
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.frozen import FrozenTarget
from dflash_runner.packing import Packed
from dflash_runner.recorded import RecordedRows
from dflash_runner.tiles import SIZE
from dflash_runner.warmup import Difference, Ran
from dflash_runner.watch import AttentionCalls, Calls, CompiledCalls

# Relative, see `difference`. Random models of six blocks gave 2e-6, 2e-2 and 8e-2 at most; a leak between
# documents, a position or a window gone wrong gave 0.3 and more (test_families.py).
_TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 5e-2}
_ROUTED_TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 0.15}  # near ties of a router turn in bfloat16
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_BLOCKS = 6  # of those models: rounding adds up like a walk, as the root of how many blocks it goes through
_MOST = 0.15  # however many: half of what a lost window gives
_ORACLE_LENGTHS, _ORACLE_PADDING = (5, 7), 3
_TILED_LENGTHS = (
    400,
    150,
)  # besides, of compiled attention: tiles full, partial and empty, wherever it begins


class TargetSubject:
    """A frozen target as warm-up sees it."""

    def __init__(
        self, target: FrozenTarget, *, configuration: Configuration, recorded: RecordedRows | None = None
    ) -> None:
        """Keep the target.

        Args:
            target: whose rows they are.
            configuration: of the worker.
            recorded: what makes rows where they are replayed; none where the target itself does.
        """
        self._target, self._recorded = target, recorded
        self._rows = recorded or target
        self._configuration = configuration

    def run(self, bucket: int) -> Ran:
        """One row of two documents and padding, through the function that makes rows."""
        row = self._row(_two_documents(bucket), bucket)
        start = time.perf_counter()
        hidden_SC = self._rows.hidden_states(row)
        devices.settle(hidden_SC.device)
        step_ms = (time.perf_counter() - start) * 1000
        return Ran(gradients=hidden_SC.requires_grad, padded_anchors=False, step_ms=step_ms)

    def record(self, bucket: int) -> None:
        """Record a row, where that is asked for, and replay others: each must have the bits of the
        same row unrecorded, whatever row was recorded.

        Raises:
            WorkerError: invalid, where rows of this family cannot be recorded; fatal, where a replay differs.
        """
        if self._recorded is None:
            return
        self._recorded.record(self._row(_two_documents(bucket), bucket))
        for seed, lengths in enumerate(_other_documents(bucket), start=1):
            row = self._row(lengths, bucket, seed=seed)
            want_SC, got_SC = self._target.hidden_states(row), self._recorded.hidden_states(row)
            if not torch.equal(want_SC, got_SC):
                raise WorkerError(
                    Kind.FATAL,
                    f"replay row of {bucket} tokens: documents of {lengths}: want the bits of the row "
                    f"unrecorded, got {int((want_SC != got_SC).sum())} of {want_SC.numel()} others",
                    hint="target.replay: false makes rows as they come",
                )

    def held_bytes(self) -> int:
        """Of the recordings: evaluation computes without them."""
        return 0 if self._recorded is None else self._recorded.held_bytes

    precision = PRECISIONS[0]

    def products(self) -> tuple[int, int]:
        """None in fp8."""
        return 0, 0

    def calls(self, *, named: bool) -> Calls:
        """Counts calls of the attention that makes rows, and those that are replayed."""
        if (kernels := self._target.kernels) is not None:
            return CompiledCalls(kernels.counter, device=self._target.device.type, named=named)
        return AttentionCalls() if self._recorded is None else _ReplayedCalls(self._recorded)

    @torch.inference_mode()
    def oracle(self) -> Difference:
        """Hidden states of a packed row against those of each document run alone; where rows are compiled,
        against those of the same row by the model's own attention and norms as well.

        A whole model runs the document by its own forward, which shares no positions, no hook and no
        early end with the real one; a cut one still leaves positions and masks to itself. Where the
        model has a window that a row can exceed, one document does, and what lies beyond it is judged
        apart. See `difference` for the figure.
        """
        lengths, window = self._lengths()
        row, layers = self._row(lengths, self._oracle_tokens(sum(lengths))), len(self._target.layer_ids)
        tokens_S = row.to(self._target.device).tokens_S
        got_SC, found, start = self._rows.hidden_states(row), [0.0], 0
        if self._target.kernels is not None:
            own_SC, used = self._target.own_hidden_states(row), sum(lengths)
            found.append(difference(got_SC[:used], own_SC[:used], layers=layers))
        for length in lengths:
            want_SC = self._alone(tokens_S[start : start + length])
            part_SC = got_SC[start : start + length]
            for piece in (slice(0, window), slice(window, length) if window else slice(0)):
                found.append(difference(part_SC[piece], want_SC[piece], layers=layers))
            start += length
        largest = math.nan if any(map(math.isnan, found)) else max(found)  # of which max knows nothing
        return Difference(largest=largest, tolerance=tolerance_of(self._target))

    def _lengths(self) -> tuple[list[int], int | None]:
        """The oracle's documents, and the window that the first exceeds; None, where no row can."""
        longest, window = self._configuration.training.buckets[-1], self._target.window
        lengths = list(_ORACLE_LENGTHS)
        if self._target.kernels is not None:
            lengths += [min(length, longest) for length in _TILED_LENGTHS]
        if window is None or window >= longest:
            return lengths, None
        return [min(2 * window, longest), *lengths], window

    def _oracle_tokens(self, used: int) -> int:
        """Of the oracle's row, padding among it; of compiled attention as far from whole tiles as the first
        bucket's rows, since the kernels differ there."""
        if self._target.kernels is None:
            return used + _ORACLE_PADDING
        over = self._configuration.training.buckets[0] % SIZE
        return used + _ORACLE_PADDING + (over - used - _ORACLE_PADDING) % SIZE

    def _alone(self, tokens_S: Tensor) -> Tensor:
        """hidden_SC of one document, by the model's own ways as far as it is held."""
        if self._target.cut:
            return self._target.run(tokens_S)
        output = self._target.model(
            input_ids=tokens_S[None].long(), output_hidden_states=True, use_cache=False, logits_to_keep=1
        )
        return torch.cat([output.hidden_states[i + 1] for i in self._target.layer_ids], dim=-1)[0]

    def state(self) -> Mapping[str, Tensor]:
        """The frozen parameters: nothing may change them."""
        return self._target.parameters()

    def changing(self) -> Mapping[str, Tensor]:
        """Nothing: a copy of frozen weights would double what a target takes."""
        return {}

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Nothing changed them, so nothing is put back: the digests prove it."""

    def shapes(self) -> Mapping[str, object]:
        """The model's configuration, as far as it decides shapes."""
        config = self._target.text
        names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
        shape = {name: getattr(config, name) for name in names}
        replayed = {} if self._recorded is None else {"replay": True}
        kernels, captured = self._target.kernels, list(self._target.layer_ids)
        made = {} if kernels is None else {"compiled": list(kernels.parts)}
        return {**shape, **replayed, **made, "dtype": str(self._target.dtype), "captured": captured}

    def _row(self, lengths: list[int], bucket: int, *, seed: int = 0) -> Packed:
        """Documents of these lengths, then padding; drawn from the bucket, and from a seed."""
        vocabulary = self._target.text.vocab_size
        generator = torch.Generator().manual_seed(bucket + (seed << 32))
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


class _ReplayedCalls(AttentionCalls):
    """Counts besides what replays of a target's rows come to, which call nothing."""

    def __init__(self, recorded: RecordedRows) -> None:
        """Count from nothing."""
        super().__init__()
        self._recorded, self._replayed = recorded, 0

    @property
    def total(self) -> int:
        """How many calls, of either kind."""
        return super().total + self._replayed

    def __enter__(self) -> Self:
        """Count from here."""
        self._before = self._recorded.replayed_calls
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Count to here."""
        self._replayed = self._recorded.replayed_calls - self._before
        super().__exit__(kind, error, trace)


def _two_documents(bucket: int) -> list[int]:
    """Lengths of a bucket's row of two, which leave some padding."""
    first = bucket // 2
    return [first, max(1, bucket - first - max(1, bucket // 8))]


def _other_documents(bucket: int) -> list[list[int]]:
    """Lengths of other rows: a short document, a long one and one of a token; two, and no padding."""
    return [[bucket // 4, bucket - bucket // 4 - 2, 1], [bucket - bucket // 3, bucket // 3]]


def tolerance_of(target: FrozenTarget) -> float:
    """How far packed hidden states may be from those of a document alone, as `difference` has it.

    In bfloat16 more where a row goes through more blocks than the measured models have: one of 34 gave 0.03
    where 6 give 0.02, and 0.06 by compiled norms against its own.
    """
    routed = any(getattr(target.text, name, None) for name in _EXPERTS)
    most = (_ROUTED_TOLERANCE if routed else _TOLERANCE)[target.dtype]
    if target.dtype == torch.float32:
        return most
    return min(_MOST, most * math.sqrt(max(1.0, target.layers_run / _BLOCKS)))


def difference(got_SC: Tensor, want_SC: Tensor, *, layers: int) -> float:
    """How far hidden states are from others: relative, and 0 for none.

    Each token's error in each layer is measured against that token's own hidden state there, since no
    norm bounds them and single tokens are hundreds of times larger than the rest; of the tokens the
    root of the mean square is taken, since a router's near tie may send one token elsewhere in
    bfloat16; of the layers the largest.
    """
    if not len(got_SC):
        return 0.0
    got_SLD, want_SLD = (x.double().unflatten(-1, (layers, -1)) for x in (got_SC, want_SC))
    error_SL = (got_SLD - want_SLD).norm(dim=-1) / want_SLD.norm(dim=-1)
    return float(error_SL.square().mean(dim=0).sqrt().max())
