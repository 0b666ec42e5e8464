"""Rows and state that pass through memory of the host; without a GPU the same copies happen at once."""

from __future__ import annotations

import hashlib
import os

import pytest
import torch
from dflash_runner import image
from dflash_runner.arena import Arena, layout
from dflash_runner.errors import WorkerError
from dflash_runner.staging import Pieces, StagedRows, Staging
from test_worker_image import head_for, made
from torch import Tensor
from worker_host import memfd

CPU = torch.device("cpu")
BUCKET, WIDTH = 24, 10
TENSORS, SLOT_BYTES = layout(BUCKET, WIDTH, "F32")


class Always(Staging):
    """Staging that copies even what is on the host, as a device's tensors are."""

    def moves(self, tensor: Tensor) -> bool:  # noqa: ARG002
        """Everything."""
        return True


def row(seed: int) -> dict[str, Tensor]:
    """A row's tensors."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "hidden": torch.randn(BUCKET, WIDTH, generator=generator),
        "tokens": torch.randint(100, (BUCKET,), generator=generator, dtype=torch.int32),
        "loss_mask": torch.randint(2, (BUCKET,), generator=generator, dtype=torch.uint8),
        "documents": torch.zeros(BUCKET, dtype=torch.int32),
    }


def empty() -> dict[str, Tensor]:
    """Where a row is read to."""
    return {name: torch.zeros_like(tensor) for name, tensor in row(0).items()}


@pytest.fixture(params=[Staging, Always])
def rows(request: pytest.FixtureRequest):
    """A writer and a reader of one arena of two slots, each behind its own staging."""
    fd = memfd("arena", 2 * SLOT_BYTES, seal=True)
    arenas = [
        Arena(os.dup(fd), arena=1, slots=2, slot_bytes=SLOT_BYTES, write=write) for write in (True, False)
    ]
    yield [StagedRows(arena, staging=request.param(SLOT_BYTES, device=CPU)) for arena in arenas]
    for arena in arenas:
        arena.close()
    os.close(fd)


def test_a_row_travels_to_the_same_bytes(rows) -> None:
    """The slot, its handle and what is read are as without staging; one row does not disturb the next."""
    writer, reader = rows
    handles = [writer.write_row(slot, version=5, row=slot + 1, tensors=row(slot)) for slot in (0, 1)]
    assert handles[0].tensors == TENSORS
    for slot in (1, 0, 1):
        out = empty()
        reader.read_row(handles[slot], row=slot + 1, out=out)
        for name, want in row(slot).items():
            assert torch.equal(out[name], want), name


def test_layers_side_by_side_stay_in_their_order(rows) -> None:
    """Several tensors under one name, as the arena takes them."""
    writer, reader = rows
    whole = row(3)
    parts = dict(whole, hidden=[part.contiguous() for part in whole["hidden"].split((4, 6), dim=1)])
    handle = writer.write_row(0, version=1, row=1, tensors=parts)
    assert handle == rows[0].write_row(0, version=1, row=1, tensors=whole)
    out = empty()
    reader.read_row(handle, row=1, out=out)
    assert torch.equal(out["hidden"], whole["hidden"])


def test_a_refused_row_leaves_the_device_as_it_was(rows) -> None:
    """A stale handle: nothing is copied on."""
    writer, reader = rows
    old = writer.write_row(0, version=1, row=1, tensors=row(0))
    writer.write_row(0, version=2, row=2, tensors=row(1))
    out = empty()
    with pytest.raises(WorkerError, match="want version 1 of row 1, got version 2 of row 2"):
        reader.read_row(old, row=1, out=out)
    assert not any(tensor.any() for tensor in out.values())


def test_pinned_tensors_have_shape_and_dtype_and_do_not_overlap() -> None:
    """Each starts at a multiple of 64 bytes; what does not fit is a bug that is told."""
    staging = Staging(SLOT_BYTES, device=CPU)
    wanted = list(row(0).values())
    with staging.like(wanted) as hosts:
        staging.fetch(wanted, into=hosts, after_caller=True)
        for host, want in zip(hosts, wanted, strict=True):
            assert torch.equal(host, want)
        assert not any((host.data_ptr() - hosts[0].data_ptr()) % 64 for host in hosts)
        back = [torch.zeros_like(tensor) for tensor in wanted]
        staging.deliver(hosts, into=back)
        assert all(torch.equal(one, other) for one, other in zip(back, wanted, strict=True))
    with pytest.raises(AssertionError, match="want at most 64 bytes"), Staging(64, device=CPU).like(wanted):
        pass


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 48, 50])
def test_pieces_are_the_bytes_in_order(count: int) -> None:
    """Whatever the length is; a piece is overwritten only when the one after the next is asked for."""
    data = torch.arange(count, dtype=torch.uint8)
    pieces = Pieces(CPU, nbytes=16)
    got = [bytes(piece.numpy()) for piece in pieces.staged(data)]
    assert b"".join(got) == bytes(range(count))
    assert [len(piece) for piece in got[:-1]] == [16] * max(0, len(got) - 1)


class AlwaysStaged(Pieces):
    """Pieces that copy even where they need not, as on a device."""

    def of(self, tensor: Tensor):
        """Through the two halves."""
        yield from self.staged(tensor.detach().contiguous().reshape(-1).view(torch.uint8))


def test_an_image_in_pieces_is_the_same_file() -> None:
    """Its bytes, its digest and the parameters' digest are those of an image copied whole."""
    state = made(1)
    head, nbytes = head_for(state), image.image_bytes(state)
    files = [memfd("image", nbytes) for _ in range(2)]
    digests = [
        image.write(fd, nbytes=nbytes, state=state, head=head, pieces=pieces)
        for fd, pieces in zip(files, (None, AlwaysStaged(CPU, nbytes=16)), strict=True)
    ]
    raw = [os.pread(fd, nbytes, 0) for fd in files]
    assert raw[0] == raw[1]
    assert digests[0] == digests[1] == hashlib.sha256(raw[0]).digest()
    small = AlwaysStaged(CPU, nbytes=16)
    assert image.tensors_digest(state.masters, pieces=small) == image.tensors_digest(state.masters)
    for fd in files:
        os.close(fd)
