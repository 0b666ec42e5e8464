"""Slots in shared memory: what is written is read, and nothing else ever is."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from dflash_runner.arena import MAGIC, Arena, layout
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.frames import ELEMENT_BYTES, Handle

PACKAGES = Path(__file__).parents[1]
GOLDEN = PACKAGES.parent / "proto" / "golden"
BUCKET, WIDTH, SLOTS = 96, 40, 3
SLOT_BYTES = layout(BUCKET, WIDTH, "F32")[1]
F_ADD_SEALS, SEALS = 1033, 0x1 | 0x2 | 0x4


def memfd(size: int = SLOTS * SLOT_BYTES, *, seals: int = SEALS) -> int:
    """A memfd as the supervisor makes it."""
    fd = os.memfd_create("arena test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, F_ADD_SEALS, seals)
    return fd


def mapped(fd: int, *, write: bool) -> Arena:
    """The memfd mapped as arena 1."""
    return Arena(os.dup(fd), arena=1, slots=SLOTS, slot_bytes=SLOT_BYTES, write=write)


@pytest.fixture
def fd() -> Iterator[int]:
    """An arena's memfd, as the supervisor holds it."""
    fd = memfd()
    yield fd
    os.close(fd)


@pytest.fixture
def writer(fd: int) -> Iterator[Arena]:
    """The arena, mapped for writing."""
    arena = mapped(fd, write=True)
    yield arena
    arena.close()


@pytest.fixture
def reader(fd: int) -> Iterator[Arena]:
    """The arena, mapped through a read-only twin of the descriptor."""
    twin = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    arena = mapped(twin, write=False)
    os.close(twin)
    yield arena
    arena.close()


def row_tensors(seed: int) -> dict[str, torch.Tensor]:
    """A row's tensors with random contents."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "hidden": torch.randn(BUCKET, WIDTH, generator=generator),
        "tokens": torch.randint(0, 1000, (BUCKET,), generator=generator, dtype=torch.int32),
        "loss_mask": torch.randint(0, 2, (BUCKET,), generator=generator, dtype=torch.uint8),
        "documents": torch.randint(-1, 4, (BUCKET,), generator=generator, dtype=torch.int32),
    }


def empty_row() -> dict[str, torch.Tensor]:
    """Buffers that a row fits into."""
    return {name: torch.full_like(tensor, 7) for name, tensor in row_tensors(0).items()}


def read(arena: Arena, handle: Handle, *, row: int) -> dict[str, torch.Tensor]:
    """The row in fresh buffers."""
    out = empty_row()
    arena.read_row(handle, row=row, out=out)
    return out


def refusal(arena: Arena, handle: Handle, *, row: int = 5) -> Kind:
    """The kind with which a read is refused."""
    with pytest.raises(WorkerError) as caught:
        read(arena, handle, row=row)
    return caught.value.kind


def test_row_is_read_as_written(writer: Arena, reader: Arena) -> None:
    """Every slot holds its own row, bit for bit."""
    handles = [writer.write_row(i, version=9 + i, row=5 + i, tensors=row_tensors(i)) for i in range(SLOTS)]
    for i, handle in enumerate(handles):
        assert handle.tensors == layout(BUCKET, WIDTH, "F32")[0]
        for name, tensor in read(reader, handle, row=5 + i).items():
            assert torch.equal(tensor, row_tensors(i)[name]), name


def test_parts_lie_side_by_side(writer: Arena, reader: Arena) -> None:
    """Captured layers need no concatenation before the copy."""
    tensors = row_tensors(3)
    split = dict(tensors) | {"hidden": list(tensors["hidden"].split([8, 12, 20], dim=1))}
    handle = writer.write_row(0, version=1, row=5, tensors=split)
    assert torch.equal(read(reader, handle, row=5)["hidden"], tensors["hidden"])
    assert handle == writer.write_row(0, version=1, row=5, tensors=tensors)


def test_bfloat16_and_bool_survive(writer: Arena, reader: Arena) -> None:
    """Dtypes without a numpy equal are copied by their bits."""
    tensors = {"hidden": torch.randn(BUCKET, 4).to(torch.bfloat16), "flags": torch.arange(BUCKET) % 3 == 0}
    handle = writer.write_row(1, version=1, row=5, tensors=tensors)
    out = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    reader.read_row(handle, row=5, out=out)
    assert all(torch.equal(out[name].view(torch.uint8), tensors[name].view(torch.uint8)) for name in tensors)


def test_older_version_is_stale(writer: Arena, reader: Arena) -> None:
    """A handle of an earlier use of the slot is refused, though the bytes are whole (I4)."""
    old = writer.write_row(0, version=1, row=5, tensors=row_tensors(1))
    new = writer.write_row(0, version=2, row=6, tensors=row_tensors(2))
    assert refusal(reader, old) is Kind.STALE
    assert refusal(reader, new, row=5) is Kind.STALE  # the version fits, the row does not
    read(reader, new, row=6)


def test_slot_never_written_is_stale(writer: Arena, reader: Arena) -> None:
    """Zeros are no row."""
    handle = writer.write_row(0, version=1, row=5, tensors=row_tensors(1))
    other = Handle(1, 2, handle.version, handle.crc, handle.tensors)
    assert refusal(reader, other) is Kind.STALE


@pytest.mark.parametrize("name", ["hidden", "tokens", "loss_mask", "documents"])
def test_flipped_bit_is_noticed(fd: int, writer: Arena, reader: Arena, name: str) -> None:
    """One changed bit anywhere in a tensor fails the checksum."""
    handle = writer.write_row(1, version=1, row=5, tensors=row_tensors(1))
    tensor = next(t for t in handle.tensors if t.name == name)
    at = SLOT_BYTES + tensor.offset + tensor.nbytes - 1
    os.pwrite(fd, bytes([os.pread(fd, 1, at)[0] ^ 1]), at)
    assert refusal(reader, handle) is Kind.INTERNAL


def test_change_during_the_copy_is_stale(
    fd: int, writer: Arena, reader: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot that gets a new version while it is copied is refused by the second look."""
    handle = writer.write_row(0, version=1, row=5, tensors=row_tensors(1))
    look, looks = reader.header, []

    def header_then_overwrite(slot: int):
        looks.append(look(slot))
        if len(looks) == 1:
            os.pwrite(fd, (2).to_bytes(8, "little"), 8)  # only the version: the bytes stay whole
        return looks[-1]

    monkeypatch.setattr(reader, "header", header_then_overwrite)
    assert refusal(reader, handle) is Kind.STALE
    assert len(looks) == 2


