"""A drafter whose products are in fp8: values, when weights are rounded, the certificate, and replays.

Shapes: R tokens, M inputs and N outputs of a layer, V vocabulary, D hidden size.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dflash_runner import building, config, fp8, preparation
from dflash_runner.communicator import Communicator
from dflash_runner.config import Configuration
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.flex import Flex
from dflash_runner.model import Drafter
from dflash_runner.operations import PLAIN
from dflash_runner.preparation import Preparation, Prepared
from dflash_runner.trainer import Trainer
from dflash_runner.warmup import Clock, warm_up
from dflash_runner.warmup_drafter import DrafterSubject
from dflash_runner.watch import Watch
from fake_compiler import FakeCompiler
from flex_worker import MARKS, watching
from test_replay import Again
from torch import Tensor, nn
from worker_host import configuration, make_inputs

pytestmark = [
    *MARKS,
    # the compiler makes one to trace it by, and says so to itself
    pytest.mark.filterwarnings("ignore:.*autograd.function.Function.* should not be instantiated"),
]
BUCKETS = (32, 48)
LAYERS = 2
CPU = torch.device("cpu")
ALONE = Communicator("", number=1, world=1, rank=0)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny inputs; their vocabulary is no multiple of 16."""
    made = tmp_path_factory.mktemp("products")
    make_inputs(made)
    return made


def told(directory: Path, **changes: Any) -> Any:
    """A drafter's configuration in fp8, of sizes that fit."""
    message = configuration(directory, **changes)
    message.drafter.precision, message.drafter.intermediate_size = "fp8", 48
    del message.training.buckets[:]
    message.training.buckets.extend(BUCKETS)
    return message


@pytest.fixture
def settings(directory: Path) -> Configuration:
    """In fp8, on a CPU."""
    return config.from_message(told(directory))


def without_fp8(settings: Configuration) -> Configuration:
    """The same in the compute dtype."""
    drafter = dataclasses.replace(settings.drafter, precision="compute_dtype")
    return dataclasses.replace(settings, drafter=drafter)


def row_of(trainer: Trainer, settings: Configuration, *, bucket: int = 32, seed: int = 0) -> Prepared:
    """One with padding."""
    tensors, pieces = DrafterSubject(trainer, configuration=settings)._row(bucket)  # noqa: SLF001
    generator = torch.Generator().manual_seed(seed)
    hidden = tensors["hidden"]
    tensors["hidden"] = torch.randn(hidden.shape, generator=generator).to(hidden.dtype)
    return trainer.prepare(tensors, epoch=0, pieces=pieces)


