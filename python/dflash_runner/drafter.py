"""The drafter's role: it pulls rows, trains, votes, commits, and saves or loads its state."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from dflash_runner import image
from dflash_runner.arenas import Arenas
from dflash_runner.buffers import Held, RowBuffers
from dflash_runner.certificate import Certificate, Progress
from dflash_runner.communicator import Communicator
from dflash_runner.config import Configuration
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.figures import Figures
from dflash_runner.frames import RowLoss, bits_of
from dflash_runner.imaging import Imaging
from dflash_runner.lane import LaneError
from dflash_runner.orders import (
    Abort,
    Commit,
    CreateArena,
    Image,
    Join,
    Load,
    MapArena,
    Order,
    Pull,
    Train,
)
from dflash_runner.preparation import Prepared
from dflash_runner.replies import (
    Aborted,
    Committed,
    Joined,
    Loaded,
    Pulled,
    Trained,
    Voted,
)
from dflash_runner.slots import layout
from dflash_runner.staging import Staging
from dflash_runner.standing import Standing
from dflash_runner.trainer import DTYPES, Trainer
from dflash_runner.warmup import Clock, prepare_torch, warm_up
from dflash_runner.warmup_drafter import DrafterSubject
from dflash_runner.watch import Watch
from dflash_runner.worker.faults import NAN, Faults
from dflash_runner.worker.role import Built, Send

_SLOT_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16"}


class DrafterRole:
    """The role; see `worker.role.Role` for which thread calls what."""

    def __init__(self, configuration: Configuration, *, faults: Faults, started: float) -> None:
        """Build the model, its optimiser and the row buffers.

        Args:
            configuration: of a drafter.
            faults: struck at `train`.
            started: `time.perf_counter` before torch was imported.
        """
        self._configuration = configuration
        self._faults = faults
        self._clock = Clock(started)
        prepare_torch(configuration)
        self._clock.lap("import")
        self._trainer = Trainer(configuration)
        config, device = self._trainer.config, self._trainer.device
        longest, width = configuration.training.buckets[-1], len(config.target_layer_ids) * config.hidden_size
        dtype = DTYPES[configuration.target.dtype]
        self._buffers = RowBuffers(bucket=longest, width=width, dtype=dtype, device=device)
        slot_bytes = layout(longest, width, _SLOT_DTYPES[dtype])[1]
        staged = None if device.type == "cpu" else partial(Staging, slot_bytes, device=device)
        self._watch = Watch()
        self._standing = Standing()
        self._arenas = Arenas(staging=staged)  # written by the lane's thread, read by the copy thread
        self._imaging = Imaging(self._trainer, writes=configuration.rank == 0)
        self._clock.lap("build")

    def built(self) -> Built:
        """Sizes and the digest of the parameters at step 0."""
        masters = self._trainer.optimiser.masters()
        return Built(
            parameters=sum(tensor.numel() for tensor in masters.values()),
            parameters_digest=self._trainer.parameters_digest(),
            slot_bytes=0,
            image_bytes=image.image_bytes(self._trainer.state()),
        )

    def warm_up(self, progress: Callable[[Progress], None]) -> Certificate:
        """Every bucket through the functions that train; see `warmup`."""
        subject = DrafterSubject(self._trainer, configuration=self._configuration)
        return warm_up(
            subject,
            configuration=self._configuration,
            watch=self._watch,
            clock=self._clock,
            progress=progress,
        )

    def map_arena(self, order: MapArena, *, fd: int) -> None:
        """Map a target's arena for reading."""
        if order.write:
            os.close(fd)
            raise LaneError(f"map arena {order.arena}: a drafter only reads, the order says write")
        self._arenas.map(order, fd=fd)

    def create_arena(self, order: CreateArena) -> int:
        """No order of a drafter."""
        raise LaneError(f"create arena {order.arena}: a drafter only reads")

    def pull(self, order: Pull, *, send: Send) -> None:
        """Copy a row out of a slot into a row buffer and prepare its micro-step; it is there, and the slot
        is free, at the answer."""
        start = time.perf_counter()
        arena = self._arenas.get(order.handle.arena, doing=f"pull row {order.row}")
        held = self._buffers.begin(order.row, epoch=order.epoch, bucket=order.bucket, pieces=order.pieces)
        try:
            arena.read_row(order.handle, row=order.row, out=held.tensors)
            prepared = [
                self._trainer.prepare(held.tensors, epoch=held.epoch, pieces=held.pieces, draw=draw)
                for draw in range(self._trainer.draws)
            ]
        except WorkerError:
            self._buffers.failed(held)
            raise
        self._buffers.filled(held, prepared=prepared)
        send(Pulled(seq=order.seq, row=order.row, busy_us=_since(start)))

    def interrupt(self, order: Abort) -> None:
        """End the communicator that the main thread may be waiting in."""
        self._standing.interrupt(order)

    def work(self, order: Order, *, fd: int | None, send: Send) -> None:
        """Do one order and refuse to go on after a compile or a dense call (I3)."""
        match order:
            case Train():
                self._train(order, send)
            case Commit():
                self._commit(order, send)
            case Abort():
                self._abort(order, send)
            case Join():
                self._join(order, send)
            case Image():
                self._image(order, fd, send)
            case Load():
                self._load(order, fd, send)
            case _:
                raise LaneError(f"take order: a drafter takes no {order.__struct_config__.tag}")

    def settle(self) -> None:
        """Wait for an image that is being written."""
        self._imaging.settle()

    def _join(self, order: Join, send: Send) -> None:
        """Make the communicator, the last one being given up."""
        want = (self._configuration.world_size, self._configuration.rank)
        if (order.world, order.rank) != want:
            raise WorkerError(
                Kind.INVALID,
                f"join communicator {order.communicator}: want world and rank {want}, "
                f"got {(order.world, order.rank)}",
            )
        communicator = self._communicator(order)
        self._standing.join(order, communicator)
        self._drop()
        communicator.open()
        send(Joined(seq=order.seq, communicator=order.communicator))

    def _communicator(self, order: Join) -> Communicator:
        """What sums the gradients: gloo on a CPU, NCCL on GPUs."""
        directory, world, rank = self._configuration.communicator_directory, order.world, order.rank
        if self._trainer.device.type == "cpu":
            return Communicator(directory, number=order.communicator, world=world, rank=rank)
        from dflash_runner.nccl import NcclCommunicator

        return NcclCommunicator(
            directory, number=order.communicator, world=world, rank=rank, device=self._trainer.device
        )

    def _train(self, order: Train, send: Send) -> None:
        """One micro-step; the last one of a step joins the sum and votes."""
        start = time.perf_counter()
        communicator = self._standing.train(order)
        try:
            held, figures = self._micro_step(order, communicator)
            self._watch.check()
        except Exception:
            self._standing.failed()
            raise
        self._standing.trained(voted=order.last)
        if held is not None:
            self._buffers.mark(held)
        send(Trained(seq=order.seq, step=order.step, micro=order.micro, row=order.row, busy_us=_since(start)))
        if figures is not None:
            self._vote(order, figures, send)

    def _micro_step(self, order: Train, communicator: Communicator) -> tuple[Held | None, Figures | None]:
        """Forward and backward of a row buffer, which it gives, or nothing at a weightless place; at the
        step's last place the sum too, which may have begun in the backward, and the figures."""
        poison = self._faults.reach("train", step=order.step) == NAN
        held = self._buffers.take(order.row) if order.row else None
        try:
            for left, prepared in _countdown(() if held is None else held.prepared):
                self._trainer.micro_step(
                    prepared,
                    row=order.row,
                    poison=poison,
                    communicator=communicator if order.last and not left else None,
                )
            return held, self._trainer.reduce(communicator) if order.last else None
        finally:
            if held is not None:
                self._trainer.settle()  # until then the device reads the row
                self._buffers.release(held)

    def _vote(self, order: Train, figures: Figures, send: Send) -> None:
        """Tell what the step came to."""
        send(
            Voted(
                seq=order.seq,
                lineage=order.lineage,
                communicator=order.communicator,
                step=order.step,
                rows=[
                    RowLoss(row=r.row, numerator=r.numerator, denominator=r.denominator) for r in figures.rows
                ],
                weight=bits_of(figures.weight),
                norm=bits_of(figures.norm),
                finite=figures.finite,
            )
        )

    def _commit(self, order: Commit, send: Send) -> None:
        """Apply the optimiser, once the state of the step before is copied for its image."""
        if self._standing.commit(order):
            self._imaging.await_copy()
            self._trainer.apply(lr=order.lr)
            self._trainer.settle()
            self._watch.check()
            self._standing.committed(order)
            self._buffers.committed()
        send(Committed(seq=order.seq, step=order.step))

    def _abort(self, order: Abort, send: Send) -> None:
        """Drop the open step; the communicator was ended before."""
        ended = self._standing.aborted()
        if ended is not None:
            ended.close()
        self._drop()
        send(Aborted(seq=order.seq, step=order.step, clean=self._trainer.is_clean()))

    def _drop(self) -> None:
        """Forget the open step; its rows stay for whoever names them."""
        self._trainer.drop()
        self._buffers.dropped()

    def _image(self, order: Image, fd: int | None, send: Send) -> None:
        """Take an image beside the next forward; `commit` waits until the state is copied."""
        self._standing.image(order)
        self._imaging.begin(order, fd=fd, chain=self._standing.chain, send=send)

    def _load(self, order: Load, fd: int | None, send: Send) -> None:
        """Take another state over, whole or not at all."""
        if fd is None:
            raise AssertionError("the lane gives a load its descriptor")
        self._standing.load(order)
        self._imaging.await_copy()
        head = image.read(fd, nbytes=order.nbytes, state=self._trainer.state(), step=order.step)
        self._trainer.loaded(optimizer_step=head.optimizer_step)
        ended = self._standing.loaded(order, chain=head.chain)
        if ended is not None:
            ended.close()
        self._drop()
        parameters = self._trainer.parameters_digest()
        send(Loaded(seq=order.seq, step=order.step, chain=head.chain, parameters=parameters))


def _countdown(prepared: Sequence[Prepared]) -> Iterator[tuple[int, Prepared]]:
    """Each draw of a row with how many are left after it."""
    return zip(reversed(range(len(prepared))), prepared, strict=True)


def _since(start: float) -> int:
    """Microseconds since `start`."""
    return int((time.perf_counter() - start) * 1e6)
