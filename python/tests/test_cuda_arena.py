"""Arenas of kind `cuda_vmm` without a GPU: the code that runs on one, over a driver made of memfds."""

from __future__ import annotations

import ctypes
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch
from arena_scenes import SCENES, Stage, staged
from dflash_runner import cuda_arena, device_checksum
from dflash_runner.arenas import Arenas
from dflash_runner.cuda_arena import CudaArena
from dflash_runner.device_checksum import BLOCK_BYTES, DeviceChecksum, blocks_of, weights
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.frames import Handle
from dflash_runner.orders import CreateArena, MapArena
from dflash_runner.slots import MAGIC, Header, layout
from fake_driver import FakeDriver
from hypothesis import given, settings
from hypothesis import strategies as st

CPU = torch.device("cpu")
BUCKET, WIDTH, SLOTS = 97, 40, 3  # a length of which no tensor fills whole blocks
SLOT_BYTES = layout(BUCKET, WIDTH, "F32")[1]
SHAPE = {"arena": 1, "slots": SLOTS, "slot_bytes": SLOT_BYTES}


def row_tensors(seed: int) -> dict[str, torch.Tensor]:
    """A row's tensors with random contents."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "hidden": torch.randn(BUCKET, WIDTH, generator=generator),
        "tokens": torch.randint(0, 1000, (BUCKET,), generator=generator, dtype=torch.int32),
        "loss_mask": torch.randint(0, 2, (BUCKET,), generator=generator, dtype=torch.uint8),
        "documents": torch.randint(-1, 4, (BUCKET,), generator=generator, dtype=torch.int32),
    }


def read(arena: CudaArena, handle: Handle, *, row: int) -> dict[str, torch.Tensor]:
    """The row in fresh buffers."""
    out = {name: torch.full_like(tensor, 7) for name, tensor in row_tensors(0).items()}
    arena.read_row(handle, row=row, out=out)
    return out


def refusal(arena: CudaArena, handle: Handle, *, row: int = 5) -> Kind:
    """The kind with which a read is refused."""
    with pytest.raises(WorkerError) as caught:
        read(arena, handle, row=row)
    return caught.value.kind


class Pair:
    """A target's and a drafter's end of one arena, each with a driver of its own."""

    def __init__(self) -> None:
        """Create, export and adopt."""
        self.drivers = FakeDriver(), FakeDriver()
        self.writer, fd = CudaArena.create(self.drivers[0], **SHAPE, device=CPU)
        self.reader = CudaArena.adopt(self.drivers[1], fd, **SHAPE, write=False, device=CPU)

    def flip(self, at: int, mask: int) -> None:
        """Damage a byte of slot 0."""
        memory = self.writer._memory.address  # noqa: SLF001 as a stray writer would
        byte = ctypes.c_ubyte.from_address(memory + at)
        byte.value ^= mask

    def close(self) -> None:
        """Close both ends; the drivers hold nothing afterwards."""
        self.reader.close()
        self.writer.close()
        assert self.drivers[0].leftovers() == self.drivers[1].leftovers() == []


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Both ends."""
    pair = Pair()
    yield pair
    pair.close()


@pytest.mark.parametrize("scene", SCENES)
def test_scene(scene: Callable[[Stage], None]) -> None:
    """What `test_arena_gpu` tries on a GPU, with processes of their own."""
    with staged("cpu", tokens=300, width=640) as stage:
        scene(stage)


def test_row_is_read_as_written(pair: Pair) -> None:
    """Every slot holds its own row, bit for bit, where `layout` says."""
    handles = [
        pair.writer.write_row(i, version=9 + i, row=5 + i, tensors=row_tensors(i)) for i in range(SLOTS)
    ]
    for i, handle in enumerate(handles):
        assert handle.tensors == layout(BUCKET, WIDTH, "F32")[0]
        want = Header(
            version=9 + i,
            row=5 + i,
            payload_bytes=handle.tensors[-1].offset + 4 * BUCKET - 64,
            crc=handle.crc,
        )
        assert pair.reader.header(i) == want
        for name, tensor in read(pair.reader, handle, row=5 + i).items():
            assert torch.equal(tensor, row_tensors(i)[name]), name


