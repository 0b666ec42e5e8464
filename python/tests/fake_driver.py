"""A driver without a GPU: allocations are memfds, addresses are this process's own.

It does what `cuda_memory.Driver` says and nothing more: a call in the wrong order is an
AssertionError, an address that no access was set for is a segmentation fault, and so is a store
where access is for reading. Descriptors name the same memory in other processes.
"""

from __future__ import annotations

import ctypes
import mmap
import os

from dflash_runner.errors import Kind, WorkerError

GRANULARITY = 2 << 20
_NONE, _FIXED, _NORESERVE = 0, 0x10, 0x4000  # of mman.h
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class FakeDriver:
    """See the module."""

    def __init__(self, *, fail: str = "", room_bytes: int = 1 << 30) -> None:
        """Fail the call named `fail`, once; have so much memory to give."""
        self.calls: list[str] = []
        self.fail = fail
        self.room_bytes = room_bytes
        self._handles: dict[int, int] = {}  # to a memfd of this process
        self._reserved: dict[int, int] = {}  # address to bytes
        self._mapped: dict[int, bool] = {}  # address to whether access was set
        self._next = 1

    def leftovers(self) -> list[str]:
        """What is held of the driver's."""
        held = {"handle": self._handles, "address": self._reserved, "mapping": self._mapped}
        return [f"{name} {key}" for name, kept in held.items() for key in kept]

    def granularity(self) -> int:
        self._called("granularity")
        return GRANULARITY

    def create(self, nbytes: int) -> int:
        assert nbytes % GRANULARITY == 0 and nbytes
        self._called("create")
        if nbytes > self.room_bytes:
            raise WorkerError(Kind.EXHAUSTED, f"device memory: allocate {nbytes} bytes: out of memory")
        fd = os.memfd_create("fake allocation", os.MFD_CLOEXEC)
        os.ftruncate(fd, nbytes)
        return self._handle(fd)

    def export(self, handle: int) -> int:
        assert handle in self._handles
        self._called("export")
        return os.dup(self._handles[handle])

    def adopt(self, fd: int) -> int:
        os.fstat(fd)  # it is open
        self._called("adopt")
        return self._handle(os.dup(fd))

    def reserve(self, nbytes: int) -> int:
        assert nbytes % GRANULARITY == 0
        self._called("reserve")
        address = _mmap(None, nbytes, _NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE, -1)
        self._reserved[address] = nbytes
        return address

    def map(self, address: int, nbytes: int, handle: int) -> None:
        assert self._reserved[address] == nbytes and address not in self._mapped
        assert os.fstat(self._handles[handle]).st_size >= nbytes
        self._called("map")
        _mmap(address, nbytes, _NONE, mmap.MAP_SHARED | _FIXED, self._handles[handle])
        self._mapped[address] = False

    def set_access(self, address: int, nbytes: int, *, write: bool) -> None:
        assert self._reserved[address] == nbytes and self._mapped[address] is False
        self._called(f"set_access {'read-write' if write else 'read'}")
        allowed = mmap.PROT_READ | (mmap.PROT_WRITE if write else 0)
        assert _libc.mprotect(address, nbytes, allowed) == 0
        self._mapped[address] = True

    def release(self, handle: int) -> None:
        assert handle in self._handles
        self._called("release")
        os.close(self._handles.pop(handle))

    def unmap(self, address: int, nbytes: int) -> None:
        assert self._reserved[address] == nbytes and address in self._mapped
        self._called("unmap")
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE | _FIXED
        _mmap(address, nbytes, _NONE, flags, -1)
        del self._mapped[address]

    def free(self, address: int, nbytes: int) -> None:
        assert self._reserved[address] == nbytes and address not in self._mapped
        self._called("free")
        assert _libc.munmap(address, nbytes) == 0
        del self._reserved[address]

    def _handle(self, fd: int) -> int:
        self._next += 1
        self._handles[self._next] = fd
        return self._next

    def _called(self, name: str) -> None:
        """Note a call, or fail it."""
        if self.fail and name.split()[0] == self.fail:
            self.fail = ""
            raise WorkerError(Kind.FATAL, f"device memory: {name}: told to fail")
        self.calls.append(name)


def _mmap(address: int | None, nbytes: int, allowed: int, flags: int, fd: int) -> int:
    """mmap(2), at an address where one is given."""
    got = _libc.mmap(address, nbytes, allowed, flags, fd, 0)
    if got is None or got == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap")
    return got
