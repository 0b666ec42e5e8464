"""What one row costs a target: as its worker makes it on a GPU, compiled and replayed, by the model's own
attention, and with all logits, in one process.

`python row.py '{"shape": {...}, "rows": 20, "device": "cuda:0", "threads": 4, "profile": false, "try": []}'`,
as `bench step --role target` asks it (cmd/internal/bench/row.go). The target is of random weights, made on
the device; it is warmed up and its rows are made by the worker's own code. A row is packed of five documents.
`following` is the time of a row among some that follow one another, each queued once the one before is;
`alone` is from a still device to a still device; `host` is until everything is queued.

Shapes: S tokens of the row, C captured width, V vocabulary.
"""

from __future__ import annotations

import fcntl
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import row_ways
import told
import torch
import traced
import workload
from dflash_runner import config, devices, host
from dflash_runner.arena import Arena
from dflash_runner.cuda_arena import CudaArena
from dflash_runner.cuda_driver import CudaDriver
from dflash_runner.errors import WorkerError
from dflash_runner.frozen import FrozenTarget
from dflash_runner.recorded import RecordedRows
from dflash_runner.replay import CudaRecorder
from dflash_runner.slots import layout
from dflash_runner.warmup import Clock, prepare_torch, warm_up
from dflash_runner.warmup_target import TargetSubject, difference
from dflash_runner.watch import Watch
from dflash_runner.worker.v1 import worker_pb2
from step import median_ms, peak_bytes, rate
from torch import Tensor

_SLOT_DTYPES = {"float32": "F32", "bfloat16": "BF16"}
_PROFILED = 3  # rows that follow one another


class Rows:
    """A target that was warmed up as a worker's is, and one row for it, on the host; in float32 and on a CPU
    nothing is compiled."""

    def __init__(self, shape: workload.Shape, *, device: str, threads: int) -> None:
        """Build and warm up; on a GPU its rows are recorded."""
        clock = Clock(time.perf_counter())
        gpu = device != "cpu"
        self.compiles = gpu and shape.dtype == "bfloat16"
        message = workload.message(shape, Path("random"), device=device, threads=threads)
        message.role, message.train_data = worker_pb2.ROLE_TARGET, "none"
        message.attention = "flex" if self.compiles else "sdpa"
        message.target.replay = gpu
        message.ClearField("flex")
        settings = config.from_message(message)
        prepare_torch(settings)
        self.shape, self.device, self.watch = shape, torch.device(device), Watch()
        self.target = FrozenTarget.of_model(
            workload.random_target(shape, device=device), layer_ids=shape.layer_ids
        )
        if self.compiles:
            self.target.compile_rows()
        self.recorded = RecordedRows(self.target, recorder=CudaRecorder(self.device)) if gpu else None
        clock.lap("build")
        subject = TargetSubject(self.target, configuration=settings, recorded=self.recorded)
        self.certificate = warm_up(
            subject, configuration=settings, watch=self.watch, clock=clock, progress=lambda _: None
        )
        self.row = workload.packed_row(shape)

    def ways(self) -> dict[str, Callable[[], Tensor]]:
        """How a row is made; the last is the worker's own."""
        found = {"own": lambda: self.target.own_hidden_states(self.row)}
        if self.compiles:
            found["compiled"] = lambda: self.target.hidden_states(self.row)
        return found if self.recorded is None else {**found, "replayed": self.replayed}

    def replayed(self) -> Tensor:
        """As a worker makes a row on a GPU."""
        assert self.recorded is not None
        return self.recorded.hidden_states(self.row)

    @torch.inference_mode()
    def logits(self) -> Tensor:
        """All layers, all hidden states and all logits, as an engine that hands these out does."""
        row = self.row.to(self.device)
        output = self.target.model(
            input_ids=row.tokens_S[None].long(),
            position_ids=row.positions(),
            use_cache=False,
            output_hidden_states=True,
        )
        return output.logits


def timed(work: Callable[[], object], *, device: torch.device, rounds: int) -> dict[str, float]:
    """Milliseconds of one round: `following`, `alone`, and of the host until all is queued."""
    for _ in range(2):
        work()
    devices.settle(device)
    start = time.perf_counter()
    for _ in range(rounds):
        work()
    devices.settle(device)
    following_ms = (time.perf_counter() - start) * 1e3 / rounds
    queued = []
    for _ in range(3):
        devices.settle(device)
        start = time.perf_counter()
        work()
        queued.append((time.perf_counter() - start) * 1e3)
    devices.settle(device)
    return {
        "following_ms": following_ms,
        "alone_ms": median_ms(work, device=device, rounds=rounds),
        "host_ms": sorted(queued)[1],
    }


