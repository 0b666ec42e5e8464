"""The arenas that a role has mapped, of either kind, by number."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

from dflash_runner.arena import Arena
from dflash_runner.cuda_arena import CudaArena
from dflash_runner.cuda_driver import CudaDriver
from dflash_runner.cuda_memory import Driver
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.orders import CreateArena, MapArena
from dflash_runner.staging import Rows, StagedRows, Staging


class Arenas:
    """Written by the lane's thread, read by whichever thread copies rows."""

    def __init__(
        self,
        *,
        driver: Callable[[], Driver] = CudaDriver,
        device: str = "cuda:0",
        staging: Callable[[], Staging] | None = None,
    ) -> None:
        """Hold none yet.

        Args:
            driver: makes the GPU's, once an arena of kind `cuda_vmm` is there.
            device: where those are used; a worker sees one GPU.
            staging: makes the pinned memory before an arena of the host, once there is one; none where
                rows are on the host themselves.
        """
        self._make_staging = staging
        self._staging: Staging | None = None
        self._make_driver = driver
        self._driver: Driver | None = None
        self._device = torch.device(device)
        self._arenas: dict[int, Rows] = {}

    def map(self, order: MapArena, *, fd: int) -> None:
        """Map the arena behind `fd`, which is closed in every case.

        Raises:
            WorkerError: as the kind's own does.
        """
        if order.kind == "memfd":
            arena = Arena(
                fd, arena=order.arena, slots=order.slots, slot_bytes=order.slot_bytes, write=order.write
            )
            if self._make_staging is not None and self._staging is None:
                self._staging = self._make_staging()
            self._arenas[order.arena] = StagedRows.before(arena, self._staging)
            return
        try:
            driver = self._gpu()
        except WorkerError:
            os.close(fd)
            raise
        self._arenas[order.arena] = CudaArena.adopt(
            driver,
            fd,
            arena=order.arena,
            slots=order.slots,
            slot_bytes=order.slot_bytes,
            write=order.write,
            device=self._device,
        )

    def create(self, order: CreateArena) -> int:
        """Allocate an arena, map it for writing, and give its descriptor, which is the caller's.

        Raises:
            WorkerError: EXHAUSTED without enough memory, UNAVAILABLE where the GPU cannot export.
        """
        self._arenas[order.arena], fd = CudaArena.create(
            self._gpu(),
            arena=order.arena,
            slots=order.slots,
            slot_bytes=order.slot_bytes,
            device=self._device,
        )
        return fd

    def get(self, arena: int, *, doing: str) -> Rows:
        """The mapped arena of a number.

        Raises:
            WorkerError: INVALID where there is none; `doing` says what wanted it.
        """
        found = self._arenas.get(arena)
        if found is None:
            raise WorkerError(Kind.INVALID, f"{doing}: want a mapped arena, got {arena}")
        return found

    def _gpu(self) -> Driver:
        """The driver of this process's GPU."""
        if self._driver is None:
            self._driver = self._make_driver()
        return self._driver
