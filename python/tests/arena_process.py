"""A process that shares an arena of kind `cuda_vmm`: a target or a drafter, without their models.

`python arena_process.py SOCKET DEVICE` answers questions on a SOCK_SEQPACKET socket until its end.
On the device `cpu` the driver is the one of `fake_driver`, elsewhere CUDA's. `Partner` is the other
end; it needs neither torch nor CUDA, as the supervisor does not.
"""

from __future__ import annotations

import array
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DEADLINE_S = 120.0  # of one answer: a GPU's process takes seconds to start
_HERE = Path(__file__).resolve().parent


class Gone(Exception):
    """The process ended before it answered."""


class Partner:
    """One such process."""

    def __init__(self, device: str) -> None:
        """Start it; it has answered nothing yet."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(DEADLINE_S)
        path = os.pathsep.join([str(_HERE), str(_HERE.parent), *filter(None, sys.path)])
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno()), device],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )
        theirs.close()

    def ask(self, what: str, *, fd: int | None = None, **fields: Any) -> dict[str, Any]:
        """Its answer; a descriptor that came with it stands in `fd`.

        Raises:
            Gone: it ended instead.
        """
        rights = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        try:
            self._socket.sendmsg([json.dumps({"what": what, **fields}).encode()], rights)
            raw, fds, _, _ = socket.recv_fds(self._socket, 65_536, 4)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Gone from error
        if not raw:
            raise Gone
        answer = json.loads(raw)
        return answer | {"fd": fds[0]} if fds else answer

    def kill(self) -> None:
        """End it, whatever it does, and reap it."""
        self.process.kill()
        self.process.wait(DEADLINE_S)
        self._socket.close()


def main() -> None:
    """Answer until the other end is closed."""
    connection, device = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
    role = Role(device)
    while True:
        raw, fds, _, _ = socket.recv_fds(connection, 65_536, 4)
        if not raw:
            return
        question = json.loads(raw)
        what = question.pop("what")
        for answer, fd in role.answers(what, fds[0] if fds else None, question):
            rights = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
            connection.sendmsg([json.dumps(answer).encode()], rights)


class Role:
    """What the process does; torch is imported here alone."""

    def __init__(self, device: str) -> None:
        """Take the device."""
        import torch
        from dflash_runner.arenas import Arenas
        from fake_driver import FakeDriver

        self._torch = torch
        self._device = device
        self._arenas = Arenas(driver=FakeDriver, device=device) if device == "cpu" else Arenas(device=device)
        torch.zeros(1, device=device)

    def answers(
        self, what: str, fd: int | None, question: dict[str, Any]
    ) -> Iterator[tuple[Any, int | None]]:
        """The answers to one question; an error is one too."""
        from dflash_runner.errors import kind_of

        try:
            yield from getattr(self, what)(fd, **question)
        except Exception as error:  # noqa: BLE001 whatever it is, the test is told
            yield {"kind": kind_of(error).label, "message": str(error)}, None

    def create(self, _fd: int | None, **shape: int) -> Iterator[tuple[Any, int | None]]:
        """Make an arena and hand its descriptor over."""
        from dflash_runner.orders import CreateArena

        made = self._arenas.create(CreateArena(seq=1, arena=1, kind="cuda_vmm", **shape))
        yield {}, made
        os.close(made)

    def map(self, fd: int | None, **shape: Any) -> Iterator[tuple[Any, int | None]]:
        """Map the arena behind the descriptor that came."""
        from dflash_runner.orders import MapArena

        assert fd is not None
        self._arenas.map(MapArena(seq=1, arena=1, kind="cuda_vmm", **shape), fd=fd)
        yield {}, None

    def write(self, _fd: int | None, *, slot: int, version: int, **row: int) -> Iterator[tuple[Any, None]]:
        """Write a row; its handle."""
        import msgspec

        yield msgspec.to_builtins(self._write(slot, version, **row)), None

    def _write(self, slot: int, version: int, *, row: int, tokens: int, width: int) -> Any:
        """Write a row and give its handle."""
        tensors = self._row(row, tokens=tokens, width=width)
        return self._arenas.get(1, doing="write").write_row(slot, version=version, row=row, tensors=tensors)

    def read(self, _fd: int | None, *, handle: Any, **row: int) -> Iterator[tuple[Any, None]]:
        """Read a row and say whether it is what its number says."""
        out = self._read(handle, **row)
        want = self._row(**row)
        yield {"equal": all(self._torch.equal(out[name], want[name]) for name in want)}, None

    def _read(self, handle: Any, *, row: int, tokens: int, width: int) -> Any:
        """A row in fresh buffers."""
        import msgspec
        from dflash_runner.frames import Handle

        out = {
            name: self._torch.zeros_like(t) for name, t in self._row(0, tokens=tokens, width=width).items()
        }
        if self._device != "cpu":
            self._torch.cuda.synchronize()  # a copy does not wait for the zeros
        opened = msgspec.convert(handle, Handle)
        self._arenas.get(1, doing="read").read_row(opened, row=row, out=out)
        return out

    def storm(
        self, _fd: int | None, *, slot: int = 0, version: int = 0, handle: Any = None, **row: int
    ) -> Iterator[tuple[Any, None]]:
        """Write rows, or read one, without end; it answers when the first is through."""
        begun = False
        while True:
            if handle is None:
                self._write(slot, version, **row)
                version += 1
            else:
                self._read(handle, **row)
            if not begun:
                yield {}, None
                begun = True

    def store(self, _fd: int | None) -> Iterator[tuple[Any, None]]:
        """A store by a kernel, through whatever mapping there is."""
        mapped = self._arenas.get(1, doing="store")._bytes  # noqa: SLF001 the way in that a stray kernel has
        mapped[:65_536].fill_(1)
        if self._device != "cpu":
            self._torch.cuda.synchronize()
        yield {}, None

    def product(self, _fd: int | None) -> Iterator[tuple[Any, None]]:
        """Whether the device computes."""
        ones = self._torch.ones(64, 64, device=self._device)
        yield {"sum": float((ones @ ones).sum())}, None

    def checksums(self, _fd: int | None, *, nbytes: int) -> Iterator[tuple[Any, None]]:
        """The checksum of some bytes, by this device and by the CPU."""
        from dflash_runner.device_checksum import DeviceChecksum, blocks_of

        torch, got = self._torch, {}
        raw = torch.randint(0, 256, (nbytes,), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
        for name, device in (("own", self._device), ("cpu", "cpu")):
            checksum = DeviceChecksum(max_blocks=1 + blocks_of(nbytes), device=torch.device(device))
            blocks = checksum.add(raw.to(device), block=1)
            got[name] = int(checksum.value(blocks))
        yield got, None

    def seconds(self, _fd: int | None, *, handle: Any, rounds: int, **row: int) -> Iterator[tuple[Any, None]]:
        """The median seconds of reading a row, and of copying its hidden states plainly."""
        import msgspec
        from dflash_runner.frames import Handle

        torch, opened = self._torch, msgspec.convert(handle, Handle)
        out = self._row(**row | {"row": 0})
        plain = torch.empty_like(out["hidden"])
        took: dict[str, list[float]] = {"read": [], "plain": []}
        arena = self._arenas.get(1, doing="read")
        for _ in range(rounds):
            torch.cuda.synchronize()
            start = time.perf_counter()
            arena.read_row(opened, row=row["row"], out=out)
            middle = time.perf_counter()
            plain.copy_(out["hidden"])
            torch.cuda.synchronize()
            took["plain"].append(time.perf_counter() - middle)
            took["read"].append(middle - start)
        yield {name: sorted(all_)[rounds // 2] for name, all_ in took.items()}, None

    def free(self, _fd: int | None) -> Iterator[tuple[Any, None]]:
        """Memory that the GPU has left, in bytes."""
        yield {"bytes": self._torch.cuda.mem_get_info()[0]}, None

    def close(self, _fd: int | None) -> Iterator[tuple[Any, None]]:
        """Unmap the arena."""
        self._arenas.get(1, doing="close").close()
        yield {}, None

    def _row(self, row: int, *, tokens: int, width: int) -> dict[str, Any]:
        """A row whose bits follow from its number: `hidden` in bfloat16, as a target on a GPU writes it."""
        torch = self._torch
        place = torch.arange(tokens * width, device=self._device, dtype=torch.int32)
        token = torch.arange(tokens, device=self._device, dtype=torch.int32)
        return {
            "hidden": ((place * 7 + row * 31) % 251).to(torch.bfloat16).view(tokens, width),
            "tokens": token * 3 + row,
            "loss_mask": ((token + row) % 2).to(torch.uint8),
            "documents": token // 100,
        }


if __name__ == "__main__":
    main()
