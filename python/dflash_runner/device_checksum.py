"""The checksum of a row that lies in a GPU: made there, at the speed of its memory.

`checksum` takes a CRC over a word for every 4,096 bytes; bringing those words to the host and
running over them would take as long as the copy of a row between two GPUs. Here the device adds
up the blocks' sums as well, each times a weight of its own, and one number comes back.

What is noticed, always: any one flipped bit. It changes its block's sum by plus or minus 2^k,
k < 32, and the row's by that times an odd weight, which is not 0 modulo 2^32. All other damage (a
row half written, other rows' bytes, blocks in another order) escapes with a chance of about 2^-31.
Words that change places within one block escape by rule, and two flips of one bit's place in one
block, one up and one down: the same two as in `checksum`.

torch is imported where it is used. Shape letter: `N` blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    import torch

BLOCK_BYTES: Final = 4096
_WORDS: Final = BLOCK_BYTES // 4
_MASK: Final = 0xFFFF_FFFF


def weights(count: int) -> np.ndarray:
    """The weights of blocks 0 to count-1: odd, below 2^32, as int64.

    Source: proto/lane.md, Slots; splitmix64 (Steele, Lea, Flood 2014).
    """
    with np.errstate(over="ignore"):
        mixed = (np.arange(count, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E37_79B9_7F4A_7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
        mixed ^= mixed >> np.uint64(31)
    return ((mixed & np.uint64(_MASK)) | np.uint64(1)).astype(np.int64)


def blocks_of(nbytes: int) -> int:
    """How many blocks a tensor of `nbytes` takes."""
    return -(-nbytes // BLOCK_BYTES)


class DeviceChecksum:
    """The sums of one row's blocks, filled in as its bytes arrive; for one row at a time."""

    def __init__(self, *, max_blocks: int, device: torch.device) -> None:
        """Allocate for rows of at most `max_blocks` blocks.

        Args:
            max_blocks: over all tensors of a row, each of which begins a block.
            device: where the rows lie.
        """
        import torch

        self._weights_N = torch.from_numpy(weights(max_blocks)).to(device)
        self._sums_N = torch.zeros(max_blocks, dtype=torch.int64, device=device)
        self._tail = torch.zeros(BLOCK_BYTES, dtype=torch.uint8, device=device)

    def add(self, raw: torch.Tensor, *, block: int) -> int:
        """Sum up the blocks of `raw`, on the current stream.

        Args:
            raw: uint8, contiguous, at a multiple of 4 bytes; only a tensor's end may be a part of a block.
            block: number of its first block in the row.

        Returns:
            The number of the block after its last.
        """
        import torch

        whole = raw.numel() // BLOCK_BYTES
        if whole:
            words = raw[: whole * BLOCK_BYTES].view(torch.int32).view(whole, _WORDS)
            torch.sum(words, dim=1, dtype=torch.int64, out=self._sums_N[block : block + whole])
        rest = raw.numel() - whole * BLOCK_BYTES
        if not rest:
            return block + whole
        last = raw[whole * BLOCK_BYTES :]
        if rest % 4:  # a word is cut
            self._tail.zero_()
            self._tail[:rest].copy_(last)
            last = self._tail
        words = last.view(torch.int32)[None]
        torch.sum(words, dim=1, dtype=torch.int64, out=self._sums_N[block + whole : block + whole + 1])
        return block + whole + 1

    def value(self, blocks: int) -> torch.Tensor:
        """The checksum of a row of `blocks` blocks: int64 of no dimensions, below 2^32, on the device.

        Source: proto/lane.md, Slots. Products and sums wrap modulo 2^64, of which 2^32 is a divisor.
        """
        return (self._sums_N[:blocks] * self._weights_N[:blocks]).sum() & _MASK
