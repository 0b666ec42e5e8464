"""What is tried with an arena of kind `cuda_vmm` and real processes, on a GPU and with the fake driver.

The test's own process holds the descriptor, as the supervisor does, and has no GPU.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import pytest
from arena_process import Gone, Partner
from dflash_runner.slots import layout

SLOTS = 3


class Stage:
    """An arena's shape, its descriptor, and the processes that share it."""

    def __init__(self, device: str, *, tokens: int, width: int) -> None:
        """Make nothing yet.

        Args:
            device: of every process.
            tokens: length of a row.
            width: of its hidden states, in elements.
        """
        self.device = device
        self.row = {"tokens": tokens, "width": width}
        self.shape = {"slots": SLOTS, "slot_bytes": layout(tokens, width, "BF16")[1]}
        self.fd = -1
        self.partners: list[Partner] = []

    def partner(self) -> Partner:
        """Another process."""
        self.partners.append(Partner(self.device))
        return self.partners[-1]

    def producer(self) -> Partner:
        """One that makes the arena, or maps the one that is there for writing."""
        made = self.partner()
        if self.fd < 0:
            self.fd = made.ask("create", **self.shape)["fd"]
        else:
            assert made.ask("map", fd=self.fd, write=True, **self.shape) == {}
        return made

    def consumer(self) -> Partner:
        """One that maps the arena for reading."""
        made = self.partner()
        assert made.ask("map", fd=self.fd, write=False, **self.shape) == {}
        return made

    def write(self, by: Partner, *, slot: int, version: int, row: int) -> dict[str, Any]:
        """Have a row written; its handle."""
        handle = by.ask("write", slot=slot, version=version, row=row, **self.row)
        assert handle.get("version") == version, handle
        return handle

    def reads(self, by: Partner, handle: dict[str, Any], *, row: int) -> bool:
        """Whether a row is read and is as it was written."""
        return by.ask("read", handle=handle, row=row, **self.row) == {"equal": True}

    def close(self) -> None:
        """End every process and let the memory go."""
        for partner in self.partners:
            partner.kill()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@contextlib.contextmanager
def staged(device: str, *, tokens: int, width: int) -> Iterator[Stage]:
    """A stage that is cleared afterwards."""
    stage = Stage(device, tokens=tokens, width=width)
    try:
        yield stage
    finally:
        stage.close()


def rows_cross(stage: Stage) -> None:
    """Every slot holds its own row; a drafter cannot read what is not there or not the one meant."""
    producer = stage.producer()
    consumer = stage.consumer()
    handles = [stage.write(producer, slot=i, version=4 + i, row=1 + i) for i in range(SLOTS)]
    for i, handle in enumerate(handles):
        assert stage.reads(consumer, handle, row=1 + i)
    again = stage.write(producer, slot=0, version=9, row=7)
    assert consumer.ask("read", handle=handles[0], row=1, **stage.row)["kind"] == "stale"
    assert consumer.ask("read", handle=again, row=8, **stage.row)["kind"] == "stale"
    damaged = again | {"crc": again["crc"] ^ 1}
    assert consumer.ask("read", handle=damaged, row=7, **stage.row)["kind"] == "internal"
    assert stage.reads(consumer, again, row=7)


def the_checksum_is_the_cpus(stage: Stage) -> None:
    """The device sums up to what proto/lane.md says, which the CPU's tests hold it to."""
    partner = stage.partner()
    for nbytes in (1, 4096, 1_000_003, 8 << 20):
        got = partner.ask("checksums", nbytes=nbytes)
        assert got["own"] == got["cpu"] != 0, got


def producer_dies_in_a_copy(stage: Stage) -> None:
    """Killed while it writes: full slots stay readable, the torn one is refused, the next life goes on."""
    producer = stage.producer()
    consumer = stage.consumer()
    full = stage.write(producer, slot=0, version=1, row=1)
    torn = stage.write(producer, slot=1, version=1, row=2)
    assert producer.ask("storm", slot=1, version=2, row=3, **stage.row) == {}
    producer.kill()
    assert stage.reads(consumer, full, row=1)
    assert consumer.ask("read", handle=torn, row=2, **stage.row)["kind"] == "stale"
    successor = stage.producer()
    assert stage.reads(consumer, stage.write(successor, slot=1, version=1 << 40, row=5), row=5)
    assert stage.reads(consumer, full, row=1)


def consumer_dies_in_a_copy(stage: Stage) -> None:
    """Killed while it reads: its slot is whole for the next reader, and the producer goes on."""
    producer = stage.producer()
    consumer = stage.consumer()
    handle = stage.write(producer, slot=0, version=1, row=1)
    assert consumer.ask("storm", handle=handle, row=1, **stage.row) == {}
    consumer.kill()
    other = stage.write(producer, slot=2, version=1, row=2)
    successor = stage.consumer()
    assert stage.reads(successor, handle, row=1) and stage.reads(successor, other, row=2)


def both_die_and_a_third_reads(stage: Stage) -> None:
    """With nobody left but the descriptor's holder, a fresh process reads what was written."""
    producer = stage.producer()
    consumer = stage.consumer()
    handle = stage.write(producer, slot=2, version=3, row=6)
    assert producer.ask("storm", slot=0, version=1, row=3, **stage.row) == {}
    assert consumer.ask("storm", handle=handle, row=6, **stage.row) == {}
    producer.kill()
    consumer.kill()
    assert stage.reads(stage.consumer(), handle, row=6)


def a_store_is_refused(stage: Stage) -> None:
    """A kernel's store through a mapping for reading changes nothing and ends the offender alone."""
    producer = stage.producer()
    neighbour, offender = stage.consumer(), stage.consumer()
    handle = stage.write(producer, slot=0, version=1, row=1)
    assert stage.reads(offender, handle, row=1)
    with contextlib.suppress(Gone):  # on a CPU the process ends
        answer = offender.ask("store")
        assert answer.get("kind") == "fatal", answer
        assert offender.ask("product").get("kind") == "fatal"
    offender.kill()
    assert stage.reads(neighbour, handle, row=1)
    assert neighbour.ask("product") == producer.ask("product") == {"sum": 64.0**3}
    assert stage.reads(neighbour, stage.write(producer, slot=1, version=1, row=2), row=2)
    assert stage.reads(stage.consumer(), handle, row=1)


SCENES = [
    pytest.param(scene, id=scene.__name__)
    for scene in (
        rows_cross,
        the_checksum_is_the_cpus,
        producer_dies_in_a_copy,
        consumer_dies_in_a_copy,
        both_die_and_a_third_reads,
        a_store_is_refused,
    )
]
