"""Micro-steps recorded as CUDA graphs on a real GPU: the same bits as without, and no compile afterwards.

Run alone: `python -m pytest -m gpu python/tests/test_replay_gpu.py`.
"""

from __future__ import annotations

import gc
import json
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from dflash_runner import config
from dflash_runner.communicator import Communicator
from dflash_runner.config import Configuration
from dflash_runner.errors import WorkerError
from dflash_runner.trainer import Trainer
from dflash_runner.warmup import Clock, warm_up
from dflash_runner.warmup_drafter import DrafterSubject
from dflash_runner.watch import Watch
from safetensors.torch import save_file
from test_flex_gpu import BUCKETS, HIDDEN, LAYERS, VOCABULARY, message, mixed
from test_flex_gpu import watch as watch  # a fixture

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),  # the compiler's own, of which some depend on the machine
]


class Worker:
    """A drafter, with its subject."""

    def __init__(self, settings: Configuration, watch: Watch) -> None:
        """Not warmed up."""
        self.settings, self.watch, self.trainer = settings, watch, Trainer(settings)
        self.subject = DrafterSubject(self.trainer, configuration=settings)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Configuration:
    """Of a small drafter that replays."""
    directory: Path = tmp_path_factory.mktemp("target")
    generator = torch.Generator().manual_seed(0)
    embedding = torch.randn(VOCABULARY, HIDDEN, generator=generator).bfloat16()
    save_file({"model.embed_tokens.weight": embedding}, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({"tie_word_embeddings": True}))
    told = message(directory)
    told.flex.replay = True
    return config.from_message(told)


def train(worker: Worker, *, steps: int, rows: int) -> list[object]:
    """What each step of some mixed rows comes to, and the parameters at the end."""
    alone, chooser, found = Communicator("", number=1, world=1, rank=0), random.Random(0), []
    for step in range(steps):
        for number in range(rows):
            tensors, pieces = mixed(worker, chooser)
            row = step * rows + number + 1
            worker.trainer.micro_step(worker.trainer.prepare(tensors, epoch=step, pieces=pieces), row=row)
        found.append(worker.trainer.reduce(alone))
        worker.trainer.apply(lr=1e-3)
        worker.watch.check()
    return [*found, worker.trainer.parameters_digest()]


@pytest.fixture(scope="module")
def both(watch: Watch, settings: Configuration) -> Iterator[tuple[list[object], Worker]]:
    """What a drafter without replays came to, and one with, warmed up from the same seed."""
    plain = Worker(replace(settings, flex=replace(settings.flex, replay=False)), watch)
    want = train(plain, steps=4, rows=5)
    del plain
    gc.collect()
    yield want, Worker(settings, watch)


def test_replayed_steps_have_the_same_bits(both: tuple[list[object], Worker]) -> None:
    """Rows of all buckets, first and later ones of a step, after a warm-up that compiled nothing twice."""
    want, worker = both
    clock = Clock(time.perf_counter())
    certificate = warm_up(
        worker.subject,
        configuration=worker.settings,
        watch=worker.watch,
        clock=clock,
        progress=lambda _: None,
    )
    print(certificate)  # noqa: T201
    assert (certificate.dense_calls, certificate.second_pass_compiles) == (0, 0)
    assert certificate.attention_calls == LAYERS * len(BUCKETS) * 2
    assert any("flex_attention_backward" in name for name in certificate.kernels)
    assert certificate.digest_before == certificate.digest_after
    assert (certificate.gradients, certificate.padded_anchors) == (True, True)
    assert all(worker.trainer._replays.holds(row) for row in rows(worker))  # noqa: SLF001
    assert train(worker, steps=4, rows=5) == want


def rows(worker: Worker) -> list[object]:
    """One of each bucket."""
    found = []
    for bucket in BUCKETS:
        tensors, pieces = worker.subject._row(bucket)  # noqa: SLF001
        found.append(worker.trainer.prepare(tensors, epoch=0, pieces=pieces))
    return found


def test_a_thousand_replayed_steps_compile_nothing(both: tuple[list[object], Worker]) -> None:
    """And take no more memory than the first ones."""
    _, worker = both
    alone, chooser = Communicator("", number=1, world=1, rank=0), random.Random(1)
    compiles, taken = worker.watch.compiles, []
    for step in range(1000):
        tensors, pieces = mixed(worker, chooser)
        worker.trainer.micro_step(worker.trainer.prepare(tensors, epoch=0, pieces=pieces), row=step)
        assert worker.trainer.reduce(alone).finite
        worker.trainer.apply(lr=1e-5)
        worker.watch.check()
        if step in (100, 999):
            taken.append(torch.cuda.memory_reserved())
    assert (worker.watch.compiles, worker.watch.dense_calls) == (compiles, 0)
    assert taken[1] <= taken[0], taken


def test_a_length_that_was_not_recorded_is_refused(both: tuple[list[object], Worker]) -> None:
    """It would have to be compiled. Last, as the refusal stays."""
    _, worker = both
    with pytest.raises(WorkerError, match="fail_on_recompile"):
        worker.subject.run(BUCKETS[0] + 64)
    worker.trainer.drop()
    with pytest.raises(WorkerError, match="refused before"):
        worker.subject.run(BUCKETS[0])
