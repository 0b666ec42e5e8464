"""Products in fp8 on a real GPU: values, kernels, memory that stays, and replays that follow the updates.

Run alone: `python -m pytest -m gpu python/tests/test_fp8_gpu.py`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from dflash_runner import config, fp8
from dflash_runner.communicator import Communicator
from dflash_runner.compiled import Compiled
from dflash_runner.config import Configuration
from dflash_runner.preparation import Prepared
from dflash_runner.warmup import Clock, warm_up
from dflash_runner.watch import Watch
from safetensors.torch import save_file
from test_flex_gpu import HIDDEN, LAYERS, VOCABULARY, message
from test_flex_gpu import watch as watch  # a fixture
from test_replay_gpu import Worker
from torch import Tensor

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),  # the compiler's own, of which some depend on the machine
]
BUCKETS = (512, 1024)
ODD = VOCABULARY - 3  # no multiple of 16: the head is filled up
ALONE = Communicator("", number=1, world=1, rank=0)


def settings_of(directory: Path, *, replays: bool) -> Configuration:
    """Of a small drafter in fp8."""
    generator = torch.Generator().manual_seed(0)
    embedding = torch.randn(ODD, HIDDEN, generator=generator).mul_(0.1).bfloat16()
    save_file({"model.embed_tokens.weight": embedding}, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({"tie_word_embeddings": True}))
    told = message(directory)
    told.drafter.precision, told.drafter.vocab_size, told.drafter.mask_token_id = "fp8", ODD, ODD - 1
    told.flex.replay = replays
    del told.training.buckets[:]
    told.training.buckets.extend(BUCKETS)
    return config.from_message(told)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Configuration:
    """Replaying."""
    return settings_of(tmp_path_factory.mktemp("target"), replays=True)


@pytest.fixture(scope="module")
def worker(watch: Watch, settings: Configuration) -> Iterator[Worker]:
    """Not warmed up yet."""
    yield Worker(settings, watch)


def drawn(*shape: int, seed: int) -> Tensor:
    """Normal values in bfloat16."""
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda").bfloat16()


def back(eight: Tensor, scale: Tensor) -> Tensor:
    """What eight bits say, in float64."""
    return eight.double() * scale.double()


@pytest.mark.usefixtures("watch")
@pytest.mark.parametrize("made", [lambda function, _: function, lambda f, what: Compiled(f, what=what)])
def test_products_are_those_of_their_eight_bits(made: Callable[..., Callable[..., Tensor]]) -> None:
    """Plain and compiled, against float64 on the dequantised operands: to bfloat16's rounding, and forward to
    that of sums that are rounded on the way."""
    cast, product = made(fp8.cast, "fp8 cast in a test"), made(fp8.product, "fp8 product in a test")
    x, weight = drawn(512, 256, seed=1).requires_grad_(), drawn(384, 256, seed=2).requires_grad_()
    outer = drawn(512, 384, seed=3)
    x8, w8 = cast(x.detach()), cast(weight.detach())
    got = product(x, weight, *x8, *w8)
    got.backward(outer)
    exact_x, exact_w = back(x8[0], x8[2]), back(w8[0], w8[2])
    exact_g = back(*fp8.rounded(outer, fp8.GRADIENT))
    wanted = (exact_x @ exact_w.t(), exact_g @ exact_w, exact_g.t() @ exact_x)
    for mine, want, share in zip((got, x.grad, weight.grad), wanted, (0.01, 0.01, 0.01), strict=True):
        error = float((mine.double() - want).norm() / want.norm())
        assert error < share, error


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", [0, 1, 2])
def test_what_is_no_number_is_seen(where: int, value: float) -> None:
    """In the input, the weight or the gradient: what it goes into has no finite number left."""
    given = [drawn(64, 128, seed=1), drawn(96, 128, seed=2), drawn(64, 96, seed=3)]
    given[where][3, 5] = value
    x, weight = given[0].requires_grad_(), given[1].requires_grad_()
    out = fp8.product(x, weight, *fp8.cast(x.detach()), *fp8.cast(weight.detach()))
    out.backward(given[2])
    touched = ((0, 2), (0, 1), (1, 2))[where]
    for number, result in enumerate((out, x.grad, weight.grad)):
        assert bool(result.isfinite().any()) is (number not in touched), number


def test_the_certificate(worker: Worker) -> None:
    """Exact counts over a pass and its replay, and the device's own names of kernels in fp8."""
    certificate = warm_up(
        worker.subject,
        configuration=worker.settings,
        watch=worker.watch,
        clock=Clock(time.perf_counter()),
        progress=lambda _: None,
    )
    print(certificate)  # noqa: T201
    assert certificate.precision == "fp8"
    assert certificate.linear_products == LAYERS * 9 * 3 * len(BUCKETS) * 2
    assert certificate.head_products >= 2 * len(BUCKETS) * 2
    assert (certificate.dense_calls, certificate.second_pass_compiles) == (0, 0)
    assert certificate.digest_before == certificate.digest_after
    marks = ("_qq", "e4m3", "e5m2")  # as plugins/worker/certificate_products.go has them
    assert any(mark in name for name in certificate.product_kernels for mark in marks)


