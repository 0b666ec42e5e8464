"""Files of version 1, kept as they were written: today's code reads them, and no later version."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from dflash_runner import image
from dflash_runner.data import Dataset
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.image import State
from dflash_runner.tensorfile import FileError

ROOT = Path(__file__).parents[2] / "runner"
IMAGE = ROOT / "image/testdata/format1/step-7/image.safetensors"
DATA = ROOT / "rows/testdata/format1"


@pytest.fixture
def fd() -> Iterator[int]:
    """The sample image, for reading."""
    fd = os.open(IMAGE, os.O_RDONLY)
    yield fd
    os.close(fd)


def state(scale: float) -> State:
    """What the sample holds at scale 1; of its shapes at any other."""

    def part(scale: float) -> dict[str, torch.Tensor]:
        return {
            "norm.weight": torch.arange(4, dtype=torch.float32) * scale,
            "layers.0.weight": (torch.arange(6, dtype=torch.float32).reshape(2, 3) - 2) * scale,
        }

    return State(masters=part(scale), exp_avg=part(scale / 2), exp_avg_sq=part(scale / 4))


def test_image(fd: int) -> None:
    got, want = state(0.0), state(1.0)
    head = image.read(fd, nbytes=IMAGE.stat().st_size, state=got, step=7)
    assert (head.step, head.optimizer_step) == (7, 7)
    for name, tensor in want.tensors().items():
        assert torch.equal(got.tensors()[name], tensor), name


def test_later_image(tmp_path: Path) -> None:
    later = tmp_path / "image"
    later.write_bytes(IMAGE.read_bytes().replace(b"dflash-runner-image/1", b"dflash-runner-image/2"))
    untouched = state(0.0)
    refused = pytest.raises(WorkerError, match=r"want dflash-runner-image/1, got .*image/2")
    with later.open("rb") as file, refused as err:
        image.read(file.fileno(), nbytes=later.stat().st_size, state=untouched, step=7)
    assert err.value.kind is Kind.INVALID
    assert not any(t.any() for t in untouched.tensors().values()), "a refused image changes nothing"


def test_dataset() -> None:
    data = Dataset.open(DATA)
    assert len(data) == 3
    tokens, mask = data.sample(2)
    assert (tokens.tolist(), mask.tolist()) == ([9, 10, 11, 12], [1, 1, 0, 1])


def test_later_dataset(tmp_path: Path) -> None:
    shutil.copytree(DATA, tmp_path / "data")
    index = tmp_path / "data/index.safetensors"
    index.write_bytes(index.read_bytes().replace(b"dflash-runner-index/1", b"dflash-runner-index/2"))
    with pytest.raises(FileError, match=r"want 'dflash-runner-index/1', got 'dflash-runner-index/2'"):
        Dataset.open(tmp_path / "data")
