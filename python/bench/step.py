"""What one row costs a drafter, beside the rate at which the same device multiplies matrices.

`python step.py '{"shape": {...}, "rows": 20, "device": "cuda:0", "threads": 4, "profile": false}'`, as
`bench step` asks it (cmd/internal/bench/step.go). The drafter, its warm-up and its steps are the worker's
own; only the rows are made up, on the device, as a pull leaves them. Steps of one row follow one another, and
the next row is prepared beside each on a second thread, as a pull prepares it: once a timed step. A row with
its preparation and its update is also timed alone, from a still device to a still device, and a row that is
prepared without the update. Where the question has `mixed` rows, of documents of many lengths, steps of these
follow in turn, after all that is measured of the one.
"""

from __future__ import annotations

import platform
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import told
import torch
import traced
import workload
from dflash_runner import config, devices, host
from dflash_runner.communicator import Communicator
from dflash_runner.frames import Piece
from dflash_runner.preparation import Prepared
from dflash_runner.trainer import Trainer
from dflash_runner.warmup import Clock, prepare_torch, warm_up
from dflash_runner.warmup_drafter import DrafterSubject
from dflash_runner.watch import Watch

_SIDE = {"cuda": 8192, "cpu": 512}  # of the matrices whose product gives the rate
_UNTIMED = 3  # steps
_LR = 1e-5


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Which drafter of a group one is."""

    world: int = 1
    rank: int = 0
    rows_per_step: int = 1  # its own
    groups: str = ""  # directory that the group's ranks meet in; empty: it is alone


class Steps:
    """A trainer that was warmed up as a worker is, and rows for it, which come in turn."""

    def __init__(
        self, shape: workload.Shape, directory: Path, *, device: str, threads: int, place: Place | None = None
    ) -> None:
        """Build and warm up; a compile or a dense call afterwards is a violation.

        Args:
            shape: of the drafter and its row.
            directory: for the head, which is written there.
            device: cuda:0 or cpu.
            threads: of torch on the host.
            place: in a group of drafters; None: it is alone.
        """
        clock, place = Clock(time.perf_counter()), place or Place()
        workload.save_head(shape, directory)
        clock.skip()
        told_ = workload.message(shape, directory, device=device, threads=threads)
        told_.world_size, told_.rank, told_.communicator_directory = place.world, place.rank, place.groups
        told_.training.rows_per_step = place.world * place.rows_per_step
        configuration = config.from_message(told_)
        prepare_torch(configuration)
        self.trainer, self.watch = Trainer(configuration), Watch()
        self.device = torch.device(device)
        clock.lap("build")
        self.certificate = warm_up(
            DrafterSubject(self.trainer, configuration=configuration),
            configuration=configuration,
            watch=self.watch,
            clock=clock,
            progress=lambda _: None,
        )
        self._alone = Communicator("", number=1, world=1, rank=0)
        pieces = [Piece(0, 0, 0, shape.tokens, min(shape.anchors, shape.tokens - 1))]
        self._rows = [
            workload.Row(tensors=workload.rows_of(shape, device=device, seed=1 + place.rank)(), pieces=pieces)
        ]
        self._prepared = 0  # rows
        devices.settle(self.device)  # a row that is prepared is complete: no stream is waited for
        self._copier = ThreadPoolExecutor(1, thread_name_prefix="copy")
        self._next = self._begin()

    def take_mixed(self, asked: dict[str, Any], *, shape: workload.Shape) -> int:
        """How many rows of `asked` come in turn from now on, in place of those before."""
        self._next.result()
        self._rows = workload.mixed_rows(asked, shape=shape, like=self._rows[0].tensors)
        devices.settle(self.device)
        self._prepared = 0
        self._next = self._begin()
        return len(self._rows)

    def row(self, *, number: int = 1, communicator: Communicator | None = None) -> None:
        """Forward and backward of the row that was prepared; the next one is prepared meanwhile.

        Args:
            number: of the row in its step, from 1.
            communicator: where it is the last of a step that peers sum.
        """
        prepared, self._next = self._next.result(), self._begin()
        self.trainer.micro_step(prepared, row=number, communicator=communicator)

    def update(self, communicator: Communicator | None = None) -> None:
        """The sum, over peers where there are some, the norm, and the optimiser."""
        self.trainer.reduce(communicator or self._alone)
        self.trainer.apply(lr=_LR)

    def whole(self) -> None:
        """A step of one row."""
        self.row()
        self.update()

    def alone(self) -> None:
        """A step of one row with its own preparation before it, and none beside."""
        self._next.result()
        self.trainer.micro_step(self._prepare(), row=1)
        self.update()

    def _begin(self) -> Future[Prepared]:
        return self._copier.submit(self._prepare)

    def _prepare(self) -> Prepared:
        """As a pull does, once the row is in its buffer; whenever all had their turn, other anchors."""
        epoch, place = divmod(self._prepared, len(self._rows))
        self._prepared += 1
        return self.trainer.prepare(self._rows[place].tensors, epoch=epoch, pieces=self._rows[place].pieces)

    def following(self, *, rounds: int) -> float:
        """Milliseconds of a whole step among some that follow one another."""
        devices.settle(self.device)
        start = time.perf_counter()
        for _ in range(rounds):
            self.whole()
        devices.settle(self.device)
        return (time.perf_counter() - start) * 1e3 / rounds

    def timed(self, work: Callable[[], object], *, rounds: int) -> float:
        """The median of some rounds in milliseconds, each from a still device to a still device."""
        return median_ms(work, device=self.device, rounds=rounds)


def median_ms(work: Callable[[], object], *, device: torch.device, rounds: int) -> float:
    """The median of some rounds of `work` in milliseconds, each from a still device to a still device."""
    taken = []
    for _ in range(rounds):
        devices.settle(device)
        start = time.perf_counter()
        work()
        devices.settle(device)
        taken.append((time.perf_counter() - start) * 1e3)
    return sorted(taken)[len(taken) // 2]


def rate(device: torch.device, *, dtype: torch.dtype) -> float:
    """TFLOP a second of one large product."""
    side = _SIDE[device.type]
    one, other = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    for _ in range(3):
        one @ other
    return 2 * side**3 / median_ms(lambda: one @ other, device=device, rounds=20) / 1e9


def peak_bytes(device: torch.device) -> int:
    """The most memory held: of torch's allocator on a GPU since the last reset, of the process on a CPU."""
    return host.peak_bytes() if device.type == "cpu" else devices.peak_bytes(device)


