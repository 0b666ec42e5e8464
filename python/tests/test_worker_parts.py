"""The worker's small parts: errors, log lines, faults, row buffers, standing, communicator."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import pytest
import torch
from dflash_runner import config, errors, log
from dflash_runner.buffers import RowBuffers
from dflash_runner.communicator import Communicator
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.frames import Piece
from dflash_runner.lane import LaneError
from dflash_runner.orders import Abort, Commit, Join, Load, Train
from dflash_runner.preparation import Prepared
from dflash_runner.standing import Standing
from dflash_runner.worker.faults import Faults
from dflash_runner.worker.v1 import worker_pb2
from worker_host import configuration

PREPARED = Prepared(hidden_SC=torch.zeros(0), blocks=None, anchors=0, ready=None)  # type: ignore[arg-type]
GO = Path(__file__).resolve().parents[2] / "runner"


def test_kinds_are_those_of_go() -> None:
    """One closed set in both languages, in one order."""
    names = re.search(r"kindNames = \[\.\.\.\]string\{([^}]*)\}", (GO / "errors.go").read_text()).group(1)
    assert [kind.label for kind in Kind] == re.findall(r'"([a-z_]+)"', names)
    assert [kind.value for kind in Kind] == list(range(len(Kind)))


@pytest.mark.parametrize(
    ("error", "kind", "survivable"),
    [
        (ValueError("x"), Kind.INVALID, True),
        (WorkerError(Kind.STALE, "x"), Kind.STALE, True),
        (WorkerError(Kind.INTERNAL, "told on purpose"), Kind.INTERNAL, True),
        (WorkerError(Kind.FATAL, "x"), Kind.FATAL, False),
        (FileNotFoundError(2, "x"), Kind.NOT_FOUND, True),
        (OSError(28, "disk full"), Kind.EXHAUSTED, True),
        (MemoryError(), Kind.EXHAUSTED, True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: tried 9 bytes"), Kind.EXHAUSTED, True),
        (RuntimeError("CUDA error: an illegal memory access"), Kind.FATAL, False),
        (AssertionError("x"), Kind.INTERNAL, False),
        (KeyError("x"), Kind.INTERNAL, False),
    ],
)
def test_errors_have_a_kind(error: Exception, kind: Kind, survivable: bool) -> None:
    """And it decides whether the worker goes on."""
    assert (errors.kind_of(error), errors.is_survivable(error)) == (kind, survivable)


def test_failures_fit_their_frame() -> None:
    """Message, hint and traceback are cut to the frame's bounds, at characters, the end of a trace kept."""

    try:
        exec(compile("raise error", "f" * 500, "exec"), {"error": WorkerError(Kind.INVALID, "é" * 2000)})
    except WorkerError as err:
        for _ in range(30):  # as many causes
            err, err.__cause__ = WorkerError(Kind.INVALID, "é" * 2000, hint="h" * 2000), err
        failure = errors.describe(err)
    assert len(failure.message.encode()) <= 2048
    assert failure.message.endswith("é…")
    assert len(failure.hint.encode()) <= 1024
    assert len(failure.traceback) == 40
    assert all(len(line.encode()) <= 300 for line in failure.traceback)
    assert failure.traceback[-1].startswith("dflash_runner.errors.WorkerError: é")


def test_log_lines_are_hclogs() -> None:
    """The layout that go-plugin parses: six digits of microseconds, UTC; keys with @ are its own."""
    line = log.format_line("info", "a phrase", {"rank": 1, "err": ValueError("x")}, 1.000002)
    want = {"@level": "info", "@message": "a phrase", "@timestamp": "1970-01-01T00:00:01.000002Z"}
    assert json.loads(line) == want | {"rank": 1, "err": "x"}
    assert json.loads(log.format_line("info", "a", {}, 5.0))["@timestamp"].endswith("05.000000Z")
    long = log.format_line("warn", "a", {"err": "x" * 70000}, 1.0)
    assert len(long) < 1000
    assert json.loads(long)["bytes_dropped"] > 70000
    with pytest.raises(ValueError, match="@level"):
        log.format_line("info", "a", {"@level": "x"}, 1.0)


