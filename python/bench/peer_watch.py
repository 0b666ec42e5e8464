"""What another trainer compiled, and how often its attention ran dense: counted, and not refused."""

from __future__ import annotations

import importlib
from typing import Any

import torch


class Seen:
    """Counts from now on; -1 for what this version of torch does not tell."""

    def __init__(self) -> None:
        """Install the counters, before anything compiles."""
        self.compiles, self.dense_calls = 0, 0
        try:
            importlib.import_module("torch._dynamo.callback").on_compile_start(self._compiled)
        except (ImportError, AttributeError):
            self.compiles = -1
        self._watch_dense()

    def _compiled(self, *_: Any) -> None:
        self.compiles += 1

    def _watch_dense(self) -> None:
        """Count real calls of the slow implementation; those on fake tensors are a compiler's."""
        try:
            flex = importlib.import_module("torch._higher_order_ops.flex_attention")
            fake = importlib.import_module("torch._subclasses.fake_tensor").FakeTensor
            inner = flex._math_attention_inner  # noqa: SLF001
        except (ImportError, AttributeError):
            self.dense_calls = -1
            return

        def dense(query: torch.Tensor, *rest: Any, **named: Any) -> Any:
            self.dense_calls += not isinstance(query, fake)
            return inner(query, *rest, **named)

        flex._math_attention_inner = dense  # noqa: SLF001
