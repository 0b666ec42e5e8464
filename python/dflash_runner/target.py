"""The target's role: it makes rows of hidden states, and evaluates drafters."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from dflash_runner import image
from dflash_runner.arenas import Arenas
from dflash_runner.certificate import Certificate, Progress
from dflash_runner.config import Configuration
from dflash_runner.data import Dataset
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.evaluation import Evaluator
from dflash_runner.frozen import FrozenTarget
from dflash_runner.lane import LaneError
from dflash_runner.orders import Abort, CreateArena, Evaluate, MapArena, Order, Produce, Pull
from dflash_runner.packing import pack
from dflash_runner.recorded import RecordedRows
from dflash_runner.replay import CudaRecorder, Recorder
from dflash_runner.replies import Produced
from dflash_runner.slots import layout
from dflash_runner.staging import Staging
from dflash_runner.trainer import DTYPES
from dflash_runner.warmup import Clock, prepare_torch, warm_up
from dflash_runner.warmup_target import TargetSubject
from dflash_runner.watch import Watch
from dflash_runner.worker.role import Built, Send

_SLOT_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16"}


class TargetRole:
    """The role; see `worker.role.Role` for which thread calls what."""

    def __init__(
        self, configuration: Configuration, *, started: float, recorder: Recorder | None = None
    ) -> None:
        """Read the model and open the data.

        Args:
            configuration: of a target.
            started: `time.perf_counter` before torch was imported.
            recorder: of rows, another than the configured one, in tests.
        """
        self._configuration = configuration
        self._clock = Clock(started)
        prepare_torch(configuration)
        import transformers  # noqa: F401 timed as an import, not as the build

        self._clock.lap("import")
        settings = configuration.target
        self._data = Dataset.open(configuration.train_data)
        self._target = FrozenTarget(
            Path(settings.directory),
            dtype=DTYPES[settings.dtype],
            layer_ids=settings.layer_ids,
            whole=bool(configuration.prompts),  # only decoding needs what no row runs
            device=configuration.device,
        )
        _check_model(self._target, configuration)
        if configuration.attention == "flex":
            self._target.compile_rows()
        self._evaluator = Evaluator(self._target, configuration=configuration)
        self._watch = Watch()
        device = self._target.device
        if recorder is None and settings.replay:
            recorder = CudaRecorder(device)
        self._recorded = None if recorder is None else RecordedRows(self._target, recorder=recorder)
        self._rows = self._recorded or self._target  # what makes rows
        staged = None if device.type == "cpu" else partial(Staging, self._slot_bytes(), device=device)
        self._arenas = Arenas(staging=staged)  # written by the lane's thread, read by the main one
        self._clock.lap("build")

    def built(self) -> Built:
        """The size of a slot; a target trains nothing."""
        return Built(
            parameters=0,
            parameters_digest=image.tensors_digest(self._target.parameters()),
            slot_bytes=self._slot_bytes(),
            image_bytes=0,
        )

    def _slot_bytes(self) -> int:
        """What a row of the largest bucket takes."""
        dtype = _SLOT_DTYPES[self._target.dtype]
        return layout(self._configuration.training.buckets[-1], self._target.width, dtype)[1]

    def warm_up(self, progress: Callable[[Progress], None]) -> Certificate:
        """Every bucket through the function that makes rows; see `warmup`."""
        return warm_up(
            TargetSubject(self._target, configuration=self._configuration, recorded=self._recorded),
            configuration=self._configuration,
            watch=self._watch,
            clock=self._clock,
            progress=progress,
        )

    def map_arena(self, order: MapArena, *, fd: int) -> None:
        """Map the arena that this target writes."""
        if not order.write:
            os.close(fd)
            raise LaneError(f"map arena {order.arena}: a target writes, the order says read")
        self._arenas.map(order, fd=fd)

    def create_arena(self, order: CreateArena) -> int:
        """Make the arena that this target writes, in its GPU."""
        return self._arenas.create(order)

    def pull(self, order: Pull, *, send: Send) -> None:  # noqa: ARG002 the role's signature
        """No order of a target."""
        raise LaneError(f"pull row {order.row}: a target pulls nothing")

    def interrupt(self, order: Abort) -> None:
        """No order of a target."""
        raise LaneError(f"abort step {order.step}: a target has no step")

    def work(self, order: Order, *, fd: int | None, send: Send) -> None:
        """Do one order and refuse to go on after a compile or a dense call (I3)."""
        match order:
            case Produce():
                reply = self._produce(order)
            case Evaluate():
                reply = self._evaluator.evaluate(order, fd=fd)
            case _:
                raise LaneError(f"take order: a target takes no {order.__struct_config__.tag}")
        self._watch.check()
        send(reply)

    def settle(self) -> None:
        """Nothing runs beside the main thread."""

    def _produce(self, order: Produce) -> Produced:
        """Make one row in a slot; its bytes are there when this returns."""
        start = time.perf_counter()
        arena = self._arenas.get(order.arena, doing=f"produce row {order.row}")
        if order.bucket not in self._configuration.training.buckets:
            want = list(self._configuration.training.buckets)
            raise WorkerError(
                Kind.INVALID, f"produce row {order.row}: bucket: want one of {want}, got {order.bucket}"
            )
        row = pack(self._data, pieces=order.pieces, bucket=order.bucket)
        handle = arena.write_row(
            order.slot,
            version=order.version,
            row=order.row,
            tensors={
                "hidden": self._rows.hidden_states(row),
                "tokens": row.tokens_S,
                "loss_mask": row.loss_mask_S,
                "documents": row.documents_S,
            },
        )
        busy_us = int((time.perf_counter() - start) * 1e6)
        return Produced(seq=order.seq, row=order.row, handle=handle, busy_us=busy_us)


def _check_model(target: FrozenTarget, configuration: Configuration) -> None:
    """The model is the one that the drafter was planned for."""
    text = target.text
    drafter = configuration.drafter
    for name, want, got in (
        ("hidden_size", text.hidden_size, drafter.hidden_size),
        ("vocab_size", text.vocab_size, drafter.vocab_size),
        ("target_layers", text.num_hidden_layers, drafter.target_layers),
    ):
        if want != got:
            raise ValueError(f"configure target: drafter.{name}: want the target's {want}, got {got}")
