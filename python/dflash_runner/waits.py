"""What cannot be recorded on a device: operators that make the host wait for it, or copy between the two.

The same holds on a CPU, where nothing waits: it is the operator that is refused. What looks into a tensor's
memory without an operator, as `tolist` of a CPU's, is not seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dflash_runner.errors import Kind, WorkerError

_WAITING = frozenset(
    {
        "aten::_local_scalar_dense",  # item, bool, int
        "aten::nonzero",
        "aten::masked_select",
        "aten::equal",
        "aten::bincount",
        "aten::_unique",
        "aten::_unique2",
        "aten::unique_dim",
        "aten::unique_consecutive",
    }
)
"""Operators whose end, or whose shape, depends on what a device holds."""

_INDEXING = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_unsafe_index")


class NoWaits(TorchDispatchMode):
    """Refuses such operators while it is open. Its first use imports the compiler, which takes seconds.

    Raises:
        WorkerError: invalid, naming the operator.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Let everything else through."""
        if func.namespace == "prim":  # asks what a tensor is
            return func(*args, **(kwargs or {}))
        with self:  # inference mode hands on what is made of other operators as a whole
            made = func.decompose(*args, **(kwargs or {}))
        if made is not NotImplemented:
            return made
        name = func._schema.name  # noqa: SLF001 the public name of an operator carries its overload
        given = list(_tensors((args, kwargs)))
        if name in _WAITING or (name == "aten::repeat_interleave" and len(given) == 1 and not _sized(kwargs)):
            _refuse(name, "it waits for the device")
        if name in _INDEXING and any(t.dtype in (torch.bool, torch.uint8) for t in _tensors(args[1])):
            _refuse(name, "it waits for how many places a mask has")
        made = func(*args, **(kwargs or {}))
        places = {t.device for t in (*given, *_tensors(made)) if t.dim() or name in _COPIES}
        if len(places) > 1:
            _refuse(name, f"it copies between {' and '.join(sorted(map(str, places)))}")
        return made


_COPIES = ("aten::_to_copy", "aten::copy_")


def _tensors(of: Any) -> Iterator[Tensor]:
    """Those in any nesting."""
    return (leaf for leaf in tree_leaves(of) if isinstance(leaf, Tensor))


def _sized(kwargs: Any) -> bool:
    """Whether the caller says how many elements there will be."""
    return (kwargs or {}).get("output_size") is not None


def _refuse(name: str, why: str) -> None:
    raise WorkerError(Kind.INVALID, f"{name}: {why}")
