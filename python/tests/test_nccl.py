"""The group over NCCL, with an imitated NCCL: its order of calls, and its end from another thread.

The last test is the real one, on two GPUs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.nccl import NcclCommunicator
from worker_host import PYTHON

CPU = torch.device("cpu")
DEADLINE_S = 120.0


@pytest.fixture(autouse=True)
def no_mappings(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the supervisor sets it."""
    monkeypatch.setenv("NCCL_CUMEM_ENABLE", "0")


class FakeGroup:
    """A group whose sums double the values, and wait for an abort where they are told to hang."""

    def __init__(self, *, fails: str = "") -> None:
        self.calls: list[str] = []
        self.waits = 0
        self.hang = False
        self.waiting, self.ended = threading.Event(), threading.Event()
        self._fails = fails

    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> FakeGroup:  # noqa: ARG002
        self.calls.append(f"sum of {tensors[0].numel()}")
        tensors[0].mul_(2)
        return self

    def wait(self) -> None:
        self.waits += 1
        if self._fails and len(self.calls) > 1:
            raise RuntimeError(self._fails)
        if self.hang:
            self.waiting.set()
            assert self.ended.wait(DEADLINE_S)

    def abort(self) -> None:
        self.calls.append("abort")
        self.ended.set()


def joined(directory: Path, group: FakeGroup, *, world: int = 2) -> NcclCommunicator:
    """Rank 0 of a group whose other ranks have arrived."""
    made = NcclCommunicator(str(directory), number=1, world=world, rank=0, device=CPU, make=lambda *_: group)
    others = threading.Thread(target=arrive, args=(directory, world))
    others.start()
    made.open()
    others.join()
    return made


def arrive(directory: Path, world: int) -> None:
    """The other ranks' arrival, as `open` says it."""
    store = torch.distributed.FileStore(str(directory / "1"), world)
    for rank in range(1, world):
        store.set(f"arrived/{rank}", b"1")


def test_it_connects_when_all_have_arrived_and_sums(tmp_path: Path) -> None:
    """The first sum, which is when NCCL connects, is part of joining."""
    group = FakeGroup()
    made = joined(tmp_path, group)
    assert group.calls == ["sum of 1"]
    values = torch.tensor([1.0, 2.0, 3.0])
    made.sum(values)
    assert values.tolist() == [2.0, 4.0, 6.0]
    made.close()
    assert group.calls == ["sum of 1", "sum of 3", "abort"]
    made.close()
    assert group.calls[2:] == ["abort"]  # once
    with pytest.raises(WorkerError, match="sum over peers of communicator 1: it was aborted"):
        made.sum(values)


def test_an_abort_ends_a_sum_that_waits_and_its_values_are_not_taken(tmp_path: Path) -> None:
    group = FakeGroup()
    made = joined(tmp_path, group)
    group.hang = True

    def abort() -> None:
        assert group.waiting.wait(DEADLINE_S)
        made.abort()

    aborter = threading.Thread(target=abort)
    aborter.start()
    with pytest.raises(WorkerError, match="it was aborted") as lost:
        made.sum(torch.ones(3))
    aborter.join()
    assert lost.value.kind is Kind.UNAVAILABLE


def test_an_abort_while_others_are_waited_for(tmp_path: Path) -> None:
    """No group was made yet."""
    made = NcclCommunicator(str(tmp_path), number=1, world=2, rank=0, device=CPU, make=lambda *_: FakeGroup())
    threading.Timer(0.0, made.abort).start()
    with pytest.raises(WorkerError, match="wait for peers of communicator 1: it was aborted"):
        made.open()


def test_an_abort_while_the_group_is_made_ends_it(tmp_path: Path) -> None:
    group, held = FakeGroup(), []

    def make(*_: Any) -> FakeGroup:
        held[0].abort()
        return group

    held.append(NcclCommunicator(str(tmp_path), number=1, world=2, rank=0, device=CPU, make=make))
    others = threading.Thread(target=arrive, args=(tmp_path, 2))
    others.start()
    with pytest.raises(WorkerError, match="connect to peers of communicator 1: it was aborted"):
        held[0].open()
    others.join()
    assert group.calls == ["abort"]


def test_a_peer_that_is_gone_is_told(tmp_path: Path) -> None:
    made = joined(tmp_path, FakeGroup(fails="NCCL error: remote process exited"))
    with pytest.raises(WorkerError, match=r"a peer is gone \(NCCL error: remote process exited\)") as lost:
        made.sum(torch.ones(3))
    assert lost.value.kind is Kind.UNAVAILABLE


def test_sums_that_were_begun_are_all_waited_for(tmp_path: Path) -> None:
    """Begun one after the other, waited for at the end; each is a sum of its own."""
    group = FakeGroup()
    made = joined(tmp_path, group)
    parts = torch.arange(6.0).split([1, 2, 3])
    for part in parts:
        made.begin(part)
    assert group.calls[1:] == ["sum of 1", "sum of 2", "sum of 3"] and group.waits == 1
    made.finish()
    assert group.waits == 4
    assert torch.cat(parts).tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    made.finish()  # nothing is left to wait for
    assert group.waits == 4


