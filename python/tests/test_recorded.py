"""A target's rows recorded and replayed, in every promised family: the same bits, and nothing that waits.

The recorder replays operators on a CPU, as a GPU replays kernels; `test_recorded_gpu` has the real one.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from dflash_runner import config
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.frames import Piece
from dflash_runner.frozen import FrozenTarget
from dflash_runner.masks import kinds_of, masks
from dflash_runner.orders import MapArena, Produce
from dflash_runner.recorded import RecordedRows
from dflash_runner.target import TargetRole
from dflash_runner.waits import NoWaits
from dflash_runner.warmup_target import TargetSubject, difference
from dflash_runner.worker.v1 import worker_pb2
from families import FAMILIES, LENGTHS, PADDING, WINDOW, config_of, make, row_of
from flex_worker import watching
from tape import TapeRecorder
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from worker_host import BUCKETS, SAMPLES, configuration, make_inputs, memfd

IDS = (1, 2, 4)
BUCKET = sum(LENGTHS) + PADDING
EVERY = pytest.mark.parametrize("name", FAMILIES)
ROWS = {
    "other documents": row_of((3, 30, 1, 1), padding=BUCKET - 35, seed=1),
    "no padding": row_of((20, BUCKET - 20), padding=0, seed=2),
    "many": row_of((1,) * 12 + (5,) * 4, padding=BUCKET - 32, seed=3),
}


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., FrozenTarget]:
    """Gives a family's target, cut as one that only makes rows is; each is made once."""
    root = tmp_path_factory.mktemp("families")

    @functools.cache
    def target(name: str, *, dtype: torch.dtype = torch.float32) -> FrozenTarget:
        if not (root / name).exists():
            make(name).save_pretrained(root / name)
        return FrozenTarget(root / name, dtype=dtype, layer_ids=IDS, whole=False)

    return target


def recorded(target: FrozenTarget, *, recorder: Any = None) -> RecordedRows:
    """With a row recorded."""
    rows = RecordedRows(target, recorder=recorder or TapeRecorder())
    rows.hidden_states(row_of())
    rows.record(row_of())
    return rows


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_replays_have_the_bits_of_the_models_own_forward(
    read: Callable[..., FrozenTarget], name: str, dtype: torch.dtype
) -> None:
    """Whatever row was recorded: other documents, other padding, and the recorded one again."""
    target = read(name, dtype=dtype)
    rows = recorded(target)
    for row in (*ROWS.values(), row_of()):
        want_SC = target.hidden_states(row)
        assert torch.equal(rows.hidden_states(row), want_SC)
        assert not want_SC[row.documents_S < 0].any() and want_SC.any()


@EVERY
def test_unrecorded_rows_have_them_too(read: Callable[..., FrozenTarget], name: str) -> None:
    """A gap of padding between documents as well; of a single document only to rounding, by other kernels."""
    target, rows = read(name), RecordedRows(read(name), recorder=TapeRecorder())
    gap = row_of((9, 6, 20), padding=4)
    documents_S = gap.documents_S.clone()
    documents_S[9:15] = -1
    for row in (dataclasses.replace(gap, documents_S=documents_S), row_of()):
        assert torch.equal(rows.hidden_states(row), target.hidden_states(row))
    row = row_of((23,), padding=0)
    assert difference(rows.hidden_states(row), target.hidden_states(row), layers=len(IDS)) <= 2e-6


@EVERY
def test_nothing_that_is_recorded_waits(read: Callable[..., FrozenTarget], name: str) -> None:
    """The model's own masks do: that is what is seen here."""
    target, row = read(name), row_of()
    with NoWaits():
        got_SC = target.recordable(
            tokens_S=row.tokens_S, documents_S=row.documents_S, positions_1S=row.positions()
        )
    assert torch.equal(got_SC, target.hidden_states(row))
    with NoWaits(), pytest.raises(WorkerError, match=r"_local_scalar_dense: it waits") as refused:
        target.hidden_states(row)
    assert refused.value.kind is Kind.INVALID


