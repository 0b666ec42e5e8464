"""Images of a drafter's state, taken on a thread beside the training.

The state stands still only while it is copied (`snapshot`); digests and writing read the copy.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass

from dflash_runner import image
from dflash_runner.orders import Image
from dflash_runner.replies import NO_DIGEST, Saved, Taken
from dflash_runner.snapshot import Snapshot
from dflash_runner.trainer import Trainer
from dflash_runner.worker.loop import Helper
from dflash_runner.worker.role import Send


@dataclass(frozen=True, kw_only=True, slots=True)
class _Task:
    """An image that was ordered."""

    order: Image
    fd: int | None  # a descriptor of the task's own
    chain: bytes  # of the ordered step
    optimizer_step: int
    send: Send


class Imaging:
    """Ordered and waited for on the main thread, done on its own."""

    def __init__(self, trainer: Trainer, *, writes: bool) -> None:
        """Start the thread, which has its memory before the first image: gigabytes are pinned in seconds, and
        the state would stand still for them.

        Args:
            trainer: whose state it is.
            writes: whether images are likely to be written here. Elsewhere their digest alone is made, of the
                masters.
        """
        self._trainer = trainer
        self._snapshot = Snapshot(trainer.device)  # of the thread
        self._thread = Helper("image")
        self._copied = threading.Condition()
        self._copies = 0  # begun and not taken; guarded by the condition
        state = trainer.state()
        copied = state.tensors() if writes else state.masters
        nbytes = sum(tensor.nbytes for tensor in copied.values())
        self._thread.put(lambda: self._snapshot.reserve(nbytes))

    def begin(self, order: Image, *, fd: int | None, chain: bytes, send: Send) -> None:
        """Take an image of the state, which stands still until `await_copy` returns.

        Args:
            order: of the present step.
            fd: a memfd of the ordered size, where it is to be written; not kept.
            chain: of the present step.
            send: takes the answers: `Taken`, then `Saved`.

        Raises:
            WorkerError: invalid, where the size is not the image's.
        """
        if fd is not None:
            image.check_size(fd, nbytes=order.nbytes, state=self._trainer.state())
        task = _Task(
            order=order,
            fd=None if fd is None else os.dup(fd),
            chain=chain,
            optimizer_step=self._trainer.optimizer_step(),
            send=send,
        )
        with self._copied:
            self._copies += 1
        self._thread.put(lambda: self._take(task))

    def await_copy(self) -> None:
        """Wait until the state may change."""
        with self._copied:
            self._copied.wait_for(lambda: not self._copies)

    def settle(self) -> None:
        """Wait until every image that was begun is written."""
        self._thread.settle()

    def _take(self, task: _Task) -> None:
        """Copy, tell, digest and write; on the thread."""
        start, state = time.perf_counter(), self._trainer.state()
        self._snapshot.take((state.masters if task.fd is None else state.tensors()).values())
        with self._copied:
            self._copies -= 1
            self._copied.notify()
        task.send(Taken(seq=task.order.seq, step=task.order.step, busy_us=_since(start)))
        parameters = self._trainer.parameters_digest(pieces=self._snapshot)
        digest = NO_DIGEST if task.fd is None else self._write(task.fd, task, state, parameters)
        task.send(
            Saved(
                seq=task.order.seq,
                step=task.order.step,
                written=task.fd is not None,
                image=digest,
                parameters=parameters,
                busy_us=_since(start),
            )
        )

    def _write(self, fd: int, task: _Task, state: image.State, parameters: bytes) -> bytes:
        """The digest of the image, written and its descriptor closed."""
        head = image.Head(
            step=task.order.step,
            optimizer_step=task.optimizer_step,
            chain=task.chain,
            parameters=parameters,
        )
        try:
            return image.write(fd, nbytes=task.order.nbytes, state=state, head=head, pieces=self._snapshot)
        finally:
            os.close(fd)


def _since(start: float) -> int:
    """Microseconds since `start`."""
    return int((time.perf_counter() - start) * 1e6)