def slot_ms(rows: Rows, hidden_SC: Tensor, *, rounds: int) -> float:
    """Milliseconds of a complete row's way into a slot, checksum included: what a worker answers after."""
    shape = rows.shape
    _, nbytes = layout(shape.tokens, rows.target.width, _SLOT_DTYPES[shape.dtype])
    if rows.device.type == "cuda":
        arena, fd = CudaArena.create(
            CudaDriver(), arena=1, slots=1, slot_bytes=nbytes, device=torch.device("cuda", 0)
        )
    else:
        fd = os.memfd_create("arena", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        arena = Arena(os.dup(fd), arena=1, slots=1, slot_bytes=nbytes, write=True)
    small = rows.row
    tensors = {
        "hidden": hidden_SC,
        "tokens": small.tokens_S,
        "loss_mask": small.loss_mask_S,
        "documents": small.documents_S,
    }
    try:
        return median_ms(
            lambda: arena.write_row(0, version=1, row=1, tensors=tensors), device=rows.device, rounds=rounds
        )
    finally:
        arena.close()
        os.close(fd)


def profile(work: Callable[[], object], device: torch.device) -> dict[str, Any]:
    """Kernels of a row, and when kernels ran in rows that follow one another."""
    traced.kernels(work, device=device)  # the first trace loads the profiler, and may miss some
    found: dict[str, Any] = {"row": traced.by_name(traced.kernels(work, device=device))}
    found |= {"update": [], "steps": 0, "spans": [], "gaps": []}
    if device.type == "cuda":
        spans = traced.kernels(lambda: [work() for _ in range(_PROFILED)], device=device)
        found |= {"steps": _PROFILED, "spans": [[one.start_us, one.end_us] for one in spans]}
        found["gaps"] = traced.gaps(spans)
    return found


def tries(ways: list[str], rows: Rows, *, want_SC: Tensor, rounds: int) -> list[dict[str, Any]]:
    """What other ways take, on the same weights drawn once more.

    A model that was asked for all hidden states, as warm-up's oracle asks, keeps hooks that are not compiled.
    """
    fresh = workload.random_target(rows.shape, device=str(rows.device))
    target = FrozenTarget.of_model(fresh, layer_ids=rows.shape.layer_ids)
    return [
        row_ways.tried(way, target, row=rows.row, want_SC=want_SC, timed=timed, rounds=rounds) for way in ways
    ]


def slot(rows: Rows, hidden_SC: Tensor, *, rounds: int) -> dict[str, Any]:
    """What the way into a slot takes, or why there is none."""
    try:
        return {"slot_ms": slot_ms(rows, hidden_SC, rounds=rounds), "slot_failed": ""}
    except WorkerError as error:  # a GPU that cannot export memory has other arenas
        return {"slot_ms": 0.0, "slot_failed": error.message}


def measure(asked: dict[str, Any]) -> dict[str, Any]:
    """Everything, of one target."""
    shape, rounds = workload.Shape.told(asked["shape"]), asked["rows"]
    rows = Rows(shape, device=asked["device"], threads=asked["threads"])
    device, ways = rows.device, rows.ways()
    found = {name: timed(way, device=device, rounds=rounds) for name, way in ways.items()}
    peak = peak_bytes(device)
    want_SC = rows.target.hidden_states(rows.row).clone()
    equal = torch.equal(list(ways.values())[-1](), want_SC)
    apart = difference(want_SC, ways["own"](), layers=len(shape.layer_ids))
    found["logits"] = timed(rows.logits, device=device, rounds=rounds)
    into_slot = slot(rows, want_SC, rounds=rounds)
    profiled = profile(list(ways.values())[-1], device) if asked["profile"] else None
    matmul = rate(device, dtype=getattr(torch, shape.dtype))
    rows.watch.check()
    so_far = {"ways": found, **into_slot, "equal": equal, "matmul_tflops": matmul, "peak_bytes": peak}
    print(so_far, file=sys.stderr, flush=True)  # noqa: T201 whoever runs this by hand waits for the rest
    return {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "triton": host.version_of("triton"),
        "parameters": sum(tensor.numel() for tensor in rows.target.parameters().values()),
        "ways": found,
        **into_slot,
        "equal": equal,
        "teraflop": workload.target_teraflop(shape),
        "logits_teraflop": workload.target_teraflop(shape, logits=True),
        "matmul_tflops": matmul,
        "peak_bytes": peak,
        "layers_run": shape.layer_ids[-1] + 1,
        "documents": list(workload.document_lengths(shape.tokens)),
        "seconds": dict(rows.certificate.seconds),
        "difference": rows.certificate.dense_difference,
        "own_difference": apart,
        "profile": profiled,
        "tried": tries(asked["try"], rows, want_SC=want_SC, rounds=rounds) if asked["try"] else [],
    }


if __name__ == "__main__":
    told.answer(measure)
