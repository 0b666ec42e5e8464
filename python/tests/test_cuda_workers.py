"""Real workers on one GPU: a target and a drafter over a memfd arena, beside the same two on the CPU.

Run alone: `python -m pytest -m gpu python/tests/test_cuda_workers.py`.
"""

from __future__ import annotations

import hashlib
import math
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jobs
import pytest
import torch
from dflash_runner.arena import Arena
from dflash_runner.frames import float_of
from dflash_runner.job.v1 import job_pb2
from dflash_runner.orders import Evaluate, Pull, Train
from dflash_runner.replies import Failed, Trained
from dflash_runner.worker.v1 import worker_pb2
from test_job_target import regenerate_job
from worker_host import (
    BUCKETS,
    LAYER_IDS,
    PROMPTS,
    PYTHON,
    ROWS,
    SAMPLES,
    WIDTH,
    Cluster,
    Host,
    Row,
    configuration,
    make_inputs,
)

pytestmark = pytest.mark.gpu

LOSS = 2e-4  # relative, of float32 on both: sums in another order, over three steps
BFLOAT16_LOSS = 5e-2  # relative, of bfloat16 with compiled attention against float32 on the CPU
HIDDEN = 1e-4  # of hidden states, as for the CPU against transformers
FAULTS = "drafter/0:train@4:1:nan"


def environment(**more: str) -> dict[str, str]:
    """What a worker on the GPU is given: one GPU, and kernels that give the same bits every time."""
    passed = ("LD_", "CUDA", "NVIDIA", "HOME", "CC")
    kept = {name: value for name, value in os.environ.items() if name.startswith(passed)}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    path = os.pathsep.join([str(PYTHON), os.environ.get("PYTHONPATH", "")])
    return {
        **kept,
        "CUDA_VISIBLE_DEVICES": visible,
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "NCCL_CUMEM_ENABLE": "0",
        "PYTHONPATH": path,
        **more,
    }


def on_gpu(message: Any) -> None:
    """The same configuration on the GPU."""
    message.device = "cuda:0"


def compiled(message: Any) -> None:
    """A drafter of compiled attention in bfloat16 and a target beside it, with shapes that kernels have."""
    plainly(message)
    message.device = "cuda:0"
    message.training.compute_dtype = "bfloat16"
    if message.role == worker_pb2.ROLE_DRAFTER:
        message.attention = "flex"


def plainly(message: Any) -> None:
    """The shapes of `compiled`, on the CPU in float32."""
    message.drafter.head_dim = 16
    del message.training.buckets[:]
    message.training.buckets.extend([64, 128])
    message.training.anchors = 32


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, data and prompts."""
    directory = tmp_path_factory.mktemp("inputs")
    make_inputs(directory)
    return directory


@pytest.fixture(scope="module")
def start(inputs: Path) -> Iterator[Callable[..., Cluster]]:
    """Starts a target and a drafter that have joined; all are ended with the module."""
    started: list[Cluster] = []

    def begin(change: Callable[[Any], None], *, gpu: bool, faults: str = "") -> Cluster:
        given = environment() if gpu else {}
        made = Cluster(
            inputs,
            drafters=1,
            environment={**given, "DFLASH_RUNNER_FAULT": faults},
            target_environment=given,
            change=change,
        )
        started.append(made)
        made.join()
        return made

    yield begin
    for cluster in started:
        cluster.end()


@pytest.fixture(scope="module")
def gpu(start: Callable[..., Cluster]) -> Cluster:
    """On the GPU, for all tests here: each starts from the step that it names or from any."""
    return start(on_gpu, gpu=True, faults=FAULTS)


@pytest.fixture(scope="module")
def cpu(start: Callable[..., Cluster]) -> Cluster:
    """The same on the CPU."""
    return start(lambda _: None, gpu=False)


def rows_for(cluster: Cluster) -> list[list[Row]]:
    """A step of two rows, of either bucket: as many as a drafter has row buffers."""
    (own,) = cluster.rows()
    return [own[:2]]


def advance(cluster: Cluster, step: int) -> None:
    """Train and commit up to `step`."""
    while cluster.step < step:
        rows = rows_for(cluster)
        cluster.pull_all(rows)
        cluster.train(rows)
        cluster.commit()


def read(cluster: Cluster, row: Row, handle: Any) -> dict[str, torch.Tensor]:
    """What a slot holds."""
    arena = Arena(os.dup(cluster.arena), arena=1, slots=3, slot_bytes=cluster.slot_bytes, write=False)
    out = {
        "hidden": torch.empty(row.bucket, WIDTH),
        "tokens": torch.empty(row.bucket, dtype=torch.int32),
        "loss_mask": torch.empty(row.bucket, dtype=torch.uint8),
        "documents": torch.empty(row.bucket, dtype=torch.int32),
    }
    arena.read_row(handle, row=row.row, out=out)
    arena.close()
    return out


def losses(vote: Any) -> list[float]:
    """Each row's loss and weight, and what was reduced."""
    own = [value for row in vote.rows for value in (row.numerator, row.denominator)]
    return [*own, float_of(vote.weight), float_of(vote.norm)]


