"""Compiled attention with a fake compiler: what it computes, and its certificate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from dflash_runner import flex, tiles
from dflash_runner.attention import Rule, sdpa
from dflash_runner.config import Configuration, FlexSettings
from dflash_runner.flex import Flex
from dflash_runner.watch import Watch
from fake_compiler import NAMES, FakeCompiler
from flex_worker import MARKS, Worker, drawn, rule_of, settings_in, watching
from worker_host import BUCKETS

pytestmark = MARKS


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


@pytest.mark.parametrize("copy_keys", [False, True])
@pytest.mark.parametrize("length", [128, 200, 333])
def test_equals_the_dense_mask_forward_and_backward(watch: Watch, length: int, copy_keys: bool) -> None:
    """Tiles, element rule, head groups and scale, through the compiled call, with and without copies."""
    del watch
    rule = rule_of(length, seed=length)
    results = []
    ours = Flex(FlexSettings(copy_keys=copy_keys), backend=FakeCompiler())
    for attend in (ours.over(rule), sdpa(rule, dtype=flex.DTYPE)):
        tensors = drawn(rule)
        out = attend(*tensors)
        out.float().square().sum().backward()
        results.append([out.detach(), *(tensor.grad for tensor in tensors)])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, atol=6e-2, rtol=2e-2)


def test_warm_up_certifies_and_mixed_lengths_compile_nothing(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One graph a bucket and one for the oracle; all true, and steps after it are free of compiles.

    A switch that came too late to be obeyed is told all the same, and the supervisor refuses it.
    """
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    certificate = worker.certify()
    assert certificate.attention == "flex"
    assert certificate.graphs == worker.compiler.graphs == len(BUCKETS) + 1
    assert (certificate.dense_calls, certificate.second_pass_compiles) == (0, 0)
    assert certificate.first_pass_compiles == len(BUCKETS)
    assert certificate.attention_calls == 2 * len(BUCKETS) * 2
    assert certificate.kernels == NAMES
    assert certificate.cache == "cold"
    assert certificate.environment["TORCH_COMPILE_DISABLE"] == "1"
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
        return tiles.Tiles(partial_BMU=np.zeros_like(found.partial_BMU), full_BMU=full_BMU)

    monkeypatch.setattr(tiles, "tiles", wrong)
    difference = worker.subject.oracle()
    assert not difference.largest <= difference.tolerance


def test_copied_keys_are_each_heads_own(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernels are given: as many heads of keys as of queries, or those that share them."""
    del watch
    rule, seen = rule_of(128, seed=1), []
    real = flex.flex_attention

    def spy(query: Any, key: Any, *rest: Any, **given: Any) -> Any:
        seen.append((query.shape[1], key.shape[1]))
        return real(query, key, *rest, **given)

    monkeypatch.setattr(flex, "flex_attention", spy)
    query, key, value = drawn(rule)
    for copy_keys, want in ((True, query.shape[1]), (False, key.shape[1])):
        Flex(FlexSettings(copy_keys=copy_keys), backend=FakeCompiler()).over(rule)(query, key, value)
        assert set(seen) == {(query.shape[1], want)}
        seen.clear()
    assert key.shape[1] < query.shape[1]


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
