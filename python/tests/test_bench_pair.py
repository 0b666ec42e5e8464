"""What `bench handoff` asks of a process, through an arena of a GPU whose driver is imitated."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from dflash_runner.arenas import Arenas
from fake_driver import FakeDriver

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
import pair

ROW = {"tokens": 24, "width": 40, "dtype": "bfloat16"}


@pytest.fixture
def partners(monkeypatch: pytest.MonkeyPatch) -> tuple[pair.Partner, pair.Partner]:
    """A producer and a consumer in one process, each with the row and its own mapping of the arena."""
    monkeypatch.setattr(pair, "Arenas", lambda device: Arenas(driver=FakeDriver, device=device))
    producer, consumer = pair.Partner("cpu", 1), pair.Partner("cpu", 1)
    size, _ = producer.row(None, **ROW)
    assert consumer.row(None, **ROW)[0] == size
    assert (size["hidden_bytes"], size["payload_bytes"]) == (24 * 40 * 2, 24 * (40 * 2 + 9))
    shape = {"slots": 3, "slot_bytes": size["slot_bytes"]}
    _, fd = producer.create(None, **shape)
    consumer.map(os.dup(fd), kind="cuda_vmm", write=False, **shape)
    os.close(fd)
    return producer, consumer


def test_a_row_comes_through(partners):
    producer, consumer = partners
    written, _ = producer.write(None, slot=1, version=5, times=2)
    assert written["seconds"] > 0 and written["handle"]["version"] == 6
    assert consumer.equal(None)[0] == {"equal": False}  # nothing was read yet
    read, _ = consumer.read(None, handle=written["handle"], times=2)
    assert read["seconds"] > 0 and consumer.equal(None)[0] == {"equal": True}


def test_plain_copies_are_of_the_slot_itself(partners):
    producer, consumer = partners
    written, _ = producer.write(None, slot=0, version=1, times=1)
    consumer.read(None, handle=written["handle"], times=1)
    for tensor in consumer._out.values():  # noqa: SLF001 emptied, to see what a copy fills
        tensor.zero_()
    producer._row["hidden"].neg_()  # noqa: SLF001 another row, which no header knows of
    assert producer.copy_in(None, times=1)[0]["seconds"] > 0
    assert consumer.copy_out(None, times=1)[0]["seconds"] > 0
    assert (consumer._out["hidden"] == producer._row["hidden"]).all()  # noqa: SLF001
    assert not consumer._out["tokens"].any()  # noqa: SLF001 hidden states alone


def test_a_copy_without_a_row_is_refused(partners):
    with pytest.raises(ValueError, match="want a row that was written or read before"):
        partners[0].copy_in(None, times=1)
