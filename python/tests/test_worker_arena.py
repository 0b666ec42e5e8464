"""Workers and an arena of kind `cuda_vmm`: who makes it, who maps it, and who outlives whom.

Real workers on a CPU; those with `FAKE` have the driver of `fake_driver` in the place of CUDA's.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from dflash_runner.arena import Arena
from dflash_runner.cuda_arena import CudaArena
from dflash_runner.lane import LANE_EXIT_CODE, decode_reply
from dflash_runner.orders import CreateArena, MapArena, Produce, Pull
from dflash_runner.replies import Created, Failed, Mapped, Produced, Pulled
from dflash_runner.slots import layout
from dflash_runner.worker.v1 import worker_pb2
from fake_driver import FakeDriver
from worker_host import BUCKETS, ROWS, WIDTH, Host, configuration, drain, make_inputs, memfd

FAKE = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from dflash_runner import serve
real = serve.build
def build(configuration, faults):
    from dflash_runner.arenas import Arenas
    from fake_driver import FakeDriver
    Arenas.__init__.__kwdefaults__.update(driver=FakeDriver, device="cpu")
    return real(configuration, faults)
serve.build = build
serve.leave()
"""
SLOTS = 3
SHAPE = {"slots": SLOTS, "slot_bytes": layout(BUCKETS[-1], WIDTH, "F32")[1]}
ROW = ROWS[0]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Any]:
    """Starts workers, which are ended whatever happens."""
    make_inputs(tmp_path)
    started: list[Host] = []

    def start(role: int, *, code: str = FAKE) -> Host:
        host = Host(tmp_path, code=code, environment={"CUDA_VISIBLE_DEVICES": ""})
        started.append(host)
        host.start(configuration(tmp_path, role=role))
        return host

    yield start
    for host in started:
        host.end()


def create(target: Host, *, arena: int) -> int:
    """The descriptor of an arena that the target was told to make."""
    seq = target.send(CreateArena, arena=arena, kind="cuda_vmm", **SHAPE)
    frame, fds, _, _ = socket.recv_fds(target.lane, 65_536, 4)
    assert decode_reply(frame) == Created(seq=seq, arena=arena) and len(fds) == 1
    return fds[0]


def produce(target: Host, *, row: int, arena: int, slot: int, version: int) -> Any:
    """The handle of a row."""
    plan = {"row": row, "epoch": ROW.epoch, "bucket": ROW.bucket, "pieces": list(ROW.pieces)}
    reply = target.ask(Produce, **plan, arena=arena, slot=slot, version=version)
    assert isinstance(reply, Produced), reply
    return reply.handle


def pull(drafter: Host, handle: Any, *, row: int) -> None:
    """Have a drafter copy a row."""
    plan = replace(ROW, row=row)
    reply = drafter.ask(
        Pull, row=row, epoch=plan.epoch, bucket=plan.bucket, pieces=list(plan.pieces), handle=handle
    )
    assert isinstance(reply, Pulled), reply


def test_an_arena_outlives_the_target_that_made_it(hosts: Any) -> None:
    """Made and exported by one, read by another, and after a death written by the next."""
    target, drafter = hosts(worker_pb2.ROLE_TARGET), hosts(worker_pb2.ROLE_DRAFTER)
    fd = create(target, arena=1)
    assert isinstance(drafter.ask(MapArena, fd=fd, arena=1, kind="cuda_vmm", write=False, **SHAPE), Mapped)
    first = produce(target, row=1, arena=1, slot=0, version=1)
    second = produce(target, row=2, arena=1, slot=1, version=1)
    pull(drafter, first, row=1)
    target.process.kill()
    target.wait()
    pull(drafter, second, row=2)
    successor = hosts(worker_pb2.ROLE_TARGET)
    assert isinstance(successor.ask(MapArena, fd=fd, arena=1, kind="cuda_vmm", write=True, **SHAPE), Mapped)
    again = produce(successor, row=3, arena=1, slot=0, version=2)
    stale = drafter.ask(
        Pull, row=1 + 8, epoch=ROW.epoch, bucket=ROW.bucket, pieces=list(ROW.pieces), handle=first
    )
    assert isinstance(stale, Failed) and stale.kind == "stale", stale
    assert again.crc == first.crc  # the same samples, by another process
    os.close(fd)
    assert drain(successor) == 0


def test_a_row_is_the_same_in_either_kind(hosts: Any) -> None:
    """One target, one row, two kinds of memory: the same bits."""
    target = hosts(worker_pb2.ROLE_TARGET)
    fd = create(target, arena=1)
    host = memfd("arena", SLOTS * SHAPE["slot_bytes"], seal=True)
    assert isinstance(target.ask(MapArena, fd=host, arena=2, kind="memfd", write=True, **SHAPE), Mapped)
    readers = (
        CudaArena.adopt(FakeDriver(), fd, arena=1, **SHAPE, write=False, device=torch.device("cpu")),
        Arena(host, arena=2, **SHAPE, write=False),
    )
    rows = []
    for number, reader in enumerate(readers, 1):
        handle = produce(target, row=7, arena=number, slot=1, version=1)
        assert handle.tensors == layout(ROW.bucket, WIDTH, "F32")[0]
        out = {
            "hidden": torch.empty(ROW.bucket, WIDTH),
            "tokens": torch.empty(ROW.bucket, dtype=torch.int32),
            "loss_mask": torch.empty(ROW.bucket, dtype=torch.uint8),
            "documents": torch.empty(ROW.bucket, dtype=torch.int32),
        }
        reader.read_row(handle, row=7, out=out)
        rows.append(out)
        reader.close()
    assert all(torch.equal(rows[0][name], rows[1][name]) for name in rows[0])
    assert rows[0]["hidden"].any()


def test_without_a_gpu_nothing_is_made(hosts: Any) -> None:
    """A target says so, with what to do, and goes on; to a drafter such an order breaks the rules."""
    target = hosts(worker_pb2.ROLE_TARGET, code="")
    reply = target.ask(CreateArena, arena=1, kind="cuda_vmm", **SHAPE)
    assert isinstance(reply, Failed) and reply.kind == "unavailable" and "arenas.kind" in reply.hint, reply
    host = memfd("arena", SLOTS * SHAPE["slot_bytes"], seal=True)
    assert isinstance(target.ask(MapArena, fd=host, arena=2, kind="memfd", write=True, **SHAPE), Mapped)
    os.close(host)
    assert drain(target) == 0
    drafter = hosts(worker_pb2.ROLE_DRAFTER)
    drafter.send(CreateArena, arena=1, kind="cuda_vmm", **SHAPE)
    assert drafter.wait() == LANE_EXIT_CODE
