"""Images: what is written is read, by us and by the public loader, and nothing else is."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterator

import pytest
import torch
from dflash_runner import image
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.image import Head, State
from safetensors.torch import load

SHAPES = {"fc.weight": (3, 5), "norm.weight": (5,), "layers.0.q.weight": (2, 4)}


def made(seed: int) -> State:
    """A state of random tensors."""
    generator = torch.Generator().manual_seed(seed)

    def part() -> dict[str, torch.Tensor]:
        return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}

    return State(masters=part(), exp_avg=part(), exp_avg_sq=part())


def head_for(state: State, *, step: int = 7) -> Head:
    """The head that belongs to `state`."""
    parameters = image.tensors_digest(state.masters)
    return Head(step=step, optimizer_step=step, chain=b"\x05" * 32, parameters=parameters)


@pytest.fixture
def fd() -> Iterator[int]:
    """An image of `made(1)` at step 7."""
    state = made(1)
    fd = os.memfd_create("image")
    nbytes = image.image_bytes(state)
    os.ftruncate(fd, nbytes)
    image.write(fd, nbytes=nbytes, state=state, head=head_for(state))
    yield fd
    os.close(fd)


def size(fd: int) -> int:
    """Bytes of the file."""
    return os.fstat(fd).st_size


def test_reads_what_was_written(fd: int) -> None:
    """Every tensor and the head come back; the reader's own tensors are written into."""
    state = made(2)
    kept = state.masters["fc.weight"]
    head = image.read(fd, nbytes=size(fd), state=state, step=7)
    want = made(1)
    assert head == head_for(want)
    for name, tensor in want.tensors().items():
        assert torch.equal(state.tensors()[name], tensor), name
    assert kept is state.masters["fc.weight"]
    again, masters = image.read_masters(fd, nbytes=size(fd))
    assert again == head
    assert all(torch.equal(masters[name], tensor) for name, tensor in want.masters.items())


def test_is_a_safetensors_file(fd: int) -> None:
    """The public loader agrees, and the digest is that of the file."""
    raw = os.pread(fd, size(fd), 0)
    want = made(1).tensors()
    got = load(raw)
    assert got.keys() == want.keys()
    assert all(torch.equal(got[name], want[name]) for name in want)
    state = made(1)
    digest = image.write(fd, nbytes=size(fd), state=state, head=head_for(state, step=8))
    assert digest == hashlib.sha256(os.pread(fd, size(fd), 0)).digest() != hashlib.sha256(raw).digest()


def test_size_does_not_depend_on_the_step() -> None:
    """The supervisor makes every memfd from one number."""
    state = made(1)
    nbytes = image.image_bytes(state)
    fd = os.memfd_create("image")
    os.ftruncate(fd, nbytes)
    image.write(fd, nbytes=nbytes, state=state, head=head_for(state, step=2**63))
    assert image.read(fd, nbytes=nbytes, state=state, step=2**63).step == 2**63
    os.close(fd)


def test_refuses_what_is_not_the_image(fd: int) -> None:
    """Another step, size, drafter, format or byte: refused with its reason, the state untouched."""
    raw = os.pread(fd, size(fd), 0)
    (length,) = struct.unpack_from("<Q", raw)

    def with_metadata(**changes: str) -> bytes:
        entries = json.loads(raw[8 : 8 + length])
        entries["__metadata__"] |= changes
        text = json.dumps(entries, separators=(",", ":")).encode()
        return raw[:8] + text.ljust(length) + raw[8 + length :]

    flipped = bytearray(raw)
    flipped[8 + length] ^= 1
    cases = {
        "step: want 6": (raw, 6),
        "digest": (bytes(flipped), 7),
        "format": (with_metadata(format="dflash-runner-image/2"), 7),
        "want digests": (with_metadata(chain="05"), 7),
        "metadata__": (with_metadata(more="x"), 7),
        "names, shapes": (raw.replace(b'"masters.norm.weight"', b'"masters.norM.weight"'), 7),
        "header": (raw[:8] + b"[" + raw[9:], 7),
    }
    for words, (content, step) in cases.items():
        os.pwrite(fd, content, 0)
        state = made(2)
        with pytest.raises(WorkerError, match=words) as refused:
            image.read(fd, nbytes=size(fd), state=state, step=step)
        assert refused.value.kind is Kind.INVALID
        assert all(torch.equal(t, made(2).tensors()[n]) for n, t in state.tensors().items()), words
    os.pwrite(fd, raw, 0)
    with pytest.raises(WorkerError, match="size"):
        image.read(fd, nbytes=size(fd) - 1, state=made(2), step=7)
    os.ftruncate(fd, size(fd) + 1)
    with pytest.raises(WorkerError, match="size"):
        image.read(fd, nbytes=size(fd), state=made(2), step=7)


@pytest.mark.parametrize("change", ["name", "dtype", "shape", "value", "more"])
def test_digest_sees_every_change(change: str) -> None:
    """Names, dtypes, shapes and bits all count; the order in which they are given does not."""
    plain = {"a": torch.arange(6.0).view(2, 3), "b": torch.zeros(2)}
    changed = {
        "name": {"c": plain["a"], "b": plain["b"]},
        "dtype": {"a": plain["a"].view(torch.int32), "b": plain["b"]},
        "shape": {"a": plain["a"].view(3, 2), "b": plain["b"]},
        "value": {"a": plain["a"], "b": torch.tensor([0.0, -0.0])},
        "more": {**plain, "c": torch.zeros(0)},
    }[change]
    assert image.tensors_digest(dict(reversed(plain.items()))) == image.tensors_digest(plain)
    assert image.tensors_digest(changed) != image.tensors_digest(plain)
