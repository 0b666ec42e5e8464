"""Tensors on their way into a slot: their names on the lane, and parts laid side by side.

torch is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from dflash_runner.errors import Kind, WorkerError
from dflash_runner.frames import ELEMENT_BYTES

if TYPE_CHECKING:
    import torch

Parts: TypeAlias = "torch.Tensor | Sequence[torch.Tensor]"


def spec_of(parts: Parts) -> tuple[str, list[int]]:
    """The dtype and shape of what `parts` make side by side.

    Raises:
        WorkerError: INVALID for parts that do not fit together.
    """
    import torch

    if isinstance(parts, torch.Tensor):
        return dtype_name(parts), list(parts.shape)
    heads = {(part.dtype, part.shape[:-1]) for part in parts}
    if len(heads) != 1:
        raise WorkerError(Kind.INVALID, f"write row: want parts of one dtype and height, got {heads}")
    return dtype_name(parts[0]), [*parts[0].shape[:-1], sum(part.shape[-1] for part in parts)]


def copy_parts(into: torch.Tensor, parts: Parts, *, non_blocking: bool = False) -> None:
    """Copy `parts` side by side: the only copy of a row's bytes on the producer's side.

    Args:
        into: of the shape of all parts together.
        parts: along the last dimension.
        non_blocking: whether a copy between devices may still run when this returns.
    """
    import torch

    if isinstance(parts, torch.Tensor):
        into.copy_(parts, non_blocking=non_blocking)
        return
    at = 0
    for part in parts:
        into.narrow(-1, at, part.shape[-1]).copy_(part, non_blocking=non_blocking)
        at += part.shape[-1]


def dtype_name(tensor: torch.Tensor) -> str:
    """The safetensors name of the tensor's dtype.

    Raises:
        WorkerError: INVALID where the lane has none.
    """
    for name in ELEMENT_BYTES:
        if torch_dtype(name) == tensor.dtype:
            return name
    raise WorkerError(Kind.INVALID, f"want a dtype of {sorted(ELEMENT_BYTES)}, got {tensor.dtype}")


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a safetensors name."""
    import torch

    return {
        "F32": torch.float32,
        "BF16": torch.bfloat16,
        "F16": torch.float16,
        "I64": torch.int64,
        "I32": torch.int32,
        "U8": torch.uint8,
        "BOOL": torch.bool,
    }[name]
