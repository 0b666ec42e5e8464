"""The worker's end of its lane: orders in, replies out, over one SOCK_SEQPACKET socket.

One thread receives; any thread sends. Nothing here needs torch, starts a thread or decides:
a broken rule is a `LaneError`, upon which the worker ends itself with `LANE_EXIT_CODE`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from array import array
from typing import Final

import msgspec

from dflash_runner.frames import MAX_FRAME_BYTES
from dflash_runner.orders import Order, needs_fd
from dflash_runner.replies import Reply, reply_needs_fd

LANE_EXIT_CODE: Final = 70
_MAX_FDS: Final = 4  # more than the one that is allowed, so that a second is seen and closed
_CUT: Final = socket.MSG_TRUNC | socket.MSG_CTRUNC


class LaneClosed(Exception):
    """The supervisor's end is closed: no order comes any more."""


class LaneError(Exception):
    """The peer, or this worker's own reply, broke a rule of proto/lane.md."""


def encode_order(order: Order) -> bytes:
    """The frame of `order`; used by tests and benchmarks, since only the supervisor orders.

    Raises:
        LaneError: the frame would break the schema.
    """
    return _encode(order, _ORDERS)


def encode_reply(reply: Reply) -> bytes:
    """The frame of `reply`, after it was decoded again and compared.

    Args:
        reply: every field of its declared type; a float field holds a float, not an int.

    Raises:
        LaneError: the frame would break the schema; better told here, with this worker's
            stack, than by the supervisor that kills it.
    """
    return _encode(reply, _REPLIES)


def decode_order(frame: bytes | memoryview) -> Order:
    """The order in `frame`.

    Args:
        frame: one packet.

    Returns:
        The order, whose own encoding is `frame` byte for byte.

    Raises:
        LaneError: anything that is not canonical or breaks the schema.

    Source: proto/lane.md, Rules (decode, re-encode, compare).
    """
    return _decode(frame, _ORDERS)


def decode_reply(frame: bytes | memoryview) -> Reply:
    """The reply in `frame`, as strictly as `decode_order`; used by tests.

    Raises:
        LaneError: anything that is not canonical or breaks the schema.
    """
    return _decode(frame, _REPLIES)


class Lane:
    """The lane of this worker.

    Compile: never called under compile.
    """

    def __init__(self, connection: socket.socket) -> None:
        """Take over `connection`, a blocking SOCK_SEQPACKET socket."""
        self._socket = connection
        self._buffer = bytearray(MAX_FRAME_BYTES)
        self._seq = 0
        self._send_lock = threading.Lock()  # orders whole packets of several threads

    @classmethod
    def from_fd(cls, fd: int) -> Lane:
        """The lane on the inherited descriptor `fd`; children of the worker do not get it.

        Raises:
            LaneError: `fd` is not a unix SOCK_SEQPACKET socket.
        """
        try:
            connection = socket.socket(fileno=fd)
        except OSError as error:
            raise LaneError(f"open lane: fd {fd}: {error}") from error
        if (connection.family, connection.type) != (socket.AF_UNIX, socket.SOCK_SEQPACKET):
            connection.detach()
            raise LaneError(f"open lane: want a unix SOCK_SEQPACKET socket on fd {fd}")
        connection.set_inheritable(False)
        connection.setblocking(True)
        return cls(connection)

    def receive(self) -> tuple[Order, int | None]:
        """The next order, and the descriptor that travels with it; waits without the GIL.

        Returns:
            The order and an open descriptor, close-on-exec and the caller's to close, or None.

        Raises:
            LaneClosed: the supervisor closed its end, or died.
            LaneError: a rule of the lane was broken; received descriptors are closed.

        Source: proto/lane.md, Rules.
        """
        try:
            size, control, flags, _ = self._socket.recvmsg_into(
                [self._buffer], socket.CMSG_SPACE(_MAX_FDS * 4), socket.MSG_CMSG_CLOEXEC
            )
        except OSError as error:
            if error.errno not in (errno.ECONNRESET, errno.EBADF):
                raise
            raise LaneClosed("the supervisor died, or the lane was closed here") from error
        fds = _received_fds(control)
        try:
            order = self._judge(size, flags, fds)
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        return order, fds[0] if fds else None

    def send(self, reply: Reply, fd: int | None = None) -> None:
        """Send `reply`; callable from any thread. Waits while the supervisor reads slowly.

        Args:
            reply: what is answered.
            fd: travels along where the reply needs one; stays the caller's.

        Raises:
            LaneClosed: the supervisor closed its end, or died.
            LaneError: the reply would break the schema; nothing was sent.
        """
        if reply_needs_fd(reply) != (fd is not None):
            raise LaneError(f"send {_type_of(reply)}: descriptor: want {reply_needs_fd(reply)}, got {fd}")
        frame = encode_reply(reply)
        rights = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [fd]))]
        try:
            with self._send_lock:
                self._socket.sendmsg([frame], rights, socket.MSG_NOSIGNAL)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise LaneClosed("the supervisor's end is closed") from error

    def close(self) -> None:
        """Close the lane; a thread that waits in `receive` gets `LaneClosed`."""
        with contextlib.suppress(OSError):  # the other end is gone already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _judge(self, size: int, flags: int, fds: list[int]) -> Order:
        """The order in the buffer, if it and what came with it keep the rules."""
        if flags & _CUT:
            raise LaneError(f"receive frame: want at most {MAX_FRAME_BYTES} bytes and {_MAX_FDS} descriptors")
        if size == 0:
            raise LaneClosed("the supervisor's end is closed")
        order = decode_order(memoryview(self._buffer)[:size])
        if order.seq != self._seq + 1:
            raise LaneError(f"receive {_type_of(order)}: seq: want {self._seq + 1}, got {order.seq}")
        if len(fds) != int(needs_fd(order)):
            raise LaneError(
                f"receive {_type_of(order)}: want {int(needs_fd(order))} descriptors, got {len(fds)}"
            )
        self._seq = order.seq
        return order


_ORDERS: Final = msgspec.msgpack.Decoder(Order)
_REPLIES: Final = msgspec.msgpack.Decoder(Reply)


def _encode(frame: Order | Reply, decoder: msgspec.msgpack.Decoder) -> bytes:
    """The bytes of `frame`, proved to decode to themselves."""
    try:
        encoded = msgspec.msgpack.encode(frame)
    except (TypeError, ValueError, OverflowError) as error:
        raise LaneError(f"encode {_type_of(frame)}: {error}") from error
    _decode(encoded, decoder)
    return encoded


def _decode(frame: bytes | memoryview, decoder: msgspec.msgpack.Decoder) -> Order | Reply:
    """The struct in `frame`, whose own encoding is `frame`."""
    if len(frame) > MAX_FRAME_BYTES:
        raise LaneError(f"decode frame: want at most {MAX_FRAME_BYTES} bytes, got {len(frame)}")
    try:
        decoded = decoder.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise LaneError(f"decode frame: {error}") from error
    if msgspec.msgpack.encode(decoded) != frame:
        raise LaneError(f"decode {_type_of(decoded)}: not canonical")
    return decoded


def _type_of(frame: Order | Reply) -> str:
    """The frame's name on the wire."""
    return str(frame.__struct_config__.tag)


def _received_fds(control: list[tuple[int, int, bytes]]) -> list[int]:
    """Every descriptor in the control messages."""
    fds = array("i")
    for level, kind, data in control:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return list(fds)
