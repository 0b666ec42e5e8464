"""Compiled attention under the compile contract: what it computes, and each try to defeat it."""

from __future__ import annotations

import dataclasses
import gc
import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.callback
from dflash_runner import config, flex, tiles
from dflash_runner.attention import Attend, Rule, sdpa
from dflash_runner.certificate import Certificate
from dflash_runner.config import Configuration, FlexSettings
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.flex import Flex
from dflash_runner.trainer import Trainer
from dflash_runner.warmup import Clock, warm_up
from dflash_runner.warmup_drafter import DrafterSubject
from dflash_runner.watch import Watch
from fake_compiler import NAMES, FakeCompiler, allow_cpu
from test_tiles import make_rule
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint
from worker_host import BUCKETS, configuration, make_inputs

# dynamo looks at the gradient of whatever it is given, queries that are no leaves included
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),  # told once: no guard
]

OPERATOR = importlib.import_module("torch._higher_order_ops.flex_attention")
PYTHON = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Configuration:
    """A drafter's, as on a GPU but for the device, which no message may say."""
    made = tmp_path_factory.mktemp("flex")
    make_inputs(made)
    message = configuration(made)
    message.training.compute_dtype = "bfloat16"
    return dataclasses.replace(config.from_message(message), attention="flex")


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """The process's counters, taken out again afterwards; flex attention may be traced on the CPU."""
    monkeypatch.setattr(OPERATOR, "_math_attention_inner", OPERATOR._math_attention_inner)  # noqa: SLF001
    allow_cpu(monkeypatch)
    torch._dynamo.reset()  # noqa: SLF001
    watch = Watch()
    yield watch
    gc.collect()  # a checkpointed region that raised holds its hooks until its frames are gone
    torch._dynamo.callback.callback_handler.remove_start_callback(watch._on_compile)  # noqa: SLF001
    torch.compiler.set_stance("default")
    torch._dynamo.reset()  # noqa: SLF001


class Worker:
    """A drafter with the fake compiler, and what its role would do with it."""

    def __init__(self, settings: Configuration, watch: Watch) -> None:
        self.settings, self.watch = settings, watch
        self.compiler = FakeCompiler()
        self.flex = Flex(settings.flex, backend=self.compiler)
        self.trainer = Trainer(settings, attention=self.flex)
        self.subject = DrafterSubject(self.trainer, configuration=settings)

    def certify(self) -> Certificate:
        """Warm up; afterwards the watch is sealed."""
        return warm_up(
            self.subject,
            configuration=self.settings,
            watch=self.watch,
            clock=Clock(0.0),
            progress=lambda _: None,
        )

    def order(self, bucket: int) -> None:
        """One `train`, as the role does it."""
        self.subject.run(bucket)
        self.watch.check()

    def refuses(self, match: str) -> None:
        """Every later order fails too, with the reason."""
        for bucket in BUCKETS:
            with pytest.raises(WorkerError, match=match) as refused:
                self.order(bucket)
            assert refused.value.kind is Kind.FATAL
        assert self.watch.dense_calls == 0


@pytest.fixture
def worker(settings: Configuration, watch: Watch) -> Worker:
    """Not warmed up."""
    return Worker(settings, watch)


def drawn(rule: Rule, *, heads: int = 4, width: int = 16, seed: int = 0) -> list[Tensor]:
    """Queries, keys and values for a rule, bfloat16 with gradients."""
    rows, length = rule.documents_BS.shape
    queries = rule.anchors_BN.shape[1] * rule.block_size
    generator = torch.Generator().manual_seed(seed)
    shapes = [(heads, queries), (2, length + queries), (2, length + queries)]
    return [
        torch.randn(rows, *shape, width, generator=generator).to(flex.DTYPE).requires_grad_()
        for shape in shapes
    ]


def rule_of(length: int, *, seed: int = 0) -> Rule:
    return make_rule(seed=seed, rows=1, length=length, anchors=20, block_size=8, documents=2)


@pytest.mark.parametrize("length", [128, 200, 333])
def test_equals_the_dense_mask_forward_and_backward(watch: Watch, length: int) -> None:
    """Tiles, element rule, head groups and scale, through the compiled call."""
    del watch
    rule = rule_of(length, seed=length)
    results = []
    for attend in (Flex(FlexSettings(), backend=FakeCompiler()).over(rule), sdpa(rule, dtype=flex.DTYPE)):
        tensors = drawn(rule)
        out = attend(*tensors)
        out.float().square().sum().backward()
        results.append([out.detach(), *(tensor.grad for tensor in tensors)])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, atol=6e-2, rtol=2e-2)