def test_a_gpu_is_certified_and_described(gpu: Cluster) -> None:
    """Both roles, by torch's own attention, with the GPU's name, UUID, driver and memory."""
    for certificate, host, layers in zip(
        gpu.certificates, (gpu.target, *gpu.drafters), (max(LAYER_IDS) + 1, 2), strict=True
    ):
        print(certificate)  # noqa: T201
        assert (certificate.device, certificate.attention) == ("cuda:0", "sdpa")
        assert certificate.attention_calls == layers * len(BUCKETS) * 2
        assert certificate.digest_before == certificate.digest_after != b""
        assert (certificate.dense_calls, certificate.graphs, certificate.second_pass_compiles) == (0, 0, 0)
        assert 0 < certificate.dense_difference <= certificate.dense_tolerance
        assert 0 < certificate.peak_bytes < 1 << 30  # of the device: a tiny model
        assert certificate.step_ms > 0
        told = certificate.environment
        assert told["torch.float32_matmul_precision"] == "highest" and told["torch.deterministic"] == "true"
        assert told["gpu.uuid"].startswith("GPU-") and told["triton"] and told["gpu.driver"]
        described = host.control.Describe(worker_pb2.DescribeRequest(), timeout=20.0)
        assert (described.device, described.device_uuid) == (told["gpu.name"], told["gpu.uuid"])
        assert described.memory_bytes == int(told["gpu.memory_bytes"]) > 1 << 30
    assert (gpu.certificates[1].gradients, gpu.certificates[1].padded_anchors) == (True, True)


def test_rows_and_steps_are_the_cpus(gpu: Cluster, cpu: Cluster) -> None:
    """Hidden states, and three steps of losses, weights and norms, within the bounds above."""
    assert gpu.configured[1].parameters_digest == cpu.configured[1].parameters_digest
    for _ in range(3):
        votes = []
        for cluster in (gpu, cpu):
            rows = rows_for(cluster)
            cluster.pull_all(rows)
            (vote,) = cluster.train(rows)
            assert vote.finite
            votes.append(losses(vote))
            cluster.commit()
        for got, want in zip(*votes, strict=True):
            assert math.isclose(got, want, rel_tol=LOSS), votes
    row = replace(ROWS[0], row=900)
    one, other = (read(cluster, row, cluster.produce(row, slot=2)) for cluster in (gpu, cpu))
    for name in ("tokens", "loss_mask", "documents"):
        assert torch.equal(one[name], other[name]), name
    torch.testing.assert_close(one["hidden"], other["hidden"], rtol=HIDDEN, atol=HIDDEN)
    assert not one["hidden"][28:].any() and one["hidden"][:28].any()


def test_a_loss_that_is_no_number_is_told_and_dropped(gpu: Cluster) -> None:
    """Step 4; after the abort the context is proved, and the same rows give the same bits every time."""
    advance(gpu, 3)
    rows = rows_for(gpu)
    gpu.pull_all(rows)
    (bad,) = gpu.train(rows)
    assert not bad.finite and math.isnan(bad.rows[0].numerator)
    votes = []
    for _ in range(2):
        assert [reply.clean for reply in gpu.abort()] == [True]
        gpu.join()
        (vote,) = gpu.train(rows)
        assert vote.finite
        votes.append((vote.rows, vote.weight, vote.norm))
    assert votes[0] == votes[1]
    gpu.commit()