def test_replays_follow_the_updates(worker: Worker, tmp_path: Path) -> None:
    """After the warm-up above: the bits of a drafter that replays nothing, over updates and a load."""
    plain = Worker(settings_of(tmp_path, replays=False), worker.watch)
    torch.compiler.set_stance("default")  # the other drafter compiles
    want = trained(plain)
    assert trained(worker) == want
    assert worker.trainer._replays is not None  # noqa: SLF001


def row_of(worker: Worker, bucket: int, *, seed: int) -> Prepared:
    """A row with padding, of other hidden states for each seed."""
    tensors, pieces = worker.subject._row(bucket)  # noqa: SLF001
    tensors["hidden"] = drawn(*tensors["hidden"].shape, seed=seed)
    return worker.trainer.prepare(tensors, epoch=seed, pieces=pieces)


def trained(worker: Worker) -> list[object]:
    """Some steps of several rows, a load among them."""
    found: list[object] = []
    for step in range(4):
        for number in range(3):
            row = row_of(worker, BUCKETS[(step + number) % 2], seed=3 * step + number)
            worker.trainer.micro_step(row, row=number + 1)
        found.append(worker.trainer.reduce(ALONE))
        assert found[-1].finite
        worker.trainer.apply(lr=1e-3)
        if step == 1:
            for master in worker.trainer.state().masters.values():
                master.mul_(0.9)
            worker.trainer.loaded(optimizer_step=worker.trainer.optimizer_step())
    return [*found, worker.trainer.parameters_digest()]


def test_a_step_waits_for_nothing(worker: Worker) -> None:
    """Replayed rows and an update queue, and no line of theirs asks the device for a value."""
    row = row_of(worker, BUCKETS[0], seed=1)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        worker.trainer.micro_step(row, row=1)
        worker.trainer.products.follow(-1)  # as after an update
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert worker.trainer.reduce(ALONE).finite
    worker.trainer.drop()


def test_training_lowers_the_loss_as_in_bfloat16(watch: Watch, tmp_path: Path) -> None:
    """One row again and again, forty steps: at every step both are equally far down.

    Judged by shares of the first loss. Once the row is known by heart, both are some ten thousandths of it,
    and a ratio of the two is noise. On a CPU, with the products made in float32 of the same eight bits, a
    right backward stayed within 0.011; off by 0.15 without its gradient by the input, 0.08 without that by
    the weight, 0.035 with a quarter of that by the input.
    """
    torch.compiler.set_stance("default")
    settings = settings_of(tmp_path, replays=False)
    plain = replace(settings, drafter=replace(settings.drafter, precision="compute_dtype"))
    eight, wide = (fallen(Worker(one, watch), steps=40) for one in (settings, plain))
    print("fp8:", eight, "bfloat16:", wide)  # noqa: T201
    apart = [abs(one - other) / wide[0] for one, other in zip(eight, wide, strict=True)]
    assert max(apart) < 0.025, apart
    assert max(eight[-1], wide[-1]) < 0.01 * wide[0], (eight[-1], wide[-1])


def fallen(worker: Worker, *, steps: int) -> list[float]:
    """The loss at each step of training on one row."""
    row, losses = row_of(worker, BUCKETS[0], seed=1), []
    for _ in range(steps):
        worker.trainer.micro_step(row, row=1)
        figures = worker.trainer.reduce(ALONE)
        losses.append(figures.rows[0].numerator / figures.rows[0].denominator)
        worker.trainer.apply(lr=2e-3)
    return losses