def test_faults_strike_once_where_they_are_named() -> None:
    """Worker, point, step, count and generation all have to fit."""
    faults = Faults("drafter/1:train@3:2:refuse,drafter/1:train:1:nan,*:pull:1:raise:2")
    faults.name("drafter/1", generation=1)
    assert faults.reach("train", step=2) == "nan"
    assert faults.reach("train", step=3) == ""
    with pytest.raises(WorkerError, match="train@3"):
        faults.reach("train", step=3)
    assert faults.reach("train", step=3) == ""
    assert faults.reach("pull") == ""  # of generation 2
    other = Faults("drafter/1:train:1:raise,*:pull:1:raise:2")
    other.name("drafter/0", generation=2)
    assert other.reach("train") == ""
    with pytest.raises(RuntimeError, match="pull"):
        other.reach("pull")
    for wrong in ("x", "a:b:c:exit", "a:b:1:dance", "a:b:1:exit:1:1"):
        with pytest.raises(ValueError, match="DFLASH_RUNNER_FAULT"):
            Faults(wrong)


class Places:
    """Two row buffers, filled and trained by row number."""

    def __init__(self) -> None:
        self.buffers = RowBuffers(bucket=8, width=2, dtype=torch.float32)
        self.memory: dict[int, int] = {}

    def pull(self, row: int) -> None:
        held = self.buffers.begin(row, epoch=0, bucket=8, pieces=(Piece(0, 0, 0, 4, 1),))
        self.memory[held.tensors["hidden"].data_ptr()] = row
        self.buffers.filled(held, prepared=[PREPARED])

    def train(self, row: int, *, trained: bool = True) -> None:
        held = self.buffers.take(row)
        self.buffers.release(held)
        if trained:
            self.buffers.mark(held)

    def held(self) -> set[int]:
        return set(self.memory.values())


def test_buffers_are_chosen_as_the_lane_says() -> None:
    """Empty; else trained since pulled, lower row first, also after an abort; else the higher row."""
    places = Places()
    places.pull(5)
    places.pull(3)
    places.train(5)
    places.pull(7)  # takes 5's: trained
    assert places.held() == {3, 7}
    places.train(3)
    places.train(7)
    places.buffers.dropped()  # an abort takes no mark away
    places.pull(5)  # both are marked: the lower row goes
    assert places.held() == {5, 7}
    places.pull(9)  # 7 is marked
    assert places.held() == {5, 9}
    places.pull(4)  # none is: the higher row goes
    assert places.held() == {4, 5}
    with pytest.raises(WorkerError, match="want it in a row buffer"):
        places.train(9)
    with pytest.raises(LaneError, match="held already"):
        places.pull(5)
    places.train(4)
    places.buffers.dropped()
    places.train(5)
    places.buffers.committed()  # empties the rows of that step alone
    places.train(4)
    places.pull(6)
    assert places.held() == {4, 6}


def test_no_preparation_outlives_its_row() -> None:
    """What was prepared is kept for an aborted row, and goes with a row's place."""
    places = Places()
    places.pull(1)
    places.train(1)
    places.buffers.dropped()
    held = places.buffers.take(1)
    assert held.prepared == (PREPARED,)
    places.buffers.release(held)
    places.buffers.mark(held)
    places.buffers.committed()
    assert held.prepared == ()
    again = places.buffers.begin(1, epoch=1, bucket=8, pieces=())  # another preparation, or none
    assert again.prepared == ()
    places.buffers.failed(again)
    with pytest.raises(WorkerError, match="row buffer"):
        places.buffers.take(1)


def test_buffers_refuse_what_does_not_fit() -> None:
    """Both in use, a failed copy, and a row that is too long."""
    buffers = RowBuffers(bucket=8, width=2, dtype=torch.float32)
    first = buffers.begin(1, epoch=0, bucket=8, pieces=())
    buffers.begin(2, epoch=0, bucket=4, pieces=())
    with pytest.raises(LaneError, match="not in use"):
        buffers.begin(3, epoch=0, bucket=8, pieces=())
    with pytest.raises(WorkerError, match="row buffer"):
        buffers.take(1)  # it is not complete
    buffers.failed(first)
    assert buffers.begin(3, epoch=0, bucket=8, pieces=()).tensors["hidden"].shape == (8, 2)
    with pytest.raises(WorkerError, match="at most 8 tokens"):
        buffers.begin(4, epoch=0, bucket=9, pieces=())


