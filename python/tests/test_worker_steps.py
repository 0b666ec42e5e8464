"""A target and two drafters, real processes, driven by hand through every order of the lane."""

from __future__ import annotations

import math
import os
import signal
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from dflash_runner import communicator
from dflash_runner.arena import Arena
from dflash_runner.frames import float_of
from dflash_runner.lane import LANE_EXIT_CODE
from dflash_runner.orders import Abort, Commit, Evaluate, Image, Join, Pull, Train
from dflash_runner.replies import Failed, Trained
from dflash_runner.worker.v1 import worker_pb2
from safetensors.torch import load
from worker_host import (
    BUCKETS,
    LAYER_IDS,
    PROMPTS,
    ROWS,
    SAMPLES,
    WIDTH,
    Cluster,
    Host,
    chain,
    configuration,
    drain,
    make_inputs,
)

FAULTS = "drafter/1:train@4:2:refuse,drafter/0:train@5:1:nan,drafter/1:train@7:2:sigkill"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for all tests here: each starts from the step that it names or from any."""
    directory = tmp_path_factory.mktemp("cluster")
    make_inputs(directory)
    cluster = Cluster(directory, drafters=2, environment={"DFLASH_RUNNER_FAULT": FAULTS})
    cluster.join()
    yield cluster
    cluster.end()


def refused(reply: object, kind: str, *words: str) -> None:
    """The reply is `failed` of that kind, and its message has the words."""
    assert isinstance(reply, Failed), reply
    assert reply.kind == kind, reply
    for word in words:
        assert word in reply.message, reply


def test_certificates_hold(cluster: Cluster) -> None:
    """Every field that could be false is true, and the counts are those of the shapes."""
    layers = [max(LAYER_IDS) + 1, 2, 2]
    for certificate, count in zip(cluster.certificates, layers, strict=True):
        assert certificate.digest_before == certificate.digest_after != b""
        assert certificate.attention_calls == count * len(BUCKETS) * 2
        assert list(certificate.buckets) == list(BUCKETS)
        assert (certificate.dense_calls, certificate.second_pass_compiles, certificate.graphs) == (0, 0, 0)
        told = {field.name for field, _ in certificate.ListFields()}  # zeros included, as they are counts
        assert told == {field.name for field in certificate.DESCRIPTOR.fields}
        assert 0 < certificate.dense_difference <= certificate.dense_tolerance
        assert list(certificate.kernels) == ["scaled_dot_product_attention"]
        assert certificate.step_ms > 0
        assert certificate.peak_bytes > 1 << 26
        phases = {"import", "build", "first_pass", "oracle", "record", "second_pass", "total"}
        assert set(certificate.seconds) == phases
    target, first, second = cluster.certificates
    assert (target.gradients, target.padded_anchors) == (False, False)
    assert (first.gradients, first.padded_anchors) == (True, True)
    assert first.fingerprint == second.fingerprint != target.fingerprint
    assert cluster.configured[1].parameters_digest == cluster.configured[2].parameters_digest


def test_commits_a_step_on_both(cluster: Cluster) -> None:
    """Rows travel, votes agree bit for bit, and so do the parameters afterwards."""
    rows, before = cluster.rows(), cluster.digests()
    cluster.pull_all(rows)
    votes = cluster.train(rows)
    assert votes[0].finite
    assert votes[1].finite
    assert (votes[0].weight, votes[0].norm) == (votes[1].weight, votes[1].norm)
    named = [[row.row for row in vote.rows] for vote in votes]
    assert named == [[row.row for row in own] for own in rows]
    weights = [row.denominator for vote in votes for row in vote.rows]
    assert math.isclose(sum(weights), float_of(votes[0].weight), rel_tol=1e-6)
    assert cluster.digests() == before  # nothing moves before the commit
    cluster.commit()
    after = cluster.digests()
    assert after[0] == after[1] != before[0]
    again = cluster.drafters[0].ask(
        Commit, **cluster.place(step=cluster.step), lr=1.0, chain=chain(cluster.step)
    )
    assert again.step == cluster.step  # a repeated commit is acknowledged, and applied no second time
    assert cluster.digests() == after


def test_rows_are_what_the_target_says(cluster: Cluster) -> None:
    """The slot holds the samples' tokens, and each document's hidden states as if it were alone."""
    row = replace(ROWS[0], row=cluster.next_row)
    cluster.next_row += 1
    handle = cluster.produce(row, slot=2)
    arena = Arena(os.dup(cluster.arena), arena=1, slots=3, slot_bytes=cluster.slot_bytes, write=False)
    out = {
        "hidden": torch.empty(row.bucket, WIDTH),
        "tokens": torch.empty(row.bucket, dtype=torch.int32),
        "loss_mask": torch.empty(row.bucket, dtype=torch.uint8),
        "documents": torch.empty(row.bucket, dtype=torch.int32),
    }
    arena.read_row(handle, row=row.row, out=out)
    arena.close()
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(cluster.directory / "target", attn_implementation="sdpa")
    for document, piece in enumerate(row.pieces):
        span = slice(piece.start, piece.start + piece.tokens)
        tokens = [(7 * i + 13 * piece.sample) % 66 for i in range(piece.tokens)]
        assert out["tokens"][span].tolist() == tokens
        assert out["loss_mask"][span].tolist() == [int(i >= 2) for i in range(piece.tokens)]
        assert out["documents"][span].tolist() == [document] * piece.tokens
        with torch.no_grad():
            states = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        alone = torch.cat([states[i + 1] for i in LAYER_IDS], dim=-1)[0]
        torch.testing.assert_close(out["hidden"][span], alone, rtol=1e-4, atol=1e-4)
    used = sum(piece.tokens for piece in row.pieces)
    assert out["documents"][used:].unique().tolist() == [-1]
    assert not out["hidden"][used:].any()


def test_retries_an_aborted_step_to_the_same_bits(cluster: Cluster) -> None:
    """After an abort the rows are still there, and the same plan gives the same vote."""
    rows = cluster.rows()
    cluster.pull_all(rows)
    first = cluster.train(rows)
    assert [reply.clean for reply in cluster.abort()] == [True, True]
    stale = cluster.drafters[0].ask(Train, **cluster.place(), micro=0, row=rows[0][0].row, last=False)
    refused(stale, "stale", "none open")
    cluster.join()
    second = cluster.train(rows)
    assert [(v.rows, v.weight, v.norm) for v in first] == [(v.rows, v.weight, v.norm) for v in second]
    cluster.commit()


def test_stale_orders_change_nothing(cluster: Cluster) -> None:
    """Another lineage, communicator or step is refused, by every order that names them."""
    host, rows = cluster.drafters[0], cluster.rows()
    cluster.pull_all(rows)
    before, place = cluster.digests(), cluster.place()
    for change in ({"lineage": 0}, {"lineage": 2}, {"communicator": place["communicator"] - 1}, {"step": 99}):
        refused(host.ask(Train, **place | change, micro=0, row=rows[0][0].row, last=False), "stale")
        refused(host.ask(Commit, **place | change, lr=1.0, chain=chain(1)), "stale")
    refused(host.ask(Commit, **place, lr=1.0, chain=chain(1)), "stale")  # it has not voted
    for change in ({"lineage": 0}, {"communicator": 0}, {"step": 99}):
        refused(host.ask(Abort, **place | change), "stale")
        refused(host.ask(Image, **place | change, write=False, nbytes=0), "stale")
    old = {**place, "step": cluster.step}
    refused(host.ask(Join, **old, world=2, rank=0), "stale")
    refused(host.ask(Join, **{**place, "communicator": 99}, world=2, rank=0), "stale")
    refused(host.ask(Train, **place, micro=1, row=rows[0][0].row, last=False), "invalid", "want the next")
    assert cluster.digests() == before
    votes = cluster.train(rows)
    assert votes[0].norm == votes[1].norm
    cluster.commit()


def await_sum(host: Host) -> None:
    """Return when the worker's main thread stands in the sum, as its own stacks say."""
    source = Path(communicator.__file__).read_text().splitlines()
    (line,) = [number for number, text in enumerate(source, 1) if "begun.wait()" in text]
    mark, dumps = f'communicator.py", line {line} in _await_sums', 0
    while not any(mark in text for text in host.stderr):
        host.process.send_signal(signal.SIGUSR2)
        while sum(text.startswith("Current thread") for text in host.stderr) <= dumps:
            assert host.process.poll() is None
        dumps += 1


