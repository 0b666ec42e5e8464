"""Each way to call compiled attention wrongly, with a fake compiler: no certificate, or a failed order."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
import torch._dynamo.callback
from dflash_runner import flex
from dflash_runner.attention import Dense, Rule, sdpa
from dflash_runner.config import Configuration, FlexSettings
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.flex import Flex
from dflash_runner.warmup import Difference
from dflash_runner.watch import Watch
from fake_compiler import FakeCompiler
from flex_worker import MARKS, Replaced, Worker, drawn, eagerly, rule_of, settings_in, watching
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from worker_host import BUCKETS

pytestmark = MARKS

PYTHON = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Configuration:
    """Of a drafter with flex."""
    return settings_in(tmp_path_factory.mktemp("flex"))


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """The process's counters."""
    with watching(monkeypatch) as watch:
        yield watch


@pytest.fixture
def worker(settings: Configuration, watch: Watch) -> Worker:
    """Not warmed up."""
    return Worker(settings, watch)


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


@pytest.mark.parametrize("ready", [False, True])
def test_another_dtype(worker: Worker, ready: bool) -> None:
    """float32 queries are refused by name, and there is no certificate where it was before ready."""
    if ready:
        worker.certify()
    rule = rule_of(128)
    query, key, value = drawn(rule)
    with pytest.raises(WorkerError, match=r"want .* in torch.bfloat16, got torch.float32"):
        worker.flex.over(rule)(query.float(), key, value)
    with pytest.raises(WorkerError, match="refused before"):
        worker.certify()
    worker.refuses("refused before: want queries, keys and values in torch.bfloat16")


@pytest.mark.parametrize("ready", [False, True])
def test_a_thread_that_calls_the_model(worker: Worker, ready: bool) -> None:
    """It is refused, and though the thread keeps quiet about it, the next order tells, or warm-up does."""
    if ready:
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
    with pytest.raises(WorkerError, match="refused before: want the thread that made it"):
        worker.certify()
    worker.refuses("refused before: want the thread that made it, got thread 'eager'")


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


@pytest.mark.parametrize("selective", [False, True])
def test_checkpointing_around_it(worker: Worker, selective: bool) -> None:
    """What is recomputed is compiled too, and is counted: the supervisor refuses twice the calls.

    On a GPU autograd's own thread recomputes, which is refused before it is counted.
    """
    contexts = partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    options = {"context_fn": contexts} if selective else {}

    def attend(rule: Rule, *tensors: Tensor) -> Tensor:
        return checkpoint(worker.flex.over(rule), *tensors, use_reentrant=False, **options)

    worker.trainer.attention = Replaced(worker.flex, attend)
    worker.subject.oracle = lambda: Difference(largest=0.0, tolerance=1.0)  # type: ignore[method-assign]
    certificate = worker.certify()
    assert certificate.attention_calls == worker.compiler.ran == 2 * len(BUCKETS) * 2 * 2
    assert (certificate.dense_calls, certificate.second_pass_compiles) == (0, 0)


def test_a_trace_that_makes_the_compiler_step_aside(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `error_on_nested_fx_trace` off torch calls the plain function, without a word: it is refused."""
    worker.certify()
    monkeypatch.setattr(torch._dynamo.config, "error_on_nested_fx_trace", False)  # noqa: SLF001
    rule = rule_of(128)
    attend, tensors, ran = worker.flex.over(rule), drawn(rule), worker.compiler.ran
    with pytest.raises(WorkerError, match="fail_on_recompile"):
        torch.fx.symbolic_trace(lambda _: attend(*tensors))
    assert worker.compiler.ran == ran
    worker.refuses("refused before")


def test_plain_attention_in_its_place(worker: Worker) -> None:
    """The certificate names what ran and how many graphs there were: the supervisor refuses both."""
    worker.trainer.attention = Dense(dtype=flex.DTYPE)
    certificate = worker.certify()
    assert (certificate.attention, certificate.graphs) == ("flex", 0)
    assert (certificate.kernels, certificate.cache) == (("scaled_dot_product_attention",), "none")


def test_plain_attention_in_half_of_the_layers(worker: Worker) -> None:
    """Calls are missing in the count, which the supervisor knows from layers, buckets and passes."""
    turns: list[None] = []

    def attend(rule: Rule, *tensors: Tensor) -> Tensor:
        turns.append(None)
        return (worker.flex.over(rule) if len(turns) % 2 else sdpa(rule, dtype=flex.DTYPE))(*tensors)

    worker.trainer.attention = Replaced(worker.flex, attend)
    assert worker.certify().attention_calls == 2 * len(BUCKETS) * 2 // 2
