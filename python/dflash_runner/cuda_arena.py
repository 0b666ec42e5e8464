"""Rows in a GPU's memory: an arena of kind `cuda_vmm` is one exported allocation, cut into equal slots.

See `slots` for what a slot is and `device_checksum` for how damage is noticed; the header is the
memfd's, and both lie in the GPU. Every copy runs on streams of the arena's own and is complete,
by an event that the host waits for, before anything is answered. While a row is copied out, the
checksum of one piece of it is taken beside the copy of the next: the copy runs on the link between
two GPUs, the sum on the own GPU's memory.

torch is imported where it is used.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from dflash_runner.cuda_memory import DeviceMemory, Driver
from dflash_runner.device_checksum import DeviceChecksum, blocks_of
from dflash_runner.frames import SLOT_HEADER_BYTES, Handle, Tensor
from dflash_runner.parts import Parts, copy_parts, torch_dtype
from dflash_runner.slots import (
    ALIGN,
    CRC_AT,
    VERSION_AT,
    Header,
    RowArena,
    end_of,
)

if TYPE_CHECKING:
    import torch

_MAX_TENSORS: Final = 16  # of a handle; each may end in a part of a block
_PIECE_BYTES: Final = 64 << 20  # copied before its sum is begun; whole blocks
_CRC_BYTES: Final = 4
_BEFORE, _AFTER, _CRC = slice(0, 64), slice(64, 128), slice(128, 132)  # of the notes of a read
_HEADER, _VERSION = slice(0, 64), slice(64, 72)  # of those of a write, whose checksum lies at _CRC


class CudaArena(RowArena):
    """An exported allocation mapped into this process; a store through a mapping for reading ends
    this process's context, and no other's.

    Calls wait for one another: each direction has one thread.
    """

    def __init__(
        self,
        memory: DeviceMemory,
        *,
        arena: int,
        slots: int,
        slot_bytes: int,
        write: bool,
        device: torch.device,
    ) -> None:
        """Take `memory` over, which is closed with the arena, or here in case of an error.

        Args:
            memory: of `slots * slot_bytes` bytes at least.
            arena: the arena's number, which handles name.
            slots: how many slots it has.
            slot_bytes: size of a slot, header included.
            write: whether rows are to be written.
            device: the GPU, by index; a CPU only with a driver that imitates one.

        Raises:
            WorkerError: INVALID for slots of another size than a multiple of 64.
        """
        import torch

        super().__init__(arena=arena, slots=slots, slot_bytes=slot_bytes, write=write)
        self._memory = memory
        self._device = device
        self._mu = threading.Lock()  # guards all below
        try:
            self.require(
                slot_bytes % ALIGN == 0 and slots * slot_bytes <= memory.nbytes,
                f"map arena {arena}: want slots of a multiple of 64 bytes in {memory.nbytes}, "
                f"got {slots} of {slot_bytes}",
            )
            gpu = device.type == "cuda"
            self._copies, self._sums = (torch.cuda.Stream(device) if gpu else None for _ in range(2))
            blocks = blocks_of(slot_bytes) + _MAX_TENSORS
            with self._settled(), _on(self._sums):  # not on a stream where a step may be running
                self._checksum = DeviceChecksum(max_blocks=blocks, device=device)
                self._notes = torch.zeros(3 * SLOT_HEADER_BYTES, dtype=torch.uint8, device=device)
            self._host = torch.zeros(3 * SLOT_HEADER_BYTES, dtype=torch.uint8, pin_memory=gpu)
            self._bytes = _tensor_at(memory.address, slots * slot_bytes, device)
        except BaseException:
            memory.close()
            raise

    @classmethod
    def create(
        cls, driver: Driver, *, arena: int, slots: int, slot_bytes: int, device: torch.device
    ) -> tuple[CudaArena, int]:
        """A new arena, mapped for writing, and its descriptor, which is the caller's.

        Raises:
            WorkerError: EXHAUSTED without enough memory, UNAVAILABLE where the GPU cannot export.
        """
        memory, fd = DeviceMemory.create(driver, slots * slot_bytes)
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, fd)
            made = cls(memory, arena=arena, slots=slots, slot_bytes=slot_bytes, write=True, device=device)
            undo.callback(made.close)
            made._clear()
            undo.pop_all()
        return made, fd

    @classmethod
    def adopt(
        cls,
        driver: Driver,
        fd: int,
        *,
        arena: int,
        slots: int,
        slot_bytes: int,
        write: bool,
        device: torch.device,
    ) -> CudaArena:
        """The arena behind `fd`, mapped; `fd` is closed in every case.

        Raises:
            WorkerError: UNAVAILABLE where this GPU cannot reach the arena's, INVALID for another
                descriptor or size.
        """
        memory = DeviceMemory.adopt(driver, fd, slots * slot_bytes, write=write)
        return cls(memory, arena=arena, slots=slots, slot_bytes=slot_bytes, write=write, device=device)

    def write_row(self, slot: int, *, version: int, row: int, tensors: Mapping[str, Parts]) -> Handle:
        """Copy `tensors`, as the calling thread's stream leaves them, into `slot`; see `RowArena`."""
        placed = self.placed(slot, row=row, tensors=tensors)
        header = Header(version=0, row=row, payload_bytes=end_of(placed) - SLOT_HEADER_BYTES, crc=0)
        with self._mu:
            with self._settled():
                self._host[_HEADER].copy_(_octets(header.pack()))
                self._host[_VERSION].copy_(_octets(version.to_bytes(8, "little")))
                self._follow_caller()
                with _on(self._copies):
                    self._fill(slot, placed, tensors)
            notes = self._noted()
        return Handle(self.arena, slot, version, int.from_bytes(notes[_CRC], "little"), placed)

    def read_row(self, handle: Handle, *, row: int, out: Mapping[str, torch.Tensor]) -> None:
        """Copy the row that `handle` opens into `out`, on this arena's GPU; see `RowArena`.

        Nothing on the calling thread's stream is waited for: `out` must be idle.
        """
        self.check_read(handle, row=row, out=out)
        for name, into in out.items():
            self.require(into.device == self._device, f"read {name}: want {self._device}, got {into.device}")
        with self._mu:
            with self._settled():
                self._copy_out(handle, out)
            notes = self._noted()
        self.judge_header(Header.unpack(notes[_BEFORE]), handle, row, when="before")
        self.judge_header(Header.unpack(notes[_AFTER]), handle, row, when="after")
        self.judge_crc(int.from_bytes(notes[_CRC], "little"), handle, row)

    def header(self, slot: int) -> Header | None:
        """The header of `slot`, or None where no row was ever written."""
        start = self.start(slot, SLOT_HEADER_BYTES)
        with self._mu:
            with self._settled(), _on(self._copies):
                self._host[_HEADER].copy_(self._bytes[start : start + SLOT_HEADER_BYTES], non_blocking=True)
            return Header.unpack(self._noted()[_HEADER])

    def close(self) -> None:
        """Wait for the copies, unmap, and give the memory up but for what others hold of it."""
        with self._mu:
            with self._settled():
                del self._bytes
            self._memory.close()

    def _clear(self) -> None:
        """Empty every slot: memory of the driver may hold what an earlier run left there."""
        with self._mu, self._settled(), _on(self._copies):
            for slot in range(self.slots):
                start = slot * self.slot_bytes
                self._bytes[start : start + SLOT_HEADER_BYTES].zero_()

    def _fill(self, slot: int, placed: list[Tensor], tensors: Mapping[str, Parts]) -> None:
        """Version 0, the payload, the rest of the header, and the version last; all in one stream."""
        start = slot * self.slot_bytes
        head = self._bytes[start : start + SLOT_HEADER_BYTES]
        version = head[VERSION_AT : VERSION_AT + 8]
        version.zero_()
        block = 0
        for tensor, parts in zip(placed, tensors.values(), strict=True):
            raw = self._raw(slot, tensor)
            copy_parts(raw.view(torch_dtype(tensor.dtype)).view(tensor.shape), parts, non_blocking=True)
            block = self._checksum.add(raw, block=block)
        crc = _octets_of(self._checksum.value(block))[:_CRC_BYTES]
        head.copy_(self._host[_HEADER], non_blocking=True)
        head[CRC_AT : CRC_AT + _CRC_BYTES].copy_(crc)
        version.copy_(self._host[_VERSION], non_blocking=True)
        self._host[_CRC].copy_(crc, non_blocking=True)

    def _copy_out(self, handle: Handle, out: Mapping[str, torch.Tensor]) -> None:
        """The header, the row, the header again, and the checksum beside; for the host to judge."""
        start = handle.slot * self.slot_bytes
        head = self._bytes[start : start + SLOT_HEADER_BYTES]
        with _on(self._copies):
            self._notes[_BEFORE].copy_(head)
        block = 0
        for tensor in handle.tensors:
            into, source = _octets_of(out[tensor.name]), self._raw(handle.slot, tensor)
            for at in range(0, tensor.nbytes, _PIECE_BYTES):
                piece = slice(at, min(at + _PIECE_BYTES, tensor.nbytes))
                with _on(self._copies):
                    into[piece].copy_(source[piece])
                _then(self._copies, self._sums)
                with _on(self._sums):
                    block = self._checksum.add(into[piece], block=block)
        with _on(self._copies):
            self._notes[_AFTER].copy_(head)
        _then(self._copies, self._sums)
        with _on(self._sums):
            self._notes[_CRC].copy_(_octets_of(self._checksum.value(block))[:_CRC_BYTES])
            self._host.copy_(self._notes, non_blocking=True)

    def _raw(self, slot: int, tensor: Tensor) -> torch.Tensor:
        """The tensor's bytes in the slot; they must not outlive the mapping."""
        start = slot * self.slot_bytes + tensor.offset
        return self._bytes[start : start + tensor.nbytes]

    def _follow_caller(self) -> None:
        """Let the copies begin after what the calling thread has queued on its stream."""
        import torch

        if self._copies is not None:
            self._copies.wait_stream(torch.cuda.current_stream(self._device))

    @contextlib.contextmanager
    def _settled(self) -> Iterator[None]:
        """Whatever is queued within is complete afterwards, also after an error."""
        try:
            yield
        finally:
            for stream in (self._copies, self._sums):
                if stream is not None:
                    stream.record_event().synchronize()

    def _noted(self) -> bytes:
        """What the device left for the host."""
        return self._host.numpy().tobytes()


@contextlib.contextmanager
def _on(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Work within goes to `stream`, or is done at once where there is none (a CPU)."""
    import torch

    if stream is None:
        yield
        return
    with torch.cuda.stream(stream):
        yield


def _then(first: torch.cuda.Stream | None, second: torch.cuda.Stream | None) -> None:
    """What is queued on `second` from now on comes after what `first` has."""
    if first is not None and second is not None:
        second.wait_stream(first)


def _tensor_at(address: int, nbytes: int, device: torch.device) -> torch.Tensor:
    """The memory at `address` as bytes on `device`; it does not own them.

    torch has no public way that is told the device: `__cuda_array_interface__` asks the driver for
    it, which names the exporter's GPU, one that this process does not see.
    """
    import torch

    storage = torch._C._construct_storage_from_data_pointer(address, device, nbytes)  # noqa: SLF001
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage, 0, (nbytes,), (1,))


def _octets(raw: bytes) -> torch.Tensor:
    """`raw` as a tensor on the host."""
    import torch

    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)


def _octets_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor, without a copy."""
    import torch

    return tensor.detach().reshape(-1).view(torch.uint8)
