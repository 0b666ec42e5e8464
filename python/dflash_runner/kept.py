"""What a warm-up must leave as it was: what a run changes, the generators, and a digest that proves it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from dflash_runner.fold import fold
from dflash_runner.image import tensors_digest


@dataclass(frozen=True, kw_only=True, slots=True)
class Generators:
    """The state of every generator of random numbers that a run might use."""

    torch_state: Tensor
    device_states: list[Tensor]
    python_state: object

    @classmethod
    def now(cls) -> Self:
        """As they are."""
        devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        return cls(torch_state=torch.get_rng_state(), device_states=devices, python_state=random.getstate())

    def restore(self) -> None:
        """As they were."""
        torch.set_rng_state(self.torch_state)
        if self.device_states:
            torch.cuda.set_rng_state_all(self.device_states)
        random.setstate(self.python_state)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """Copies to restore from."""

    saved: Mapping[str, Tensor]
    generators: Generators

    @classmethod
    def of(cls, changing: Mapping[str, Tensor]) -> Self:
        """Copies of tensors that will change, and the generators as they are."""
        saved = {name: _copy(tensor) for name, tensor in changing.items()}
        return cls(saved=saved, generators=Generators.now())

    def restore(self, put_back: Callable[[Mapping[str, Tensor]], None]) -> None:
        """Everything as it was.

        Args:
            put_back: takes the copies.
        """
        put_back(self.saved)
        self.generators.restore()


def digest(state: Mapping[str, Tensor]) -> bytes:
    """SHA-256 of tensors and of the generators; of what is on a device, of its fold."""
    python = torch.frombuffer(bytearray(repr(random.getstate()).encode()), dtype=torch.uint8)
    generators = {"rng.torch": torch.get_rng_state(), "rng.python": python}
    for number, one in enumerate(Generators.now().device_states):
        generators[f"rng.device.{number}"] = one
    held = {name: tensor if tensor.is_cpu else fold(tensor) for name, tensor in state.items()}
    return tensors_digest({**held, **generators})


def _copy(tensor: Tensor) -> Tensor:
    """A copy to restore from; of zeros, which the moments of a fresh optimiser are, just one."""
    if tensor.is_cpu or bool(tensor.any()):
        return tensor.detach().clone()
    return tensor.new_zeros(()).expand_as(tensor)