def test_standing_is_fenced() -> None:
    """The life of a drafter's place, and what is stale at each moment."""
    standing = Standing()
    solo = Communicator("", number=3, world=1, rank=0)
    place = {"seq": 1, "lineage": 1, "communicator": 3, "step": 1}
    with pytest.raises(WorkerError, match="none open"):
        standing.train(Train(**place, micro=0, row=1, last=True))
    standing.join(Join(**place | {"step": 0}, world=1, rank=0), solo)
    assert standing.train(Train(**place, micro=0, row=1, last=True)) is solo
    commit = Commit(**place, lr=0.1, chain=b"c" * 32)
    with pytest.raises(WorkerError, match="commit"):
        standing.commit(commit)  # not voted
    standing.trained(voted=True)
    with pytest.raises(WorkerError, match="and the vote"):
        standing.train(Train(**place, micro=1, row=1, last=True))
    assert standing.commit(commit)
    standing.committed(commit)
    assert not standing.commit(commit)  # repeated
    with pytest.raises(WorkerError) as other:
        standing.commit(Commit(**place, lr=0.1, chain=b"d" * 32))
    assert other.value.kind is Kind.STALE
    with pytest.raises(WorkerError, match="abort"):
        standing.interrupt(Abort(**place))  # it was decided
    standing.interrupt(Abort(**place | {"step": 2, "communicator": 5}))  # of a join that is on its way
    with pytest.raises(WorkerError, match="join"):
        standing.join(Join(**place | {"communicator": 5}, world=1, rank=0), solo)
    standing.load(Load(**place | {"lineage": 2, "step": 9}, nbytes=1))
    standing.loaded(Load(**place | {"lineage": 2, "step": 9}, nbytes=1), chain=b"e" * 32)
    with pytest.raises(WorkerError, match="load"):
        standing.load(Load(**place | {"step": 9}, nbytes=1))  # the old lineage
    assert (standing.step, standing.chain) == (9, b"e" * 32)


def test_a_group_of_one_needs_nobody(tmp_path: Path) -> None:
    """Its sum is the value; aborted, it refuses."""
    alone = Communicator(str(tmp_path), number=1, world=1, rank=0)
    alone.open()
    values = torch.ones(3)
    alone.sum(values)
    assert values.tolist() == [1, 1, 1]
    alone.abort()
    with pytest.raises(WorkerError, match="aborted"):
        alone.sum(values)
    with pytest.raises(ValueError, match="below world"):
        Communicator(str(tmp_path), number=1, world=2, rank=2)


def test_waiting_for_peers_ends_by_an_abort(tmp_path: Path) -> None:
    """Nobody else comes; the wait ends as soon as another thread says so."""
    group = Communicator(str(tmp_path), number=4, world=2, rank=0)
    caught: list[WorkerError] = []

    def wait() -> None:
        try:
            group.open()
        except WorkerError as err:
            caught.append(err)

    waiter = threading.Thread(target=wait)
    waiter.start()
    while not (tmp_path / "4").exists():
        assert waiter.is_alive()
    group.abort()
    waiter.join(30)
    assert [err.kind for err in caught] == [Kind.UNAVAILABLE]


