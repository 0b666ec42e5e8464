"""AdamW on float32 masters, in flat buffers that are summed, normed, copied and saved as they are.

Shapes: P all elements, each tensor padded to 64 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dflash_runner.errors import Kind, WorkerError

_ALIGNMENT = 16  # float32 elements: 64 bytes, so that kernels see every tensor as they would alone
STEP = "step"
PARTS = ("master", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True, kw_only=True, slots=True)
class AdamWConfig:
    """AdamW's constants; the learning rate comes with each commit."""

    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """Where a tensor lies in the flat buffers."""

    offset: int
    shape: torch.Size

    def of(self, flat_P: Tensor) -> Tensor:
        return flat_P[self.offset : self.offset + self.shape.numel()].view(self.shape)


class Optimiser:
    """The drafter's masters, moments and gradient.

    Where the drafter's parameters are float32 they become views of the masters, and autograd adds
    straight into the flat gradient. Otherwise the parameters are rounded copies, and each gradient is
    added in float32 as soon as it is complete.

    Matrices decay, norm weights do not (ndim < 2): decay pulls towards 0, and a norm's neutral weight is 1.
    """

    def __init__(self, drafter: nn.Module, *, config: AdamWConfig, fused: bool | None = None) -> None:
        """Take the drafter's parameters over.

        Args:
            drafter: on its device already.
            config: AdamW's constants.
            fused: apply by torch's fused kernel, which equals the plain arithmetic but for rounding; left
                out, on a GPU alone, as a CPU's bits are those of the plain arithmetic.
        """
        self._parameters = dict(
            sorted(drafter.named_parameters(), key=lambda item: (item[1].ndim < 2, item[0]))
        )
        device = next(iter(self._parameters.values())).device
        self._places, decayed, total = self._lay_out()
        self._config, self._segments = config, ((0, decayed, config.weight_decay), (decayed, total, 0.0))
        self._fused = device.type == "cuda" if fused is None else fused
        self.steps = 0  # how often the optimiser was applied

        def flat() -> Tensor:
            return torch.zeros(total, dtype=torch.float32, device=device)

        self._flat = {part: flat() for part in PARTS}
        self.gradient_P = torch.zeros(total + _ALIGNMENT, dtype=torch.float32, device=device)
        for name, parameter in self._parameters.items():
            self._adopt(parameter, self._places[name])
        self.clear()

    def _lay_out(self) -> tuple[dict[str, _Place], int, int]:
        places, decayed, offset = {}, 0, 0
        for name, parameter in self._parameters.items():
            places[name] = _Place(offset=offset, shape=parameter.shape)
            offset += -(-parameter.numel() // _ALIGNMENT) * _ALIGNMENT
            decayed = offset if parameter.ndim >= 2 else decayed
        return places, decayed, offset

    def _adopt(self, parameter: nn.Parameter, place: _Place) -> None:
        master = place.of(self._flat["master"])
        master.copy_(parameter.detach())
        if parameter.dtype == torch.float32:
            parameter.data = master
            return
        gradient = place.of(self.gradient_P)

        def widen(complete: Tensor) -> None:
            gradient.add_(complete.grad)
            complete.grad = None

        parameter.register_post_accumulate_grad_hook(widen)

    def clear(self) -> None:
        """Drop the gradient and the weight."""
        self.gradient_P.zero_()
        for name, parameter in self._parameters.items():
            narrow = parameter.dtype != torch.float32
            parameter.grad = None if narrow else self._places[name].of(self.gradient_P)

    @property
    def weight(self) -> Tensor:
        """The sum of loss weights, 0-d: the last element of `gradient_P`, so that one sum over the
        ranks adds gradients and weights."""
        return self.gradient_P[-1]

    def rescale(self, weight_constant: float) -> None:
        """Turn the summed gradient of loss / W0 into that of loss / sum of weights.

        A sum of 0 gives a gradient that is not finite, which the vote reports.
        """
        self.gradient_P[:-_ALIGNMENT].mul_(weight_constant / self.weight)

    def global_norm(self) -> Tensor:
        """The gradient's norm, 0-d float32, summed tensor by tensor in the order of the layout: equal
        gradients give equal bits."""
        norms = [torch.linalg.vector_norm(place.of(self.gradient_P)) for place in self._places.values()]
        return torch.linalg.vector_norm(torch.stack(norms))

    def clip(self, norm: Tensor, *, limit: float) -> None:
        """Scale the gradient down to `limit` where its norm is above it.

        Source: torch.nn.utils.clip_grad_norm_, its 1e-6 included.
        """
        self.gradient_P[:-_ALIGNMENT].mul_((limit / (norm + 1e-6)).clamp(max=1.0))

    @torch.no_grad()
    def step(self, *, lr: float) -> None:
        """Apply the gradient: torch.optim.AdamW's arithmetic, whose import alone costs seconds.

        Source: AdamW (arXiv 1711.05101); torch.optim._single_tensor_adamw, and its fused kernel on a GPU.
        """
        self.steps += 1
        for low, high, decay in self._segments:
            flat = [self._flat["master"], self.gradient_P, self._flat["exp_avg"], self._flat["exp_avg_sq"]]
            parts = [tensor[low:high] for tensor in flat]
            if self._fused:
                self._apply_fused(parts, lr=lr, decay=decay)
            else:
                self._apply(*parts, lr=lr, decay=decay)
        self._round()

    def _apply(
        self, master: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, *, lr: float, decay: float
    ) -> None:
        beta1, beta2 = self._config.beta1, self._config.beta2
        master.mul_(1 - lr * decay)
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        scale = (1 - beta2**self.steps) ** 0.5
        below = square.sqrt().div_(scale).add_(self._config.epsilon)
        master.addcdiv_(mean, below, value=-lr / (1 - beta1**self.steps))

    def _apply_fused(self, parts: list[Tensor], *, lr: float, decay: float) -> None:
        master, gradient, mean, square = parts
        torch._fused_adamw_(
            [master],
            [gradient],
            [mean],
            [square],
            [],
            [torch.full((), float(self.steps), device=master.device)],
            lr=lr,
            beta1=self._config.beta1,
            beta2=self._config.beta2,
            weight_decay=decay,
            eps=self._config.epsilon,
            amsgrad=False,
            maximize=False,
        )

    def _round(self) -> None:
        """Give parameters that are not float32 the masters' new values."""
        for name, parameter in self._parameters.items():
            if parameter.dtype != torch.float32:
                parameter.data.copy_(self._places[name].of(self._flat["master"]))

    def part(self, which: str) -> dict[str, Tensor]:
        """One of `PARTS` by parameter name, float32: views, not copies."""
        return {name: self._places[name].of(self._flat[which]) for name in sorted(self._places)}

    def masters(self) -> dict[str, Tensor]:
        """The float32 masters by parameter name: views, not copies."""
        return self.part("master")

    def state_tensors(self) -> dict[str, Tensor]:
        """All state that an image holds: `master.*`, `exp_avg.*`, `exp_avg_sq.*` (views, float32) and
        `step` (int64, how often the optimiser was applied)."""
        tensors = {f"{which}.{name}": view for which in PARTS for name, view in self.part(which).items()}
        return tensors | {STEP: torch.tensor(self.steps, dtype=torch.int64)}

    @torch.no_grad()
    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the state that `state_tensors` gave, and drop the gradient.

        Raises:
            WorkerError: invalid, where a tensor is missing, is not known or has another shape or dtype.
        """
        own = self.state_tensors()
        if own.keys() != tensors.keys():
            odd = sorted(own.keys() ^ tensors.keys())
            raise WorkerError(
                Kind.INVALID, f"load state: want the {len(own)} tensors of this drafter, differs in {odd[:4]}"
            )
        for name, tensor in tensors.items():
            if tensor.shape != own[name].shape or tensor.dtype != own[name].dtype:
                want, got = (f"{list(t.shape)} {t.dtype}" for t in (own[name], tensor))
                raise WorkerError(Kind.INVALID, f"load state: {name}: want {want}, got {got}")
        for name, tensor in tensors.items():
            own[name].copy_(tensor)
        self.loaded(steps=int(tensors[STEP]))

    @torch.no_grad()
    def loaded(self, *, steps: int) -> None:
        """Take over what was written into the views of `part`, as the state after `steps` applications."""
        self.steps = steps
        self._round()
        self.clear()
