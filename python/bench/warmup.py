"""What warm-up costs one process: a drafter of a workload, built and warmed up as a worker does it.

`python warmup.py '{"shape": {...}, "device": "cuda:0", "threads": 4, "directory": "..."}'`: `bench warmup`
runs two of them, one after the other, with one compile cache that was empty (cmd/internal/bench/warmup.go).
"""

from __future__ import annotations

import time

_STARTED = time.perf_counter()  # before torch is imported, which is a part of it

import platform  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import told  # noqa: E402


def measure(asked: dict[str, Any]) -> dict[str, Any]:
    """The certificate of this process, as far as it is about time."""
    import torch
    import workload
    from dflash_runner import config, host
    from dflash_runner.trainer import Trainer
    from dflash_runner.warmup import Clock, prepare_torch, warm_up
    from dflash_runner.warmup_drafter import DrafterSubject
    from dflash_runner.watch import Watch

    clock, directory = Clock(_STARTED), Path(asked["directory"])
    shape = workload.Shape.told(asked["shape"])
    told_ = workload.message(shape, directory, device=asked["device"], threads=asked["threads"])
    configuration = config.from_message(told_)
    prepare_torch(configuration)
    clock.lap("import")
    if not (directory / "model.safetensors").exists():
        workload.save_head(shape, directory)
        clock.skip()
    trainer = Trainer(configuration)
    clock.lap("build")
    certificate = warm_up(
        DrafterSubject(trainer, configuration=configuration),
        configuration=configuration,
        watch=Watch(),
        clock=clock,
        progress=lambda _: None,
    )
    return {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "triton": host.version_of("triton"),
        "parameters": sum(t.numel() for t in trainer.optimiser.masters().values()),
        "attention": certificate.attention,
        "cache": certificate.cache,
        "hits": certificate.cache_hits,
        "misses": certificate.cache_misses,
        "compiles": certificate.first_pass_compiles,
        "seconds": dict(certificate.seconds),
    }


if __name__ == "__main__":
    told.answer(measure)
