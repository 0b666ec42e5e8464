"""A compiler for tests: dynamo traces, guards and counts as ever, and the kernels are plain CPU torch.

The fake kernels obey the block mask as the real ones do: full tiles are not masked, partial ones by the
rule, and a tile in no list is not there. They have a backward, which CPU flex attention has not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tape import Tape
from torch import Tensor, fx
from torch._higher_order_ops import flex_attention as flex_operator
from torch.nn.attention import flex_attention as flex_module  # the module, not the function
from torch.utils._python_dispatch import _get_current_dispatch_mode

NAMES = ("fake_flex_attention", "fake_flex_attention_backward")


class FakeCompiler:
    """A backend of `torch.compile`; counts its graphs and how often their kernels ran."""

    def __init__(self) -> None:
        """Nothing compiled, nothing run."""
        self.graphs = 0
        self.ran = 0

    def __call__(self, graph: fx.GraphModule, _inputs: list[Tensor]) -> Callable[..., Any]:
        """The graph with its flex attention replaced."""
        self.graphs += 1
        return _Interpreter(graph, self).run


class _Interpreter(fx.Interpreter):
    def __init__(self, graph: fx.GraphModule, compiler: FakeCompiler) -> None:
        super().__init__(graph)
        self._compiler = compiler

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is not flex_operator:
            return super().call_function(target, args, kwargs)
        self._compiler.ran += 1
        with torch.profiler.record_function(NAMES[0]):
            tape = _get_current_dispatch_mode()
            if isinstance(tape, Tape):
                return tape.whole(_attention, *args, **kwargs)
            return _attention(*args, **kwargs)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _score: Any,
    mask: tuple[Any, ...],
    scale: float,
    options: dict[str, Any],
    _score_buffers: tuple[Tensor, ...],
    mask_buffers: tuple[Tensor, ...],
) -> tuple[Tensor, Tensor, Tensor]:
    """What the operator gives: output, log-sum-exp, largest scores; the last two mean nothing here."""
    assert options["BACKEND"] == "TRITON"
    rows, heads, queries, _ = query.shape
    keys = key.shape[2]
    partial, full = (_tiles(mask[at], mask[at + 1], queries, keys, mask[-2]) for at in (2, 4))
    index = torch.meshgrid(torch.arange(rows), torch.arange(queries), torch.arange(keys), indexing="ij")
    rule = mask[-1](index[0], torch.zeros_like(index[0]), index[1], index[2], *mask_buffers)
    visible = (full | (partial & rule))[:, None]
    group = heads // key.shape[1]
    key, value = (tensor.repeat_interleave(group, dim=1).float() for tensor in (key, value))
    score = (query.float() @ key.transpose(2, 3)) * scale
    weight = score.masked_fill(~visible, -math.inf).softmax(dim=-1)
    out = weight @ value
    if out.requires_grad:
        out.register_hook(_told)
    return out.to(query.dtype), weight.sum(dim=-1), score.amax(dim=-1)


def _told(gradient: Tensor) -> Tensor:
    """As a backward kernel shows itself to the profiler."""
    with torch.profiler.record_function(NAMES[1]):
        return gradient


def _tiles(count: Tensor, index: Tensor, queries: int, keys: int, size: int) -> Tensor:
    """Which elements lie in listed tiles, bool [B,Q,X]."""
    listed = torch.zeros(index.shape[0], index.shape[2], index.shape[3], dtype=torch.bool)
    for row in range(listed.shape[0]):
        for line in range(listed.shape[1]):
            listed[row, line, index[row, 0, line, : count[row, 0, line]].long()] = True
    wide = listed.repeat_interleave(size, dim=1).repeat_interleave(size, dim=2)
    return wide[:, :queries, :keys]


def allow_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let flex attention be traced on a CPU with gradients, which it refuses as no kernel could do it."""
    monkeypatch.setattr(flex_module, "_validate_device", lambda *_: None)
