"""The lane in Python: the same bytes as Go, and nothing that breaks proto/lane.md."""

from __future__ import annotations

import math
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from dflash_runner import lane, orders, replies
from dflash_runner.frames import (
    MAX_FRAME_BYTES,
    Handle,
    Piece,
    Prompt,
    RowLoss,
    Tensor,
    bits_of,
    float_of,
)
from dflash_runner.lane import Lane, LaneClosed, LaneError
from hypothesis import given, settings
from hypothesis import strategies as st

PACKAGES = Path(__file__).parents[1]
GOLDEN = PACKAGES.parent / "proto" / "golden"
PLAN = {
    "row": 7,
    "epoch": 1,
    "bucket": 512,
    "pieces": [Piece(3, 0, 0, 200, 10), Piece(70000, 2, 200, 312, 22)],
}
HANDLE = Handle(
    1,
    2,
    1 << 40,
    0xDEADBEEF,
    [
        Tensor("hidden", "F32", [512, 480], 64, 983040),
        Tensor("tokens", "I32", [512], 983104, 2048),
        Tensor("loss_mask", "U8", [512], 985152, 512),
        Tensor("documents", "I32", [512], 985664, 2048),
    ],
)
AT = {"lineage": 2, "communicator": 3, "step": 1 << 33}
NAN_BITS = 0x7FC00000


def digest(fill: int) -> bytes:
    """32 bytes that rise from `fill`."""
    return bytes(range(fill, fill + 32))


# What runner/lane/lane_test.go encodes, in the same order; seq counts over each list from 1.
ORDERS = [
    lambda seq: orders.MapArena(seq=seq, arena=1, kind="memfd", write=True, slots=3, slot_bytes=1 << 32),
    lambda seq: orders.MapArena(
        seq=seq, arena=0xFFFF_FFFF, kind="memfd", write=False, slots=1, slot_bytes=4096
    ),
    lambda seq: orders.Produce(seq=seq, **PLAN, arena=1, slot=2, version=128),
    lambda seq: orders.Pull(seq=seq, **PLAN, handle=HANDLE),
    lambda seq: orders.Join(seq=seq, **AT, world=2, rank=1),
    lambda seq: orders.Train(seq=seq, **AT, micro=255, row=256, last=True),
    lambda seq: orders.Train(seq=seq, **AT, micro=0, row=0, last=False),
    lambda seq: orders.Commit(seq=seq, **AT, lr=6e-4, chain=digest(1)),
    lambda seq: orders.Abort(seq=seq, **AT),
    lambda seq: orders.Image(seq=seq, **AT, write=True, nbytes=65535),
    lambda seq: orders.Image(seq=seq, **AT, write=False, nbytes=0),
    lambda seq: orders.Load(seq=seq, **AT, nbytes=65536),
    lambda seq: orders.Evaluate(
        seq=seq, step=300, what="decode", first=0, count=24, new_tokens=96, nbytes=1 << 20
    ),
    lambda seq: orders.Evaluate(seq=seq, step=0, what="loss", first=8, count=8, new_tokens=0, nbytes=0),
    lambda seq: orders.Drain(seq=seq),
    lambda seq: orders.MapArena(seq=seq, arena=2, kind="cuda_vmm", write=False, slots=3, slot_bytes=1 << 31),
    lambda seq: orders.CreateArena(seq=seq, arena=2, kind="cuda_vmm", slots=3, slot_bytes=1 << 31),
]
REPLIES = [
    lambda seq: replies.Mapped(seq=seq, arena=1),
    lambda seq: replies.Produced(seq=seq, row=7, handle=HANDLE, busy_us=12345),
    lambda seq: replies.Pulled(seq=seq, row=2**64 - 1, busy_us=0),
    lambda seq: replies.Joined(seq=seq, communicator=3),
    lambda seq: replies.Trained(seq=seq, step=9, micro=1, row=7, busy_us=32767),
    lambda seq: replies.Voted(
        seq=seq,
        **AT,
        rows=[RowLoss(7, 1.5, 0.1), RowLoss(8, -0.0, 0.0)],
        weight=bits_of(20.25),
        norm=bits_of(0.7),
        finite=True,
    ),
    lambda seq: replies.Voted(
        seq=seq, **AT, rows=[RowLoss(7, math.inf, 4.0)], weight=0, norm=NAN_BITS, finite=False
    ),
    lambda seq: replies.Voted(seq=seq, **AT, rows=[], weight=0, norm=0, finite=True),
    lambda seq: replies.Committed(seq=seq, step=9),
    lambda seq: replies.Aborted(seq=seq, step=9, clean=True),
    lambda seq: replies.Taken(seq=seq, step=9, busy_us=70000),
    lambda seq: replies.Saved(
        seq=seq, step=9, written=True, image=digest(3), parameters=digest(4), busy_us=1
    ),
    lambda seq: replies.Saved(
        seq=seq, step=9, written=False, image=bytes(32), parameters=digest(4), busy_us=0
    ),
    lambda seq: replies.Loaded(seq=seq, step=9, chain=digest(5), parameters=digest(6)),
    lambda seq: replies.Evaluated(
        seq=seq,
        step=300,
        what="decode",
        tokens=2304,
        forwards=512,
        busy_us=99,
        lossless=True,
        numerator=0.0,
        denominator=0.0,
        prompts=[Prompt(96, 20, False, True, 50), Prompt(96, 96, True, False, 49)],
    ),
    lambda seq: replies.Evaluated(
        seq=seq,
        step=300,
        what="loss",
        tokens=0,
        forwards=0,
        busy_us=0,
        lossless=False,
        numerator=12.5,
        denominator=8.0,
        prompts=[],
    ),
    lambda seq: replies.Drained(seq=seq),
    lambda seq: replies.Failed(
        seq=seq,
        kind="stale",
        message="pull row 7: want version 4, got 5",
        hint="",
        traceback=["Traceback (most recent call last):", "WorkerError: é"],
    ),
    lambda seq: replies.Failed(seq=seq, kind="fatal", message="m", hint="h", traceback=[]),
    lambda seq: replies.Created(seq=seq, arena=2),
]
FRAMES = {
    "order": ([make(seq) for seq, make in enumerate(ORDERS, 1)], lane.encode_order, lane.decode_order),
    "reply": ([make(seq) for seq, make in enumerate(REPLIES, 1)], lane.encode_reply, lane.decode_reply),
}


