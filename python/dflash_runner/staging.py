"""Pinned host memory between a device and memory that a device cannot reach by itself.

A copy from or to ordinary memory passes through the driver's own small buffers and holds its stream; one
from or to pinned memory runs beside everything else, on a stream of its own. A memfd is ordinary memory,
and a mapping for reading cannot be pinned everywhere, so rows and images take one more step on the host.
On a CPU there is no stream and nothing is pinned: the same calls copy at once.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from dflash_runner import devices
from dflash_runner.arena import Parts
from dflash_runner.frames import Handle

PIECE_BYTES = 64 << 20
"""Of state that is copied to the host at a time; two pieces are pinned."""

_ALIGN = 64  # bytes; where tensors start


class Copies:
    """A stream for copies beside the main one; of one thread at a time."""

    def __init__(self, device: torch.device) -> None:
        """Make the stream; none on a CPU."""
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @contextlib.contextmanager
    def here(self, *, after_caller: bool = False) -> Iterator[None]:
        """Copies within run on this stream.

        Args:
            after_caller: not before all that the calling thread's stream holds by now. Threads share that
                stream, so waiting for it is waiting for whatever the main thread computes.
        """
        if self.stream is None:
            yield
            return
        if after_caller:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            yield

    def settle(self) -> None:
        """Wait until all copies are complete; other threads may run meanwhile.

        Raises:
            Exception: of torch, for a fault of the device, which ends the process.
        """
        if self.stream is not None:
            self.stream.record_event().synchronize()


class Staging:
    """A stretch of pinned memory with the stream that fills or empties it."""

    def __init__(self, nbytes: int, *, device: torch.device) -> None:
        """Allocate and pin, for good.

        Args:
            nbytes: of the largest set of tensors, each rounded up to 64 bytes.
            device: on the other side.

        Raises:
            Exception: of torch, where the memory cannot be had or pinned.
        """
        self.device = device
        self._memory = torch.empty(nbytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._copies = Copies(device)
        self._mu = threading.Lock()  # guards the memory, one use at a time

    def moves(self, tensor: Tensor) -> bool:
        """Whether a tensor is on the other side, and so has to be copied."""
        return not tensor.is_cpu

    @contextlib.contextmanager
    def like(self, tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
        """Pinned tensors of the same shapes and dtypes, good within; nobody else uses the memory then."""
        with self._mu:
            yield cut(self._memory, tensors)

    def fetch(self, sources: Sequence[Tensor], *, into: Sequence[Tensor], after_caller: bool) -> None:
        """Copy from the device; complete on return.

        Args:
            sources: on the device.
            into: as `like` gives them.
            after_caller: whether what the calling thread queued last makes the sources.
        """
        with self._copies.here(after_caller=after_caller):
            for source, host in zip(sources, into, strict=True):
                host.copy_(source, non_blocking=True)
        self._copies.settle()

    def deliver(self, hosts: Sequence[Tensor], *, into: Sequence[Tensor]) -> None:
        """Copy to the device; complete on return, so that any stream may read it and the host's is free.

        Nothing on the device may be using `into`: no stream is waited for.
        """
        with self._copies.here():
            for host, target in zip(hosts, into, strict=True):
                target.copy_(host, non_blocking=True)
        self._copies.settle()


def cut(memory: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of the same shapes and dtypes, one behind the other in a stretch of bytes.

    They share its memory and are no views of it: a compiler that is given one sees a tensor.
    """
    found, at = [], 0
    for tensor in like:
        end = at + tensor.nbytes
        if end > len(memory):
            raise AssertionError(f"stage tensors: want at most {len(memory)} bytes, got {end}")
        found.append(memory[at:end].view(tensor.dtype).view(tensor.shape).data)
        at += _room(tensor)
    return found