def test_refusal_of_one_rank_leaves_the_other_as_it_was(cluster: Cluster) -> None:
    """I5: one rank fails inside step 4 while the other waits in the sum; the abort frees it."""
    cluster.advance(3)
    before, rows = cluster.digests(), cluster.rows()
    cluster.pull_all(rows)
    for host, own in zip(cluster.drafters, rows, strict=True):
        cluster.order_train(host, own)
    refused(cluster.drafters[1].receive(), "unavailable", "fault at train@4 2")
    waiting, failed = cluster.drafters
    await_sum(waiting)
    waiting.send(Abort, **cluster.place())  # alone: the other's end would free it too
    refused(waiting.receive(), "unavailable", "it was aborted")
    assert waiting.receive().clean
    assert failed.ask(Abort, **cluster.place()).clean
    cluster.join()
    assert cluster.digests() == before
    later = replace(ROWS[0], row=cluster.next_row)
    cluster.next_row += 1
    assert cluster.pull(waiting, later).row == later.row  # takes the first row's place: that one was trained
    assert cluster.pull(waiting, rows[0][0]).row == rows[0][0].row  # takes it back: the last one was not
    votes = cluster.train(rows)
    assert votes[0].norm == votes[1].norm
    cluster.commit()


def test_a_loss_that_is_no_number_is_told(cluster: Cluster) -> None:
    """Both ranks see that step 5 is not finite: one by its row, both by the norm."""
    cluster.advance(4)
    rows = cluster.rows()
    cluster.pull_all(rows)
    votes = cluster.train(rows)
    assert [vote.finite for vote in votes] == [False, False]
    assert math.isnan(votes[0].rows[0].numerator)
    assert all(math.isfinite(row.numerator) for row in votes[1].rows)
    cluster.abort()
    cluster.join()
    assert all(vote.finite for vote in cluster.train(rows))
    cluster.commit()


