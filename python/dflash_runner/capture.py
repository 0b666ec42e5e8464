"""Hidden states of a target, captured by hooks on its blocks.

Shapes: B rows, S tokens, L captured layers, D hidden size, C = L*D.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from dflash_runner.errors import Kind, WorkerError


class Capture:
    """Keeps what the captured blocks put out in the model's last forward; works while it is open.

    Id i is the output of block i, before the next block's norm: `hidden_states[i + 1]` of transformers,
    whose entry 0 is the embedding.

    Source: the published captured layers, after the block.
    """

    def __init__(self, model: nn.Module, *, layer_ids: Sequence[int]) -> None:
        """Hook the blocks of any decoder that has them as `layers`.

        Raises:
            WorkerError: invalid, where the model has no such block.
        """
        layers = decoder_layers(model)
        bad = [i for i in layer_ids if not 0 <= i < len(layers)]
        if bad or not layer_ids:
            raise WorkerError(
                Kind.INVALID,
                f"capture hidden states: layer ids: want 0 to {len(layers) - 1}, got {list(layer_ids)}",
            )
        self._kept: list[Tensor | None] = [None] * len(layer_ids)
        self._hooks = [
            layers[layer].register_forward_hook(self._keeper(place)) for place, layer in enumerate(layer_ids)
        ]

    def _keeper(self, place: int) -> Any:
        def keep(_module: nn.Module, _inputs: Any, output: Any) -> None:
            self._kept[place] = output if isinstance(output, Tensor) else output[0]

        return keep

    def take(self) -> Tensor:
        """hidden_BSC of the last forward, captured layers side by side; they are let go."""
        kept = [tensor for tensor in self._kept if tensor is not None]
        if len(kept) != len(self._kept):
            raise AssertionError("take hidden states: want one forward since the last take")
        self._kept = [None] * len(kept)
        return torch.cat(kept, dim=-1)

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def __enter__(self) -> Capture:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def decoder_of(model: nn.Module) -> nn.Module:
    """The text decoder of a causal language model of transformers: embedding, blocks, final norm."""
    return model.get_decoder() if hasattr(model, "get_decoder") else model


def decoder_layers(model: nn.Module) -> nn.ModuleList:
    """The blocks of a causal language model of transformers.

    Raises:
        WorkerError: invalid, where its decoder has no list `layers`; the message says what was looked
            at and what was there.
    """
    decoder = decoder_of(model)
    layers = getattr(decoder, "layers", None)
    if not isinstance(layers, nn.ModuleList) or not len(layers):
        parts = [name for name, _ in decoder.named_children()]
        raise WorkerError(
            Kind.INVALID,
            f"find blocks: {type(model).__name__}: looked for a list `layers` of blocks in the decoder "
            f"that get_decoder() names, {type(decoder).__name__}, got {parts}",
            hint="hidden states are captured from decoders whose blocks are such a list",
        )
    return layers
