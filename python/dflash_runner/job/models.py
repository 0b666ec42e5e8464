"""Torch for a job, the device that it computes on, and loading a target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from dflash_runner import devices
from dflash_runner.pretrained import read_target
from dflash_runner.tensorfile import FileError

__all__ = ["load_target", "set_up_device", "set_up_torch"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def set_up_torch(threads: int) -> None:
    """Fixes the number of threads, and keeps progress bars off the log.

    Args:
        threads: of torch within an operation.

    Source: measured: 1 and 2 threads differ in their bits.
    """
    from transformers.utils import logging

    torch.set_num_threads(threads)
    logging.disable_progress_bar()


def set_up_device(name: str) -> torch.device:
    """The device that a job computes on, ready for use.

    Args:
        name: "cpu", also where it is empty, or "cuda:0": the one GPU that this process sees. On a CPU nothing
            is set, as kernels are a worker's business; on a GPU see `devices.prepare`.

    Raises:
        FileError: another name.
        WorkerError: no GPU, or several.
    """
    if name in ("", "cpu"):
        return torch.device("cpu")
    if name != "cuda:0":
        raise FileError(f"use device: want cpu or cuda:0, got {name!r}")
    device = torch.device("cuda:0")
    devices.prepare(device)
    return device


def load_target(directory: Path | str, *, dtype: str, device: torch.device | str = "cpu") -> Any:
    """The target's whole model in evaluation mode; nothing is fetched and no code in it is run.

    Raises:
        FileError: an unknown dtype.
        WorkerError: no model that can be a target.

    Source: `pretrained.read_target`.
    """
    if dtype not in _DTYPES:
        raise FileError(f"load target: dtype: want one of {list(_DTYPES)}, got {dtype!r}")
    return read_target(Path(directory), dtype=_DTYPES[dtype]).to(device)
