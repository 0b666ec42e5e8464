"""A process that shares an arena with another: a target or a drafter without their models, timed.

`python pair.py FD DEVICE THREADS`: answers questions on a SOCK_SEQPACKET socket until its other end is
closed; a descriptor goes beside a message, as on a lane. `bench handoff` holds the other ends
(cmd/internal/bench/pair.go), as the supervisor does: it passes the arena's descriptor from one to the other
and maps nothing. A third such process, which sees both GPUs, copies between them plainly.

Shapes: S tokens of the row, C captured width.
"""

from __future__ import annotations

import array
import json
import os
import platform
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec
import torch
from dflash_runner import devices
from dflash_runner.arena import Arena
from dflash_runner.arenas import Arenas
from dflash_runner.errors import describe
from dflash_runner.frames import Handle
from dflash_runner.orders import CreateArena, MapArena
from dflash_runner.slots import layout
from dflash_runner.staging import Rows
from torch import Tensor

_LARGEST_BYTES = 65_536
_STORED = {torch.float32: "F32", torch.bfloat16: "BF16"}
_ARENA = 1
_HEADER = "hidden"  # the tensor that is copied by itself, which is nearly all of a row


class Partner:
    """What the process holds, and its answers by name."""

    def __init__(self, device: str, threads: int) -> None:
        """Take the device; every GPU that is visible, where it is the copier."""
        torch.set_num_threads(threads)
        self.device = torch.device(device)
        self._others = [torch.device(device)]
        if self.device.type == "cuda":
            self._others = [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
            torch.cuda.set_device(self.device)
            torch.zeros(1, device=self.device)
        self._arenas = Arenas(device=device)
        self._opened: Handle | None = None

    def row(
        self, _fd: int | None, *, tokens: int, width: int, dtype: str
    ) -> tuple[dict[str, Any], int | None]:
        """Draw the row, the same in every process, and room for another; the size of its slot."""
        kind = getattr(torch, dtype)
        generator = torch.Generator().manual_seed(1)
        hidden_SC = torch.randn(tokens, width, generator=generator).to(kind)
        self._row = {
            _HEADER: hidden_SC.to(self.device),
            "tokens": torch.randint(1 << 30, (tokens,), generator=generator, dtype=torch.int32),
            "loss_mask": torch.ones(tokens, dtype=torch.uint8),
            "documents": torch.zeros(tokens, dtype=torch.int32),
        }
        self._out = {name: torch.empty_like(t, device=self.device) for name, t in self._row.items()}
        self._plain = [hidden_SC.to(self._others[0]), torch.empty_like(hidden_SC, device=self._others[-1])]
        self._settle()
        sizes = {"hidden_bytes": hidden_SC.nbytes, "payload_bytes": sum(t.nbytes for t in self._row.values())}
        versions = {"torch": str(torch.__version__), "python": platform.python_version()}
        return {"slot_bytes": layout(tokens, width, _STORED[kind])[1], **sizes, **versions}, None

    def create(self, _fd: int | None, *, slots: int, slot_bytes: int) -> tuple[dict[str, Any], int | None]:
        """Make the arena in this GPU; its descriptor goes with the answer."""
        order = CreateArena(seq=1, arena=_ARENA, kind="cuda_vmm", slots=slots, slot_bytes=slot_bytes)
        return {}, self._arenas.create(order)

    def map(self, fd: int | None, **shape: Any) -> tuple[dict[str, Any], int | None]:
        """Map the arena behind the descriptor that came."""
        if fd is None:
            raise ValueError("map arena: want its descriptor, got none")
        self._arenas.map(MapArena(seq=1, arena=_ARENA, **shape), fd=fd)
        return {}, None

    def write(self, _fd: int | None, *, slot: int, version: int, times: int) -> tuple[dict[str, Any], None]:
        """Write the row some times, each under a version of its own; the last one's handle."""
        start = time.perf_counter()
        for number in range(times):
            self._opened = self._rows().write_row(slot, version=version + number, row=1, tensors=self._row)
        seconds = (time.perf_counter() - start) / times
        return {"seconds": seconds, "handle": msgspec.to_builtins(self._opened)}, None

    def read(self, _fd: int | None, *, handle: Any, times: int) -> tuple[dict[str, Any], None]:
        """Read the row some times: copy, checksum, header before and after."""
        self._opened = msgspec.convert(handle, Handle)
        start = time.perf_counter()
        for _ in range(times):
            self._rows().read_row(self._opened, row=1, out=self._out)
        return {"seconds": (time.perf_counter() - start) / times}, None

    def copy_in(self, _fd: int | None, *, times: int) -> tuple[dict[str, Any], None]:
        """Copy the hidden states alone into the slot that was written last."""
        into = self._in_slot()
        return {"seconds": self._burst(lambda: into.copy_(self._row[_HEADER]), times)}, None

    def copy_out(self, _fd: int | None, *, times: int) -> tuple[dict[str, Any], None]:
        """Copy the hidden states alone out of the slot that was read last."""
        out_of = self._in_slot()
        return {"seconds": self._burst(lambda: self._out[_HEADER].copy_(out_of), times)}, None

    def plain(self, _fd: int | None, *, times: int) -> tuple[dict[str, Any], None]:
        """Copy as many bytes between two tensors, from the first visible GPU to the last."""
        out_of, into = self._plain
        return {"seconds": self._burst(lambda: into.copy_(out_of), times)}, None

    def equal(self, _fd: int | None) -> tuple[dict[str, Any], None]:
        """Whether what was read last is the row."""
        same = [torch.equal(self._out[name].cpu(), tensor.cpu()) for name, tensor in self._row.items()]
        return {"equal": all(same)}, None

    def _rows(self) -> Rows:
        return self._arenas.get(_ARENA, doing="bench hand-off")

    def _in_slot(self) -> Tensor:
        """The hidden states in the slot that the last handle opens, without a copy."""
        if self._opened is None:
            raise ValueError("copy hidden states: want a row that was written or read before, got none")
        (tensor,) = (t for t in self._opened.tensors if t.name == _HEADER)
        arena: Any = self._rows()
        if isinstance(arena, Arena):
            return arena._view(self._opened.slot, tensor)  # noqa: SLF001 the mapping itself, which only arenas use
        raw = arena._raw(self._opened.slot, tensor)  # noqa: SLF001
        return raw.view(self._row[_HEADER].dtype).view(tensor.shape)

    def _burst(self, copy: Callable[[], object], times: int) -> float:
        """Seconds of one of some copies, one behind the other, from still devices to still devices."""
        self._settle()
        start = time.perf_counter()
        for _ in range(times):
            copy()
        self._settle()
        return (time.perf_counter() - start) / times

    def _settle(self) -> None:
        for device in self._others:
            devices.settle(device)


def main() -> None:
    """Answer until the other end is closed; an error is an answer too."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    partner = Partner(sys.argv[2], int(sys.argv[3]))
    while True:
        raw, fds, _, _ = socket.recv_fds(connection, _LARGEST_BYTES, 1)
        if not raw:
            return
        question = json.loads(raw)
        made = None
        try:
            found, made = getattr(partner, question.pop("what"))(fds[0] if fds else None, **question)
        except Exception as error:  # noqa: BLE001 the edge: whatever it is, it is told
            told = describe(error)
            found = {"error": {"kind": told.kind.label, "message": told.message, "hint": told.hint}}
        rights = [] if made is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [made]))]
        connection.sendmsg([json.dumps(found).encode()], rights)
        if made is not None:
            os.close(made)


if __name__ == "__main__":
    main()
