"""Arenas of kind `cuda_vmm` on one real GPU: processes that die, memory that stays, memory that goes."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from arena_process import Partner
from arena_scenes import SCENES, Stage, staged

pytestmark = pytest.mark.gpu

DEVICE = "cuda:0"
TOKENS, WIDTH = 3072, 5 * 4096  # a row of 126 MB
SLACK_BYTES = 32 << 20  # what the driver may keep for itself between two looks


def free_bytes() -> int:
    """What the GPU has left while one process looks."""
    looker = Partner(DEVICE)
    try:
        return looker.ask("free")["bytes"]
    finally:
        looker.kill()


@pytest.mark.parametrize("scene", SCENES)
def test_scene(scene: Callable[[Stage], None]) -> None:
    """Each with its own arena and processes."""
    with staged(DEVICE, tokens=TOKENS, width=WIDTH) as stage:
        scene(stage)


def test_a_row_is_read_in_milliseconds(capsys: pytest.CaptureFixture[str]) -> None:
    """Copy, checksum and headers of 126 MB, so that a slot is free again long before a row is made."""
    with staged(DEVICE, tokens=TOKENS, width=WIDTH) as stage:
        producer = stage.producer()
        consumer = stage.consumer()
        handle = stage.write(producer, slot=0, version=1, row=1)
        took = consumer.ask("seconds", handle=handle, rounds=50, row=1, **stage.row)
    with capsys.disabled():
        sys.stderr.write(f"\nread_row {took['read'] * 1e3:.2f} ms, plain copy {took['plain'] * 1e3:.2f} ms\n")
    assert took["read"] < 5e-3, took


def test_memory_comes_back() -> None:
    """Held by the descriptor alone once all are dead, and back where it began once that is closed."""
    before = free_bytes()
    with staged(DEVICE, tokens=TOKENS, width=WIDTH) as stage:
        arena_bytes = stage.shape["slots"] * stage.shape["slot_bytes"]
        producer = stage.producer()
        consumer = stage.consumer()
        handle = stage.write(producer, slot=0, version=1, row=1)
        assert stage.reads(consumer, handle, row=1)
        assert consumer.ask("close") == {}
        producer.kill()
        consumer.kill()
        held = free_bytes()
        assert held <= before - arena_bytes + SLACK_BYTES, "the memory went with its producer"
    after = free_bytes()
    assert abs(after - before) <= SLACK_BYTES, f"{before} bytes were free, and {after} are"
