"""What a worker says of itself before it knows anything, and without importing torch."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from dflash_runner import host
from dflash_runner.frames import LANE_VERSION
from dflash_runner.worker.v1 import worker_pb2


def describe() -> worker_pb2.Description:
    """Versions, device, memory and environment of this process.

    The device is the GPU that the supervisor gave it by name; without one it is the CPU, whatever GPUs the
    machine has.

    Source: README, How it works (control plane); answered before torch is imported as well as after.
    """
    gpu = next(iter(host.gpus()), None) if host.names_gpus() else None
    told = {**gpu.facts(), "triton": host.version_of("triton")} if gpu else {}
    return worker_pb2.Description(
        pid=os.getpid(),
        lane_version=LANE_VERSION,
        python=platform.python_version(),
        torch=host.version_of("torch"),
        transformers=host.version_of("transformers"),
        device=gpu.name if gpu else "cpu",
        device_uuid=gpu.uuid if gpu else "",
        memory_bytes=gpu.memory_bytes if gpu else host.memory_bytes(),
        boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        environment={**host.relevant_environment(), **told},
        torch_git=host.torch_git(),
    )