def send_together(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Small tensors of the host on a device, in one transfer that nobody waits for."""
    return cut(pack(tensors, pinned=device.type == "cuda").to(device, non_blocking=True), tensors)


def pack(tensors: Sequence[Tensor], *, pinned: bool) -> Tensor:
    """The bytes of small tensors of the host, one behind the other as `cut` finds them."""
    host = torch.empty(sum(map(_room, tensors)), dtype=torch.uint8, pin_memory=pinned)
    for place, tensor in zip(cut(host, tensors), tensors, strict=True):
        place.copy_(tensor)
    return host


def _room(tensor: Tensor) -> int:
    """Bytes to the next tensor's start."""
    return math.ceil(tensor.nbytes / _ALIGN) * _ALIGN


class Rows(Protocol):
    """An arena of any kind, as a role uses it: the arena itself, or pinned memory before it."""

    def write_row(self, slot: int, *, version: int, row: int, tensors: Mapping[str, Parts]) -> Handle:
        """Copy tensors into a slot; complete on return."""

    def read_row(self, handle: Handle, *, row: int, out: Mapping[str, Tensor]) -> None:
        """Copy a row out of a slot; complete on return."""


class StagedRows:
    """An arena of the host for tensors on a device: each row passes through pinned memory.

    The host waits for the device's event on both ways, so a handle is only given for bytes that are
    there, and a slot that was read is free once `read_row` returns.
    """

    @staticmethod
    def before(arena: Rows, staging: Staging | None) -> Rows:
        """What a role writes to or reads from: the arena itself where its tensors are on the host."""
        return arena if staging is None else StagedRows(arena, staging=staging)

    def __init__(self, arena: Rows, *, staging: Staging) -> None:
        """Stand before `arena`.

        Args:
            arena: in memory of the host.
            staging: of at least a row's size; shared by the arenas of one thread or more.
        """
        self._arena, self._staging = arena, staging

    def write_row(self, slot: int, *, version: int, row: int, tensors: Mapping[str, Parts]) -> Handle:
        """As the arena's own; tensors may be on the device or on the host."""
        parts = {name: [one] if isinstance(one, Tensor) else list(one) for name, one in tensors.items()}
        moved = [part for several in parts.values() for part in several if self._staging.moves(part)]
        with self._staging.like(moved) as hosts:
            self._staging.fetch(moved, into=hosts, after_caller=True)
            at = iter(hosts)
            ready: dict[str, Parts] = {}
            for name, several in parts.items():
                there = [next(at) if self._staging.moves(part) else part for part in several]
                ready[name] = there[0] if isinstance(tensors[name], Tensor) else there
            return self._arena.write_row(slot, version=version, row=row, tensors=ready)

    def read_row(self, handle: Handle, *, row: int, out: Mapping[str, Tensor]) -> None:
        """As the arena's own; `out` is on the device, idle, and is not touched where the row is refused."""
        with self._staging.like(list(out.values())) as hosts:
            self._arena.read_row(handle, row=row, out=dict(zip(out, hosts, strict=True)))
            self._staging.deliver(hosts, into=list(out.values()))


class Pieces:
    """State of a device on the host, piece by piece: while one piece is used the next is copied.

    So a state of gigabytes takes two pieces of the host's memory. On a CPU a tensor is one piece, itself.
    """

    def __init__(self, device: torch.device, *, nbytes: int = PIECE_BYTES) -> None:
        """Pin two pieces, and wait for what is queued on the device.

        Args:
            device: where the state is.
            nbytes: of a piece.
        """
        self._nbytes = nbytes
        self._copies = Copies(device)
        devices.settle(device)
        gpu = self._copies.stream is not None
        self._halves = [torch.empty(nbytes, dtype=torch.uint8, pin_memory=gpu) for _ in range(2)]

    def of(self, tensor: Tensor) -> Iterator[Tensor]:
        """The bytes of a tensor, uint8, in order; a piece is good until the next one is asked for.

        The tensor is complete, and nothing changes it meanwhile: no stream is waited for, as training goes
        on beside. Whoever changed it waits for the device before this is called.
        """
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        if flat.is_cpu:
            yield flat
            return
        yield from self.staged(flat)

    def staged(self, flat: Tensor) -> Iterator[Tensor]:
        """`of` for bytes that have to be copied, from whatever device."""
        sources = flat.split(self._nbytes)
        pending = self._begin(sources[0], 0) if len(flat) else None
        for number, source in enumerate(sources if len(flat) else ()):
            event, pending = pending, None
            if number + 1 < len(sources):
                pending = self._begin(sources[number + 1], number + 1)
            if event is not None:
                event.synchronize()
            yield self._halves[number % 2][: len(source)]

    def _begin(self, source: Tensor, number: int) -> torch.cuda.Event | None:
        """Begin the copy of one piece; its event, none where it is complete already."""
        with self._copies.here():
            self._halves[number % 2][: len(source)].copy_(source, non_blocking=True)
        return None if self._copies.stream is None else self._copies.stream.record_event()