@pytest.mark.parametrize(
    ("path", "value", "want"),
    [
        ("role", 0, "role: want"),
        ("threads", 0, "threads: want at least 1, got 0"),
        ("device", "cuda:1", "device: want cpu or cuda"),
        ("attention", "flex", "attention: want sdpa on device cpu, where flex_attention has no backward"),
        ("flex.block_m", 48, "flex.block_m: want a power of two"),
        ("flex.backend", "flash", "flex.backend: want triton, got 'flash'"),
        ("world_size", 3, "rows_per_step: want a multiple of world_size 3"),
        ("rank", 1, "rank: want below"),
        ("generation", 0, "generation: want at least 1"),
        ("seed", 1 << 63, "seed: want below"),
        ("target.directory", "", "target.directory: want a path"),
        ("target.dtype", "float16", "target.dtype: want float32 or bfloat16, got 'float16'"),
        ("target.layer_ids", [3, 1], "target.layer_ids: want distinct layers, rising"),
        ("target.layer_ids", [5], "below drafter.target_layers 5, got 5"),
        ("drafter.layers", 0, "drafter.layers: want at least 1"),
        ("drafter.kv_heads", 3, "drafter.heads: want a multiple of kv_heads 3"),
        ("drafter.head_dim", 7, "head_dim: want an even number"),
        ("drafter.block_size", 1, "block_size: want at least 2"),
        ("drafter.mask_token_id", 67, "mask_token_id: want below vocab_size 67"),
        ("drafter.rope_theta", float("inf"), "rope_theta: want a finite number"),
        ("training.buckets", [], "buckets: want 1 to 3"),
        ("training.buckets", [40, 24], "buckets: want 1 to 3 lengths, rising"),
        ("training.buckets", [4], "buckets: want at least 8"),
        ("training.anchors", 24, "anchors: want 2 to 23 in rows of 24 tokens"),
        ("training.weight_constant", 0.0, "weight_constant: want a finite number above 0"),
        ("training.beta1", 1.0, "beta1: want at least 0 and below 1"),
        ("training.weight_decay", -1.0, "weight_decay: want 0 or more"),
        ("training.compute_dtype", "fp32", "compute_dtype: want float32 or bfloat16"),
    ],
)
def test_configurations_are_checked(tmp_path: Path, path: str, value: object, want: str) -> None:
    """Each wrong value is told by its path, with what was wanted."""
    message = configuration(tmp_path)
    config.from_message(message)
    part, *rest = path.split(".")
    at = message if not rest else getattr(message, part)
    name = rest[0] if rest else part
    if isinstance(value, list):
        del getattr(at, name)[:]
        getattr(at, name).extend(value)
    else:
        setattr(at, name, value)
    with pytest.raises(ValueError, match=re.escape(want)):
        config.from_message(message)


@pytest.mark.parametrize(
    ("path", "value", "want"),
    [
        ("training.compute_dtype", "float32", "compute_dtype: want bfloat16 with attention flex"),
        ("drafter.head_dim", 8, "head_dim: want at least 16 with attention flex, got 8"),
    ],
)
def test_compiled_attention_of_a_drafter_is_for_a_gpu(
    tmp_path: Path, path: str, value: object, want: str
) -> None:
    """It is taken there, with its options; whatever cannot run it is told."""
    message = configuration(tmp_path, device="cuda:0", attention="flex")
    message.training.compute_dtype, message.drafter.head_dim = "bfloat16", 16
    message.flex.warps, message.flex.backward_stages, message.flex.copy_keys = 8, 3, True
    got = config.from_message(message).flex
    assert (got.backend, got.warps, got.backward_stages, got.block_m) == ("triton", 8, 3, 0)
    assert got.copy_keys
    part, _, name = path.rpartition(".")
    setattr(getattr(message, part) if part else message, name, value)
    with pytest.raises(ValueError, match=re.escape(want)):
        config.from_message(message)


def test_compiled_attention_of_a_target_is_for_a_gpu(tmp_path: Path) -> None:
    """In bfloat16, whatever a drafter computes in, and whatever heads that has."""
    message = configuration(tmp_path, role=worker_pb2.ROLE_TARGET, device="cuda:0", attention="flex")
    with pytest.raises(ValueError, match=r"target.dtype: want bfloat16 with attention flex, got 'float32'"):
        config.from_message(message)
    message.target.dtype = "bfloat16"
    assert config.from_message(message).attention == "flex"
    message.device = "cpu"
    with pytest.raises(ValueError, match=r"attention: want sdpa on device cpu, .* got 'flex'"):
        config.from_message(message)


@pytest.mark.parametrize("role", [worker_pb2.ROLE_TARGET, worker_pb2.ROLE_DRAFTER])
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_every_device_takes_torchs_own_attention(tmp_path: Path, role: int, device: str) -> None:
    """The device is kept as it was said, for the certificate."""
    made = config.from_message(configuration(tmp_path, role=role, device=device))
    assert (made.device, made.attention) == (device, "sdpa")


def test_settings_are_frozen(tmp_path: Path) -> None:
    """What a worker was told does not change under it."""
    made = config.from_message(configuration(tmp_path))
    with pytest.raises(AttributeError):
        made.threads = 2  # type: ignore[misc]
    assert made.role is config.Role.DRAFTER
