"""A snapshot is what tensors held when it was taken, and images are made of one."""

from __future__ import annotations

import hashlib
import os
import threading
from functools import partial

import pytest
import torch
from dflash_runner import image
from dflash_runner.imaging import Imaging
from dflash_runner.orders import Image
from dflash_runner.replies import Saved, Taken
from dflash_runner.snapshot import Snapshot
from test_worker_image import made
from torch import Tensor
from worker_host import memfd

CPU = torch.device("cpu")


def bytes_of(snapshot: Snapshot, tensor: Tensor) -> bytes:
    """What the snapshot has of a tensor."""
    return b"".join(bytes(part.numpy()) for part in snapshot.of(tensor))


@pytest.mark.parametrize("counts", [[0, 1], [4], [5, 3], [1, 11, 0, 2], [33]])
def test_a_snapshot_keeps_what_it_took(counts: list[int]) -> None:
    """Across blocks, whatever the tensors become; memory is had once, and used again."""
    tensors = [
        torch.arange(100 * at, 100 * at + count, dtype=torch.float32) for at, count in enumerate(counts)
    ]
    before = [bytes(tensor.numpy()) for tensor in tensors]
    snapshot = Snapshot(CPU, block_bytes=16)
    assert snapshot.held_bytes == 0
    snapshot.take(tensors)
    for tensor in tensors:
        tensor.add_(1)
    held = snapshot.held_bytes
    assert held == 16 * -(-4 * sum(counts) // 16)
    assert [bytes_of(snapshot, tensor) for tensor in tensors] == before
    snapshot.take(reversed(tensors))
    assert [bytes_of(snapshot, tensor) for tensor in tensors] == [bytes(t.numpy()) for t in tensors]
    assert snapshot.held_bytes == held


def test_what_was_not_taken_is_not_read() -> None:
    """Another tensor, one of the take before, and a longer one at the same place."""
    one, other = torch.ones(4), torch.ones(4)
    snapshot = Snapshot(CPU)
    snapshot.take([one[:2]])
    for tensor in (other, one):
        with pytest.raises(AssertionError, match=r"want a tensor that was taken, got \[4\]"):
            list(snapshot.of(tensor))
    snapshot.take([other])
    with pytest.raises(AssertionError, match="want a tensor that was taken"):
        list(snapshot.of(one[:2]))


class Trainer:
    """As much of one as images need; its digests wait until the test lets them."""

    def __init__(self) -> None:
        """A state, which the test changes while an image is digested."""
        self.device, self.kept, self.steps = CPU, made(1), 7
        self.may = threading.Event()

    def state(self) -> image.State:
        """The tensors themselves."""
        return self.kept

    def optimizer_step(self) -> int:
        """How often it was applied."""
        return self.steps

    def parameters_digest(self, *, pieces: image.Bytes | None = None) -> bytes:
        """Of the masters, once it may."""
        assert self.may.wait(60)
        return image.tensors_digest(self.kept.masters, pieces=pieces)


@pytest.mark.parametrize("write", [True, False])
def test_the_state_may_change_once_it_is_copied(write: bool) -> None:
    """The image that is written and digested beside is of the step that was ordered, whole."""
    trainer, replies = Trainer(), []
    nbytes = image.image_bytes(trainer.kept)
    fd = memfd("image", nbytes) if write else None
    want = image.tensors_digest(trainer.kept.masters)
    imaging = Imaging(trainer, writes=True)
    order = Image(seq=3, lineage=1, communicator=1, step=7, write=write, nbytes=nbytes if write else 0)
    imaging.begin(order, fd=fd, chain=b"c" * 32, send=replies.append)
    imaging.await_copy()
    for tensor in trainer.kept.tensors().values():
        tensor.mul_(-3)
    trainer.steps = 8
    trainer.may.set()
    imaging.settle()
    taken, saved = replies
    assert (type(taken), taken.seq, taken.step) == (Taken, 3, 7)
    assert (type(saved), saved.seq, saved.step, saved.written) == (Saved, 3, 7, write)
    assert saved.parameters == want
    if fd is None:
        assert saved.image == bytes(32)
        return
    raw = os.pread(fd, nbytes, 0)
    assert saved.image == hashlib.sha256(raw).digest()
    head, masters = image.read_masters(fd, nbytes=nbytes)
    assert (head.step, head.optimizer_step, head.chain, head.parameters) == (7, 7, b"c" * 32, want)
    assert image.tensors_digest(masters) == want
    os.close(fd)


@pytest.mark.parametrize("writes", [True, False])
def test_the_memory_is_there_before_the_first_image(writes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all of the state where images are written, else of the masters; an image takes no more."""
    monkeypatch.setattr("dflash_runner.imaging.Snapshot", partial(Snapshot, block_bytes=256))
    trainer, replies = Trainer(), []
    imaging = Imaging(trainer, writes=writes)
    imaging.settle()
    held = imaging._snapshot.held_bytes  # noqa: SLF001
    of = trainer.kept.tensors() if writes else trainer.kept.masters
    need = sum(tensor.nbytes for tensor in of.values())
    assert need <= held < need + 256
    nbytes = image.image_bytes(trainer.kept) if writes else 0
    fd = memfd("image", nbytes) if writes else None
    trainer.may.set()
    order = Image(seq=1, lineage=1, communicator=1, step=7, write=writes, nbytes=nbytes)
    imaging.begin(order, fd=fd, chain=bytes(32), send=replies.append)
    imaging.settle()
    assert len(replies) == 2
    assert imaging._snapshot.held_bytes == held  # noqa: SLF001
    if fd is not None:
        os.close(fd)


def test_a_copy_is_waited_for() -> None:
    """With two ordered the state stands still until both are copied, one behind the other's writing."""
    trainer, replies = Trainer(), []
    imaging = Imaging(trainer, writes=True)
    for seq in (1, 2):
        order = Image(seq=seq, lineage=1, communicator=1, step=7, write=False, nbytes=0)
        imaging.begin(order, fd=None, chain=bytes(32), send=replies.append)
    waiting = threading.Thread(target=imaging.await_copy)
    waiting.start()
    while not replies:  # until the first is taken
        assert waiting.is_alive()
    trainer.may.set()
    waiting.join(60)
    assert not waiting.is_alive()
    imaging.settle()
    assert [type(reply) for reply in replies] == [Taken, Saved, Taken, Saved]