@EVERY
def test_nothing_that_is_recorded_leaves_the_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU that is made up: no copy to it or from it, and no wait of any kind. A copy is seen."""
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _=None: (9, 0))
    settings = config_of(name)
    settings.dtype = torch.bfloat16
    with FakeTensorMode(), torch.device("cuda"):
        model = getattr(transformers, f"{FAMILIES[name][0]}ForCausalLM")._from_config(settings)  # noqa: SLF001
        target = FrozenTarget.of_model(model.eval(), layer_ids=IDS)
        small_S = torch.zeros(BUCKET, dtype=torch.int32)
        positions_1S = torch.zeros(1, BUCKET, dtype=torch.int64)
        with NoWaits():
            hidden_SC = target.recordable(tokens_S=small_S, documents_S=small_S, positions_1S=positions_1S)
        assert (hidden_SC.device.type, tuple(hidden_SC.shape)) == ("cuda", (BUCKET, len(IDS) * 32))
        with NoWaits(), pytest.raises(WorkerError, match="it copies between cpu and cuda"):
            small_S.cpu()


@pytest.mark.parametrize(
    "waits",
    [
        pytest.param(lambda x: bool(x.sum()), id="bool"),
        pytest.param(lambda x: x[0].item(), id="item"),
        pytest.param(lambda x: x.nonzero(), id="nonzero"),
        pytest.param(lambda x: torch.where(x > 0), id="where"),
        pytest.param(lambda x: x[x > 0], id="index by mask"),
        pytest.param(lambda x: x.index_put_((x > 0,), torch.ones(3)), id="put by mask"),
        pytest.param(lambda x: x.masked_select(x > 0), id="masked_select"),
        pytest.param(lambda x: x.unique(), id="unique"),
        pytest.param(lambda x: x.repeat_interleave(torch.tensor([1, 2, 3])), id="repeat"),
        pytest.param(lambda x: torch.equal(x, x.clone()), id="equal"),
    ],
)
def test_waits_are_seen(waits: Callable[[Tensor], object]) -> None:
    """Each in the way that models use it."""
    with NoWaits(), pytest.raises(WorkerError, match="it waits for"):
        waits(torch.tensor([1.0, 2.0, 3.0]))


def test_work_that_does_not_wait_passes() -> None:
    """Indices, masks that fill, numbers of the host as operands, and lengths that are said."""
    x, at = torch.ones(3), torch.tensor([0, 2])
    with NoWaits():
        assert x[at].shape == (2,)
        x.masked_fill_(x > 0, 2.0)
        assert torch.where(x > 0, x, 0.0).repeat_interleave(2, dim=0).shape == (6,)
        assert x.repeat_interleave(torch.tensor([1, 2, 3]), output_size=6).shape == (6,)


@pytest.mark.parametrize("window", [None, 3])
def test_masks_by_loops(window: int | None) -> None:
    """Own document, up to itself, and of a sliding layer the last few."""
    row = row_of((4, 1, 5), padding=2)
    documents, got = row.documents_S.tolist(), masks(row.positions(), kinds=kinds_of_a(window), window=window)
    assert isinstance(got, Tensor) and got.shape == (1, 1, 12, 12)
    for query, key in ((q, k) for q in range(12) for k in range(12)):
        near = window is None or query - key < window
        assert bool(got[0, 0, query, key]) == (documents[query] == documents[key] and key <= query and near)


def kinds_of_a(window: int | None) -> tuple[str, ...]:
    """Of a configuration that says a window alone."""
    return kinds_of(SimpleNamespace(sliding_window=window))


def subject_of(target: FrozenTarget, rows: RecordedRows | None) -> TargetSubject:
    """As warm-up sees it."""
    settings: Any = SimpleNamespace(training=SimpleNamespace(buckets=(16, 40)))
    return TargetSubject(target, configuration=settings, recorded=rows)


@EVERY
def test_warm_up_records_and_counts(read: Callable[..., FrozenTarget], name: str) -> None:
    """Packed as alone before, equal bits after, and the second pass is a replay whose calls are counted."""
    target, recorder = read(name), TapeRecorder()
    rows = RecordedRows(target, recorder=recorder)
    subject = subject_of(target, rows)
    with subject.calls(named=False) as first:
        subject.run(16)
    right = subject.oracle()
    assert right.largest <= right.tolerance
    subject.record(16)
    assert recorder.replayed == 2
    with subject.calls(named=True) as second:
        subject.run(16)
    assert (first.total, second.total, recorder.replayed) == (IDS[-1] + 1, IDS[-1] + 1, 3)
    assert (subject.held_bytes(), subject_of(target, None).held_bytes()) == (7, 0)
    assert subject.shapes()["replay"] is True and "replay" not in subject_of(target, None).shapes()


def test_a_replay_that_differs_is_refused(read: Callable[..., FrozenTarget]) -> None:
    """A recorder that takes a row for the one that it recorded."""

    class Deaf(TapeRecorder):
        def record(self, work: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
            replay, left = super().record(work)
            replay()
            return (lambda: None), left

    target = read("qwen3")
    subject = subject_of(target, RecordedRows(target, recorder=Deaf()))
    subject.run(16)
    with pytest.raises(WorkerError, match=r"replay row of 16 tokens.* want the bits of") as refused:
        subject.record(16)
    assert refused.value.kind is Kind.FATAL and "target.replay: false" in refused.value.hint


def test_a_family_that_waits_is_refused_by_name(
    read: Callable[..., FrozenTarget], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the operator, where the device only says that something was not permitted."""

    class Device(TapeRecorder):
        def record(self, work: Callable[[], Any]) -> tuple[Callable[[], None], Any]:  # noqa: ARG002
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    target = read("llama")
    rotary = target.decoder.rotary_emb
    real = rotary.forward

    def forward(x: Tensor, position_ids: Tensor) -> Any:
        assert int(position_ids.max()) >= 0  # as a rope does whose frequencies follow the length
        return real(x, position_ids)

    with pytest.raises(WorkerError, match="LlamaModel: CUDA error: operation not permitted") as refused:
        recorded(target, recorder=Device())
    monkeypatch.setattr(rotary, "forward", forward)
    with pytest.raises(WorkerError, match="LlamaModel: aten::_local_scalar_dense: it waits") as refused:
        recorded(target, recorder=Device())
    assert refused.value.kind is Kind.INVALID and "target.replay: false" in refused.value.hint


