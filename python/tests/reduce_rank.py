"""One drafter of two, as a process with a GPU of its own that takes orders from its standard input.

`python reduce_rank.py DIRECTORY RANK`. Orders are lines: `join N`, `step N`, `same N`, `trace N`, `part N`,
`abort`, `drop`; each but `abort`, which comes on a thread of its own, is answered by a JSON line.
"""

from __future__ import annotations

import json
import queue
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from dflash_runner import config
from dflash_runner.errors import WorkerError
from dflash_runner.frames import Piece
from dflash_runner.nccl import NcclCommunicator
from dflash_runner.trainer import Trainer
from dflash_runner.warmup import Clock, prepare_torch, warm_up
from dflash_runner.warmup_drafter import DrafterSubject
from dflash_runner.watch import Watch
from dflash_runner.worker.v1 import worker_pb2
from test_flex_gpu import message
from torch.autograd import DeviceType

LAYERS, HIDDEN, BUCKET, MICRO = 4, 2048, 1024, 2
PART = 2  # sums that `part` begins before it stands still


def configuration(directory: Path, rank: int) -> config.Configuration:
    """A drafter of two whose gradient fills several buckets."""
    asked = message(directory)
    asked.world_size, asked.rank = 2, rank
    asked.drafter.layers, asked.drafter.hidden_size = LAYERS, HIDDEN
    asked.drafter.intermediate_size = 4 * HIDDEN
    del asked.training.buckets[:]
    asked.training.buckets.append(BUCKET)
    asked.training.rows_per_step = 2 * MICRO
    asked.communicator_directory = str(directory / "groups")
    assert asked.role == worker_pb2.ROLE_DRAFTER
    return config.from_message(asked)


class Seen(NcclCommunicator):
    """Counts the sums that are begun, keeps copies of what goes in, and stands still where it is told."""

    begun = 0
    still_after: int | None = None
    kept: list[torch.Tensor] | None = None

    def begin(self, values: torch.Tensor) -> None:
        if self.begun == self.still_after:
            say(still=True)
            threading.Event().wait()  # until it is killed
        if self.kept is not None:
            self.kept.append(values.clone())
        super().begin(values)
        self.begun += 1


class Rank:
    """The drafter."""

    def __init__(self, directory: Path, rank: int) -> None:
        settings = configuration(directory, rank)
        clock = Clock(time.perf_counter())
        prepare_torch(settings)
        self.trainer, self.watch, self.rank = Trainer(settings), Watch(), rank
        warm_up(
            DrafterSubject(self.trainer, configuration=settings),
            configuration=settings,
            watch=self.watch,
            clock=clock,
            progress=lambda _: None,
        )
        self.directory, self.anchors = settings.communicator_directory, settings.training.anchors
        self.communicator: Seen | None = None

    def join(self, number: int) -> dict[str, Any]:
        """Make a group."""
        device = self.trainer.device
        self.communicator = Seen(self.directory, number=number, world=2, rank=self.rank, device=device)
        self.communicator.open()
        return {"joined": number}

    def rows(self, step: int) -> None:
        """The step's micro-steps; rank 1 has no row at the last place of every third step."""
        self.communicator.begun = 0
        for micro in range(MICRO):
            last = micro == MICRO - 1
            if last and self.rank == 1 and step % 3 == 2:
                continue
            tensors = self._row(1000 * step + 10 * self.rank + micro)
            pieces = [Piece(0, 0, 0, BUCKET, self.anchors)]
            self.trainer.micro_step(
                self.trainer.prepare(tensors, epoch=step, pieces=pieces),
                row=micro + 1,
                communicator=self.communicator if last else None,
            )

    def _row(self, seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        vocabulary = self.trainer.config.vocab_size
        hidden = torch.randn(BUCKET, 3 * HIDDEN, generator=generator).bfloat16()
        return {
            "hidden": hidden,
            "tokens": torch.randint(vocabulary, (BUCKET,), generator=generator, dtype=torch.int32),
            "loss_mask": torch.ones(BUCKET, dtype=torch.uint8),
            "documents": torch.zeros(BUCKET, dtype=torch.int32),
        }

    def step(self, step: int) -> dict[str, Any]:
        """Train and apply; what was begun in the backward, the vote's bits and the parameters' digest."""
        self.rows(step)
        early = self.communicator.begun
        figures = self.trainer.reduce(self.communicator)
        self.trainer.apply(lr=1e-3)
        self.watch.check()
        return {
            "finite": figures.finite,
            "bits": struct.pack("<ff", figures.norm, figures.weight).hex(),
            "early": early,
            "begun": self.communicator.begun,
            "digest": self.trainer.parameters_digest().hex(),
        }

    def same(self, step: int) -> dict[str, Any]:
        """Whether buckets summed in the backward give what one sum of the same gradient gives."""
        self.communicator.kept = []
        self.rows(step)
        early = self.communicator.begun
        self.trainer.optimiser.sum(self.communicator)
        whole, self.communicator.kept = torch.cat(self.communicator.kept), None
        moved = not torch.equal(whole, self.trainer.optimiser.gradient_P)
        self.communicator.sum(whole)
        told = {
            "early": early,
            "moved": moved,
            "equal": torch.equal(whole, self.trainer.optimiser.gradient_P),
            "any": bool(whole.any()),
        }
        self.trainer.drop()
        return told

    def trace(self, step: int) -> dict[str, Any]:
        """What the device's own record says of the order of kernels in one step.

        `beside`: kernels of the backward that started after the first sum and before the last one.
        """
        self.communicator.sum(torch.ones(1, device=self.trainer.device))  # both start together
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        ) as seen:
            self.rows(step)
            self.trainer.optimiser.sum(self.communicator)
            self.trainer.settle()
        self.trainer.drop()
        ran = [event for event in seen.events() if event.device_type == DeviceType.CUDA]
        sums = sorted(event.time_range.start for event in ran if "nccl" in event.name.lower())
        rest = [e for e in ran if "nccl" not in e.name.lower() and not e.name.lower().startswith("mem")]
        beside = [event.name for event in rest if sums[0] < event.time_range.start < sums[-1]]
        return {"sums": len(sums), "beside": len(beside), "names": sorted({name[:60] for name in beside})[:5]}

    def part(self, step: int) -> dict[str, Any]:
        """Begin some sums and stand still, to be killed."""
        self.communicator.still_after = PART
        return self.step(step)

    def drop(self, _: int) -> dict[str, Any]:
        """As an aborted step is dropped."""
        summing = self.trainer.optimiser.is_summing
        self.communicator.close()
        self.trainer.drop()
        return {
            "summing": summing,
            "clean": self.trainer.is_clean(),
            "digest": self.trainer.parameters_digest().hex(),
        }


def say(**told: Any) -> None:
    """Answer."""
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Take orders until standard input ends."""
    rank = Rank(Path(sys.argv[1]), int(sys.argv[2]))
    orders: queue.SimpleQueue[list[str] | None] = queue.SimpleQueue()

    def listen() -> None:
        for line in iter(sys.stdin.readline, ""):
            if line.strip() == "abort":
                rank.communicator.abort()
            else:
                orders.put(line.split())
        orders.put(None)

    threading.Thread(target=listen, daemon=True).start()
    say(ready=True, digest=rank.trainer.parameters_digest().hex())
    while (order := orders.get()) is not None:
        try:
            say(**getattr(rank, order[0])(int(order[1])))
        except WorkerError as err:
            say(refused=err.message, kind=err.kind.label)


if __name__ == "__main__":
    main()
