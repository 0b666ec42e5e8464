"""A drafter's operations, compiled: the same values and gradients, whoever computes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch._dynamo
from dflash_runner import operations
from dflash_runner.compiled import Compiled
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.kernels import kernels
from dflash_runner.loss import cross_entropy
from dflash_runner.operations import PLAIN, Operations
from dflash_runner.watch import graphs
from numerics import drafter_config, make_drafter, make_head, pack, parts_of, random_row, random_samples
from test_loss import terms_of
from torch import Tensor

# dynamo looks at the gradient of whatever it is given, sums that are no leaves included
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
CONFIG = drafter_config()
NAMES = ("norm", "add_norm", "gate", "heads", "context_norm", "context_heads")
ROWS, TOKENS, WIDTH, HEADS, HEAD = 2, 5, 32, 4, 8


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """No graphs of another test."""
    yield
    torch.compiler.set_stance("default")
    torch._dynamo.reset()  # noqa: SLF001


@pytest.fixture
def compiled() -> Operations:
    """Traced and differentiated as on a GPU; the kernels are torch's own."""
    return kernels(backend="aot_eager")


def arguments(name: str, dtype: torch.dtype) -> list[Tensor | float]:
    """Random ones of an operation."""
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype).requires_grad_()

    wide = (ROWS, TOKENS, WIDTH)
    turns = [draw(ROWS, 1, TOKENS, HEAD).detach() for _ in range(2)]
    return {
        "norm": lambda: [draw(*wide), draw(WIDTH), 1e-6],
        "add_norm": lambda: [draw(*wide), draw(*wide), draw(WIDTH), 1e-6],
        "gate": lambda: [draw(*wide), draw(*wide)],
        "heads": lambda: [draw(ROWS, TOKENS, HEADS * HEAD), draw(HEAD), *turns, 1e-6],
    }[name.removeprefix("context_")]()


def outcome(function: Callable[..., object], given: list[Tensor | float]) -> list[Tensor]:
    """Results and gradients."""
    fresh = [x.detach().clone().requires_grad_(x.requires_grad) if torch.is_tensor(x) else x for x in given]
    results = function(*fresh)
    results = list(results) if isinstance(results, tuple) else [results]
    generator = torch.Generator().manual_seed(4)
    seeds = [torch.randn(r.shape, generator=generator).to(r) for r in results]
    torch.autograd.backward(results, seeds)
    return [r.detach() for r in results] + [x.grad for x in fresh if torch.is_tensor(x) and x.requires_grad]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_compiled_equals_plain(compiled: Operations, name: str, dtype: torch.dtype) -> None:
    """Values and gradients, to the rounding of the dtype; both are the exact ones to it as well."""
    given = arguments(name, dtype)
    got, plain = outcome(getattr(compiled, name), given), outcome(getattr(PLAIN, name), given)
    exact = outcome(
        getattr(PLAIN, name),
        [x.detach().double().requires_grad_(x.requires_grad) if torch.is_tensor(x) else x for x in given],
    )
    bound = {torch.float32: 2e-5, torch.bfloat16: 4e-2}[dtype]
    for one, two, three in zip(got, plain, exact, strict=True):
        assert one.dtype == two.dtype == dtype
        torch.testing.assert_close(one, two, atol=bound, rtol=bound)
        torch.testing.assert_close(one.double(), three.double(), atol=bound, rtol=bound)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_scores_are_cross_entropy_and_its_gradient(compiled: Operations, dtype: torch.dtype) -> None:
    """Against torch's own in float64, bounded by the dtype; without a gradient nothing else changes."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(9, 16, generator=generator).to(dtype)
    head = torch.randn(33, 16, generator=generator).to(dtype)
    labels = torch.randint(33, (9,), generator=generator)
    exact = hidden.double().requires_grad_()
    want = torch.nn.functional.cross_entropy(exact @ head.double().T, labels, reduction="none")
    want.sum().backward()
    bound = {torch.float32: 1e-5, torch.bfloat16: 6e-2}[dtype]
    for score in (operations.score, operations.score_in_place, compiled.score):
        with torch.no_grad():
            loss, hit, gradient = score(hidden, head, labels, True)
            loss_alone, hit_alone, none = score(hidden, head, labels, False)
        torch.testing.assert_close(loss.double(), want.detach(), atol=bound, rtol=bound)
        torch.testing.assert_close(gradient.double(), exact.grad, atol=bound, rtol=bound)
        assert hit.tolist() == ((hidden.float() @ head.float().T).argmax(dim=-1) == labels).tolist()
        assert (loss_alone.tolist(), hit_alone.tolist(), none) == (loss.tolist(), hit.tolist(), None)


def test_a_drafter_on_compiled_operations_learns_the_same(compiled: Operations) -> None:
    """The loss, every gradient and every figure of a packed row."""
    rows, results = random_row(CONFIG, seed=2), []
    for by in (PLAIN, compiled):
        drafter = make_drafter(CONFIG)
        terms = terms_of(drafter, rows, by=by)
        terms.numerator_B.sum().backward()
        results.append((terms, {name: p.grad for name, p in drafter.named_parameters()}))
    (plain, wanted), (got, gradients) = results
    torch.testing.assert_close(got.numerator_B, plain.numerator_B, rtol=1e-5, atol=1e-5)
    assert torch.equal(got.hits_BJ, plain.hits_BJ)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-4, atol=1e-5)


def test_lengths_of_the_context_are_all_that_is_compiled_again() -> None:
    """One graph for each operation of the noise, but two of heads, as queries have more of them, and of sums,
    as the first one's noise has no gradient; one a length for those of the context."""
    compiled, drafter, made = kernels(backend="aot_eager"), make_drafter(CONFIG), []
    for number, length in enumerate((16, 24, 16, 24)):
        before = graphs()
        samples = random_samples(CONFIG, seed=number, lengths=[9, 6])
        rows = pack(samples, parts_of(samples), length=length, places=9)
        terms_of(drafter, rows, by=compiled).numerator_B.sum().backward()
        made.append(graphs() - before)
    assert made == [7 + 2, 2, 0, 0]


def test_each_user_of_a_function_has_eight_shapes_of_its_own() -> None:
    """The ninth is refused, and all that follows; another user is not concerned."""
    first, second = (Compiled(operations.gate, what=name, backend="eager") for name in ("first", "second"))
    for size in range(1, 9):
        first(torch.ones(size), torch.ones(size))
    for size in (9, 1):
        with pytest.raises(WorkerError, match=r"call compiled first: .*FailOnRecompileLimitHit") as refused:
            first(torch.ones(size), torch.ones(size))
        assert refused.value.kind is Kind.FATAL
    assert second(torch.zeros(9), torch.ones(9)).tolist() == [0.0] * 9


def test_the_sealed_head_refuses_another_number_of_slots(compiled: Operations) -> None:
    """As where a chunk of the loss came in a shape that warm-up did not run."""
    head = make_head(CONFIG)

    def lose(slots: int) -> None:
        hidden = torch.ones(slots, CONFIG.hidden_size, requires_grad=True)
        labels, weights = torch.zeros(slots, dtype=torch.int64), torch.ones(slots)
        cross_entropy(hidden, head=head, labels_R=labels, weights_R=weights, by=compiled)

    lose(8)
    torch.compiler.set_stance("fail_on_recompile")
    lose(8)
    for _ in range(2):
        with pytest.raises(WorkerError, match="call compiled loss") as refused:
            lose(9)
        assert refused.value.kind is Kind.FATAL