def test_warm_up_certifies_and_mixed_lengths_compile_nothing(worker: Worker) -> None:
    """One graph a bucket and one for the oracle; all true, and steps after it are free of compiles."""
    certificate = worker.certify()
    assert certificate.attention == "flex"
    assert certificate.graphs == worker.compiler.graphs == len(BUCKETS) + 1
    assert (certificate.dense_calls, certificate.second_pass_compiles) == (0, 0)
    assert certificate.first_pass_compiles == len(BUCKETS)
    assert certificate.attention_calls == 2 * len(BUCKETS) * 2
    assert certificate.kernels == NAMES
    assert certificate.cache == "cold"
    assert certificate.digest_before == certificate.digest_after
    assert certificate.dense_difference <= certificate.dense_tolerance
    assert (certificate.gradients, certificate.padded_anchors) == (True, True)
    compiles, ran = worker.watch.compiles, worker.compiler.ran
    for step in range(10):
        worker.order(BUCKETS[step % 3 % 2])
    assert worker.watch.compiles == compiles
    assert worker.compiler.ran == ran + 10 * 2


def test_one_mask_serves_all_layers(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made once a row."""
    made: list[Rule] = []
    real = flex.block_mask
    monkeypatch.setattr(flex, "block_mask", lambda rule: (made.append(rule), real(rule))[1])
    worker.subject.run(BUCKETS[0])
    assert (len(made), worker.flex.counter.calls) == (1, 2)


@pytest.mark.parametrize("partial_become", ["full", "empty"])
def test_the_oracle_sees_wrong_tiles(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, partial_become: str
) -> None:
    """A partial tile taken for a full one, or left out, is far from the dense result."""
    real = tiles.tiles

    def wrong(*args: Any, **kwargs: Any) -> tiles.Tiles:
        found = real(*args, **kwargs)
        full_BMU = found.full_BMU | found.partial_BMU if partial_become == "full" else found.full_BMU
        return tiles.Tiles(partial_BMU=torch.zeros_like(found.partial_BMU), full_BMU=full_BMU)

    monkeypatch.setattr(tiles, "tiles", wrong)
    difference = worker.subject.oracle()
    assert not difference.largest <= difference.tolerance


def test_nine_shapes(watch: Watch) -> None:
    """The ninth set of guards raises, where plain compiling would run dense for ever."""
    compiler = FakeCompiler()
    attention = Flex(FlexSettings(), backend=compiler)
    shapes = [128 + 8 * place for place in range(9)]
    for length in shapes[:8]:
        rule = rule_of(length)
        attention.over(rule)(*drawn(rule))
    ninth = rule_of(shapes[8])
    for attempt in range(2):
        with pytest.raises(WorkerError, match="FailOnRecompileLimitHit") as refused:
            attention.over(ninth)(*drawn(ninth))
        assert refused.value.kind is Kind.FATAL
        assert ("refused before" in refused.value.message) is bool(attempt)
    assert (compiler.graphs, watch.dense_calls) == (8, 0)


def test_no_gradients_after_ready(worker: Worker) -> None:
    """Another gradient mode is another graph, and is refused."""
    worker.certify()
    worker.order(BUCKETS[0])
    with torch.no_grad(), pytest.raises(WorkerError, match=r"fail_on_recompile[\s\S]*grad_mode"):
        worker.order(BUCKETS[0])
    worker.refuses("refused before: .*fail_on_recompile")


def test_an_unplanned_length_after_ready(worker: Worker) -> None:
    """A row of a length that is no bucket."""
    worker.certify()
    with pytest.raises(WorkerError, match="fail_on_recompile"):
        worker.order(BUCKETS[1] + 8)
    worker.refuses("refused before")


def test_another_dtype(worker: Worker) -> None:
    """float32 queries are refused by name, before or after ready."""
    worker.certify()
    rule = rule_of(128)
    query, key, value = drawn(rule)
    with pytest.raises(WorkerError, match=r"want .* in torch.bfloat16, got torch.float32"):
        worker.flex.over(rule)(query.float(), key, value)
    worker.refuses("refused before: want queries, keys and values in torch.bfloat16")


def test_a_thread_that_calls_the_model(worker: Worker) -> None:
    """It is refused, and though the thread keeps quiet about it, the next order tells."""
    worker.certify()
    told: list[str] = []

    def call() -> None:
        try:
            worker.subject.run(BUCKETS[0])
        except WorkerError as err:
            told.append(err.message)

    thread = threading.Thread(target=call, name="eager")
    thread.start()
    thread.join()
    assert told == ["call compiled attention: want the thread that made it, got thread 'eager'"]
    worker.refuses("refused before: want the thread that made it, got thread 'eager'")


class Replaced:
    """An attention that does something else in its place."""

    def __init__(self, flex: Flex, attend: Callable[..., Tensor]) -> None:
        self.counter, self._attend = flex.counter, attend

    def over(self, rule: Rule) -> Attend:
        return lambda *tensors: self._attend(rule, *tensors)


def eagerly(rule: Rule, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Flex attention without the compiler, in a checkpointed region."""
    mask = flex.block_mask(rule)

    def region(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return flex_attention(query, key, value, block_mask=mask, enable_gqa=True)

    return checkpoint(region, query, key, value, use_reentrant=False)


def test_flex_called_eagerly_in_a_checkpointed_region(worker: Worker) -> None:
    """No warm-up survives it: it runs into the tripwire."""
    worker.trainer.attention = Replaced(worker.flex, eagerly)
    with pytest.raises(WorkerError, match="it ran dense, call 1"):
        worker.certify()


def test_flex_called_eagerly_in_a_checkpointed_region_after_ready(worker: Worker) -> None:
    """It runs into the stance, and without one into the tripwire, for ever on record."""
    worker.certify()
    worker.trainer.attention = Replaced(worker.flex, eagerly)
    with pytest.raises(RuntimeError, match="fail_on_recompile"):
        worker.order(BUCKETS[0])
    gc.collect()
    torch.compiler.set_stance("default")  # as where a thread had a stance of its own
    with pytest.raises(WorkerError, match="it ran dense, call 1"):
        worker.order(BUCKETS[0])
    for _ in range(2):
        with pytest.raises(WorkerError, match=r"compile contract.* got 1 and 1"):
            worker.watch.check()


def test_a_region_that_is_recomputed_eagerly(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled in the forward and eager in the recompute: the backward of the order fails."""
    worker.certify()

    def attend(rule: Rule, *tensors: Tensor) -> Tensor:
        mask, compiled, runs = flex.block_mask(rule), worker.flex.over(rule), []

        def region(*tensors: Tensor) -> Tensor:
            runs.append(None)
            if len(runs) == 1:
                return compiled(*tensors)
            return flex_attention(*tensors, block_mask=mask, enable_gqa=True)

        return checkpoint(region, *tensors, use_reentrant=False)

    monkeypatch.setattr(worker.trainer, "attention", Replaced(worker.flex, attend))
    with pytest.raises(RuntimeError, match="fail_on_recompile"):
        worker.order(BUCKETS[0])
    assert worker.watch.dense_calls == 0


def test_a_compiler_that_compiles_nothing(settings: Configuration, watch: Watch) -> None:
    """Backend `eager` traces a graph and runs it dense: no warm-up survives it."""
    worker = Worker(settings, watch)
    worker.trainer.attention = Flex(FlexSettings(), backend="eager")
    with pytest.raises(WorkerError, match="it ran dense"):
        worker.certify()
    assert watch.dense_calls == 1


def test_a_compile_in_the_second_pass(worker: Worker) -> None:
    """It is counted, which the supervisor refuses."""
    extra = torch.compile(lambda x: x + 1, backend="eager", dynamic=False)
    real, runs = worker.subject.run, []

    def run(bucket: int) -> Any:
        runs.append(bucket)
        if len(runs) == len(BUCKETS) + 1:
            extra(torch.ones(3))
        return real(bucket)

    worker.subject.run = run  # type: ignore[method-assign]
    assert worker.certify().second_pass_compiles == 1


def test_a_backward_that_is_lowered_after_ready(watch: Watch) -> None:
    """A forward warmed up without its backward: no stance sees that one, but the record does."""
    half = torch.compile(lambda x: (x * x).sum(), backend="aot_eager", fullgraph=True)
    loss = half(torch.ones(3, requires_grad=True))
    watch.seal()
    thread = threading.Thread(target=loss.backward)  # as on a GPU, where autograd has a thread of its own
    thread.start()
    thread.join()
    with pytest.raises(WorkerError, match=r"compile contract.* got 1 and 0"):
        watch.check()


def test_a_compiler_that_is_reset_after_ready(worker: Worker) -> None:
    """It forgets its graphs and who listens: the next order fails, and so does every one after it."""
    worker.certify()
    torch._dynamo.reset()  # noqa: SLF001
    for _ in range(2):
        with pytest.raises(WorkerError, match="a compiler that was reset"):
            worker.watch.check()
    torch._dynamo.callback.on_compile_start(worker.watch._on_compile)  # noqa: SLF001
    with pytest.raises(WorkerError, match="fail_on_recompile"):
        worker.order(BUCKETS[0])


@pytest.mark.parametrize("name", ["TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"])
def test_a_compiler_that_the_environment_switches_off(name: str) -> None:
    """There is no compiled attention then, and no other in its place."""
    code = """
from dflash_runner.config import FlexSettings
from dflash_runner.errors import WorkerError
from dflash_runner.flex import Flex
try:
    Flex(FlexSettings())
except WorkerError as err:
    print(err.kind.label, err.message, err.hint)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(PYTHON), name: "1"},
    )
    assert done.stdout.startswith("fatal make compiled attention: want a compiler, got one that is switched")
    assert name in done.stdout


def test_options_are_the_kernels_own() -> None:
    """What is 0 is left to torch; the backend is always pinned."""
    assert flex.kernel_options(FlexSettings()) == {"BACKEND": "TRITON"}
    chosen = FlexSettings(block_m=64, warps=4, backward_block_n2=32, backward_stages=3)
    assert flex.kernel_options(chosen) == {
        "BACKEND": "TRITON",
        "fwd_BLOCK_M": 64,
        "fwd_num_warps": 4,
        "bwd_BLOCK_N2": 32,
        "bwd_num_stages": 3,
    }
