"""A target's rows on a real GPU, in every promised family, compiled and not, as CUDA graphs: certified, equal
bits, near the model's own, no leak.

Run alone: `python -m pytest -m gpu python/tests/test_recorded_gpu.py`.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo.callback
from dflash_runner import config
from dflash_runner.certificate import Certificate
from dflash_runner.decode import plain
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.frozen import FrozenTarget
from dflash_runner.recorded import RecordedRows
from dflash_runner.replay import CudaRecorder
from dflash_runner.warmup import Clock, warm_up
from dflash_runner.warmup_target import TargetSubject, difference, tolerance_of
from dflash_runner.watch import Watch
from dflash_runner.worker.v1 import worker_pb2
from families import FAMILIES, LAYERS, TILED_HEADS, make, row_of
from worker_host import configuration

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]
IDS = (1, 2, 4)
BUCKETS = (128, 256)
DEVICE = torch.device("cuda", 0)
LENGTHS = ((70, 1, 33, 128, 9), (5, 200, 40), (128, 128), (250,), (1,) * 60)


def rows_of(
    tmp_path: Path, name: str, dtype: torch.dtype
) -> tuple[FrozenTarget, RecordedRows, TargetSubject]:
    """A family's target on the GPU, as a worker that replays has it; not warmed up."""
    make(name).save_pretrained(tmp_path)
    target = FrozenTarget(tmp_path, dtype=dtype, layer_ids=IDS, whole=False, device=DEVICE)
    recorded = RecordedRows(target, recorder=CudaRecorder(DEVICE))
    settings: Any = SimpleNamespace(training=SimpleNamespace(buckets=BUCKETS))
    return target, recorded, TargetSubject(target, configuration=settings, recorded=recorded)


@pytest.mark.parametrize("name", FAMILIES)
def test_replays_have_the_bits_of_the_models_own_forward(tmp_path: Path, name: str) -> None:
    """In bfloat16, through warm-up's own checks, then rows of all sorts; a document alone to rounding."""
    target, recorded, subject = rows_of(tmp_path, name, torch.bfloat16)
    for bucket in BUCKETS:
        subject.run(bucket)
    oracle = subject.oracle()
    assert oracle.largest <= oracle.tolerance
    for bucket in reversed(BUCKETS):
        subject.record(bucket)
    with subject.calls(named=True) as counted:
        for bucket in BUCKETS:
            subject.run(bucket)
    assert counted.total == len(BUCKETS) * (IDS[-1] + 1) < len(BUCKETS) * LAYERS
    assert recorded.held_bytes > 0
    taken = torch.cuda.memory_reserved()
    for seed in range(3):
        for lengths in LENGTHS:
            row = row_of(lengths, padding=256 - sum(lengths), seed=seed)
            got_SC = recorded.hidden_states(row).clone()
            want_SC = target.hidden_states(row)
            assert torch.equal(got_SC, want_SC), (lengths, int((got_SC != want_SC).sum()))
    assert torch.cuda.memory_reserved() <= taken + (64 << 20)


def test_float32_experts_are_refused_or_recorded(tmp_path: Path) -> None:
    """Torch's grouped products of another dtype than bfloat16 wait for the device: told, not survived."""
    _, _, subject = rows_of(tmp_path, "qwen3-moe", torch.float32)
    subject.run(BUCKETS[0])
    try:
        subject.record(BUCKETS[0])
    except WorkerError as err:
        print(err.message, err.hint)  # noqa: T201
        assert err.kind is Kind.INVALID and "target.replay: false" in err.hint
        assert "Qwen3MoeModel" in err.message
        torch.ones(3, device=DEVICE).sum().item()  # the context is whole


def test_the_host_is_free_at_once(tmp_path: Path) -> None:
    """A replay is queued in less time than the launches that it stands for."""
    target, recorded, subject = rows_of(tmp_path, "qwen3", torch.bfloat16)
    subject.run(256)
    subject.record(256)
    row, took = row_of((100, 100), padding=56), {}
    for name, made in (("eager", target.hidden_states), ("replayed", recorded.hidden_states)):
        best = []
        for _ in range(10):
            torch.cuda.synchronize()
            start = time.perf_counter()
            made(row)
            best.append(time.perf_counter() - start)
        took[name] = min(best)
    print({name: round(seconds * 1e3, 3) for name, seconds in took.items()})  # noqa: T201
    assert took["replayed"] < took["eager"]


