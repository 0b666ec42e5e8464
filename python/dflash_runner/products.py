"""The drafter's linear layers and its head in eight bits, for `drafter.precision: fp8`.

Weights change at the update alone, so their eight bits are made once a step, outside of what is recorded and
into memory that stays: a recording reads them from there. The head is frozen; its eight bits are made once.

What stays in the drafter's dtype: norms, turns and gates, which are no products; attention, whose kernels
are another's; the embedding, which is looked up; and `fc`, whose input is the target's hidden states. Some
of their channels are hundreds of times the rest, and one scale for all would round the rest away.

Shapes: R tokens, M inputs and N outputs of a layer, D hidden size, V vocabulary, U = V up to a multiple of
16.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dflash_runner import fp8
from dflash_runner.compiled import Backend, Compiled
from dflash_runner.fp8 import Eight
from dflash_runner.head import FrozenHead
from dflash_runner.model import Drafter
from dflash_runner.operations import Operations, Score

_EACH = 3  # products of a layer's call: forward, by the input, by the weight


@dataclass(kw_only=True, slots=True)
class ProductCounter:
    """How many products ran in eight bits; the certificate states it."""

    calls: int = 0

    def backward(self, _: Tensor) -> None:
        """The gradient of a layer's output is there: the two products that follow from it come next."""
        self.calls += _EACH - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Operand:
    """What layers multiply, rounded once for all of them."""

    x_RM: Tensor  # whose gradient is made
    eight: Eight
    leading: torch.Size  # the shape before the last dimension, of which R is the product


@dataclass(frozen=True, kw_only=True, slots=True)
class _Functions:
    """Plain, or each compiled; the context's are apart from the noise's, as its length is one of several."""

    cast: Callable[..., Eight]
    product: Callable[..., Tensor]
    context_cast: Callable[..., Eight]
    context_product: Callable[..., Tensor]
    weights: Callable[..., None]
    score: Callable[..., Score]


_PLAIN = _Functions(
    cast=fp8.cast,
    product=fp8.product,
    context_cast=fp8.cast,
    context_product=fp8.product,
    weights=fp8.cast_into,
    score=fp8.score,
)


def _compiled(backend: Backend) -> _Functions:
    return _Functions(
        cast=Compiled(fp8.cast, what="fp8 cast", backend=backend),
        product=Compiled(fp8.product, what="fp8 product", backend=backend),
        context_cast=Compiled(fp8.cast, what="fp8 cast of context", backend=backend),
        context_product=Compiled(fp8.product, what="fp8 product of context", backend=backend),
        weights=Compiled(fp8.cast_into, what="fp8 cast of weights", backend=backend),
        score=Compiled(fp8.score, what="fp8 loss", backend=backend),
    )


class Products:
    """The products of one drafter; used on the thread that made it alone."""

    def __init__(
        self, drafter: Drafter, frozen: FrozenHead, *, by: Operations, backend: Backend | None
    ) -> None:
        """Take the memory, and round the head. The weights are rounded by `follow`.

        Args:
            drafter: on its device already.
            frozen: the target's head.
            by: who computes the rest.
            backend: of the compiler; None: torch's own functions, one after the other.

        Raises:
            WorkerError: as `Compiled` says.
        """
        self._functions = _PLAIN if backend is None else _compiled(backend)
        self._head = frozen.head_VD
        self._head8 = _head(frozen.head_VD)
        inside = [one for one in drafter.layers.modules() if isinstance(one, nn.Linear)]
        self._weights = {layer: _room(layer.weight) for layer in inside}
        self._followed: int | None = None
        self.linears, self.heads = ProductCounter(), ProductCounter()
        self.operations = dataclasses.replace(
            by,
            operand=self._operand(self._functions.cast),
            linear=self._linear(self._functions.product),
            context_operand=self._operand(self._functions.context_cast),
            context_linear=self._linear(self._functions.context_product),
            score=self._score,
        )

    @property
    def checks(self) -> list[Callable[[], None]]:
        """Of every compiled function here: they raise once it has refused a call."""
        made = (getattr(self._functions, field.name) for field in dataclasses.fields(self._functions))
        return [one.check for one in made if isinstance(one, Compiled)]

    @property
    def held_bytes(self) -> int:
        """Of the device, by the eight bits of weights and head."""
        eights = [*self._weights.values(), self._head8]
        return sum(tensor.nbytes for eight in eights for tensor in eight)

    @torch.no_grad()
    def follow(self, changes: int) -> None:
        """Round the weights anew where they changed since; queued, and not waited for.

        Args:
            changes: how often they took other values, as `Optimiser.changes` counts.
        """
        if changes == self._followed:
            return
        for layer, (w8_NM, w8_MN, scale) in self._weights.items():
            self._functions.weights(layer.weight.detach(), w8_NM, w8_MN, scale)
        self._followed = changes

    def _operand(self, cast: Callable[..., Eight]) -> Callable[[Tensor], Operand]:
        """Rounds what one or several layers multiply."""

        def operand(x: Tensor) -> Operand:
            x_RM = x.flatten(0, -2)
            with torch.no_grad():
                eight = cast(x_RM.detach())
            return Operand(x_RM=x_RM, eight=eight, leading=x.shape[:-1])

        return operand

    def _linear(self, product: Callable[..., Tensor]) -> Callable[[nn.Linear, Any], Tensor]:
        """Multiplies it by a layer's weight, which was rounded before."""

        def linear(layer: nn.Linear, operand: Operand) -> Tensor:
            if self._followed is None:
                raise AssertionError("multiply in fp8: want the weights rounded before")
            out_RN = product(operand.x_RM, layer.weight, *operand.eight, *self._weights[layer])
            self.linears.calls += 1
            if out_RN.requires_grad:
                out_RN.register_hook(self.linears.backward)
            return out_RN.unflatten(0, operand.leading)

        return linear

    def _score(self, hidden_RD: Tensor, head_VD: Tensor, labels_R: Tensor, gradient: bool) -> Score:
        """The cross-entropy of slots, by the head's eight bits."""
        if head_VD is not self._head:
            raise AssertionError("score in fp8: want the head that was rounded, got another one")
        self.heads.calls += 1 + int(gradient)
        vocabulary = head_VD.shape[0]
        return self._functions.score(hidden_RD.detach(), *self._head8, labels_R, gradient, vocabulary)


def _room(weight_NM: Tensor) -> Eight:
    """Where a weight's eight bits are kept."""
    w8_NM = torch.zeros(weight_NM.shape, dtype=fp8.FORWARD, device=weight_NM.device)
    return w8_NM, w8_NM.t().contiguous(), torch.ones((), device=weight_NM.device)


@torch.no_grad()
def _head(head_VD: Tensor) -> Eight:
    """The head's eight bits, rows of zeros added up to a multiple of what kernels take."""
    more = -len(head_VD) % fp8.MULTIPLE
    head8_VD, scale = fp8.rounded(head_VD, fp8.FORWARD)
    head8_UD = F.pad(head8_VD.view(torch.uint8), (0, 0, 0, more)).view(fp8.FORWARD) if more else head8_VD
    return head8_UD, head8_UD.t().contiguous(), scale
