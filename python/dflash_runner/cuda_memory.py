"""GPU memory that outlives its process: allocated, exported as a descriptor, mapped by others.

The driver frees the memory once no process maps it and no descriptor of it is open. So what is
created here is let go of at once but for the mapping and the descriptor, and the supervisor's copy
of that descriptor keeps the bytes, whoever dies. The calls to the driver stand behind `Driver`
(`cuda_driver` makes them), so that their order is tested without a GPU.
"""

from __future__ import annotations

import contextlib
import os
from typing import Protocol

from dflash_runner.errors import Kind, WorkerError


class Driver(Protocol):
    """The driver's calls for this process's GPU; one that raises, a `WorkerError`, did nothing."""

    def granularity(self) -> int:
        """What sizes must be a multiple of, in bytes."""

    def create(self, nbytes: int) -> int:
        """A new allocation on the GPU, by its handle."""

    def export(self, handle: int) -> int:
        """A descriptor of the allocation, close-on-exec and the caller's."""

    def adopt(self, fd: int) -> int:
        """The allocation that a descriptor names, by a handle of this process; `fd` stays the caller's."""

    def reserve(self, nbytes: int) -> int:
        """An address with room for `nbytes`."""

    def map(self, address: int, nbytes: int, handle: int) -> None:
        """Put the allocation there; nothing may touch it yet."""

    def set_access(self, address: int, nbytes: int, *, write: bool) -> None:
        """Let this GPU read it, and write it where `write`."""

    def release(self, handle: int) -> None:
        """Give the handle up; mappings and descriptors keep the allocation."""

    def unmap(self, address: int, nbytes: int) -> None:
        """Take the allocation away from its address."""

    def free(self, address: int, nbytes: int) -> None:
        """Give the address up."""


class DeviceMemory:
    """An allocation that is mapped into this process."""

    def __init__(self, driver: Driver, *, address: int, nbytes: int) -> None:
        """Take over what is mapped at `address`; made by `create` and `adopt`."""
        self._driver = driver
        self.address = address
        self.nbytes = nbytes

    @classmethod
    def create(cls, driver: Driver, nbytes: int) -> tuple[DeviceMemory, int]:
        """A new allocation, mapped for writing, and its descriptor, which is the caller's.

        Args:
            driver: of this process's GPU.
            nbytes: rounded up to the driver's granularity.

        Raises:
            WorkerError: what the driver said; nothing is left behind.
        """
        size = _rounded(driver, nbytes)
        with contextlib.ExitStack() as undo:
            handle = driver.create(size)
            undo.callback(driver.release, handle)
            fd = driver.export(handle)
            undo.callback(os.close, fd)
            address = _map(driver, handle, size, write=True, undo=undo)
            driver.release(handle)
            undo.pop_all()
        return cls(driver, address=address, nbytes=size), fd

    @classmethod
    def adopt(cls, driver: Driver, fd: int, nbytes: int, *, write: bool) -> DeviceMemory:
        """The allocation behind `fd`, mapped; `fd` is closed in every case.

        Args:
            driver: of this process's GPU, which need not be the allocation's.
            fd: as `create` gave it, through other processes.
            nbytes: as was given to `create`.
            write: whether this process may write; otherwise a store ends its context.

        Raises:
            WorkerError: what the driver said; nothing is left behind.
        """
        try:
            size = _rounded(driver, nbytes)
            with contextlib.ExitStack() as undo:
                handle = driver.adopt(fd)
                undo.callback(driver.release, handle)
                address = _map(driver, handle, size, write=write, undo=undo)
                driver.release(handle)
                undo.pop_all()
        finally:
            os.close(fd)
        return cls(driver, address=address, nbytes=size)

    def close(self) -> None:
        """Unmap and give the address up; the device must be done with it. Once."""
        address, self.address = self.address, 0
        if not address:
            raise WorkerError(Kind.INTERNAL, "close device memory: it is closed already")
        self._driver.unmap(address, self.nbytes)
        self._driver.free(address, self.nbytes)


def _map(driver: Driver, handle: int, size: int, *, write: bool, undo: contextlib.ExitStack) -> int:
    """Where the allocation is mapped now; `undo` takes it away again."""
    address = driver.reserve(size)
    undo.callback(driver.free, address, size)
    driver.map(address, size, handle)
    undo.callback(driver.unmap, address, size)
    driver.set_access(address, size, write=write)
    return address


def _rounded(driver: Driver, nbytes: int) -> int:
    """`nbytes`, rounded up to the driver's granularity."""
    multiple = driver.granularity()
    return -(-nbytes // multiple) * multiple