@pytest.fixture
def watch() -> Iterator[Watch]:
    """The process's counters, taken out again afterwards."""
    torch._dynamo.reset()  # noqa: SLF001
    watch = Watch()
    yield watch
    gc.collect()
    torch._dynamo.callback.callback_handler.remove_start_callback(watch._on_compile)  # noqa: SLF001
    torch.compiler.set_stance("default")
    torch._dynamo.reset()  # noqa: SLF001


def certified(
    target: FrozenTarget, directory: Path, watch: Watch, *, recorded: RecordedRows | None
) -> Certificate:
    """As a worker's warm-up has it; afterwards the watch is sealed."""
    message = configuration(directory, role=worker_pb2.ROLE_TARGET, device="cuda:0", attention="flex")
    message.target.dtype = "bfloat16"
    del message.training.buckets[:]
    message.training.buckets.extend(BUCKETS)
    settings = config.from_message(message)
    subject = TargetSubject(target, configuration=settings, recorded=recorded)
    return warm_up(subject, configuration=settings, watch=watch, clock=Clock(0.0), progress=lambda _: None)


@pytest.mark.parametrize("name", FAMILIES)
def test_compiled_rows_are_certified_and_replayed(tmp_path: Path, watch: Watch, name: str) -> None:
    """By the compiled forward alone, no dense call, nothing compiled the second time; then rows of all sorts:
    the bits of rows as they come, near the model's own, and decoding beside them compiles nothing."""
    make(name, head_dim=TILED_HEADS).save_pretrained(tmp_path / "model")
    target = FrozenTarget(tmp_path / "model", dtype=torch.bfloat16, layer_ids=IDS, device=DEVICE)
    target.compile_rows()
    recorded = RecordedRows(target, recorder=CudaRecorder(DEVICE))
    certificate = certified(target, tmp_path, watch, recorded=recorded)
    facts = {
        field: getattr(certificate, field) for field in ("graphs", "kernels", "dense_difference", "cache")
    }
    print(name, target.kernels.parts, facts)  # noqa: T201
    layers, parts = IDS[-1] + 1, len(target.kernels.parts)
    assert certificate.kernels
    assert all("flex_attention" in kernel and "backward" not in kernel for kernel in certificate.kernels)
    assert certificate.attention_calls == 2 * len(BUCKETS) * layers
    assert (certificate.dense_calls, certificate.second_pass_compiles) == (0, 0)
    assert (certificate.graphs, certificate.first_pass_compiles) == (
        (len(BUCKETS) + 1) * parts,
        len(BUCKETS) * parts,
    )
    assert certificate.dense_difference <= certificate.dense_tolerance == tolerance_of(target)
    assert certificate.digest_before == certificate.digest_after
    taken, worst = torch.cuda.memory_reserved(), 0.0
    for seed in range(3):
        for lengths in LENGTHS:
            row, used = row_of(lengths, padding=256 - sum(lengths), seed=seed), sum(lengths)
            got_SC = recorded.hidden_states(row).clone()
            want_SC, own_SC = target.hidden_states(row), target.own_hidden_states(row)
            assert torch.equal(got_SC, want_SC), (lengths, int((got_SC != want_SC).sum()))
            assert not got_SC[used:].any()
            worst = max(worst, difference(got_SC[:used], own_SC[:used], layers=len(IDS)))
    assert worst <= tolerance_of(target)
    assert torch.cuda.memory_reserved() <= taken + (64 << 20)
    plain(target.model, prompt_P=row_of((9,), padding=0).tokens_S.long().to(DEVICE), new_tokens=8)
    watch.check()


def test_compiled_rows_without_replays(tmp_path: Path, watch: Watch) -> None:
    """The second pass is a pass as the first; a length that warm-up did not run is refused for ever."""
    make("gemma3", head_dim=TILED_HEADS).save_pretrained(tmp_path / "model")
    target = FrozenTarget(tmp_path / "model", dtype=torch.bfloat16, layer_ids=IDS, whole=False, device=DEVICE)
    target.compile_rows()
    certificate = certified(target, tmp_path, watch, recorded=None)
    assert (certificate.dense_calls, certificate.second_pass_compiles) == (0, 0)
    target.hidden_states(row_of((100, 100), padding=56))
    watch.check()
    for _ in range(2):
        with pytest.raises(WorkerError, match=r"fail_on_recompile|refused before") as refused:
            target.hidden_states(row_of((300,), padding=20))
        assert refused.value.kind is Kind.FATAL
