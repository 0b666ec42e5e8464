"""What a tensor on a device holds, in 32 bytes made where it is.

Warm-up proves that it left gigabytes of state as they were; copying them to the host and hashing them
there would cost more than the warm-up. A fold finds accidents; it is no defence against anybody.
"""

from __future__ import annotations

import torch
from torch import Tensor

_CHUNK = 1 << 24  # elements folded at once
_WORDS = 4
_WORD_OF = {8: torch.int32, 4: torch.int32, 2: torch.int16, 1: torch.uint8}  # by the bytes of an element
_FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)


@torch.no_grad()
def fold(tensor: Tensor) -> Tensor:
    """Four int64 words, on the CPU, of the bytes of a tensor and their order; its device waits.

    Word w is the sum over elements x at place i of x * (odd number of (w, i)), modulo 2**64, an element of
    8 bytes counted as two of 4: any single changed element changes every word.

    Args:
        tensor: on any device.
    """
    flat = tensor.detach().contiguous().reshape(-1).view(_WORD_OF[tensor.element_size()])
    words = torch.zeros(_WORDS, dtype=torch.int64, device=tensor.device)
    factors = torch.tensor([_signed(f) for f in _FACTORS], device=tensor.device)
    for low in range(0, len(flat), _CHUNK):
        part = flat[low : low + _CHUNK].long()
        place = torch.arange(low, low + len(part), device=tensor.device)
        for word in range(_WORDS):
            mixed = place * factors[word]
            words[word] += (part * ((mixed ^ (mixed >> 29)) | 1)).sum()
    return words.cpu()


def _signed(value: int) -> int:
    """A 64-bit word as torch takes it."""
    return value - (1 << 64) if value >> 63 else value
