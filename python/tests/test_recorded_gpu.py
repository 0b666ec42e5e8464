"""A target's rows as CUDA graphs on a real GPU, in every promised family: certified, equal bits, no leak.

Run alone: `python -m pytest -m gpu python/tests/test_recorded_gpu.py`.
"""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.frozen import FrozenTarget
from dflash_runner.recorded import RecordedRows
from dflash_runner.replay import CudaRecorder
from dflash_runner.warmup_target import TargetSubject
from families import FAMILIES, LAYERS, make, row_of

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
