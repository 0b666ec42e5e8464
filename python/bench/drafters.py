"""What one drafter of a group does with rows that were made beforehand: how many a second, and how long the
sum of gradients keeps it.

`python drafters.py '{"shape": {...}, "rows": 20, "rows_per_step": 4, "world": 2, "rank": 0, "groups": "...",
"device": "cuda:0", "threads": 4}'`, as `bench step --gpus 2` asks it for each rank (cmd/internal/bench/
drafters.go). The drafter, its warm-up and its steps are those of step.py; ranks meet in the product's own
communicator, NCCL on GPUs and gloo on a CPU. As in a worker every micro-step is waited for, all but a step's
last are replayed on a GPU, and the last begins its sums in the backward. The clock starts when a sum has
brought all ranks together.
"""

from __future__ import annotations

import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import told
import torch
import workload
from dflash_runner import devices, host
from dflash_runner.communicator import Communicator
from dflash_runner.nccl import NcclCommunicator
from step import Place, Steps, peak_bytes

_UNTIMED = 2  # steps of the group


class Kept(Communicator):
    """A group that counts how long a rank that has done its own part waits for the sums."""

    kept_s = 0.0

    def finish(self) -> None:
        """As the group's own; what the device still computes of this rank's is waited for before."""
        self.await_own()
        start = time.perf_counter()
        super().finish()
        self.kept_s += time.perf_counter() - start

    def await_own(self) -> None:
        """Wait for what this rank computes, and for no sum: on a CPU nothing is left."""


class KeptNccl(Kept, NcclCommunicator):
    """The same over NCCL, whose sums are on a stream of their own."""

    def await_own(self) -> None:
        """Wait for the stream that computes, which waits for no sum before `finish`."""
        if self.world > 1:
            torch.cuda.current_stream(self._device).synchronize()


def group(place: Place, *, device: torch.device) -> Kept:
    """The open group of all ranks; alone there is nothing to open."""
    named: dict[str, Any] = {"number": 1, "world": place.world, "rank": place.rank}
    made: Kept
    if device.type == "cuda":
        made = KeptNccl(place.groups, **named, device=device)
    else:
        made = Kept(place.groups, **named)
    made.open()
    return made


def step(steps: Steps, communicator: Kept, *, rows: int) -> None:
    """One step of this rank's rows, its gradient summed over the group."""
    for number in range(1, rows + 1):
        steps.row(number=number, communicator=communicator if number == rows else None)
        if number < rows:
            steps.trainer.settle()  # as a worker does, before it gives the row's buffer back
    steps.update(communicator)
    steps.trainer.settle()  # as a worker's commit does


def timed(steps: Steps, communicator: Kept, *, rows: int, count: int) -> tuple[float, float]:
    """Seconds of some steps that the ranks begin together, and of them those that sums kept this one."""
    communicator.sum(torch.ones(1, device=steps.device))
    devices.settle(steps.device)
    communicator.kept_s = 0.0
    start = time.perf_counter()
    for _ in range(count):
        step(steps, communicator, rows=rows)
    return time.perf_counter() - start, communicator.kept_s


def measure(asked: dict[str, Any]) -> dict[str, Any]:
    """Everything, of one rank."""
    shape, rows = workload.Shape.told(asked["shape"]), asked["rows_per_step"]
    place = Place(world=asked["world"], rank=asked["rank"], rows_per_step=rows, groups=asked["groups"])
    with tempfile.TemporaryDirectory() as name:
        steps = Steps(shape, Path(name), device=asked["device"], threads=asked["threads"], place=place)
    communicator = group(place, device=steps.device)
    for _ in range(_UNTIMED):
        step(steps, communicator, rows=rows)
    count = asked["rows"] // rows
    seconds, kept_s = timed(steps, communicator, rows=rows, count=count)
    steps.watch.check()
    peak = peak_bytes(steps.device)
    digest = steps.trainer.parameters_digest().hex()
    communicator.close()
    certificate = steps.certificate
    return {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "triton": host.version_of("triton"),
        "parameters": sum(t.numel() for t in steps.trainer.optimiser.masters().values()),
        "steps": count,
        "seconds": seconds,
        "kept_s": kept_s,
        "sum_bytes": steps.trainer.optimiser.gradient_P.nbytes,
        "peak_bytes": peak,
        "digest": digest,
        "replayed": steps.trainer.records,
        "attention": certificate.attention,
        "cache": certificate.cache,
        "precision": certificate.precision,
        "warm_up_s": certificate.seconds["total"],
    }


if __name__ == "__main__":
    told.answer(measure)
