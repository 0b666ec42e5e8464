"""Products in eight bits against an oracle that dequantises: values, gradients, and what is no number.

Shapes: R tokens or slots, M inputs and N outputs of a layer, V vocabulary, D hidden size.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from dflash_runner import fp8
from torch import Tensor

NAN, INF = float("nan"), float("inf")
HALF_STEP = {fp8.FORWARD: 2.0**-4, fp8.GRADIENT: 2.0**-3}
"""Most that rounding moves a value, of itself: half of the last place of 3 and of 2 bits."""


def drawn(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal values."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def back(eight: Tensor, scale: Tensor) -> Tensor:
    """What eight bits say, in float64."""
    return eight.double() * scale.double()


def multiply(x: Tensor, weight: Tensor) -> Tensor:
    """The product, as a layer asks for it."""
    return fp8.product(x, weight, *fp8.cast(x.detach()), *fp8.cast(weight.detach()))


def ran(x: Tensor, weight: Tensor, outer: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(output, gradient by x, gradient by weight)."""
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    out = multiply(x, weight)
    out.backward(outer)
    return out.detach(), x.grad, weight.grad


@pytest.mark.parametrize("dtype", [fp8.FORWARD, fp8.GRADIENT])
@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 3e4, 1e30])
def test_rounding_moves_a_value_by_half_a_step(dtype: torch.dtype, size: float) -> None:
    """Of itself, or near zero of the smallest step; the largest value is met, and nothing is beyond."""
    x = drawn(64, 48, seed=1).double() * size
    eight, scale = fp8.rounded(x.float(), dtype)
    got = back(eight, scale)
    assert got.isfinite().all()
    smallest = torch.finfo(dtype).tiny * torch.finfo(dtype).eps * float(scale)
    assert ((got - x).abs() <= (HALF_STEP[dtype] * x.abs()).clamp(min=smallest / 2) * (1 + 1e-6)).all()
    assert float(got.abs().max()) == pytest.approx(float(x.abs().max()), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_is_that_of_its_eight_bits(dtype: torch.dtype) -> None:
    """Value and gradients against float64 on the dequantised operands: the result is rounded, and the sum in
    float32."""
    x, weight, outer = (drawn(*s, seed=n, dtype=dtype) for n, s in enumerate([(32, 48), (80, 48), (32, 80)]))
    got = ran(x, weight, outer)
    x8, w8 = (back(e[0], e[2]) for e in (fp8.cast(x), fp8.cast(weight)))
    g8 = back(*fp8.rounded(outer, fp8.GRADIENT))
    for mine, want in zip(got, (x8 @ w8.t(), g8 @ w8, g8.t() @ x8), strict=True):
        assert mine.dtype == dtype
        size = float(want.abs().max())
        assert float((mine.double() - want).abs().max()) <= (torch.finfo(dtype).eps + 1e-6) * size


def test_a_product_is_near_the_exact_one() -> None:
    """Errors of operands are independent, so a sum's is below their share of its size: 4 % forward, where
    each is at most 6 %, and 8 % backward."""
    x, weight, outer = (drawn(*s, seed=n) for n, s in enumerate([(128, 256), (64, 256), (128, 64)]))
    exact = x @ weight.t(), outer @ weight, outer.t() @ x
    for mine, want, share in zip(ran(x, weight, outer), exact, (0.04, 0.08, 0.08), strict=True):
        error = float((mine - want).norm() / want.norm())
        assert 0 < error < share, error


def test_the_transpose_is_that_of_the_same_bits() -> None:
    """Contiguous both, as kernels want them."""
    eight, transposed, _ = fp8.cast(drawn(32, 48, seed=1))
    assert eight.is_contiguous() and transposed.is_contiguous()
    assert torch.equal(eight.t().float(), transposed.float())


@pytest.mark.parametrize("zero", ["x", "weight", "outer"])
def test_zeros_have_a_scale(zero: str) -> None:
    """What they meet is zero, and all is finite."""
    given = {"x": drawn(16, 32, seed=0), "weight": drawn(48, 32, seed=1), "outer": drawn(16, 48, seed=2)}
    given[zero] = torch.zeros_like(given[zero])
    results = dict(zip(("out", "by x", "by weight"), ran(**given), strict=True))
    touched = {"x": ("out", "by weight"), "weight": ("out", "by x"), "outer": ("by x", "by weight")}[zero]
    for name, result in results.items():
        assert result.isfinite().all()
        assert bool(result.any()) is (name not in touched)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("where", ["x", "weight", "outer"])
def test_what_is_no_number_is_seen(where: str, value: float) -> None:
    """One such value among many, and no product that it goes into has a finite number left."""
    given = {"x": drawn(16, 32, seed=0), "weight": drawn(48, 32, seed=1), "outer": drawn(16, 48, seed=2)}
    given[where][3, 5] = value
    results = dict(zip(("out", "by x", "by weight"), ran(**given), strict=True))
    touched = {"x": ("out", "by weight"), "weight": ("out", "by x"), "outer": ("by x", "by weight")}[where]
    for name, result in results.items():
        assert bool(result.isfinite().any()) is (name not in touched), name


def test_values_at_the_end_of_bfloat16() -> None:
    """The largest there are, and the smallest, whose scale would be none."""
    most, least = torch.finfo(torch.bfloat16).max, 1e-40
    for size in (most, least):
        eight, scale = fp8.rounded(torch.tensor([[size, -size / 3]]), fp8.FORWARD)
        assert eight.float().isfinite().all() and 0 < float(scale) < INF
    assert float(back(*fp8.rounded(torch.tensor([[most]]), fp8.FORWARD))) == pytest.approx(most, rel=1e-6)


def head_of(vocabulary: int) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """A head, and its eight bits with rows of zeros."""
    head = drawn(vocabulary, 32, seed=3) * 0.3
    filled = F.pad(head, (0, 0, 0, -vocabulary % fp8.MULTIPLE))
    return head, fp8.cast(filled)


@pytest.mark.parametrize("vocabulary", [64, 75])
def test_the_loss_is_that_of_its_eight_bits(vocabulary: int) -> None:
    """Loss, hits and gradient, in float64 on the dequantised operands; rows that fill up are no tokens."""
    _, eight = head_of(vocabulary)
    hidden, labels = drawn(40, 32, seed=4), torch.arange(40) * 7 % vocabulary
    loss, hit, gradient = fp8.score(hidden, *eight, labels, True, vocabulary)
    head8 = back(eight[0], eight[2])[:vocabulary]
    hidden8 = back(*fp8.rounded(hidden, fp8.FORWARD)).requires_grad_()
    logits = hidden8 @ head8.t()
    want = F.cross_entropy(logits, labels, reduction="none")
    torch.testing.assert_close(loss.double(), want.detach(), atol=1e-5, rtol=1e-5)
    assert torch.equal(hit, logits.argmax(-1) == labels)
    (exact,) = torch.autograd.grad(want.sum(), hidden8)
    change = logits.softmax(-1).detach() - F.one_hot(labels, vocabulary)
    rounding = HALF_STEP[fp8.GRADIENT] * change.abs() @ head8.abs() + 2**-32 * vocabulary
    assert ((gradient.double() - exact).abs() <= rounding).all()
    assert fp8.score(hidden, *eight, labels, False, vocabulary)[2] is None


def test_a_loss_of_what_is_no_number() -> None:
    """It is none itself, nor is any of its gradient."""
    _, eight = head_of(64)
    hidden = drawn(8, 32, seed=4)
    hidden[2, 2] = INF
    loss, _, gradient = fp8.score(hidden, *eight, torch.arange(8), True, 64)
    assert not loss.isfinite().any() and not gradient.isfinite().any()