def test_weightless_places_add_nothing(cluster: Cluster) -> None:
    """A rank without rows adds zeros; a step of nothing but such places has norm 0 and is finite."""
    rows = cluster.rows()
    cluster.pull_all(rows)
    one, other = cluster.drafters
    cluster.order_train(one, rows[0])
    other.send(Train, **cluster.place(), micro=0, row=0, last=True)
    votes = [cluster.vote(host) for host in cluster.drafters]
    assert votes[1].rows == []
    own = sum(row.denominator for row in votes[0].rows)
    assert math.isclose(own, float_of(votes[1].weight), rel_tol=1e-6)
    cluster.abort()
    cluster.join()
    for host in cluster.drafters:
        host.send(Train, **cluster.place(), micro=0, row=0, last=True)
    votes = [cluster.vote(host) for host in cluster.drafters]
    assert [(vote.norm, vote.weight, vote.finite) for vote in votes] == [(0, 0, True)] * 2
    cluster.abort()
    cluster.join()
    cluster.train(rows)
    cluster.commit()


def test_damaged_and_reused_slots_are_noticed(cluster: Cluster) -> None:
    """A flipped byte fails the checksum; a slot written again is stale; pieces must fit the row, which is
    prepared as it is pulled; the drafter goes on."""
    row = replace(ROWS[1], row=cluster.next_row)
    cluster.next_row += 1
    host = cluster.drafters[0]
    fields = {"row": row.row, "epoch": 0, "bucket": row.bucket, "pieces": list(row.pieces)}
    handle = cluster.produce(row)
    greedy = {**fields, "pieces": [replaced(row.pieces[0], anchors=row.bucket), *row.pieces[1:]]}
    refused(host.ask(Pull, **greedy, handle=handle), "invalid", "valid places")
    at = handle.tensors[0].offset + 12
    byte = os.pread(cluster.arena, 1, at)
    os.pwrite(cluster.arena, bytes([byte[0] ^ 1]), at)
    refused(host.ask(Pull, **fields, handle=handle), "internal", "crc")
    refused(host.ask(Pull, **fields, handle=replaced(handle, version=handle.version + 1)), "stale", "version")
    refused(host.ask(Pull, **fields, handle=replaced(handle, arena=9)), "invalid", "arena")
    assert cluster.pull(host, row).row == row.row
    place = {**cluster.place(), "micro": 0, "last": False}
    assert type(host.ask(Train, **place, row=row.row)) is Trained
    refused(host.ask(Train, **{**place, "micro": 1}, row=77), "invalid", "row buffer")
    refused(host.ask(Train, **{**place, "micro": 1}, row=row.row), "invalid", "one failed")
    cluster.abort()
    cluster.join()


