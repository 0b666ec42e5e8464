"""The checksum of rows against a loop-written oracle, and what it must notice."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from dflash_runner.checksum import BLOCK_BYTES, checksum
from hypothesis import given, settings
from hypothesis import strategies as st

LENGTHS = (0, 1, 7, 8, 9, 4095, 4096, 4097, 8192, 3 * 4096 + 13)


def data_of(length: int, *, seed: int = 0) -> bytearray:
    """Random bytes."""
    return bytearray(np.random.default_rng(seed).bytes(length))


def oracle(data: bytes, value: int = 0) -> int:
    """The rule of proto/lane.md, word by word."""
    for start in range(0, len(data), BLOCK_BYTES):
        block = bytes(data[start : start + BLOCK_BYTES]).ljust(BLOCK_BYTES, b"\0")
        total = sum(int.from_bytes(block[at : at + 8], "little") for at in range(0, BLOCK_BYTES, 8))
        value = zlib.crc32((total % 2**64).to_bytes(8, "little"), value)
    return value


@pytest.mark.parametrize("length", LENGTHS)
def test_equals_the_oracle(length: int) -> None:
    """Whole blocks, tails, and nothing at all."""
    data = data_of(length)
    assert checksum(memoryview(data)) == oracle(data)
    assert checksum(memoryview(data), 0xDEADBEEF) == oracle(data, 0xDEADBEEF)


def test_is_pinned() -> None:
    """The bytes of the wire never change their meaning."""
    assert checksum(memoryview(bytes(range(256)) * 33)) == 0x9DEAB6A0
    assert checksum(memoryview(b"\xff" * BLOCK_BYTES)) == 0xA178D24E


@settings(deadline=None)
@given(st.sampled_from(LENGTHS[1:]), st.data())
def test_any_flipped_bit_is_noticed(length: int, data: st.DataObject) -> None:
    """Wherever it is."""
    row = data_of(length)
    before = checksum(memoryview(row))
    bit = data.draw(st.integers(0, 8 * length - 1))
    row[bit // 8] ^= 1 << bit % 8
    assert checksum(memoryview(row)) != before


@pytest.mark.parametrize("fill", [0x00, 0xFF, 0x80, 0x7F])
def test_longest_carries_are_noticed(fill: int) -> None:
    """Each bit of a word among words that carry as far as they can."""
    row = bytearray([fill]) * BLOCK_BYTES
    before, seen = checksum(memoryview(row)), set()
    for bit in range(64):
        row[bit // 8] ^= 1 << bit % 8
        seen.add(checksum(memoryview(row)))
        row[bit // 8] ^= 1 << bit % 8
    assert before not in seen
    assert len(seen) == 64


def test_no_run_of_changed_bits_has_a_crc_of_nothing() -> None:
    """What the proof stands on: a sum's difference is one run of bits, and none of them escapes."""
    nothing = zlib.crc32(bytes(8))
    for low in range(64):
        for high in range(low, 64):
            run = (1 << high + 1) - (1 << low)
            assert zlib.crc32(run.to_bytes(8, "little")) != nothing, (low, high)


def test_block_order_is_noticed() -> None:
    """Blocks that change places, and bytes that belong to another tensor."""
    row = bytes(data_of(3 * BLOCK_BYTES))
    a, b, c = (row[i * BLOCK_BYTES : (i + 1) * BLOCK_BYTES] for i in range(3))
    assert checksum(memoryview(b + a + c)) != checksum(memoryview(row))
    assert checksum(memoryview(a), checksum(memoryview(b + c))) != checksum(memoryview(row))


def test_tensors_are_carried_over() -> None:
    """One after the other, each padded for itself: lengths cannot be shifted between them."""
    first, second = data_of(100, seed=1), data_of(5000, seed=2)
    both = checksum(memoryview(second), checksum(memoryview(first)))
    assert both == oracle(second, oracle(first))
    assert both != checksum(memoryview(first + second))
