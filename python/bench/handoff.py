"""How fast a row goes through a slot, beside a plain memcpy of the same size in the same process.

`python handoff.py MEBIBYTES ROUNDS`: prints one JSON object. Everything is timed once in every
round, one after the other, so that what else the machine does hits all alike. All memory is warm:
written before the first round.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import mmap
import os
import platform
import sys
import time
import zlib
from collections.abc import Callable

import numpy as np
import torch
from dflash_runner.arena import Arena
from dflash_runner.checksum import checksum

_WIDTH = 5 * 1024  # five captured layers
_LAYERS = 5
_SEALS = 0x2 | 0x4  # SHRINK, GROW
_PAGE = 4096


class Handoff:
    """One slot, a row on either side of it, and two plain buffers."""

    def __init__(self, mebibytes: int) -> None:
        """Make and touch all memory; `hidden` has as many whole tokens as fit."""
        tokens = (mebibytes << 20) // (4 * _WIDTH)
        generator = torch.Generator().manual_seed(0)
        hidden = torch.randn(tokens, _WIDTH, generator=generator)
        self.row = {
            "hidden": hidden,
            "tokens": torch.randint(0, 1 << 30, (tokens,), generator=generator, dtype=torch.int32),
            "loss_mask": torch.ones(tokens, dtype=torch.uint8),
            "documents": torch.zeros(tokens, dtype=torch.int32),
        }
        self.parts = dict(self.row) | {"hidden": [part.contiguous() for part in hidden.chunk(_LAYERS, dim=1)]}
        self.out = {name: torch.ones_like(tensor) for name, tensor in self.row.items()}
        self.payload_bytes = sum(tensor.nbytes for tensor in self.row.values())
        self.hidden_bytes = hidden.nbytes
        slot_bytes = -(-(self.payload_bytes + 5 * 64) // _PAGE) * _PAGE
        fd = os.memfd_create("bench", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, slot_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        self.writer = Arena(os.dup(fd), arena=1, slots=1, slot_bytes=slot_bytes, write=True)
        self.reader = Arena(os.dup(fd), arena=1, slots=1, slot_bytes=slot_bytes, write=False)
        mapping = mmap.mmap(fd, slot_bytes, flags=mmap.MAP_SHARED)
        os.close(fd)
        slot = torch.frombuffer(mapping, dtype=torch.uint8)
        self.slot_hidden = slot[64 : 64 + hidden.nbytes].view(torch.float32).view_as(hidden)
        self.plain = [torch.ones_like(hidden), torch.ones_like(hidden)]
        self.version = 0

    def memcpy(self) -> None:
        """The C library's, between two buffers of this process."""
        into, out_of = self.plain
        ctypes.memmove(into.data_ptr(), out_of.data_ptr(), self.hidden_bytes)

    def write(self) -> None:
        """As a target writes: copies, checksum, header."""
        self.version += 1
        self.handle = self.writer.write_row(0, version=self.version, row=1, tensors=self.row)

    def write_parts(self) -> None:
        """The same, the captured layers side by side."""
        self.version += 1
        self.handle = self.writer.write_row(0, version=self.version, row=1, tensors=self.parts)

    def read(self) -> None:
        """As a drafter pulls."""
        self.reader.read_row(self.handle, row=1, out=self.out)

    def measures(self) -> dict[str, tuple[int, Callable[[], object]]]:
        """What is timed, and the bytes that it moves or reads."""
        raw = memoryview(self.row["hidden"].view(-1).view(torch.uint8).numpy())
        return {
            "memcpy": (self.hidden_bytes, self.memcpy),
            "copy_in": (self.hidden_bytes, lambda: self.slot_hidden.copy_(self.row["hidden"])),
            "copy_out": (self.hidden_bytes, lambda: self.out["hidden"].copy_(self.slot_hidden)),
            "write_row": (self.payload_bytes, self.write),
            "write_row_layers": (self.payload_bytes, self.write_parts),
            "read_row": (self.payload_bytes, self.read),
            "checksum": (self.hidden_bytes, lambda: checksum(raw)),
            "zlib_crc32": (self.hidden_bytes, lambda: zlib.crc32(raw)),
        }


def measure(
    measures: dict[str, tuple[int, Callable[[], object]]], rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds of each, round by round, by the clock and of this thread; a first round is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in measures}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in measures}
    for number in range(rounds + 1):
        for name, (_, work) in measures.items():
            start, cpu_start = time.perf_counter(), time.thread_time()
            work()
            cpu, wall = time.thread_time() - cpu_start, time.perf_counter() - start
            if number:
                seconds[name].append(wall)
                cpu_seconds[name].append(cpu)
    return seconds, cpu_seconds


def main() -> None:
    """Measure, check that the row came through, and print."""
    torch.set_num_threads(1)
    handoff = Handoff(int(sys.argv[1]))
    measures = handoff.measures()
    seconds, cpu_seconds = measure(measures, int(sys.argv[2]))
    for name, tensor in handoff.row.items():
        if not torch.equal(tensor, handoff.out[name]):
            raise AssertionError(f"read row: {name} is not what was written")
    result = {
        "payload_bytes": handoff.payload_bytes,
        "bytes": {name: size for name, (size, _) in measures.items()},
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": str(np.__version__),
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