class _Dequantised(torch.autograd.Function):
    """What a product in fp8 is to come to, in float64: operands and gradients rounded, and nothing else."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """x @ weight.T of what eight bits say of both."""
        x8, w8 = (_said(matrix, fp8.FORWARD) for matrix in (x.flatten(0, -2), weight))
        ctx.save_for_backward(x8, w8)
        return (x8 @ w8.t()).to(x.dtype).unflatten(0, x.shape[:-1])

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, Tensor]:
        """Of the gradient likewise."""
        x8, w8 = ctx.saved_tensors
        g8 = _said(outer[0].flatten(0, -2), fp8.GRADIENT)
        by_x = (g8 @ w8).to(outer[0].dtype).unflatten(0, outer[0].shape[:-1])
        return by_x, (g8.t() @ x8).to(outer[0].dtype)


def _said(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    eight, scale = fp8.rounded(matrix, dtype)
    return eight.double() * scale.double()


def _scored(hidden: Tensor, head: Tensor, labels: Tensor, gradient: bool) -> Any:
    """Cross-entropy by a head and hidden states that are rounded; so is its gradient by the logits."""
    head8 = _said(head, fp8.FORWARD)
    logits = _said(hidden.detach(), fp8.FORWARD) @ head8.t()
    change = (logits.softmax(-1) - F.one_hot(labels, len(head))).float() * 2**15
    found = (change.to(fp8.GRADIENT).double() * 2**-15) @ head8
    loss = F.cross_entropy(logits, labels, reduction="none").float()
    return loss, logits.argmax(-1) == labels, found.to(hidden.dtype) if gradient else None


def test_a_step_is_that_of_dequantised_operands(settings: Configuration) -> None:
    """The whole micro-step against float64 products: loss to 1e-5 of itself, each gradient to 1 % of its
    norm, as values that stand at the edge between two of eight bits fall to one side or the other."""
    trainer = Trainer(settings)
    oracle = Trainer(without_fp8(settings))
    oracle.operations = dataclasses.replace(
        PLAIN,
        linear=lambda layer, x: _Dequantised.apply(x, layer.weight),
        context_linear=lambda layer, x: _Dequantised.apply(x, layer.weight),
        score=_scored,
    )
    found = []
    for one in (trainer, oracle):
        one.micro_step(row_of(one, settings), row=1)
        views = {n: p.of(one.optimiser.gradient_P).clone() for n, p in one.optimiser._places.items()}  # noqa: SLF001
        found.append((one.reduce(ALONE).rows[0].numerator, views))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    for name, want in found[1][1].items():
        error = float((found[0][1][name] - want).norm() / want.norm())
        assert error < 0.01, (name, error)


def test_fp8_is_not_the_compute_dtype(settings: Configuration) -> None:
    """Near it, and another."""
    plain = Trainer(without_fp8(settings))
    found = []
    for one in (Trainer(settings), plain):
        one.micro_step(row_of(one, settings), row=1)
        found.append(one.reduce(ALONE))
    assert found[0] != found[1]
    assert found[0].rows[0].numerator == pytest.approx(found[1].rows[0].numerator, rel=0.05)
    assert found[0].norm == pytest.approx(found[1].norm, rel=0.2)


def linears(drafter: Drafter) -> list[nn.Linear]:
    """Of all layers."""
    return [one for one in drafter.layers.modules() if isinstance(one, nn.Linear)]


def test_weights_are_rounded_once_a_step(settings: Configuration, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first row and after every update and load, however many rows there are, into one place."""
    trainer, rounded = Trainer(settings), []
    products = trainer.products
    cast_into = products._functions.weights  # noqa: SLF001

    def counted(*given: Tensor) -> None:
        rounded.append(given[0])
        cast_into(*given)

    monkeypatch.setattr(products, "_functions", dataclasses.replace(products._functions, weights=counted))  # noqa: SLF001
    places = [t.data_ptr() for eight in products._weights.values() for t in eight]  # noqa: SLF001
    layers, row = linears(trainer._drafter), row_of(trainer, settings)  # noqa: SLF001
    assert len(layers) == 7 * LAYERS and not rounded

    def is_current() -> bool:
        return all(
            torch.equal(kept.float(), want.float())
            for layer in layers
            for kept, want in zip(products._weights[layer], fp8.cast(layer.weight.detach()), strict=True)  # noqa: SLF001
        )

    for number in (1, 2, 3):
        trainer.micro_step(row, row=number)
    assert len(rounded) == len(layers) and is_current()
    trainer.reduce(ALONE)
    trainer.apply(lr=1e-2)
    assert len(rounded) == 2 * len(layers) and is_current()
    trainer.micro_step(row, row=4)
    trainer.drop()
    assert len(rounded) == 2 * len(layers)
    for master in trainer.state().masters.values():
        master.mul_(0.5)
    trainer.loaded(optimizer_step=7)
    assert not is_current()
    trainer.micro_step(row, row=5)
    assert len(rounded) == 3 * len(layers) and is_current()
    assert places == [t.data_ptr() for eight in products._weights.values() for t in eight]  # noqa: SLF001
    assert products.held_bytes == 2 * sum(one.weight.numel() + 2 for one in layers) + 2 * (80 * 32 + 2)


@pytest.mark.parametrize("where", ["hidden", "weight", "loss"])
def test_what_is_no_number_fails_the_finite_check(settings: Configuration, where: str) -> None:
    """One infinite hidden state or weight, or a poisoned loss: neither loss nor norm hides it."""
    trainer = Trainer(settings)
    row = row_of(trainer, settings)
    if where == "hidden":
        row.hidden_SC[0, 0] = math.inf
    if where == "weight":
        linears(trainer._drafter)[3].weight.data[0, 0] = math.inf  # noqa: SLF001
    trainer.micro_step(row, row=1, poison=where == "loss")
    figures = trainer.reduce(ALONE)
    assert not figures.finite
    assert not math.isfinite(figures.norm)


