"""The group of drafters on GPUs: as `communicator`, over NCCL.

A drafter that dies inside a sum leaves the others waiting in a kernel. An abort from another thread ends
that kernel, and the context of the survivor stays clean only without NCCL's own memory mappings, so a
process that has them is refused; afterwards the survivor proves its context before it is called clean.
Source: measured on two H200s with NVLink, torch 2.11, NCCL 2.28 (README, How it works).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from dflash_runner.communicator import SUM_TIMEOUT, Communicator
from dflash_runner.errors import Kind, WorkerError

_MAPPINGS = "NCCL_CUMEM_ENABLE"


class Group(Protocol):
    """What is used of torch's group."""

    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> Any:
        """Begin a sum; what it returns is waited for by `wait`."""

    def abort(self) -> None:
        """End whatever runs; from any thread."""


Make = Callable[[dist.Store, int, int], Group]


class NcclCommunicator(Communicator):
    """A group of `world` ranks with a GPU each, made by `open` on the main thread.

    Sums run on a stream of NCCL's, which waits for what the beginner's stream had queued. `finish` returns
    when the device has them, so what an abort left behind is never taken for a sum.
    """

    overlaps = True

    def __init__(
        self,
        directory: str,
        *,
        number: int,
        world: int,
        rank: int,
        device: torch.device,
        make: Make | None = None,
    ) -> None:
        """Name the group; nothing is made before `open`.

        Args:
            directory: where the group's store lies, as a file named by the number.
            number: rises with every group of a run.
            world: ranks in the group; with 1 nothing is made and a sum is the value itself.
            rank: this process's place, below `world`.
            device: this process's GPU.
            make: makes torch's group, of its store, rank and world; another in tests.

        Raises:
            ValueError: a rank outside the world.
            WorkerError: invalid, where an abort would break the context of a survivor.
        """
        super().__init__(directory, number=number, world=world, rank=rank)
        if world > 1 and os.environ.get(_MAPPINGS) != "0":
            got = os.environ.get(_MAPPINGS, "unset")
            raise WorkerError(
                Kind.INVALID,
                f"join communicator {number}: {_MAPPINGS}: want 0, got {got}",
                hint="with NCCL's own mappings a drafter's death breaks the others' GPU contexts",
            )
        self._device, self._make = device, make or _nccl
        self._mu_group = threading.Lock()  # guards below
        self._nccl: Group | None = None

    def open(self) -> None:
        """Wait for every rank and connect to all of them.

        Raises:
            WorkerError: unavailable, where the group was aborted or could not be connected.
        """
        if self.world == 1:
            return
        store = self._arrive()
        try:
            group = self._make(store, self.rank, self.world)
        except RuntimeError as err:
            raise self._lost("connect to peers", err) from err
        with self._mu_group:
            self._nccl = group
        if self.is_aborted():
            self.abort()
            raise self._lost("connect to peers", None)
        # NCCL connects at the first sum: here, and not in the first step
        self._begin(torch.ones(1, device=self._device), doing="connect to peers")
        self._finish(doing="connect to peers")

    def begin(self, values: torch.Tensor) -> None:
        """Begin to add up `values`, as `sum` does; until `finish` they are undefined.

        Args:
            values: a contiguous float32 tensor on the device, of equal size on every rank.

        Raises:
            WorkerError: unavailable, where a peer died or the group was aborted.
        """
        if self.is_aborted():
            raise self._lost("sum over peers", None)
        if self.world > 1:
            self._begin(values, doing="sum over peers")

    def finish(self) -> None:
        """Wait until the device has every sum that was begun.

        Raises:
            WorkerError: unavailable, where a peer died or the group was aborted; all values are then
                undefined.
        """
        self._finish(doing="sum over peers")

    def close(self) -> None:
        """Give the group up, on the main thread; sums that an abort ended are waited for with the device."""
        self.abort()
        self._sums.clear()

    def abort(self) -> None:
        """End the group at once, from any thread: whoever waits in it raises, here."""
        super().abort()
        with self._mu_group:
            group, self._nccl = self._nccl, None
        if group is not None:
            group.abort()

    def _begin(self, values: torch.Tensor, *, doing: str) -> None:
        """Queue a sum."""
        with self._mu_group:
            group = self._nccl
        if group is None:
            raise self._lost(doing, None)
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.SUM
        options.timeout = SUM_TIMEOUT
        with self._told(doing):
            self._sums.append(group.allreduce([values], options))

    def _finish(self, *, doing: str) -> None:
        """Wait until the device has done all that was begun, or until an abort made it end."""
        sums, self._sums = self._sums, []
        with self._told(doing):
            for begun in sums:
                begun.wait()
            if sums:
                self._settle()
        if self.is_aborted():
            raise self._lost(doing, None)

    @contextmanager
    def _told(self, doing: str) -> Iterator[None]:
        """Turn what NCCL raises into the error of a group that ended."""
        try:
            yield
        except RuntimeError as err:
            if type(err).__name__ == "AcceleratorError":
                raise  # the context is broken: the process must be replaced
            raise self._lost(doing, err) from err

    def _settle(self) -> None:
        """Wait for the device; the sum is on a stream of NCCL's that the caller's stream waits for."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()


def _nccl(store: dist.Store, rank: int, world: int) -> Group:
    """torch's group over NCCL; the supervisor has the deadline, so it has none that matters."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(hours=24)  # noqa: SLF001 torch has no public name for it
    return dist.ProcessGroupNCCL(store, rank, world, options)