WRITER = """
import os, sys, torch
from dflash_runner.arena import Arena
fd, slots, slot_bytes, bucket, width = map(int, sys.argv[1:])
arena = Arena(fd, arena=1, slots=slots, slot_bytes=slot_bytes, write=True)
row = {"hidden": torch.ones(bucket, width), "tokens": torch.ones(bucket, dtype=torch.int32)}
handle = arena.write_row(0, version=1, row=5, tensors=row)
print(handle.crc, flush=True)
version = 1
while True:
    version += 1
    row["hidden"].fill_(version)
    arena.write_row(0, version=version, row=5 + version, tensors=row)
    if version == 3:
        print("overwriting", flush=True)
"""


@contextlib.contextmanager
def running(
    code: str, fd: int, *, bucket: int, slots: int, slot_bytes: int
) -> Iterator[subprocess.Popen[str]]:
    """A process that runs `code` over the arena in `fd`; killed at the end, whatever happens."""
    arguments = [str(n) for n in (fd, slots, slot_bytes, bucket, WIDTH)]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        pass_fds=[fd],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(PACKAGES)},
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_killed_writer_leaves_nothing_that_reads() -> None:
    """SIGKILL in the middle of a copy: no handle opens what is there, whole or torn.

    The first row's handle is used, whose bytes were being overwritten.
    """
    bucket = 100_000  # 16 MB: the copy takes much longer than a signal
    slot_bytes = layout(bucket, WIDTH, "F32")[1]
    fd = memfd(slot_bytes)
    arena = Arena(os.dup(fd), arena=1, slots=1, slot_bytes=slot_bytes, write=False)
    out = {"hidden": torch.zeros(bucket, WIDTH), "tokens": torch.zeros(bucket, dtype=torch.int32)}
    for _ in range(3):  # a kill may come after the copy on a loaded machine
        with running(WRITER, fd, bucket=bucket, slots=1, slot_bytes=slot_bytes) as process:
            assert process.stdout is not None
            crc = int(process.stdout.readline())
            assert process.stdout.readline() == "overwriting\n"
            deadline = time.monotonic() + 30
            while version_of(arena) != 0:
                assert time.monotonic() < deadline, "the writer never marked its slot"
        left = version_of(arena)
        assert left != 1
        with pytest.raises(WorkerError) as caught:
            arena.read_row(Handle(1, 0, 1, crc, layout_of(bucket)), row=5, out=out)
        assert caught.value.kind is Kind.STALE
        if left == 0:
            break
    assert left == 0, "no kill fell into a copy: the test looked at whole rows alone"
    arena.close()
    os.close(fd)


def version_of(arena: Arena) -> int:
    """The version in slot 0's header."""
    header = arena.header(0)
    assert header is not None
    return header.version


def layout_of(bucket: int) -> list:
    """Where the writer process above lays its two tensors."""
    from dflash_runner.arena import place

    return place([("hidden", "F32", [bucket, WIDTH]), ("tokens", "I32", [bucket])])


