"""A recorder for a CPU that records as a GPU does: operators on fixed memory, and no line of Python.

What Python decided while it recorded, and what it took from a tensor's values, is the same in every replay.
What the fake compiler stands in for is one operator, as it is one kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

_HELD = 7  # bytes, as good as any


class Tape(TorchDispatchMode):
    """Notes every operator with its own arguments and results while it is open."""

    def __init__(self) -> None:
        """Nothing is noted."""
        super().__init__()
        self._steps: list[tuple[Callable[..., Any], Any, Any, Any]] = []

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Do it, and note it."""
        return self._note(func, args, kwargs or {})

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """What was compiled before is run, and not traced anew because of this."""
        return True

    def whole(self, kernel: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Do what stands for one kernel, and note it as one."""
        with _disable_current_modes():
            return self._note(kernel, args, kwargs)

    def _note(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        made = func(*args, **kwargs)
        self._steps.append((func, args, kwargs, made))
        return made

    @torch.inference_mode()
    def replay(self) -> None:
        """All of it again: results go where they went before; what shares its argument's memory is there."""
        for func, args, kwargs, made in self._steps:
            given = {t.untyped_storage().data_ptr() for t in tensors((args, kwargs))}
            for place, again in zip(tensors(made), tensors(func(*args, **kwargs)), strict=True):
                if place.untyped_storage().data_ptr() not in given:
                    place.copy_(again)


class TapeRecorder:
    """As `replay.Recorder` has it."""

    held_bytes = _HELD

    def __init__(self) -> None:
        """Nothing is recorded."""
        self.replayed = 0

    def record(self, work: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """As a device does, but that the work is done once; what it leaves is wiped: a device leaves none."""
        with Tape() as tape:
            left = work()
        with torch.inference_mode():
            for tensor in tensors(left):
                tensor.fill_(-1)

        def replay() -> None:
            self.replayed += 1
            tape.replay()

        return replay, left


def tensors(of: Any) -> Iterator[Tensor]:
    """Those in any nesting."""
    return (leaf for leaf in tree_leaves(of) if isinstance(leaf, Tensor))
