"""AdamW's arithmetic on flat buffers, in three ways that differ by rounding alone.

Plain is a CPU's: torch's arithmetic operation by operation, whose bits must not move. Fused is torch's own
kernel, for a GPU whose drafter promises that nothing is compiled. One pass is compiled: it reads master,
gradient and moments once, scales the gradient on the way, and writes master, moments and the parameters'
rounded copy: 30 bytes an element, where scaling twice, fused and rounding take 50.

Shapes: P elements of one stretch of the flat buffers that decays alike.
Source: AdamW (arXiv 1711.05101); torch.optim._single_tensor_adamw.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dflash_runner import devices

_PIECE = 1 << 28
"""Elements updated by one call. Places are then 32-bit numbers, and a compiler that tries kernels out, which
it does on copies of all that they write, takes no more memory (4 GB) than the backward has just left."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdamWConfig:
    """AdamW's constants; the learning rate comes with each commit."""

    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """The buffers of neighbours that decay alike: views, all of one length."""

    master_P: Tensor
    gradient_P: Tensor
    mean_P: Tensor
    square_P: Tensor
    parameter_P: Tensor | None  # rounded copy of the masters; none where parameters are the masters
    decay: float


class Update(Protocol):
    """How gradients are applied."""

    def scale(self, gradient_P: Tensor, factor: Tensor) -> None:
        """Multiply the gradient by `factor`, 0-d, now or when it is applied."""

    def scaled(self, norm: Tensor) -> Tensor:
        """The norm of the gradient as it will be applied, 0-d, of `norm` of what stands in its buffer."""

    def clear(self) -> None:
        """The next gradient is not scaled."""

    def apply(self, stretches: list[Stretch], *, lr: float, count: int) -> None:
        """The `count`-th application, from 1."""


class Passes:
    """Plain or fused: a pass for each of scaling, applying and rounding."""

    def __init__(self, config: AdamWConfig, *, fused: bool) -> None:
        """Keep the constants; `fused` takes torch's kernel."""
        self._config, self._fused = config, fused

    def scale(self, gradient_P: Tensor, factor: Tensor) -> None:
        """At once."""
        gradient_P.mul_(factor)

    def scaled(self, norm: Tensor) -> Tensor:
        """The norm itself."""
        return norm

    def clear(self) -> None:
        """Nothing is kept."""

    def apply(self, stretches: list[Stretch], *, lr: float, count: int) -> None:
        """Stretch by stretch."""
        for stretch in stretches:
            (self._kernel if self._fused else self._plain)(stretch, lr=lr, count=count)
            if stretch.parameter_P is not None:
                stretch.parameter_P.copy_(stretch.master_P)

    def _plain(self, on: Stretch, *, lr: float, count: int) -> None:
        beta1, beta2 = self._config.beta1, self._config.beta2
        on.master_P.mul_(1 - lr * on.decay)
        on.mean_P.lerp_(on.gradient_P, 1 - beta1)
        on.square_P.mul_(beta2).addcmul_(on.gradient_P, on.gradient_P, value=1 - beta2)
        scale = (1 - beta2**count) ** 0.5
        below = on.square_P.sqrt().div_(scale).add_(self._config.epsilon)
        on.master_P.addcdiv_(on.mean_P, below, value=-lr / (1 - beta1**count))

    def _kernel(self, on: Stretch, *, lr: float, count: int) -> None:
        torch._fused_adamw_(
            [on.master_P],
            [on.gradient_P],
            [on.mean_P],
            [on.square_P],
            [],
            [torch.full((), float(count), device=on.master_P.device)],
            lr=lr,
            beta1=self._config.beta1,
            beta2=self._config.beta2,
            weight_decay=on.decay,
            eps=self._config.epsilon,
            amsgrad=False,
            maximize=False,
        )


class OnePass:
    """Compiled: scaling waits for the application, which is one kernel a stretch.

    All that changes from step to step comes as tensors, so nothing is ever compiled twice.
    """

    def __init__(self, config: AdamWConfig, *, backend: str, device: torch.device) -> None:
        """Make the compiled function, on the thread that will call it.

        Args:
            config: AdamW's constants.
            backend: of the compiler.
            device: of the buffers.

        Raises:
            WorkerError: as `Compiled` says.
        """
        from dflash_runner.compiled import Compiled  # brings the compiler in, which takes seconds

        self._config, self._device = config, device
        self._update = Compiled(_one_pass, what="optimiser step", backend=backend)
        self._scale = torch.ones((), device=device)

    def scale(self, gradient_P: Tensor, factor: Tensor) -> None:  # noqa: ARG002
        """Kept for the application."""
        self._scale.mul_(factor)

    def scaled(self, norm: Tensor) -> Tensor:
        """The norm times what is kept: the norm of the scaled gradient, but for rounding."""
        return norm * self._scale

    def clear(self) -> None:
        """Forget what is kept."""
        self._scale.fill_(1.0)

    def apply(self, stretches: list[Stretch], *, lr: float, count: int) -> None:
        """A call for each stretch and each piece of it."""
        beta1, beta2 = self._config.beta1, self._config.beta2
        rows = [
            [
                *(1 - lr * stretch.decay, 1 - beta1, beta2, 1 - beta2, self._config.epsilon),
                *((1 - beta2**count) ** 0.5, lr / (1 - beta1**count)),
            ]
            for stretch in stretches
        ]
        numbers = devices.send(torch.tensor(rows, dtype=torch.float32), self._device)
        for stretch, row in zip(stretches, numbers.unbind(), strict=True):
            self._apply(stretch, row)

    def _apply(self, on: Stretch, numbers: Tensor) -> None:
        if on.parameter_P is None:
            raise AssertionError("one pass rounds into parameters: they must not be the masters")
        buffers = (on.master_P, on.gradient_P, on.mean_P, on.square_P, on.parameter_P)
        for piece in zip(*(buffer.split(_PIECE) for buffer in buffers), strict=True):
            self._update(*piece, numbers, self._scale)


def _one_pass(
    master_P: Tensor,
    gradient_P: Tensor,
    mean_P: Tensor,
    square_P: Tensor,
    parameter_P: Tensor,
    numbers: Tensor,
    scale: Tensor,
) -> None:
    """What is compiled: one application in place.

    Args:
        numbers: float32 [7]: what decay leaves, 1 - beta1, beta2, 1 - beta2, epsilon, the root of the second
            moment's correction, the learning rate over the first one's.
        scale: of the gradient, 0-d.

    Compile: P static.
    """
    kept, take, keep, square_take, epsilon, root, step = numbers.unbind()
    gradient = gradient_P * scale
    mean = mean_P + take * (gradient - mean_P)
    square = square_P * keep + square_take * (gradient * gradient)
    master = master_P * kept - step * mean / (square.sqrt() / root + epsilon)
    mean_P.copy_(mean)
    square_P.copy_(square)
    master_P.copy_(master)
    parameter_P.copy_(master)
