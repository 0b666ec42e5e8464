"""Compiled attention: the one compiled function of this project.

Nothing else calls `torch.compile`. The function is compiled whole (`fullgraph`: a graph break or a ninth
set of guards raises, where plain `torch.compile` would run dense for ever) and with static shapes, one
entry a bucket, for one thread, one dtype and one kernel backend.

On threads: the function is entered on the thread that made it and is refused on every other. Its
backward is lowered when it first runs, on autograd's own thread where there is a GPU, so warm-up runs
every backward, and one that is lowered later is counted by the compile-start callback, whose list is one
for the process, and fails its order. Nothing here assigns compiler settings, which from torch 2.12 on
hold for the assigning thread alone: `fullgraph` and `dynamic` are arguments of the function, the stance
and the dense tripwire of `watch` are the process's, and the rest is the environment's, which is read at
import and so the same on every thread.

Shapes: B rows, S context tokens, N anchors, K block size, Q = N*K noise tokens, X = S+Q keys, H query
heads, G key-value heads, E head size.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from dflash_runner.attention import Attend, AttentionCounter, Rule
from dflash_runner.config import FlexSettings
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.tiles import block_mask

DTYPE = torch.bfloat16
"""Of queries, keys and values: float32 ones cost an order of magnitude in the backward."""

_OPTIONS = {
    "block_m": "fwd_BLOCK_M",
    "block_n": "fwd_BLOCK_N",
    "warps": "fwd_num_warps",
    "stages": "fwd_num_stages",
    "backward_block_m1": "bwd_BLOCK_M1",
    "backward_block_n1": "bwd_BLOCK_N1",
    "backward_block_m2": "bwd_BLOCK_M2",
    "backward_block_n2": "bwd_BLOCK_N2",
    "backward_warps": "bwd_num_warps",
    "backward_stages": "bwd_num_stages",
}
"""Our settings and torch's names for them (`FlexKernelOptions`)."""


def kernel_options(settings: FlexSettings) -> dict[str, Any]:
    """torch's options for what the configuration says; what is 0 there is left to torch."""
    chosen = {name: getattr(settings, ours) for ours, name in _OPTIONS.items()}
    return {"BACKEND": settings.backend.upper(), **{name: value for name, value in chosen.items() if value}}


def _attention(
    query_BHQE: Tensor, key_BGXE: Tensor, value_BGXE: Tensor, mask: BlockMask, options: dict[str, Any]
) -> Tensor:
    """What is compiled; a `def` of its own, as compiled code is kept by code object."""
    return flex_attention(
        query_BHQE, key_BGXE, value_BGXE, block_mask=mask, enable_gqa=True, kernel_options=options
    )


class Flex:
    """The attention of `attention: flex`: compiled once, for all rows and layers."""

    def __init__(self, settings: FlexSettings, *, backend: str | Callable[..., Any] = "inductor") -> None:
        """Make the compiled function; nothing is compiled before it is called.

        Args:
            settings: kernel backend and options.
            backend: of the compiler; another than torch's own in tests.

        Raises:
            WorkerError: fatal, where the environment switches the compiler off.
        """
        compiled = torch.compile(_attention, fullgraph=True, dynamic=False, backend=backend)
        if not hasattr(compiled, "_torchdynamo_orig_callable") or torch._dynamo.config.disable:  # noqa: SLF001
            raise WorkerError(
                Kind.FATAL,
                "make compiled attention: want a compiler, got one that is switched off",
                hint="unset TORCH_COMPILE_DISABLE and TORCHDYNAMO_DISABLE",
            )
        self._compiled = compiled
        self._options = kernel_options(settings)
        self._thread = threading.get_ident()
        self._refused = ""  # the first violation; it sticks
        self.counter = AttentionCounter()

    def over(self, rule: Rule) -> Attend:
        """The attention under `rule`: its block mask is built here, once for all layers."""
        mask = block_mask(rule)

        def attend(query_BHQE: Tensor, key_BGXE: Tensor, value_BGXE: Tensor) -> Tensor:
            return self._call(query_BHQE, key_BGXE, value_BGXE, mask)

        return attend

    def _call(self, query_BHQE: Tensor, key_BGXE: Tensor, value_BGXE: Tensor, mask: BlockMask) -> Tensor:
        """The compiled function; whatever it is not made for is refused, now and ever after.

        Raises:
            WorkerError: fatal, on another thread, for another dtype, after a refusal, or where the
                compiler refuses: a graph break, too many shapes, or a compile after the seal.
        """
        self._check(query_BHQE, key_BGXE, value_BGXE)
        self.counter.calls += 1
        try:
            return self._compiled(query_BHQE, key_BGXE, value_BGXE, mask, self._options)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, FailOnRecompileLimitHit) as err:
            self._refuse(f"{type(err).__name__}: {err}", cause=err)

    def _check(self, *tensors: Tensor) -> None:
        """Refuse what would need another compile, or would race with one."""
        if self._refused:
            raise self._error(f"refused before: {self._refused}")
        if threading.get_ident() != self._thread:
            name = threading.current_thread().name
            self._refuse(f"want the thread that made it, got thread {name!r}")
        odd = [tensor.dtype for tensor in tensors if tensor.dtype != DTYPE]
        if odd:
            self._refuse(f"want queries, keys and values in {DTYPE}, got {odd[0]}")

    def _refuse(self, why: str, *, cause: BaseException | None = None) -> NoReturn:
        self._refused = why
        raise self._error(why) from cause

    @staticmethod
    def _error(why: str) -> WorkerError:
        return WorkerError(
            Kind.FATAL,
            f"call compiled attention: {why}",
            hint="a shape, dtype, gradient mode or thread that warm-up did not run",
        )