def test_products_before_weights_are_rounded(settings: Configuration) -> None:
    """A micro-step that forgets to is refused, and computes nothing from the memory as it was made."""
    trainer = Trainer(settings)
    with pytest.raises(AssertionError, match="want the weights rounded before"):
        trainer._forward(row_of(trainer, settings))  # noqa: SLF001


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """The process's counters, taken out again afterwards."""
    with watching(monkeypatch) as watch:
        yield watch


def certificate_of(trainer: Trainer, settings: Configuration, watch: Watch) -> Any:
    """After a warm-up."""
    subject = DrafterSubject(trainer, configuration=settings)
    clock = Clock(0.0)
    return warm_up(subject, configuration=settings, watch=watch, clock=clock, progress=lambda _: None)


def test_the_certificate_counts_products(settings: Configuration, watch: Watch) -> None:
    """Seven layers of the noise and two of the context, three products each; the head two a chunk."""
    certificate = certificate_of(Trainer(settings), settings, watch)
    assert certificate.precision == "fp8"
    assert certificate.linear_products == LAYERS * 9 * 3 * len(BUCKETS) * 2
    assert certificate.head_products == 2 * len(BUCKETS) * 2
    assert certificate.product_kernels == ("_scaled_mm", "linear")  # fc is none of them
    assert certificate.digest_before == certificate.digest_after


def test_the_certificate_without_fp8(directory: Path, watch: Watch) -> None:
    """It says so, counts none, and has another fingerprint."""
    message = told(directory)
    with_fp8 = config.from_message(message)
    message.drafter.precision = ""
    without = config.from_message(message)
    one = certificate_of(Trainer(without), without, watch)
    assert (one.precision, one.linear_products, one.head_products) == ("compute_dtype", 0, 0)
    assert one.product_kernels == ("linear",)
    watch._sealed = None  # noqa: SLF001
    assert one.fingerprint != certificate_of(Trainer(with_fp8), with_fp8, watch).fingerprint


@pytest.mark.parametrize("layer", ["mlp.down_proj", "self_attn.k_proj"])
def test_a_layer_that_computes_otherwise_is_not_counted(
    settings: Configuration, watch: Watch, layer: str
) -> None:
    """So its certificate is short of it, and refused: `linear_products` must be met exactly."""
    trainer = Trainer(settings)
    odd = trainer._drafter.layers[0].get_submodule(layer)  # noqa: SLF001
    real = trainer.operations.linear

    def linear(one: nn.Linear, operand: Any) -> Tensor:
        return one(operand.x_RM)[None] if one is odd else real(one, operand)

    trainer.operations = dataclasses.replace(trainer.operations, linear=linear)
    certificate = certificate_of(trainer, settings, watch)
    assert certificate.linear_products == (LAYERS * 9 - 1) * 3 * len(BUCKETS) * 2


class Both(Again):
    """Records as `Again` does, and lets products be counted by the replays alone too."""

    products: Any = None

    def record(self, work: Any) -> Any:
        """A replay calls nothing."""
        replay, figures = super().record(work)

        def silent() -> None:
            calls = self.products.linears.calls, self.products.heads.calls
            replay()
            self.products.linears.calls, self.products.heads.calls = calls

        return silent, figures