def test_row_outlives_its_producer(fd: int, reader: Arena) -> None:
    """A complete row is read after its writer was killed (full slots survive)."""
    once = WRITER.split("version = 1\n")[0] + "import time; time.sleep(600)"
    with running(once, fd, bucket=BUCKET, slots=SLOTS, slot_bytes=SLOT_BYTES) as process:
        assert process.stdout is not None
        crc = int(process.stdout.readline())
    out = {"hidden": torch.zeros(BUCKET, WIDTH), "tokens": torch.zeros(BUCKET, dtype=torch.int32)}
    reader.read_row(Handle(1, 0, 1, crc, layout_of(BUCKET)), row=5, out=out)
    assert torch.equal(out["hidden"], torch.ones(BUCKET, WIDTH))


def test_reader_cannot_write(reader: Arena) -> None:
    """The reader's mapping is read-only, in Python and in the kernel."""
    with pytest.raises(WorkerError, match="for reading"):
        reader.write_row(0, version=1, row=5, tensors=row_tensors(0))
    code = (
        "import os, sys; from dflash_runner.arena import Arena; from dflash_runner.frames import Tensor\n"
        "fd = os.memfd_create('x', os.MFD_ALLOW_SEALING); os.ftruncate(fd, 4096)\n"
        "import fcntl; fcntl.fcntl(fd, 1033, 7)\n"
        "arena = Arena(fd, arena=1, slots=1, slot_bytes=4096, write=False)\n"
        "arena._view(0, Tensor('hidden', 'F32', [4], 64, 16)).fill_(1.0)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(PACKAGES)}
    ended = subprocess.run([sys.executable, "-c", code], check=False, env=environment)
    assert ended.returncode == -signal.SIGSEGV


@pytest.mark.parametrize(
    ("size", "seals", "message"),
    [
        (SLOTS * SLOT_BYTES - 4096, SEALS, "bytes"),
        (SLOTS * SLOT_BYTES, 0x2, "sealed"),  # could grow
        (SLOTS * SLOT_BYTES, 0x4, "sealed"),  # could shrink: SIGBUS for every reader
    ],
)
def test_descriptor_is_checked(size: int, seals: int, message: str) -> None:
    """A memfd that is not as the order says is refused, and closed."""
    fd = memfd(size, seals=seals)
    with pytest.raises(WorkerError, match=message) as caught:
        Arena(fd, arena=1, slots=SLOTS, slot_bytes=SLOT_BYTES, write=True)
    assert caught.value.kind is Kind.INVALID
    with pytest.raises(OSError):
        os.fstat(fd)


def test_handle_must_fit(writer: Arena, reader: Arena) -> None:
    """A handle of another arena, slot, size or shape is refused before anything is copied."""
    good = writer.write_row(0, version=1, row=5, tensors=row_tensors(1))
    large = layout(BUCKET * 2, WIDTH, "F32")[0]
    for handle in (
        Handle(2, 0, 1, good.crc, good.tensors),
        Handle(1, SLOTS, 1, good.crc, good.tensors),
        Handle(1, 0, 1, good.crc, large),
        Handle(1, 0, 1, good.crc, good.tensors[:3]),
        Handle(1, 0, 1, good.crc, layout(BUCKET // 2, WIDTH, "F32")[0]),
    ):
        with pytest.raises(WorkerError):
            read(reader, handle, row=5)
    with pytest.raises(WorkerError, match="slot below"):
        writer.write_row(SLOTS, version=1, row=5, tensors=row_tensors(1))
    with pytest.raises(WorkerError, match="bytes a slot"):
        writer.write_row(0, version=2, row=5, tensors={"hidden": torch.zeros(BUCKET * 2, WIDTH)})
    read(reader, good, row=5)  # refused writes changed nothing


def test_header_bytes(fd: int, writer: Arena) -> None:
    """The header is laid out as proto/lane.md says."""
    handle = writer.write_row(1, version=0x0102, row=0x0304, tensors=row_tensors(1))
    header = os.pread(fd, 64, SLOT_BYTES)
    end = handle.tensors[-1].offset + handle.tensors[-1].nbytes
    want = MAGIC + b"".join(n.to_bytes(8, "little") for n in (0x0102, 0x0304, end - 64))
    assert header == (want + handle.crc.to_bytes(4, "little")).ljust(64, b"\0")


def test_layout_equals_go() -> None:
    """Go plans memory by the same layout that Python writes."""
    cases = json.loads((GOLDEN / "layouts.json").read_text())
    assert len(cases) >= 5
    for case in cases:
        tensors, slot_bytes = layout(case["bucket"], case["width"], case["dtype"])
        got = [[t.name, t.dtype, t.shape, t.offset, t.nbytes] for t in tensors]
        assert (got, slot_bytes) == (case["tensors"], case["slot_bytes"])
        assert all(t.dtype in ELEMENT_BYTES for t in tensors)
