"""The checksum of a row's bytes: cheap enough to stay on, and no flipped bit escapes it.

A CRC over every byte costs more than the copy of a row that it guards, where zlib has no fast one.
So the bytes are summed in blocks, which goes as fast as memory can be read, and the CRC is taken
over the sums, a word for every 4,096 bytes.

What is noticed, always: any one flipped bit. It changes its block's sum by plus or minus 2^k modulo
2^64, which in the sum is one run of changed bits, and the CRC's polynomial is primitive, so that it
divides no run of 64 or fewer. All other damage (a row half written, other rows' bytes, blocks in
another order) escapes with a chance of about 2^-32. Words that change places within one block escape
by rule, and two flips of one bit's place in one block, one up and one down.
"""

from __future__ import annotations

import zlib
from typing import Final

import numpy as np

BLOCK_BYTES: Final = 4096
_WORDS: Final = BLOCK_BYTES // 8


def checksum(data: memoryview, value: int = 0) -> int:
    """Carry the checksum `value` over the bytes of one more tensor.

    Args:
        data: contiguous bytes of a tensor, of any length; not changed. Read without the GIL.
        value: of the tensors before; 0 for the first.

    Returns:
        An unsigned 32-bit number.

    Source: proto/lane.md, Slots; measured in python/bench/LOG.md (handoff).
    """
    octets = np.frombuffer(data, dtype=np.uint8)
    whole = len(octets) // BLOCK_BYTES * BLOCK_BYTES
    words = octets[:whole].view("<u8").reshape(-1, _WORDS)
    value = zlib.crc32(np.add.reduce(words, axis=1, dtype=np.uint64).astype("<u8"), value)
    if whole == len(octets):
        return value
    last = np.zeros(BLOCK_BYTES, dtype=np.uint8)
    last[: len(octets) - whole] = octets[whole:]
    return zlib.crc32(np.add.reduce(last.view("<u8"), dtype=np.uint64).astype("<u8").tobytes(), value)
