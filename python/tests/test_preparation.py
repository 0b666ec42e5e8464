"""A row's preparation: the same numbers wherever it is made, in one transfer, and nothing compiled by it."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from dflash_runner import loss, preparation, staging
from dflash_runner.communicator import Communicator
from dflash_runner.preparation import Preparation
from dflash_runner.watch import Watch
from flex_worker import MARKS, Worker, settings_in, watching
from torch import Tensor
from torch.utils._pytree import tree_leaves
from worker_host import BUCKETS

pytestmark = MARKS
CPU = torch.device("cpu")


def leaves(blocks: loss.Blocks) -> dict[str, Tensor]:
    """Every tensor of blocks by its place."""
    found = {}
    for field in dataclasses.fields(blocks):
        value = getattr(blocks, field.name)
        parts = [value] if not dataclasses.is_dataclass(value) else vars_of(value)
        for at, tensor in enumerate(tree_leaves(parts)):
            if isinstance(tensor, Tensor):
                found[f"{field.name} {at}"] = tensor
    return found


def vars_of(value: object) -> list[object]:
    """The fields of a dataclass with slots."""
    return [getattr(value, field.name) for field in dataclasses.fields(value)]  # type: ignore[arg-type]


@pytest.fixture
def worker(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    """With the fake compiler, and rows that come in one transfer as on a GPU."""
    settings = settings_in(tmp_path_factory.mktemp("prepared"))
    monkeypatch.setattr(Preparation, "_there", lambda _, blocks: preparation.sent(blocks, CPU))
    with watching(monkeypatch) as watch:
        assert isinstance(watch, Watch)
        yield Worker(settings, watch)


def test_what_is_sent_together_arrives_as_it_was(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor of a row's blocks, equal, in one stretch of memory, and no view to a compiler."""
    tensors, pieces = worker.subject._row(BUCKETS[0])  # noqa: SLF001
    there = worker.trainer.prepare(tensors, epoch=0, pieces=pieces)
    monkeypatch.setattr(Preparation, "_there", lambda _, blocks: (blocks, None))
    here = worker.trainer.prepare(tensors, epoch=0, pieces=pieces)
    got, want = leaves(there.blocks), leaves(here.blocks)
    assert got.keys() == want.keys()
    assert len(got) == 6 + 3 + 10
    for name, tensor in got.items():
        assert torch.equal(tensor, want[name]), name
        assert (tensor.dtype, tensor.stride()) == (want[name].dtype, want[name].stride()), name
        assert not tensor._is_view()  # noqa: SLF001
        assert tensor.data_ptr() % 64 == 0
    assert len({tensor.untyped_storage().data_ptr() for tensor in got.values()}) == 1
    for one, other in zip(there.blocks.rotaries, here.blocks.rotaries, strict=True):
        assert torch.equal(one.cos_B1SE, other.cos_B1SE)
        assert torch.equal(one.sin_B1SE, other.sin_B1SE)


def test_a_stream_waits_and_keeps_the_memory(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event first; then the stream is told of every stretch of memory that it will read."""
    tensors, pieces = worker.subject._row(BUCKETS[0])  # noqa: SLF001
    prepared = dataclasses.replace(
        worker.trainer.prepare(tensors, epoch=0, pieces=pieces), ready="the preparation's end"
    )
    told: list[object] = []
    stream = SimpleNamespace(wait_event=told.append)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)
    monkeypatch.setattr(
        torch.Tensor, "record_stream", lambda tensor, _: told.append(tensor.untyped_storage().data_ptr())
    )
    prepared.wait()
    turned = [half for r in prepared.blocks.rotaries for half in (r.cos_B1SE, r.sin_B1SE)]
    read = [*leaves(prepared.blocks).values(), *turned]
    assert told[0] == "the preparation's end"
    assert set(told[1:]) == {tensor.untyped_storage().data_ptr() for tensor in read}


def test_memory_that_is_too_small_is_refused() -> None:
    """Nothing is cut short."""
    with pytest.raises(AssertionError, match="want at most 64 bytes, got 65"):
        staging.cut(torch.empty(64, dtype=torch.uint8), [torch.empty(65, dtype=torch.uint8)])


def test_rows_prepared_on_another_thread_compile_nothing(worker: Worker) -> None:
    """Warm-up prepares on the main thread and the copy thread later, beside a step: the graphs serve both,
    and a row that is prepared again gives the same bits."""
    certificate = worker.certify()
    assert (certificate.graphs, certificate.second_pass_compiles) == (len(BUCKETS) + 1, 0)
    assert (certificate.gradients, certificate.padded_anchors) == (True, True)
    alone, figures, names = Communicator("", number=1, world=1, rank=0), [], set()

    def prepare(bucket: int) -> preparation.Prepared:
        names.add(threading.current_thread().name)
        tensors, pieces = worker.subject._row(bucket)  # noqa: SLF001
        return worker.trainer.prepare(tensors, epoch=0, pieces=pieces)

    with ThreadPoolExecutor(1, thread_name_prefix="copy") as copier:
        coming = copier.submit(prepare, BUCKETS[0])
        for _ in range(2):
            for following in (*BUCKETS[1:], BUCKETS[0]):
                prepared, coming = coming.result(), copier.submit(prepare, following)
                worker.trainer.micro_step(prepared, row=1)
                figures.append(worker.trainer.reduce(alone))
                worker.trainer.drop()
                worker.watch.check()
    assert figures[: len(BUCKETS)] == figures[len(BUCKETS) :]
    assert all(one.finite and one.norm > 0 for one in figures)
    assert names == {"copy_0"}
