"""The drafter's masters, moments and gradient, in flat buffers that are summed, normed, copied and saved.

Shapes: P all elements, each tensor padded to 64 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from dflash_runner.communicator import Communicator
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.flat import BUCKET_BYTES, lay_out
from dflash_runner.reduction import Reduction
from dflash_runner.update import AdamWConfig, OnePass, Passes, Stretch, Update

STEP = "step"
PARTS = ("master", "exp_avg", "exp_avg_sq")


class Optimiser:
    """The drafter's masters, moments and gradient.

    Where the drafter's parameters are float32 they become views of the masters, and autograd adds
    straight into the flat gradient. Otherwise they become views of one flat rounded copy, and each gradient
    is taken in float32 as soon as it is complete: a step's first one is written, later ones are added, and
    the place of one that never comes is zeroed before anybody reads it.

    Matrices decay, norm weights do not (ndim < 2): decay pulls towards 0, and a norm's neutral weight is 1.
    """

    def __init__(
        self,
        drafter: nn.Module,
        *,
        config: AdamWConfig,
        backend: str | None = None,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        """Take the drafter's parameters over.

        Args:
            drafter: on its device already; all parameters of one dtype.
            config: AdamW's constants.
            backend: of the compiler that makes the application one pass, for parameters that are not
                float32; left out, nothing is compiled: the plain arithmetic on a CPU, torch's fused kernel
                on a GPU.
            bucket_bytes: of gradients that are summed over the ranks at once; smaller in tests.
        """
        self._parameters = dict(sorted(drafter.named_parameters(), key=lambda i: (i[1].ndim < 2, i[0])))
        first = next(iter(self._parameters.values()))
        self._layout, self._config = lay_out(self._parameters, bucket_bytes=bucket_bytes), config
        self._places = self._layout.places
        self._update: Update = (
            Passes(config, fused=first.device.type == "cuda")
            if backend is None
            else OnePass(config, backend=backend, device=first.device)
        )
        self.steps = 0  # how often the optimiser was applied
        self.changes = 0  # how often the parameters took other values: applied, or loaded

        def flat(dtype: torch.dtype = torch.float32, *, more: int = 0) -> Tensor:
            return torch.zeros(self._layout.total + more, dtype=dtype, device=first.device)

        self._flat = {part: flat() for part in PARTS}
        self._gradient_P = flat(more=self._layout.alignment)
        self._narrow_P = None if first.dtype == torch.float32 else flat(first.dtype)
        self._stale: set[str] = set()  # whose place in the gradient holds something of the past
        starts = [*(place.offset for place in self._places.values()), self._layout.total]
        used = [place.offset + place.shape.numel() for place in self._places.values()]
        self._gaps = [self._gradient_P[a:b] for a, b in zip(used, starts[1:], strict=True) if a < b]
        self._reduction = Reduction(self._gradient_P, self._layout)
        for name, parameter in self._parameters.items():
            self._adopt(name, parameter)
        self.clear()

    def _adopt(self, name: str, parameter: nn.Parameter) -> None:
        """Let the parameter live in the flat buffers, and its gradient arrive there."""
        place = self._places[name]
        master, gradient = place.of(self._flat["master"]), place.of(self._gradient_P)
        master.copy_(parameter.detach())
        if self._narrow_P is None:
            parameter.data = master
        else:
            parameter.data = place.of(self._narrow_P).copy_(parameter.detach())

        def complete(of: Tensor) -> None:
            if self._narrow_P is not None:
                if name in self._stale:
                    # of lists, as that reads and writes several elements at once where types differ
                    torch._foreach_copy_([gradient], [of.grad])
                    self._stale.discard(name)
                else:
                    gradient.add_(of.grad)
                of.grad = None
            self._reduction.arrived(name)

        parameter.register_post_accumulate_grad_hook(complete)

    def parameters(self) -> list[nn.Parameter]:
        """All of them, in the order in which `take` wants their gradients."""
        return list(self._parameters.values())

    def begins(self) -> bool:
        """Whether the next gradients are the step's first, all of them; whoever adds some reads no past."""
        if len(self._stale) == len(self._places):
            return True
        self._unstale()
        return False

    @torch.no_grad()
    def take(self, gradients: Sequence[Tensor], *, first: bool) -> None:
        """Write or add a row's gradients, as they do themselves when they come one by one.

        Args:
            gradients: of `parameters`, in their dtype.
            first: as `begins` says.

        Raises:
            AssertionError: parameters that are float32, into whose gradient autograd adds itself.
        """
        if self._narrow_P is None:
            raise AssertionError("take gradients: want parameters below float32")
        places = [self._places[name].of(self._gradient_P) for name in self._parameters]
        if first:
            torch._foreach_copy_(places, list(gradients))
        else:
            torch._foreach_add_(places, list(gradients))

    def took(self, *, first: bool) -> None:
        """Gradients were taken as `take` does, by a replay."""
        if first:
            self._stale.clear()

    @property
    def gradient_P(self) -> Tensor:
        """The flat gradient, float32, the weight in its last element; whoever reads it reads no past."""
        self._unstale()
        return self._gradient_P

    def _unstale(self) -> None:
        """Zero what is left of the past."""
        for name in self._stale:
            self._places[name].of(self._gradient_P).zero_()
        self._stale.clear()

    def clear(self) -> None:
        """Drop the gradient and the weight; no sum may be under way."""
        self._reduction.drop()
        self._update.clear()
        if self._narrow_P is None:
            self._gradient_P.zero_()
        else:
            self._gradient_P[self._layout.total :].zero_()
            for gap in self._gaps:  # a factor that is no number leaves none there
                gap.zero_()
            self._stale.update(self._places)
        for name, parameter in self._parameters.items():
            narrow = self._narrow_P is not None
            parameter.grad = None if narrow else self._places[name].of(self._gradient_P)

    @property
    def weight(self) -> Tensor:
        """The sum of loss weights, 0-d: the last element of `gradient_P`, so that what is summed last over
        the ranks adds up the weights too."""
        return self._gradient_P[-1]

    @property
    def is_summing(self) -> bool:
        """Whether sums over the ranks may be under way that write into the gradient."""
        return self._reduction.is_open

    def sum_as_it_comes(self, communicator: Communicator) -> None:
        """The step's last backward comes next: sum what is complete while it goes on, where sums have a
        stream of their own."""
        if communicator.overlaps:
            self._reduction.open(communicator)

    def sum(self, communicator: Communicator) -> None:
        """Sum gradient and weight over the ranks, or what is left of it, and wait.

        Without a stream of its own it is one sum, whose bits depend on no bucket.

        Raises:
            WorkerError: unavailable, where a peer is gone: the gradient is then undefined.
        """
        gradient_P = self.gradient_P
        if communicator.overlaps:
            self._reduction.finish(communicator)
        else:
            communicator.sum(gradient_P)

    def rescale(self, weight_constant: float) -> None:
        """Turn the summed gradient of loss / W0 into that of loss / sum of weights.

        Where the weights come to 0 every place was weightless: the gradient is zero, and stays.
        """
        factor = (weight_constant / self.weight).masked_fill(self.weight == 0, 1.0)
        self._update.scale(self._whole_P(), factor)

    def global_norm(self) -> Tensor:
        """The gradient's norm, 0-d float32, summed tensor by tensor in the order of names: equal gradients
        give equal bits. Compiled, it is the norm before `rescale` and `clip` times their factors: the same
        but for rounding, and no pass of theirs."""
        gradient_P = self.gradient_P
        norms = [torch.linalg.vector_norm(self._places[name].of(gradient_P)) for name in self._parameters]
        return self._update.scaled(torch.linalg.vector_norm(torch.stack(norms)))

    def clip(self, norm: Tensor, *, limit: float) -> None:
        """Scale the gradient down to `limit` where its norm is above it.

        Source: torch.nn.utils.clip_grad_norm_, its 1e-6 included.
        """
        self._update.scale(self._whole_P(), (limit / (norm + 1e-6)).clamp(max=1.0))

    @torch.no_grad()
    def step(self, *, lr: float) -> None:
        """Apply the gradient, as rescaled and clipped."""
        self.steps += 1
        layout, decay = self._layout, self._config.weight_decay
        bounds = ((0, layout.decayed, decay), (layout.decayed, layout.total, 0.0))
        self._update.apply([self._stretch(*bound) for bound in bounds], lr=lr, count=self.steps)
        self.changes += 1

    def _whole_P(self) -> Tensor:
        """The gradient without the weight."""
        return self.gradient_P[: self._layout.total]

    def _stretch(self, low: int, high: int, decay: float) -> Stretch:
        """What lies from `low` to `high`."""
        return Stretch(
            master_P=self._flat["master"][low:high],
            gradient_P=self.gradient_P[low:high],
            mean_P=self._flat["exp_avg"][low:high],
            square_P=self._flat["exp_avg_sq"][low:high],
            parameter_P=None if self._narrow_P is None else self._narrow_P[low:high],
            decay=decay,
        )

    def _round(self) -> None:
        """Give parameters that are not float32 the masters' values."""
        if self._narrow_P is not None:
            self._narrow_P.copy_(self._flat["master"])

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
        self.changes += 1