def profile(steps: Steps) -> dict[str, Any]:
    """Kernels of a row and of an update, and when kernels ran in steps that follow one another."""
    traced.kernels(steps.row, device=steps.device)  # the first trace loads the profiler, and may miss some
    found = {
        "row": traced.by_name(traced.kernels(steps.row, device=steps.device)),
        "update": traced.by_name(traced.kernels(steps.update, device=steps.device)),
        "steps": 0,
        "spans": [],
        "gaps": [],
    }
    if steps.device.type == "cuda":
        count = 3
        spans = traced.kernels(lambda: [steps.whole() for _ in range(count)], device=steps.device)
        found |= {"steps": count, "spans": [[one.start_us, one.end_us] for one in spans]}
        found["gaps"] = traced.gaps(spans)
    return found


def mixed_ms(steps: Steps, asked: dict[str, Any], *, shape: workload.Shape, rounds: int) -> dict[str, float]:
    """A step of rows of many documents among those that follow one another, as often of each row."""
    count = steps.take_mixed(asked, shape=shape)
    for _ in range(count):
        steps.whole()
    return {"step_ms": steps.following(rounds=-(-rounds // count) * count)}


def measure(asked: dict[str, Any]) -> dict[str, Any]:
    """Everything, of one trainer."""
    shape, rounds = workload.Shape.told(asked["shape"]), asked["rows"]
    with tempfile.TemporaryDirectory() as name:
        steps = Steps(shape, Path(name), device=asked["device"], threads=asked["threads"])
    if steps.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(_UNTIMED):
        steps.whole()
    whole_ms = steps.following(rounds=rounds)
    peak = peak_bytes(steps.device)
    alone_ms = steps.timed(steps.alone, rounds=rounds)
    row_ms = steps.timed(steps.row, rounds=rounds)
    mixed = mixed_ms(steps, asked["mixed"], shape=shape, rounds=rounds) if asked.get("mixed") else None
    steps.trainer.drop()
    profiled = profile(steps) if asked["profile"] else None
    steps.watch.check()
    certificate = steps.certificate
    return {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "triton": host.version_of("triton"),
        "parameters": sum(t.numel() for t in steps.trainer.optimiser.masters().values()),
        "row_ms": row_ms,
        "step_ms": whole_ms,
        "alone_ms": alone_ms,
        "teraflop": workload.teraflop(shape),
        "matmul_tflops": rate(steps.device, dtype=getattr(torch, shape.dtype)),
        "peak_bytes": peak,
        "attention": certificate.attention,
        "cache": certificate.cache,
        "seconds": dict(certificate.seconds),
        "kernels": list(certificate.kernels),
        "precision": certificate.precision,
        "fp8_products": certificate.linear_products + certificate.head_products,
        "product_kernels": list(certificate.product_kernels),
        "profile": profiled,
        "mixed": mixed,
    }


if __name__ == "__main__":
    told.answer(measure)