def name_of(frame: msgspec.Struct) -> str:
    """The frame's type on the wire."""
    return str(frame.__struct_config__.tag)


@pytest.mark.parametrize("half", FRAMES)
def test_golden(half: str) -> None:
    """Every golden frame decodes to the values that Go wrote, and encodes to the same bytes."""
    frames, encode, decode = FRAMES[half]
    seen: dict[str, int] = {}
    for frame in frames:
        name = name_of(frame)
        lines = (GOLDEN / f"{name}.hex").read_text().split()
        golden = bytes.fromhex(lines[seen.get(name, 0)])
        seen[name] = seen.get(name, 0) + 1
        assert decode(golden) == frame or (half == "reply" and name == "voted")  # NaN is never equal
        assert encode(decode(golden)) == golden
        assert encode(frame) == golden
    for name, count in seen.items():
        assert len((GOLDEN / f"{name}.hex").read_text().split()) == count, name


def test_golden_is_whole() -> None:
    """Each golden file is looked at, and each type has one."""
    names = {name_of(frame) for frames, _, _ in FRAMES.values() for frame in frames}
    assert names == {path.stem for path in GOLDEN.glob("*.hex")}
    assert len(names) == 27


TRAINED = {"type": "trained", "v": 1, "seq": 5, "step": 9, "micro": 1, "row": 7, "busy_us": 3}


@pytest.mark.parametrize(
    "change",
    [
        {"micro": -3},
        {"micro": 1 << 40},
        {"micro": 1.0},
        {"micro": "1"},
        {"micro": None},
        {"micro": True},
        {"v": 2},
        {"seq": 0},
        {"more": 1},
        {"type": "strained"},
        {"type": "train"},
    ],
)
def test_changed_frame_is_refused(change: dict[str, object]) -> None:
    """A value out of its range or type, a key too many: refused."""
    lane.decode_reply(msgspec.msgpack.encode(TRAINED))
    with pytest.raises(LaneError):
        lane.decode_reply(msgspec.msgpack.encode(TRAINED | change))


def test_other_encodings_are_refused() -> None:
    """What means the same in other bytes is refused: order, width, doubles, what follows."""
    good = msgspec.msgpack.encode(TRAINED)
    assert good.endswith(b"\x03")
    for frame in (
        msgspec.msgpack.encode(dict(reversed(TRAINED.items()))),
        good[:-1] + b"\xcc\x03",
        bytes([good[0] + 1]) + good[1:] + b"\xa7busy_us\x03",
        good + b"\xc0",
        good[:-1],
        b"",
    ):
        with pytest.raises(LaneError):
            lane.decode_reply(frame)
    for key in TRAINED:
        with pytest.raises(LaneError):
            lane.decode_reply(msgspec.msgpack.encode({k: v for k, v in TRAINED.items() if k != key}))