def replaced(handle: object, **changes: int) -> object:
    """The handle with other numbers."""
    return type(handle)(**{name: getattr(handle, name) for name in handle.__struct_fields__} | changes)


def test_images_are_safetensors(cluster: Cluster) -> None:
    """The public loader reads an image; names, sizes and digests are as said."""
    fd, saved = cluster.image(cluster.drafters[0])
    raw = os.pread(fd, 1 << 24, 0)
    os.close(fd)
    assert len(raw) == cluster.configured[1].image_bytes
    tensors = load(raw)
    assert {name.split(".", 1)[0] for name in tensors} == {"masters", "exp_avg", "exp_avg_sq"}
    assert "masters.layers.1.self_attn.q_proj.weight" in tensors
    assert (
        sum(t.numel() for n, t in tensors.items() if n.startswith("masters."))
        == cluster.configured[1].parameters
    )
    (length,) = struct.unpack_from("<Q", raw)
    assert (8 + length) % 64 == 0
    import hashlib
    import json

    metadata = json.loads(raw[8 : 8 + length])["__metadata__"]
    assert int(metadata["step"]) == cluster.step
    assert metadata["chain"] == chain(cluster.step).hex()
    assert metadata["parameters"] == saved.parameters.hex()
    assert saved.image == hashlib.sha256(raw).digest()
    assert saved.written
    assert saved.parameters == cluster.digests()[0] == cluster.digests()[1]
    digest = cluster.drafters[1].ask(Image, **cluster.place(step=cluster.step), write=False, nbytes=0)
    assert (digest.written, digest.image) == (False, bytes(32))


def test_evaluates_without_loss(cluster: Cluster) -> None:
    """Plain and speculative decoding give the same texts; held-out loss is a sum over samples."""
    fd, _ = cluster.image(cluster.drafters[0])
    ask = {"step": cluster.step, "first": 0, "count": len(PROMPTS), "new_tokens": 12}
    bare = cluster.target.ask(Evaluate, **ask, what="decode", nbytes=0)
    refused(bare, "invalid", "want a drafter")
    plain = cluster.target.ask(Evaluate, **ask, what="plain", nbytes=0)
    assert (plain.tokens, plain.forwards, plain.lossless) == (33, 33, False)
    nbytes = cluster.configured[1].image_bytes
    decoded = cluster.target.ask(Evaluate, fd=fd, **ask, what="decode", nbytes=nbytes)
    assert decoded.lossless
    assert [prompt.equal for prompt in decoded.prompts] == [True] * len(PROMPTS)
    assert len(PROMPTS) * 11 <= decoded.tokens
    assert 3 <= decoded.forwards <= 33
    again = cluster.target.ask(Evaluate, **ask, what="plain", nbytes=0)
    assert again.lossless
    ask["count"] = len(SAMPLES)
    whole = cluster.target.ask(Evaluate, **ask, what="loss", nbytes=0)
    parts = [
        cluster.target.ask(Evaluate, **{**ask, "first": i, "count": 1}, what="loss", nbytes=0)
        for i in range(len(SAMPLES))
    ]
    assert math.isclose(whole.numerator, sum(part.numerator for part in parts), rel_tol=1e-6)
    assert math.isclose(whole.denominator, sum(part.denominator for part in parts), rel_tol=1e-6)
    assert whole.tokens == sum(SAMPLES)
    assert 0 < whole.numerator / whole.denominator < 20
    refused(cluster.target.ask(Evaluate, **{**ask, "first": 3}, what="loss", nbytes=0), "invalid", "3 to 10")
    refused(cluster.target.ask(Evaluate, **{**ask, "step": 99}, what="loss", nbytes=0), "invalid", "step 99")
    os.close(fd)


