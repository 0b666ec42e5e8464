"""What may be wrong with the compiler itself, with a fake one: no certificate, or a failed order."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.callback
from dflash_runner import flex
from dflash_runner.config import Configuration, FlexSettings
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.flex import Flex
from dflash_runner.watch import Watch
from fake_compiler import allow_cpu
from flex_worker import MARKS, Worker, drawn, rule_of, settings_in, watching
from torch._dynamo.utils import counters
from torch.nn.attention.flex_attention import flex_attention
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


@pytest.mark.parametrize(
    ("stance", "bucket", "match"),
    [
        ("force_eager", BUCKETS[0], "it ran dense, call 1"),
        ("eager_on_recompile", BUCKETS[0] + 8, "it ran dense, call 1"),
        ("default", BUCKETS[0] + 8, r"compile contract.* got 1 and 0"),
    ],
)
def test_a_stance_that_is_changed_after_ready(worker: Worker, stance: Any, bucket: int, match: str) -> None:
    """Whatever the compiler does instead of refusing is refused itself, and stays on record."""
    worker.certify()
    torch.compiler.set_stance(stance)
    with pytest.raises(WorkerError, match=match) as refused:
        worker.order(bucket)
    assert refused.value.kind is Kind.FATAL
    torch.compiler.set_stance("fail_on_recompile")
    for _ in range(2):
        with pytest.raises(WorkerError, match=r"compile contract|refused before"):
            worker.order(BUCKETS[1])
        with pytest.raises(WorkerError, match="compile contract"):
            worker.watch.check()


def test_a_dense_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tripwire is in both directions: of a forward from before it, the backward runs into it."""
    allow_cpu(monkeypatch)
    rule = rule_of(128)
    out = flex_attention(*drawn(rule), block_mask=flex.block_mask(rule), enable_gqa=True)
    with watching(monkeypatch) as watch:
        with pytest.raises(WorkerError, match="it ran dense, call 1"):
            out.float().sum().backward()
        assert watch.dense_calls == 1


def test_another_length_in_the_second_pass(worker: Worker) -> None:
    """A second pass that is not as the first compiles, which is counted."""
    real, runs = worker.subject.run, []

    def run(bucket: int) -> Any:
        runs.append(bucket)
        return real(bucket + 8 * (len(runs) == len(BUCKETS) + 1))

    worker.subject.run = run  # type: ignore[method-assign]
    certificate = worker.certify()
    assert (certificate.second_pass_compiles, certificate.graphs) == (1, len(BUCKETS) + 2)


@pytest.mark.parametrize(
    ("counted", "cache"),
    [
        ({"fxgraph_cache_hit": 6}, ("warm", 6, 0)),
        ({"fxgraph_cache_hit": 5, "fxgraph_cache_bypass": 1}, ("cold", 5, 1)),
    ],
)
def test_warm_is_only_what_came_from_the_cache_whole(
    worker: Worker, counted: dict[str, int], cache: tuple[str, int, int]
) -> None:
    """One graph that was made anew, or was not cached, makes it cold; what went before does not count."""
    counters["inductor"].update({"fxgraph_cache_hit": 3, "fxgraph_cache_miss": 2})
    real, told = worker.compiler.__call__, []

    def told_once(graph: Any, inputs: Any) -> Any:
        if not told:
            counters["inductor"].update(counted)
        told.append(None)
        return real(graph, inputs)

    worker.flex = Flex(worker.settings.flex, backend=told_once)
    worker.trainer.attention = worker.flex
    certificate = worker.certify()
    assert (certificate.cache, certificate.cache_hits, certificate.cache_misses) == cache


def test_the_stance_holds_on_every_thread(watch: Watch) -> None:
    """From torch 2.12 on settings are of the thread that made them; this one is not such a setting."""
    compiled = torch.compile(lambda x: x - 2, backend="eager", dynamic=False)
    compiled(torch.ones(3))
    watch.seal()
    told: list[str] = []

    def call() -> None:
        try:
            compiled(torch.ones(4))
        except RuntimeError as err:
            told.append(str(err))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert len(told) == 1 and "fail_on_recompile" in told[0]