def test_parts_lie_side_by_side(pair: Pair) -> None:
    """Captured layers need no concatenation before the copy, and may be views."""
    tensors = row_tensors(3)
    split = dict(tensors) | {"hidden": list(tensors["hidden"].split([8, 12, 20], dim=1))}
    handle = pair.writer.write_row(0, version=1, row=5, tensors=split)
    assert torch.equal(read(pair.reader, handle, row=5)["hidden"], tensors["hidden"])
    assert handle == pair.writer.write_row(0, version=1, row=5, tensors=tensors)


def test_every_dtype_and_an_empty_tensor_survive(pair: Pair) -> None:
    """They are copied by their bits."""
    tensors = {
        "hidden": torch.randn(BUCKET, 4).to(torch.bfloat16),
        "none": torch.zeros(0, 3),
        "flags": torch.arange(BUCKET) % 3 == 0,
        "long": torch.arange(BUCKET),
        "half": torch.randn(3).to(torch.float16),
    }
    handle = pair.writer.write_row(1, version=1, row=5, tensors=tensors)
    out = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    pair.reader.read_row(handle, row=5, out=out)
    assert all(torch.equal(out[name], tensors[name]) for name in tensors)


def test_a_long_row_is_read_in_pieces(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checksum, taken piece by piece, is the one that was taken over the whole."""
    monkeypatch.setattr(cuda_arena, "_PIECE_BYTES", BLOCK_BYTES)
    handle = pair.writer.write_row(0, version=1, row=5, tensors=row_tensors(1))
    assert handle.tensors[0].nbytes > 3 * BLOCK_BYTES
    assert torch.equal(read(pair.reader, handle, row=5)["hidden"], row_tensors(1)["hidden"])


def test_versions_and_rows_are_compared(pair: Pair) -> None:
    """An empty slot, an older version and another row are stale."""
    handle = pair.writer.write_row(0, version=1, row=5, tensors=row_tensors(1))
    elsewhere = Handle(1, 1, 1, handle.crc, handle.tensors)
    assert refusal(pair.reader, elsewhere) is Kind.STALE
    assert refusal(pair.reader, handle, row=6) is Kind.STALE
    pair.writer.write_row(0, version=2, row=7, tensors=row_tensors(2))
    assert refusal(pair.reader, handle) is Kind.STALE


def test_a_row_written_over_during_the_copy_is_stale(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The header is looked at again after the copy."""
    handle = pair.writer.write_row(0, version=1, row=5, tensors=row_tensors(1))
    add = DeviceChecksum.add

    def overwrite(self: DeviceChecksum, raw: torch.Tensor, *, block: int) -> int:
        monkeypatch.setattr(DeviceChecksum, "add", add)
        pair.writer.write_row(0, version=2, row=7, tensors=row_tensors(2))
        return add(self, raw, block=block)

    monkeypatch.setattr(DeviceChecksum, "add", overwrite)
    with pytest.raises(WorkerError, match="after the copy: want version 1 of row 5, got version 2 of row 7"):
        read(pair.reader, handle, row=5)


def test_a_half_written_row_has_version_0(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """From before the first byte of the payload until after the rest of the header."""
    handle = pair.writer.write_row(0, version=1, row=5, tensors=row_tensors(1))
    seen = []
    add = DeviceChecksum.add

    def look(self: DeviceChecksum, raw: torch.Tensor, *, block: int) -> int:
        seen.append(pair.reader.header(0))
        if len(seen) == 3:
            raise RuntimeError("killed here")
        return add(self, raw, block=block)

    monkeypatch.setattr(DeviceChecksum, "add", look)
    with pytest.raises(RuntimeError, match="killed here"):
        pair.writer.write_row(0, version=2, row=6, tensors=row_tensors(2))
    monkeypatch.undo()
    assert [header.version for header in seen] == [0, 0, 0]
    assert refusal(pair.reader, handle) is Kind.STALE


@pytest.mark.parametrize("name", ["hidden", "tokens", "loss_mask", "documents"])
def test_a_flipped_bit_is_noticed(pair: Pair, name: str) -> None:
    """In every tensor, at its start, in the middle and in its last byte."""
    handle = pair.writer.write_row(0, version=1, row=5, tensors=row_tensors(1))
    (tensor,) = (tensor for tensor in handle.tensors if tensor.name == name)
    for at in (0, tensor.nbytes // 2, tensor.nbytes - 1):
        pair.flip(tensor.offset + at, 0x80)
        assert refusal(pair.reader, handle) is Kind.INTERNAL
        pair.flip(tensor.offset + at, 0x80)
    read(pair.reader, handle, row=5)


def test_what_does_not_fit_is_invalid(pair: Pair) -> None:
    """Slots, sizes, arenas, names, shapes and directions."""
    handle = pair.writer.write_row(0, version=1, row=5, tensors=row_tensors(1))
    large = {"hidden": torch.zeros(SLOT_BYTES // 4)}
    for refused in (
        lambda: pair.writer.write_row(SLOTS, version=1, row=5, tensors=row_tensors(1)),
        lambda: pair.writer.write_row(0, version=1, row=5, tensors=large),
        lambda: pair.reader.write_row(0, version=1, row=5, tensors=row_tensors(1)),
        lambda: read(pair.reader, Handle(2, 0, 1, handle.crc, handle.tensors), row=5),
        lambda: read(pair.reader, Handle(1, SLOTS, 1, handle.crc, handle.tensors), row=5),
        lambda: pair.reader.read_row(handle, row=5, out={}),
        lambda: pair.reader.read_row(
            handle, row=5, out=row_tensors(0) | {"tokens": torch.zeros(BUCKET, dtype=torch.int64)}
        ),
        lambda: pair.reader.read_row(handle, row=5, out={n: t.to("meta") for n, t in row_tensors(0).items()}),
    ):
        with pytest.raises(WorkerError) as caught:
            refused()
        assert caught.value.kind is Kind.INVALID


def test_a_new_arena_is_empty(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that an earlier run filled is given out again: what lies there is no row."""
    create = FakeDriver.create

    def used(self: FakeDriver, nbytes: int) -> int:
        handle = create(self, nbytes)
        fd = self.export(handle)
        os.pwrite(fd, Header(version=3, row=5, payload_bytes=64, crc=0).pack(), SLOT_BYTES)
        assert os.pread(fd, 8, SLOT_BYTES) == MAGIC
        os.close(fd)
        return handle

    monkeypatch.setattr(FakeDriver, "create", used)
    made, fd = CudaArena.create(FakeDriver(), **SHAPE, device=CPU)
    os.close(fd)
    assert [made.header(slot) for slot in range(SLOTS)] == [None] * SLOTS
    made.close()
    assert pair.reader.header(0) is None


def test_an_arena_that_cannot_be_made_leaves_nothing() -> None:
    """Neither the driver's things nor a descriptor, wherever it fails."""
    before = len(os.listdir("/proc/self/fd"))
    odd = SHAPE | {"slot_bytes": 100}
    small = FakeDriver(room_bytes=1)
    for driver, shape, kind in ((FakeDriver(), odd, Kind.INVALID), (small, SHAPE, Kind.EXHAUSTED)):
        with pytest.raises(WorkerError) as caught:
            CudaArena.create(driver, **shape, device=CPU)
        assert caught.value.kind is kind and driver.leftovers() == []
    made, fd = CudaArena.create(FakeDriver(), **SHAPE, device=CPU)
    driver = FakeDriver()
    with pytest.raises(WorkerError):
        CudaArena.adopt(driver, fd, **odd, write=False, device=CPU)
    assert driver.leftovers() == []
    made.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_arenas_of_either_kind_by_number() -> None:
    """A role holds both behind one interface; a driver is made when one is needed."""
    made: list[FakeDriver] = []

    def driver() -> FakeDriver:
        made.append(FakeDriver())
        return made[-1]

    target, drafter = Arenas(driver=driver, device="cpu"), Arenas(driver=driver, device="cpu")
    host = os.memfd_create("host", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(host, SLOTS * SLOT_BYTES)
    fcntl.fcntl(host, 1033, 0x2 | 0x4)
    shape = {"seq": 1, "slots": SLOTS, "slot_bytes": SLOT_BYTES}
    for arenas, write in ((target, True), (drafter, False)):
        arenas.map(MapArena(arena=2, kind="memfd", write=write, **shape), fd=os.dup(host))
    os.close(host)
    assert made == []
    fd = target.create(CreateArena(arena=1, kind="cuda_vmm", **shape))
    drafter.map(MapArena(arena=1, kind="cuda_vmm", write=False, **shape), fd=fd)
    assert len(made) == 2
    for number in (1, 2):
        handle = target.get(number, doing="write").write_row(0, version=1, row=5, tensors=row_tensors(number))
        out = {name: torch.full_like(tensor, 7) for name, tensor in row_tensors(0).items()}
        drafter.get(number, doing="read").read_row(handle, row=5, out=out)
        assert torch.equal(out["hidden"], row_tensors(number)["hidden"])
    with pytest.raises(WorkerError, match="pull row 3: want a mapped arena, got 9"):
        drafter.get(9, doing="pull row 3")
    for arenas in (target, drafter):
        for number in (1, 2):
            arenas.get(number, doing="close").close()


def test_without_a_gpu_the_descriptor_is_closed() -> None:
    """Where there is no driver, an order to map fails, and nothing is left of it."""

    def none() -> FakeDriver:
        raise WorkerError(Kind.UNAVAILABLE, "no driver")

    before = len(os.listdir("/proc/self/fd"))
    order = MapArena(seq=1, arena=1, kind="cuda_vmm", write=False, slots=1, slot_bytes=64)
    with pytest.raises(WorkerError, match="no driver"):
        Arenas(driver=none, device="cpu").map(order, fd=os.memfd_create("arena"))
    assert len(os.listdir("/proc/self/fd")) == before


def reference(parts: list[bytes]) -> int:
    """proto/lane.md, word for word, in plain integers."""
    total, block = 0, 0
    for raw in parts:
        for at in range(0, len(raw), 4096):
            piece = raw[at : at + 4096].ljust(4096, b"\0")
            words = sum(int.from_bytes(piece[i : i + 4], "little") for i in range(0, 4096, 4))
            total += splitmix(block) * words
            block += 1
    return total % 2**32


def splitmix(block: int) -> int:
    """The weight of a block."""
    x = (block + 1) * 0x9E3779B97F4A7C15 % 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return ((x ^ (x >> 31)) % 2**32) | 1


def device_sum(parts: list[bytes]) -> int:
    """The same by the module."""
    checksum = DeviceChecksum(max_blocks=sum(blocks_of(len(raw)) for raw in parts) + 1, device=CPU)
    block = 0
    for raw in parts:
        if raw:
            block = checksum.add(torch.frombuffer(bytearray(raw), dtype=torch.uint8), block=block)
    return int(checksum.value(block))


def test_weights_are_odd_and_apart() -> None:
    """The first ones are those of the published hash, and no two of a row's are equal."""
    got = weights(40_000)
    assert int(got[0]) == 0xE220A8397B1DCDAF % 2**32  # the generator's first output, as published
    assert [int(w) for w in got[:50]] == [splitmix(i) for i in range(50)]
    assert (got % 2 == 1).all() and got.max() < 2**32 and len(set(got.tolist())) > 39_990


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=9000), max_size=4), st.randoms())
def test_checksum_is_the_schemas(parts: list[bytes], random) -> None:
    """It equals proto/lane.md's words, and any flipped bit changes it."""
    crc = device_sum(parts)
    assert crc == reference(parts)
    if not any(parts):
        return
    which = random.choice([i for i, raw in enumerate(parts) if raw])
    damaged = bytearray(parts[which])
    damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
    assert device_sum([*parts[:which], bytes(damaged), *parts[which + 1 :]]) != crc


def test_checksum_notices_order_and_absence() -> None:
    """Blocks that change places, a block of zeros in the place of another, and a row of ones."""
    one, two = os.urandom(4096), os.urandom(4096)
    sums = [device_sum(parts) for parts in ([one + two], [two + one], [one + bytes(4096)], [b"\xff" * 8192])]
    assert len(set(sums)) == 4
    assert device_sum([one, two]) == device_sum([one + two])  # tensors begin blocks
    assert device_checksum.blocks_of(4097) == 2


def test_a_store_through_a_mapping_for_reading_ends_the_process() -> None:
    """Here by SIGSEGV; on a GPU the context ends (test_arena_gpu)."""
    code = (
        "import torch; from fake_driver import FakeDriver as D\n"
        "from dflash_runner.cuda_arena import CudaArena as A\n"
        f"s = dict(arena=1, slots=1, slot_bytes={SLOT_BYTES}, device=torch.device('cpu'))\n"
        "w, fd = A.create(D(), **s); r = A.adopt(D(), fd, write=False, **s); print('mapped', flush=True)\n"
        "r._bytes[:64].fill_(1)"
    )
    path = os.pathsep.join(p for p in sys.path if p)
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONFAULTHANDLER": ""}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("mapped\n", -11), done.stderr