def test_a_row_is_pulled_while_another_trains(gpu: Cluster) -> None:
    """Into the other place, on its own stream: the votes are as if one had waited for the other."""
    (drafter,) = gpu.drafters
    ((first, second),) = rows_for(gpu)
    handles = {row.row: gpu.produce(row, slot=slot) for slot, row in enumerate((first, second))}

    def pull(row: Row) -> int:
        named = {"row": row.row, "epoch": row.epoch, "bucket": row.bucket, "pieces": list(row.pieces)}
        return drafter.send(Pull, **named, handle=handles[row.row])

    pull(first)
    assert drafter.receive().row == first.row
    train = drafter.send(Train, **gpu.place(), micro=0, row=first.row, last=False)
    pulled = pull(second)
    assert {drafter.receive().seq, drafter.receive().seq} == {train, pulled}
    drafter.send(Train, **gpu.place(), micro=1, row=second.row, last=True)
    together = gpu.vote(drafter)
    gpu.abort()
    gpu.join()
    gpu.order_train(drafter, [first, second])
    apart = gpu.vote(drafter)
    assert (together.rows, together.norm) == (apart.rows, apart.norm)
    gpu.commit()


def test_an_image_moves_the_state_exactly(gpu: Cluster) -> None:
    """Its digest is the file's; a fresh drafter that loads it votes and commits the same bits."""
    (drafter,) = gpu.drafters
    before = gpu.digests()[0]
    fd, saved = gpu.image(drafter)
    raw = os.pread(fd, gpu.configured[1].image_bytes, 0)
    assert saved.written and saved.image == hashlib.sha256(raw).digest()
    assert saved.parameters == before
    assert raw[8 : 8 + struct.unpack_from("<Q", raw)[0]].startswith(b'{"__metadata__"')
    fresh = Host(gpu.directory, environment=environment())
    try:
        message = configuration(gpu.directory)
        on_gpu(message)
        fresh.start(message)
        gpu.map_arena(fresh)
        assert gpu.load(fresh, fd).parameters == before
        ends, rows, step = [], rows_for(gpu), gpu.step
        for host in (drafter, fresh):  # each alone, in its own group of one
            gpu.drafters, gpu.step = [host], step
            gpu.join()
            gpu.pull_all(rows)
            (vote,) = gpu.train(rows)
            gpu.commit()
            ends.append((vote.rows, vote.weight, vote.norm, gpu.digests()[0]))
        assert ends[0] == ends[1] and ends[0][-1] != before
    finally:
        gpu.drafters = [drafter]
        gpu.join()  # the last group was the fresh drafter's alone
        os.close(fd)
        fresh.end()


def test_evaluates_as_the_cpu_does(gpu: Cluster, cpu: Cluster) -> None:
    """Both ways of decoding give the same texts in float32; held-out loss is the CPU's of that drafter."""
    fd, _ = gpu.image(gpu.drafters[0])
    nbytes = gpu.configured[1].image_bytes
    ask = {"step": gpu.step, "first": 0, "count": len(PROMPTS), "new_tokens": 24}
    told = {}
    for name, cluster in (("gpu", gpu), ("cpu", cpu)):
        cluster.target.ask(Evaluate, **ask, what="plain", nbytes=0)
        decoded = cluster.target.ask(Evaluate, fd=fd, **ask, what="decode", nbytes=nbytes)
        assert decoded.lossless, name
        assert decoded.busy_us > 0
        loss = cluster.target.ask(Evaluate, **{**ask, "count": len(SAMPLES)}, what="loss", nbytes=0)
        told[name] = (loss.numerator, loss.denominator, decoded.tokens / decoded.forwards)
    os.close(fd)
    for got, want in zip(told["gpu"][:2], told["cpu"][:2], strict=True):
        assert math.isclose(got, want, rel_tol=LOSS), told
    assert told["gpu"][2] >= 1


def test_fifty_steps_lower_the_loss(gpu: Cluster) -> None:
    """The same rows again and again, from wherever the drafter stands."""
    means = []
    for _ in range(50):
        rows = rows_for(gpu)
        gpu.pull_all(rows)
        (vote,) = gpu.train(rows)
        assert vote.finite
        means.append(sum(row.numerator for row in vote.rows) / sum(row.denominator for row in vote.rows))
        gpu.commit(lr=1e-2)
    print(means[::7], means[-1])  # noqa: T201
    assert means[-1] < 0.7 * means[0]