@pytest.mark.parametrize(
    "frame",
    [
        "ddffffffff",
        "dfffffffff",
        "c6ffffffff",
        "dbffffffff",
        "81a57368617065ddffffffff",
        "c1",
        "d40000",
        "8100a0",
        "91" * 60000,
        "ff" * (MAX_FRAME_BYTES + 1),
    ],
)
def test_killer_frames(frame: str) -> None:
    """The frames that end other decoders are refused."""
    for decode in (lane.decode_order, lane.decode_reply):
        with pytest.raises(LaneError):
            decode(bytes.fromhex(frame))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Tensor("hidden", "F32", [4], 64, 15),
        lambda: Tensor("é" * 33, "F32", [4], 64, 16),
        lambda: Handle(1, 0, 1, 0, [Tensor("a", "U8", [4], 0, 4)]),
        lambda: Handle(1, 0, 1, 0, [Tensor("a", "U8", [4], 96, 4)]),
        lambda: Handle(1, 0, 1, 0, [Tensor("a", "U8", [100], 64, 100), Tensor("b", "U8", [4], 128, 4)]),
        lambda: Handle(1, 0, 1, 0, [Tensor("a", "U8", [2**63], 64, 2**63)]),
        lambda: Handle(0, 0, 1, 0, HANDLE.tensors),
        lambda: Handle(1, 0, 0, 0, HANDLE.tensors),
        lambda: orders.Produce(
            seq=1, **PLAN | {"pieces": [Piece(1, 0, 500, 13, 1)]}, arena=1, slot=0, version=1
        ),
        lambda: orders.Produce(
            seq=1, **PLAN | {"pieces": [Piece(1, 0, 0, 0, 1)]}, arena=1, slot=0, version=1
        ),
        lambda: orders.Produce(
            seq=1,
            **PLAN | {"pieces": [Piece(1, 0, 0, 9, 1), Piece(1, 0, 8, 9, 1)]},
            arena=1,
            slot=0,
            version=1,
        ),
        lambda: orders.Produce(seq=1, **PLAN | {"row": 0}, arena=1, slot=0, version=1),
        lambda: orders.Produce(seq=1, **PLAN, arena=1, slot=0, version=0),
        lambda: orders.Join(seq=1, **AT, world=2, rank=2),
        lambda: orders.Commit(seq=1, **AT, lr=math.nan, chain=bytes(32)),
        lambda: orders.Load(seq=1, **AT, nbytes=0),
        lambda: orders.Image(seq=1, **AT, write=True, nbytes=0),
        lambda: orders.Evaluate(seq=1, step=0, what="plain", first=0, count=0, new_tokens=1, nbytes=0),
        lambda: orders.CreateArena(seq=1, arena=0, kind="cuda_vmm", slots=1, slot_bytes=64),
        lambda: orders.CreateArena(seq=1, arena=1, kind="cuda_vmm", slots=0, slot_bytes=64),
        lambda: orders.CreateArena(seq=1, arena=1, kind="cuda_vmm", slots=1, slot_bytes=63),
        lambda: orders.Drain(seq=0),
        lambda: replies.Created(seq=1, arena=0),
        lambda: replies.Voted(seq=1, **AT, rows=[], weight=0, norm=NAN_BITS, finite=True),
        lambda: replies.Voted(seq=1, **AT, rows=[RowLoss(1, math.inf, 1.0)], weight=0, norm=0, finite=True),
        lambda: replies.Saved(seq=1, step=1, written=False, image=digest(1), parameters=digest(1), busy_us=0),
        lambda: replies.Failed(seq=1, kind="fatal", message="é" * 1025, hint="", traceback=[]),
        lambda: replies.Failed(seq=1, kind="fatal", message="", hint="", traceback=["x" * 301]),
    ],
)
def test_values_out_of_range(make: Callable[[], object]) -> None:
    """What proto/lane.md forbids cannot be made."""
    with pytest.raises(ValueError):
        make()


