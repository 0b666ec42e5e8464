"""What the compile contract counts: attention calls, dense flex attention, compiles.

A dense call is one that reaches `_math_attention_inner` of the flex attention operator, forward or
backward: the slow path that torch takes without a word (reference/compile.md 4.1).
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo.callback
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from dflash_runner.errors import Kind, WorkerError

_FLEX = "torch._higher_order_ops.flex_attention"


class Watch:
    """Counts compiles and dense calls of this process from now on; `seal` makes them errors."""

    def __init__(self) -> None:
        """Install the counters; once in a process."""
        self.compiles = 0
        self.dense_calls = 0
        self._sealed: tuple[int, int] | None = None
        torch._dynamo.callback.on_compile_start(self._on_compile)  # noqa: SLF001
        flex = importlib.import_module(_FLEX)  # the attribute of that name is the operator
        flex._math_attention_inner = self._wrap(flex._math_attention_inner)  # noqa: SLF001

    def seal(self) -> None:
        """From now on a compile or a dense call is a violation, for ever on record (I3).

        Source: reference/compile.md 4.3 and 9.
        """
        self._sealed = (self.compiles, self.dense_calls)
        torch.compiler.set_stance("fail_on_recompile")

    def check(self) -> None:
        """Refuse to go on after a violation.

        Raises:
            WorkerError: fatal, with the counts; every later call raises too.
        """
        if self._sealed is None or self._sealed == (self.compiles, self.dense_calls):
            return
        compiles, dense = self.compiles - self._sealed[0], self.dense_calls - self._sealed[1]
        raise WorkerError(
            Kind.FATAL,
            f"check compile contract: want no compile and no dense flex attention after warm-up, "
            f"got {compiles} and {dense}",
            hint="a shape, dtype or gradient mode reached this worker that warm-up did not run",
        )

    def _on_compile(self, *_: Any) -> None:
        """Called by dynamo before it traces a frame."""
        self.compiles += 1

    def _wrap(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        """The dense implementation, counted and refused."""

        def dense(*_args: Any, **_kwargs: Any) -> Any:
            self.dense_calls += 1
            raise WorkerError(Kind.FATAL, f"call flex attention: it ran dense, call {self.dense_calls}")

        dense.__wrapped__ = inner  # type: ignore[attr-defined]
        return dense


class AttentionCalls(TorchFunctionMode):
    """Counts the attention kernels called while it is open, by name."""

    def __init__(self) -> None:
        """Count from nothing."""
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Let everything through, counted where it is attention."""
        if func is F.scaled_dot_product_attention or getattr(func, "__name__", "") == "flex_attention":
            self.calls[func.__name__] += 1
        return func(*args, **(kwargs or {}))


def graphs() -> int:
    """Graphs that this process has compiled so far.

    Source: reference/compile.md 4.3.5.
    """
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])