def test_too_little_memory_is_told_apart(read: Callable[..., FrozenTarget]) -> None:
    """It may be had by another configuration."""

    class Full(TapeRecorder):
        def record(self, work: Callable[[], Any]) -> tuple[Callable[[], None], Any]:  # noqa: ARG002
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(WorkerError, match=f"record row of {BUCKET} tokens") as refused:
        recorded(read("qwen3"), recorder=Full())
    assert refused.value.kind is Kind.EXHAUSTED and "shorter bucket" in refused.value.hint


def test_a_decoder_that_takes_no_masks_is_refused(
    read: Callable[..., FrozenTarget], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose masks are made otherwise than by kind."""
    target = read("gemma3")

    def forward(**given: Any) -> Any:
        return given["attention_mask"].ndim

    monkeypatch.setattr(target.decoder, "forward", forward)
    with pytest.raises(WorkerError, match=r"Gemma3TextModel: AttributeError.*ndim") as refused:
        RecordedRows(target, recorder=TapeRecorder()).hidden_states(row_of())
    assert refused.value.kind is Kind.INVALID and "target.replay: false" in refused.value.hint


def test_another_thread_makes_nothing(read: Callable[..., FrozenTarget]) -> None:
    """Two rows at once would be one."""
    rows, told = recorded(read("qwen3")), []

    def call() -> None:
        with pytest.raises(WorkerError, match="want the thread that") as refused:
            rows.hidden_states(row_of())
        told.append(refused.value.kind)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert told == [Kind.FATAL]


def test_the_role_replays_into_slots(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Certified as without, by as many calls, and the same bytes in every slot, handle for handle."""
    directory = tmp_path_factory.mktemp("role")
    make_inputs(directory)
    monkeypatch.setattr("dflash_runner.target.prepare_torch", lambda _: None)  # of this process
    settings = config.from_message(configuration(directory, role=worker_pb2.ROLE_TARGET))
    recorder, found = TapeRecorder(), []
    for given in (None, recorder):
        with watching(monkeypatch) as watch:
            monkeypatch.setattr("dflash_runner.target.Watch", lambda watch=watch: watch)
            role = TargetRole(settings, started=0.0, recorder=given)
            certificate = role.warm_up(lambda _: None)
            slot_bytes = role.built().slot_bytes
            fd = memfd("arena", 2 * slot_bytes, seal=True)
            arena = MapArena(seq=1, arena=1, kind="memfd", write=True, slots=2, slot_bytes=slot_bytes)
            role.map_arena(arena, fd=os.dup(fd))
            sent: list[Any] = []
            for seq, lengths in enumerate(((10, 12), (12, 10), (18, 20)), start=1):
                role.work(produce(seq, lengths), fd=None, send=sent.append)
            handles = [(reply.row, reply.handle) for reply in sent]
            found.append((certificate.attention_calls, handles, os.pread(fd, 2 * slot_bytes, 0)))
            os.close(fd)
    assert found[0] == found[1]
    assert recorder.replayed == 3 * len(BUCKETS) + 3  # twice to compare, the second pass, and three rows


def produce(seq: int, lengths: tuple[int, int]) -> Produce:
    """An order for a row of two samples of these lengths."""
    pieces, start = [], 0
    for length in lengths:
        pieces.append(Piece(SAMPLES.index(length), 0, start, length, 2))
        start += length
    bucket = next(bucket for bucket in BUCKETS if bucket >= start)
    place = {"arena": 1, "slot": seq % 2, "version": seq}
    return Produce(seq=seq, row=seq, epoch=0, bucket=bucket, pieces=pieces, **place)


def test_a_cpu_records_nothing(tmp_path: Path) -> None:
    """A configuration that asks for it is refused, and not run as it comes."""
    message = configuration(tmp_path, role=worker_pb2.ROLE_TARGET)
    message.target.replay = True
    with pytest.raises(ValueError, match=r"target.replay: want false on device cpu"):
        config.from_message(message)
    message.device = "cuda:0"
    assert config.from_message(message).target.replay is True


def test_kinds_of_every_family() -> None:
    """As each family says them."""
    found = {name: (kinds_of(config_of(name)), FAMILIES[name][2]) for name in FAMILIES}
    mixed = ("full_attention", "sliding_attention")
    assert found["gemma3"] == found["qwen3-windows"] == (mixed, WINDOW)
    assert found["qwen3"] == found["llama"] == found["mistral-full"] == (mixed[:1], None)
    assert found["mistral"] == found["qwen3-moe-windows"] == (mixed[1:], WINDOW)