def test_only_the_gpu_kind_is_created_by_a_worker() -> None:
    """A memfd is the supervisor's to make; a kind nobody knows is no arena's."""
    create = orders.CreateArena(seq=1, arena=1, kind="memfd", slots=1, slot_bytes=64)
    with pytest.raises(LaneError, match="kind"):
        lane.encode_order(create)
    arena = orders.MapArena(seq=1, arena=1, kind="file", write=False, slots=1, slot_bytes=64)
    with pytest.raises(LaneError, match="kind"):
        lane.encode_order(arena)


def test_reply_of_wrong_types_is_not_sent() -> None:
    """An integer where a float belongs would be refused by Go: it is told here, with a stack."""
    vote = replies.Voted(seq=1, **AT, rows=[RowLoss(1, 2, 1.0)], weight=0, norm=0, finite=True)
    with pytest.raises(LaneError, match="canonical"):
        lane.encode_reply(vote)
    with pytest.raises(LaneError, match="kind"):
        lane.encode_reply(replies.Failed(seq=1, kind="odd", message="", hint="", traceback=[]))


@given(st.floats(width=32))
def test_bits_round_trip(value: float) -> None:
    """bits_of and float_of are inverse, to the bit."""
    assert float_of(bits_of(value)) == value or math.isnan(value)
    assert bits_of(float_of(bits_of(value))) == bits_of(value)
    assert bits_of(1.0) == 0x3F800000


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A frame with a few bytes changed, dropped or put in."""
    half = draw(st.sampled_from(sorted(FRAMES)))
    frames, encode, _ = FRAMES[half]
    frame = bytearray(encode(draw(st.sampled_from(frames))))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(frame) - 1))
        change = draw(st.sampled_from(["set", "drop", "put"]))
        if change == "set":
            frame[at] = draw(st.integers(0, 255))
        elif change == "put":
            frame.insert(at, draw(st.integers(0, 255)))
        elif len(frame) > 1:
            del frame[at]
    return bytes(frame)


@settings(max_examples=600, deadline=None)
@given(st.one_of(damaged(), st.binary(max_size=300)))
def test_damaged_frames(frame: bytes) -> None:
    """Whatever decodes encodes to the same bytes; all else is a LaneError and nothing worse."""
    for encode, decode in ((lane.encode_order, lane.decode_order), (lane.encode_reply, lane.decode_reply)):
        try:
            decoded = decode(frame)
        except LaneError:
            continue
        assert encode(decoded) == frame


@pytest.fixture
def pair() -> Iterator[tuple[Lane, socket.socket]]:
    """A worker's lane and the supervisor's end."""
    theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connected = Lane.from_fd(ours.detach())
    yield connected, theirs
    connected.close()
    theirs.close()


def open_fds() -> int:
    """How many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))


def test_orders_arrive_with_their_descriptors(pair: tuple[Lane, socket.socket]) -> None:
    """Each order of the golden list, with a descriptor exactly where it says so."""
    worker, supervisor = pair
    for order in FRAMES["order"][0]:
        with_fd = orders.needs_fd(order)
        socket.send_fds(supervisor, [lane.encode_order(order)], [0] if with_fd else [])
        got, fd = worker.receive()
        assert got == order and (fd is not None) == with_fd
        if fd is not None:
            assert not os.get_inheritable(fd)
            os.close(fd)


@pytest.mark.parametrize(
    ("packet", "fds"),
    [
        (lane.encode_order(orders.Drain(seq=1)), 1),
        (lane.encode_order(orders.Load(seq=1, **AT, nbytes=1)), 0),
        (lane.encode_order(orders.Load(seq=1, **AT, nbytes=1)), 2),
        (lane.encode_order(orders.CreateArena(seq=1, arena=1, kind="cuda_vmm", slots=1, slot_bytes=64)), 1),
        (lane.encode_order(orders.Drain(seq=1)), 30),
        (lane.encode_order(orders.Drain(seq=2)), 0),
        (b"hello", 1),
        (bytes(MAX_FRAME_BYTES + 1), 0),
    ],
)
def test_broken_packets(pair: tuple[Lane, socket.socket], packet: bytes, fds: int) -> None:
    """A rule broken is a LaneError, and no descriptor stays open."""
    worker, supervisor = pair
    before = open_fds()
    socket.send_fds(supervisor, [packet], [0] * fds)
    with pytest.raises(LaneError):
        worker.receive()
    assert open_fds() == before