def test_an_abort_between_two_sums_ends_both(tmp_path: Path) -> None:
    """The one that was begun is no sum, and the next is not begun."""
    group = FakeGroup()
    made = joined(tmp_path, group)
    made.begin(torch.ones(2))
    made.abort()
    for lost in (lambda: made.begin(torch.ones(3)), made.finish):
        with pytest.raises(WorkerError, match="sum over peers of communicator 1: it was aborted") as told:
            lost()
        assert told.value.kind is Kind.UNAVAILABLE
    assert group.calls == ["sum of 1", "sum of 2", "abort"]
    made.close()
    assert group.calls[3:] == []


@pytest.mark.parametrize("value", [None, "1", ""])
def test_nccls_own_mappings_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.delenv("NCCL_CUMEM_ENABLE")
    if value is not None:
        monkeypatch.setenv("NCCL_CUMEM_ENABLE", value)
    with pytest.raises(WorkerError, match="NCCL_CUMEM_ENABLE: want 0") as refused:
        NcclCommunicator(str(tmp_path), number=1, world=2, rank=0, device=CPU)
    assert refused.value.kind is Kind.INVALID
    alone = NcclCommunicator("", number=1, world=1, rank=0, device=CPU)  # nothing of NCCL is made
    values = torch.ones(2)
    alone.open()
    alone.sum(values)
    assert values.tolist() == [1.0, 1.0]


RANK = """
import json, os, sys, threading, torch
from dflash_runner import devices
from dflash_runner.errors import WorkerError
from dflash_runner.nccl import NcclCommunicator
directory, rank = sys.argv[1], int(sys.argv[2])
device = torch.device("cuda:0")
devices.prepare(device)
current = []
def listen():
    orders = iter(sys.stdin.readline, "")
    for line in orders:
        word, _, number = line.strip().partition(" ")
        if word == "abort": current[-1].abort()
        else: queue.put((word, number))
import queue as queues
queue = queues.SimpleQueue()
threading.Thread(target=listen, daemon=True).start()
def say(**told): print(json.dumps(told), flush=True)
say(ready=True)
values = torch.arange(1 << 24, device=device, dtype=torch.float32)
while True:
    word, number = queue.get()
    try:
        if word == "join":
            current.append(NcclCommunicator(directory, number=int(number), world=2, rank=rank, device=device))
            current[-1].open()
            say(joined=True)
        elif word == "sum":
            mine = values * (rank + 1)
            current[-1].sum(mine)
            say(exact=bool((mine == values * 3).all()))
        elif word == "close":
            current[-1].close()
            kept = torch.arange(1 << 24, device=device)
            say(clean=devices.computes(device) and bool((values == kept).all()))
    except WorkerError as err:
        say(refused=err.message, kind=err.kind.label)
"""


class Rank:
    """One process with one GPU."""

    def __init__(self, directory: Path, rank: int, *, gpu: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", RANK, str(directory), str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ
            | {
                "CUDA_VISIBLE_DEVICES": gpu,
                "PYTHONPATH": os.pathsep.join([str(PYTHON), os.environ.get("PYTHONPATH", "")]),
                "NCCL_CUMEM_ENABLE": "0",
                "NCCL_NVLS_ENABLE": "0",
                "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
                "TORCH_NCCL_ENABLE_MONITORING": "0",
                "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
            },
        )

    def tell(self, order: str) -> None:
        """Give an order."""
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """The next answer."""
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        """Kill it, which changes nothing where it is dead."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(DEADLINE_S)
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_death_in_a_sum_leaves_the_survivor_clean_and_a_new_group_sums(tmp_path: Path) -> None:
    """One rank is killed while the other waits for it in a kernel; the other joins a replacement."""
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")[:2]
    ranks = [Rank(tmp_path, rank, gpu=gpu) for rank, gpu in enumerate(gpus)]
    try:
        assert all(rank.hear() == {"ready": True} for rank in ranks)
        for number in (1, 2):
            for order, answer in ((f"join {number}", {"joined": True}), ("sum", {"exact": True})):
                for rank in ranks:
                    rank.tell(order)
                assert [rank.hear() for rank in ranks] == [answer, answer]
            ranks[0].tell("sum")  # alone: the other never comes
            ranks[1].end()
            ranks[0].tell("abort")
            told = ranks[0].hear()
            assert told["kind"] == "unavailable" and "it was aborted" in told["refused"]
            ranks[0].tell("close")
            assert ranks[0].hear() == {"clean": True}
            ranks[1] = Rank(tmp_path, 1, gpu=gpus[1])
            assert ranks[1].hear() == {"ready": True}
    finally:
        for rank in ranks:
            rank.end()