def test_replays_read_the_weights_of_each_update(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled products, recorded: the bits of plain ones that are not, over several updates and a load, and
    the certificate's counts."""
    monkeypatch.setattr(Preparation, "_there", lambda _, blocks: preparation.sent(blocks, CPU))
    message = told(directory)
    message.training.compute_dtype = "bfloat16"
    settings = dataclasses.replace(config.from_message(message), attention="flex")
    with watching(monkeypatch) as watch:

        def made(recorder: Both | None) -> Trainer:
            flex = Flex(settings.flex, backend=FakeCompiler())
            plain = dataclasses.replace(settings, attention="sdpa")  # whose products are not compiled
            own, backend = (plain, None) if recorder is None else (settings, "eager")
            one = Trainer(own, attention=flex, operations=PLAIN, recorder=recorder, backend=backend)
            if recorder is not None:
                recorder.counter, recorder.products = flex.counter, one.products
                recorder.gradient_P = lambda: one.optimiser._gradient_P  # noqa: SLF001
            return one

        def trained(one: Trainer) -> list[object]:
            found: list[object] = []
            for step in range(3):
                for number, bucket in enumerate((*BUCKETS, BUCKETS[0])):
                    row = row_of(one, settings, bucket=bucket, seed=3 * step + number)
                    one.micro_step(row, row=number + 1)
                found.append(one.reduce(ALONE))
                one.apply(lr=1e-2)
                if step == 1:
                    for master in one.state().masters.values():
                        master.mul_(0.5)
                    one.loaded(optimizer_step=one.optimizer_step())
            return [*found, one.parameters_digest()]

        want, recorder = trained(made(None)), Both()
        replaying = made(recorder)
        certificate = certificate_of(replaying, settings, watch)
        assert certificate.linear_products == LAYERS * 9 * 3 * len(BUCKETS) * 2
        assert certificate.head_products == 2 * len(BUCKETS) * 2
        assert (certificate.second_pass_compiles, certificate.dense_calls) == (0, 0)
        before = recorder.replayed
        assert trained(replaying) == want
        assert recorder.replayed == before + 9
        watch.check()
        before = recorder.replayed
        replaying.products._functions.cast._refused = "once"  # noqa: SLF001
        with pytest.raises(WorkerError, match="call compiled fp8 cast: refused before: once"):
            replaying.micro_step(row_of(replaying, settings), row=1)
        assert recorder.replayed == before  # a replay calls nothing that would refuse


@pytest.mark.parametrize(
    ("path", "value", "want"),
    [
        ("drafter.precision", "fp16", "drafter.precision: want compute_dtype or fp8, got 'fp16'"),
        ("drafter.hidden_size", 40, "drafter.hidden_size: want a multiple of 16 with"),
        ("drafter.intermediate_size", 40, "drafter.intermediate_size: want a multiple of 16 with"),
        ("drafter.head_dim", 6, "drafter.heads: want a multiple of 16 of heads x head_dim with"),
        ("drafter.kv_heads", 1, "drafter.kv_heads: want a multiple of 16 of kv_heads x head_dim with"),
        (
            "training.anchors",
            7,
            "training.anchors: want a multiple of 16 of anchors x drafter.block_size with",
        ),
        ("training.buckets", [32, 40], "training.buckets[1]: want a multiple of 16 with"),
        ("device", "cuda:0", "drafter.precision: want compute_dtype with attention sdpa on a GPU"),
    ],
)
def test_sizes_that_kernels_do_not_take(directory: Path, path: str, value: object, want: str) -> None:
    """The message names the field; a target is told the same, and is none of it."""
    message = told(directory)
    part, _, name = path.rpartition(".")
    at = getattr(message, part) if part else message
    if isinstance(value, list):
        del getattr(at, name)[:]
        getattr(at, name).extend(value)
    else:
        setattr(at, name, value)
    with pytest.raises(ValueError, match=re.escape(want)):
        config.from_message(message)


def test_a_target_is_none_of_it(directory: Path) -> None:
    """It is told the drafter's settings, and computes nothing of a drafter's training."""
    message = told(directory, role=1)
    message.training.anchors = 7
    assert config.from_message(message).drafter.precision == "fp8"


def test_a_gpu_without_fp8(settings: Configuration, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is refused by name before anything is built on it."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 6))
    trainer = Trainer(settings)
    on_gpu = dataclasses.replace(settings, device="cuda:0", attention="flex")
    want = "drafter.precision: want compute capability 8.9 or more for fp8, got 8.6"
    with pytest.raises(WorkerError, match=re.escape(want)) as refused:
        building.products(on_gpu, trainer._drafter, frozen=trainer._head, by=PLAIN)  # noqa: SLF001
    assert refused.value.kind is Kind.INVALID
