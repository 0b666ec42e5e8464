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

    Source: README, How it works (control plane); answered before torch is imported as well as after.
    """
    return worker_pb2.Description(
        pid=os.getpid(),
        lane_version=LANE_VERSION,
        python=platform.python_version(),
        torch=host.version_of("torch"),
        transformers=host.version_of("transformers"),
        device="cpu",
        memory_bytes=host.memory_bytes(),
        boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        environment=host.relevant_environment(),
        torch_git=host.torch_git(),
    )
