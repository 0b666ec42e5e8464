"""Export: a checkpoint's image becomes a drafter directory that other engines load."""

from __future__ import annotations

from pathlib import Path

import torch

from dflash_runner.building import drafter_config
from dflash_runner.export import export as write_drafter
from dflash_runner.export import load_drafter, masters_of
from dflash_runner.job.models import set_up_torch
from dflash_runner.job.reporter import Reporter
from dflash_runner.job.v1 import job_pb2
from dflash_runner.tensorfile import FileError

__all__ = ["export"]

_DTYPES = {"": torch.bfloat16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def export(job: job_pb2.Export, *, threads: int, reporter: Reporter) -> None:
    """Writes the directory, reads it back, and reports it.

    Raises:
        FileError: a field is missing, or the directory is there already.
        WorkerError: the image does not hold that drafter.

    Source: the public dflash package 0.1.0.
    """
    for name in ("directory", "image"):
        if not getattr(job, name):
            raise FileError(f"export: {name}: missing")
    if job.dtype not in _DTYPES:
        raise FileError(f"export: dtype: want bfloat16 or float32, got {job.dtype!r}")
    set_up_torch(threads)
    directory = Path(job.directory)
    config = drafter_config(job.drafter, job.target)
    reporter.progress("export", 0, 1)
    write_drafter(masters_of(Path(job.image)), config=config, directory=directory, dtype=_DTYPES[job.dtype])
    written = load_drafter(directory)
    assert written.config == config, "what was written reads back as the same drafter"
    reporter.progress("export", 1, 1)
    reporter.result(
        {
            "tensors": len(written.tensors),
            "parameters": sum(tensor.numel() for tensor in written.tensors.values()),
        },
        {"directory": str(directory)},
    )