def test_a_loaded_state_goes_on_bit_for_bit(cluster: Cluster) -> None:
    """A rank is killed inside step 7; its replacement loads the survivor's image and follows it."""
    cluster.advance(6)
    survivor, victim = cluster.drafters
    before, rows = cluster.digests()[0], cluster.rows()
    cluster.pull_all(rows)
    for host, own in zip(cluster.drafters, rows, strict=True):
        cluster.order_train(host, own)
    refused(survivor.receive(), "unavailable", "a peer is gone")  # by itself, before any abort
    assert victim.wait() == -9
    assert survivor.ask(Abort, **cluster.place()).clean
    victim.end()
    fd, saved = cluster.image(survivor)
    assert saved.parameters == before
    cluster.drafters[1] = replacement = Host(cluster.directory)
    message = configuration(
        cluster.directory, role=worker_pb2.ROLE_DRAFTER, rank=1, world_size=2, generation=2
    )
    replacement.start(message)
    cluster.map_arena(replacement)
    refused(cluster.load(replacement, fd, step=cluster.step + 1), "invalid", "step: want")
    loaded = cluster.load(replacement, fd)
    os.close(fd)
    assert (loaded.chain, loaded.parameters) == (chain(cluster.step), before)
    cluster.join()
    for row in rows[1]:
        cluster.pull(replacement, row)
    votes = cluster.train(rows)
    assert votes[0].norm == votes[1].norm
    cluster.commit()
    cluster.advance(8)  # the moments came along too: the update after next depends on them
    after = cluster.digests()
    assert after[0] == after[1] != before


def test_joins_end_when_aborted(cluster: Cluster) -> None:
    """A rank that waits for a peer that never comes is freed, and that number never opens again."""
    host = cluster.drafters[0]
    cluster.communicator += 1
    waiting = host.send(Join, **cluster.place(step=cluster.step), world=2, rank=0)
    while not (cluster.directory / "groups" / str(cluster.communicator)).exists():
        assert host.process.poll() is None
    aborting = host.send(Abort, **cluster.place())
    replies = {reply.seq: reply for reply in (host.receive(), host.receive())}
    refused(replies[waiting], "unavailable", "it was aborted")
    assert replies[aborting].clean
    refused(host.ask(Join, **cluster.place(step=cluster.step), world=2, rank=0), "stale")
    cluster.join()
    cluster.advance(cluster.step + 1)


def test_a_pull_too_many_ends_the_worker(cluster: Cluster) -> None:
    """Last: a row that is held already is a broken rule, and drained workers end with 0."""
    rows = cluster.rows()
    cluster.pull_all(rows)
    host, row = cluster.drafters[1], rows[1][0]
    handle = cluster.produce(row)
    host.send(Pull, row=row.row, epoch=row.epoch, bucket=row.bucket, pieces=list(row.pieces), handle=handle)
    assert host.wait() == LANE_EXIT_CODE
    assert drain(cluster.drafters[0]) == 0
    assert drain(cluster.target) == 0
