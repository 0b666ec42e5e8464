"""A drafter's operations as kernels of a real GPU, against the plain ones in float64.

Run alone: `python -m pytest -m gpu python/tests/test_operations_gpu.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch._dynamo
from dflash_runner.kernels import kernels
from dflash_runner.operations import PLAIN, Operations
from test_operations import NAMES, outcome
from torch import Tensor

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),  # the compiler's own, of which some depend on the machine
]

ROWS, TOKENS, WIDTH, HEADS, HEAD, VOCABULARY, SLOTS = 1, 384, 512, 4, 128, 5003, 120
RELATIVE = 1e-2  # of the norm of the exact result: roundings to bfloat16


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operations]:
    """By torch's own compiler, with a cache of its own."""
    patch = pytest.MonkeyPatch()
    patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    yield kernels()
    torch._dynamo.reset()  # noqa: SLF001
    patch.undo()


def draw(*shape: int, seed: int) -> Tensor:
    """In bfloat16, on the GPU."""
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cuda").bfloat16().requires_grad_()


def arguments(name: str) -> list[Tensor | float]:
    """Of an operation at a small shape."""
    wide = (ROWS, TOKENS, WIDTH)
    angle = torch.rand(ROWS, 1, TOKENS, HEAD, device="cuda") * 6
    return {
        "norm": lambda: [draw(*wide, seed=1), draw(WIDTH, seed=2), 1e-6],
        "add_norm": lambda: [draw(*wide, seed=1), draw(*wide, seed=2), draw(WIDTH, seed=3), 1e-6],
        "gate": lambda: [draw(*wide, seed=1), draw(*wide, seed=2)],
        "heads": lambda: [
            draw(ROWS, TOKENS, HEADS * HEAD, seed=1),
            draw(HEAD, seed=2),
            angle.cos().bfloat16(),
            angle.sin().bfloat16(),
            1e-6,
        ],
    }[name.removeprefix("context_")]()


def near(got: Tensor, exact: Tensor) -> None:
    """Within the bound, as vectors."""
    assert float((got.double() - exact).norm() / exact.norm()) <= RELATIVE


@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients_are_the_exact_ones(compiled: Operations, name: str) -> None:
    """Of the kernels, forward and backward, to the rounding of bfloat16."""
    given = arguments(name)
    exact = [x.detach().double().requires_grad_(x.requires_grad) if torch.is_tensor(x) else x for x in given]
    for got, want in zip(
        outcome(getattr(compiled, name), given), outcome(getattr(PLAIN, name), exact), strict=True
    ):
        assert got.dtype == torch.bfloat16
        near(got, want)


def test_the_loss_is_cross_entropy_and_its_gradient(compiled: Operations) -> None:
    """Against torch's own in float64; the best guess is that of the logits."""
    hidden, head = draw(SLOTS, WIDTH, seed=1).detach(), draw(VOCABULARY, WIDTH, seed=2).detach() * 0.05
    generator = torch.Generator("cuda").manual_seed(3)
    labels = torch.randint(VOCABULARY, (SLOTS,), generator=generator, device="cuda")
    logits = torch.nn.functional.linear(hidden, head)
    labels[::2] = logits[::2].argmax(dim=-1)
    exact = hidden.double().requires_grad_()
    want = torch.nn.functional.cross_entropy(exact @ head.double().T, labels, reduction="none")
    want.sum().backward()
    with torch.no_grad():
        loss, hit, gradient = compiled.score(hidden, head, labels, True)
    near(loss, want.detach())
    near(gradient, exact.grad)
    assert hit[::2].all() and int(hit.sum()) < SLOTS