def test_compiled_attention_in_bfloat16_trains_as_the_cpu_in_float32(start: Callable[..., Cluster]) -> None:
    """The certificate's oracle holds, and the first step's losses are the CPU's to bfloat16."""
    votes = []
    for change, on_a_gpu in ((compiled, True), (plainly, False)):
        cluster = start(change, gpu=on_a_gpu)
        (own,) = rows_for(cluster)
        rows = [[replace(row, bucket=128 if row.bucket == 40 else 64) for row in own]]
        cluster.pull_all(rows)
        (vote,) = cluster.train(rows)
        votes.append(losses(vote))
        cluster.commit()
        if on_a_gpu:
            certificate = cluster.certificates[1]
            print(certificate)  # noqa: T201
            assert (certificate.attention, certificate.second_pass_compiles) == ("flex", 0)
            assert certificate.graphs >= 2 and certificate.dense_calls == 0
            assert 0 < certificate.dense_difference <= certificate.dense_tolerance == 0.05
    print(votes)  # noqa: T201
    for got, want in zip(*votes, strict=True):
        assert math.isclose(got, want, rel_tol=BFLOAT16_LOSS), votes


def test_a_fault_of_the_device_ends_the_worker_with_its_reason(gpu: Cluster) -> None:
    """Token ids beyond the vocabulary, in a slot that no target wrote: the kernel asserts."""
    row = replace(ROWS[0], row=901)
    good = read(gpu, row, gpu.produce(row, slot=2))
    arena = Arena(os.dup(gpu.arena), arena=1, slots=3, slot_bytes=gpu.slot_bytes, write=True)
    good["tokens"].fill_(1 << 20)
    gpu.versions[2] += 1
    handle = arena.write_row(2, version=gpu.versions[2], row=row.row, tensors=good)
    arena.close()
    kept, victim = (gpu.drafters, gpu.step), Host(gpu.directory, environment=environment())
    try:
        message = configuration(gpu.directory)
        on_gpu(message)
        victim.start(message)
        gpu.map_arena(victim)
        gpu.drafters, gpu.step = [victim], 0
        gpu.join()
        named = {"row": row.row, "epoch": row.epoch, "bucket": row.bucket, "pieces": list(row.pieces)}
        assert victim.ask(Pull, **named, handle=handle).row == row.row
        reply = victim.ask(Train, **gpu.place(), micro=0, row=row.row, last=False)
        assert type(reply) is not Trained
        assert isinstance(reply, Failed) and reply.kind == "fatal", reply
        assert "device-side assert" in reply.message
        assert victim.wait() != 0
    finally:
        victim.end()
        gpu.drafters, gpu.step = kept
        gpu.join()


def test_two_visible_gpus_or_none_are_refused(inputs: Path) -> None:
    """By the worker itself, before it builds anything."""
    import grpc

    message = configuration(inputs)
    on_gpu(message)
    host = Host(inputs, environment=environment(CUDA_VISIBLE_DEVICES=""))
    try:
        with pytest.raises(grpc.RpcError) as refused:
            host.control.Configure(message, timeout=60.0)
        assert "want a GPU, got none with CUDA_VISIBLE_DEVICES ''" in refused.value.details()
    finally:
        host.end()


def test_jobs_train_answer_and_say_which_device_made_it(tmp_path: Path) -> None:
    """The embedded target from the same start as on the CPU, and its answers, in batches."""
    loss, prints = {}, {}
    for device in ("cuda:0", "cpu"):
        target = tmp_path / device
        job = job_pb2.Job(threads=1, build_target=jobs.target_job(target, device=device, steps=30))
        code, reports, stderr = jobs.run(job.SerializeToString(), environment=environment())
        assert code == 0, stderr
        loss[device] = reports[-1]["result"].figures["heldout_loss"]
        prints[device] = reports[-1]["result"].facts["fingerprint"]
    print(loss)  # noqa: T201
    assert math.isclose(loss["cuda:0"], loss["cpu"], rel_tol=1e-2) and prints["cuda:0"] != prints["cpu"]
    for temperature in (0.0, 0.8):
        answers = tmp_path / f"answers-{temperature}"
        job = job_pb2.Job(
            threads=1,
            regenerate=regenerate_job(answers, tmp_path / "cuda:0", device="cuda:0", temperature=temperature),
        )
        code, reports, stderr = jobs.run(job.SerializeToString(), environment=environment())
        assert code == 0, stderr
        assert reports[-1]["result"].figures["samples"] == 6
        assert len((answers / "train.jsonl").read_text().splitlines()) == 6