def full_order() -> bytes:
    """An order whose frame is as long as a frame may be."""

    def produce(pieces: list[Piece]) -> orders.Produce:
        plan = PLAN | {"pieces": pieces, "bucket": 6000}
        return orders.Produce(seq=1, **plan, arena=1, slot=0, version=1)

    pieces = [Piece(0xFFFF_FFFF, 0, i, 1, 0) for i in range(6000)]
    over = len(msgspec.msgpack.encode(produce(pieces))) - MAX_FRAME_BYTES
    del pieces[-(over // 12 + 1) :]  # the last pieces take 12 bytes each
    short = MAX_FRAME_BYTES - len(msgspec.msgpack.encode(produce(pieces)))
    assert 0 <= short < len(pieces)
    pieces[:short] = [Piece(p.sample, 200, p.start, 1, 0) for p in pieces[:short]]  # a byte more each
    frame = lane.encode_order(produce(pieces))
    assert len(frame) == MAX_FRAME_BYTES
    return frame


def test_longest_frame(pair: tuple[Lane, socket.socket]) -> None:
    """65,536 bytes are received whole; one more is refused, though what fits is an order."""
    worker, supervisor = pair
    frame = full_order()
    supervisor.send(frame + b"\0")
    with pytest.raises(LaneError, match="at most"):
        worker.receive()
    supervisor.send(frame)
    order, _ = worker.receive()
    assert lane.encode_order(order) == frame


def test_replies_arrive(pair: tuple[Lane, socket.socket]) -> None:
    """One packet a reply, also from several threads."""
    worker, supervisor = pair
    plain = [r for r in FRAMES["reply"][0] if not replies.reply_needs_fd(r)]
    threads = [threading.Thread(target=lambda: [worker.send(r) for r in plain]) for _ in range(3)]
    for thread in threads:
        thread.start()
    sent = sorted(lane.encode_reply(r) for r in plain for _ in threads)
    got = sorted(supervisor.recv(MAX_FRAME_BYTES) for _ in sent)
    for thread in threads:
        thread.join()
    assert got == sent


def test_a_reply_carries_its_descriptor(pair: tuple[Lane, socket.socket], tmp_path: Path) -> None:
    """`created` brings the arena's descriptor, which stays open here; no other reply does."""
    worker, supervisor = pair
    made = tmp_path / "arena"
    made.write_bytes(b"slots")
    with made.open() as file:
        created = replies.Created(seq=1, arena=2)
        worker.send(created, file.fileno())
        frame, fds, _, _ = socket.recv_fds(supervisor, MAX_FRAME_BYTES, 4)
        assert lane.decode_reply(frame) == created and len(fds) == 1
        with os.fdopen(fds[0]) as received:
            assert received.read() == "slots"
        assert not file.closed and os.fstat(file.fileno())
        for reply, fd in ((created, None), (replies.Drained(seq=1), file.fileno())):
            with pytest.raises(LaneError, match="descriptor"):
                worker.send(reply, fd)


def test_end_of_the_supervisor(pair: tuple[Lane, socket.socket]) -> None:
    """A closed end is LaneClosed for both halves, also with a reply unread."""
    worker, supervisor = pair
    worker.send(replies.Drained(seq=1))
    supervisor.close()
    with pytest.raises(LaneClosed):
        worker.receive()
    with pytest.raises(LaneClosed):
        worker.send(replies.Drained(seq=1))


def test_close_ends_receive(pair: tuple[Lane, socket.socket]) -> None:
    """A thread that waits in receive is let go by close."""
    worker, _ = pair
    ended: list[type] = []

    def receive() -> None:
        try:
            worker.receive()
        except LaneClosed as error:
            ended.append(type(error))

    thread = threading.Thread(target=receive)
    thread.start()
    worker.close()
    thread.join(timeout=10)
    assert not thread.is_alive() and ended


def test_only_a_seqpacket_socket_is_a_lane() -> None:
    """A stream would run packets together: refused, and the descriptor left alone."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with pytest.raises(LaneError, match="SEQPACKET"):
        Lane.from_fd(one.fileno())
    one.send(b"still open")
    assert other.recv(20) == b"still open"
    one.close()
    other.close()
    with pytest.raises(LaneError):
        Lane.from_fd(struct.calcsize("i") * 1000)


def test_lane_needs_no_torch() -> None:
    """The lane answers before torch is imported."""
    code = "import sys, dflash_runner.lane, dflash_runner.arena; sys.exit('torch' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(PACKAGES)}
    assert subprocess.run([sys.executable, "-c", code], check=False, env=environment).returncode == 0
