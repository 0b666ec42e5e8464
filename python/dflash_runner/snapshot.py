"""What tensors held at one moment, on the host, while they go on to change.

An image's digests and writing take seconds for a state of gigabytes, its copy a fraction of one: from a
device it goes through the bus at its full rate into pinned memory, on a stream of its own, beside the next
forward and backward. So only the copy keeps a commit waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from dflash_runner.staging import PIECE_BYTES, Copies


class Snapshot:
    """Bytes of tensors; of one thread. Its memory is had when reserved or first needed, and kept."""

    def __init__(self, device: torch.device, *, block_bytes: int = PIECE_BYTES) -> None:
        """Nothing is taken yet.

        Args:
            device: where the tensors are.
            block_bytes: of the host's memory at a time. A power of two: pinned memory is rounded up to one.
        """
        self._copies, self._block_bytes = Copies(device), block_bytes
        self._blocks: list[Tensor] = []
        self._taken: dict[int, list[Tensor]] = {}  # by address

    @property
    def held_bytes(self) -> int:
        """Of the host's memory."""
        return len(self._blocks) * self._block_bytes

    def reserve(self, nbytes: int) -> None:
        """Have the memory for so many bytes now, where there is less.

        Args:
            nbytes: of the tensors that will be taken.

        Raises:
            Exception: of torch, where the memory cannot be had or pinned.
        """
        for at in range(0, nbytes, self._block_bytes):
            self._room(at)

    def take(self, tensors: Iterable[Tensor]) -> None:
        """Copy, and forget what was taken before; complete on return.

        Args:
            tensors: contiguous, on the device. They are complete and nothing changes them meanwhile: no
                stream is waited for, as training goes on beside.

        Raises:
            Exception: of torch, where the memory cannot be had or pinned.
        """
        self._taken, at = {}, 0
        with self._copies.here():
            for tensor in tensors:
                parts: list[Tensor] = []
                flat = tensor.detach().view(-1).view(torch.uint8)
                while len(flat):
                    part = self._room(at)[: len(flat)]
                    part.copy_(flat[: len(part)], non_blocking=True)
                    parts.append(part)
                    flat, at = flat[len(part) :], at + len(part)
                self._taken[tensor.data_ptr()] = parts
        self._copies.settle()

    def of(self, tensor: Tensor) -> Iterator[Tensor]:
        """What a tensor held, uint8 in order; good until the next `take`.

        Args:
            tensor: one of those that were taken last.
        """
        parts = self._taken.get(tensor.data_ptr())
        if parts is None or sum(map(len, parts)) != tensor.nbytes:
            raise AssertionError(f"read snapshot: want a tensor that was taken, got {list(tensor.shape)}")
        yield from parts

    def _room(self, at: int) -> Tensor:
        """What is left of the block that byte `at` lies in."""
        block, start = divmod(at, self._block_bytes)
        if block == len(self._blocks):
            pinned = self._copies.stream is not None
            self._blocks.append(torch.empty(self._block_bytes, dtype=torch.uint8, pin_memory=pinned))
        return self._blocks[block][start:]
