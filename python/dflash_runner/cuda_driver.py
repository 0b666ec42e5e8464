"""The calls of the CUDA driver that `cuda_memory` needs, for the one GPU that this process sees.

cuda.bindings comes with torch on Linux; it is imported when a driver is made, so never on a CPU.
"""

from __future__ import annotations

import os
import uuid
from typing import Any, Final

from dflash_runner.errors import Kind, WorkerError

_HINT: Final = "set arenas.kind to memfd: rows then go through the host's memory"
EXHAUSTED: Final = ("CUDA_ERROR_OUT_OF_MEMORY",)
UNAVAILABLE: Final = (
    "CUDA_ERROR_NOT_SUPPORTED",
    "CUDA_ERROR_NOT_PERMITTED",
    "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
    "CUDA_ERROR_INVALID_DEVICE",
    "CUDA_ERROR_NO_DEVICE",
)
INVALID: Final = ("CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_INVALID_HANDLE")


class CudaDriver:
    """`cuda_memory.Driver` over cuda.bindings; callable from any thread.

    Every call binds the GPU's primary context, which is torch's, to the calling thread.
    """

    def __init__(self) -> None:
        """Find the GPU and check that its memory can be exported.

        Raises:
            WorkerError: UNAVAILABLE where the driver or the GPU cannot do so, INVALID where the
                GPU is another than the one that this process was given.
        """
        try:
            from cuda.bindings import driver
        except ImportError as error:
            raise WorkerError(Kind.UNAVAILABLE, f"open the CUDA driver: {error}", hint=_HINT) from error
        self._cu = driver
        self._call("start the driver", driver.cuInit, 0)
        self._device = self._call("find the GPU", driver.cuDeviceGet, 0)
        raw = self._call("name the GPU", driver.cuDeviceGetUuid, self._device).bytes
        self.uuid = f"GPU-{uuid.UUID(bytes=raw)}"
        _check_uuid(self.uuid)
        for name in ("VIRTUAL_MEMORY_MANAGEMENT", "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR"):
            attribute = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}_SUPPORTED")
            if not self._call("ask the GPU", driver.cuDeviceGetAttribute, attribute, self._device):
                raise WorkerError(
                    Kind.UNAVAILABLE, f"open the CUDA driver: {self.uuid} has no {name.lower()}", hint=_HINT
                )
        self._context = self._call("take the context", driver.cuDevicePrimaryCtxRetain, self._device)
        self._posix = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        self._location = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self._index = int(self._device)

    def granularity(self) -> int:
        """What sizes must be a multiple of, in bytes."""
        ask = self._cu.cuMemGetAllocationGranularity
        flag = self._cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        return int(self._bound("ask for the granularity", ask, self._where(), flag))

    def create(self, nbytes: int) -> int:
        """A new allocation on the GPU, by its handle."""
        return int(self._bound(f"allocate {nbytes} bytes", self._cu.cuMemCreate, nbytes, self._where(), 0))

    def export(self, handle: int) -> int:
        """A descriptor of the allocation, close-on-exec and the caller's."""
        fd = int(
            self._bound("export", self._cu.cuMemExportToShareableHandle, self._handle(handle), self._posix, 0)
        )
        os.set_inheritable(fd, False)
        return fd

    def adopt(self, fd: int) -> int:
        """The allocation that a descriptor names, by a handle of this process."""
        return int(self._bound("import", self._cu.cuMemImportFromShareableHandle, fd, self._posix))

    def reserve(self, nbytes: int) -> int:
        """An address with room for `nbytes`."""
        return int(self._bound(f"reserve {nbytes} bytes", self._cu.cuMemAddressReserve, nbytes, 0, 0, 0))

    def map(self, address: int, nbytes: int, handle: int) -> None:
        """Put the allocation there."""
        self._bound(f"map {nbytes} bytes", self._cu.cuMemMap, address, nbytes, 0, self._handle(handle), 0)

    def set_access(self, address: int, nbytes: int, *, write: bool) -> None:
        """Let this GPU read it, and write it where `write`."""
        flags = self._cu.CUmemAccess_flags
        access = self._cu.CUmemAccessDesc()
        access.location.type, access.location.id = self._location, self._index
        access.flags = (
            flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE if write else flags.CU_MEM_ACCESS_FLAGS_PROT_READ
        )
        self._bound("set access", self._cu.cuMemSetAccess, address, nbytes, [access], 1)

    def release(self, handle: int) -> None:
        """Give the handle up."""
        self._bound("release", self._cu.cuMemRelease, self._handle(handle))

    def unmap(self, address: int, nbytes: int) -> None:
        """Take the allocation away from its address."""
        self._bound("unmap", self._cu.cuMemUnmap, address, nbytes)

    def free(self, address: int, nbytes: int) -> None:
        """Give the address up."""
        self._bound("free address", self._cu.cuMemAddressFree, address, nbytes)

    def _where(self) -> Any:
        """What an allocation is to be: pinned on this GPU, exportable as a descriptor."""
        where = self._cu.CUmemAllocationProp()
        where.type = self._cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        where.location.type, where.location.id = self._location, self._index
        where.requestedHandleTypes = self._posix
        return where

    def _handle(self, handle: int) -> Any:
        """The binding's type for a handle."""
        return self._cu.CUmemGenericAllocationHandle(handle)

    def _bound(self, doing: str, call: Any, *arguments: Any) -> Any:
        """What a call gives with the GPU's context bound to this thread."""
        self._call("bind the context", self._cu.cuCtxSetCurrent, self._context)
        return self._call(doing, call, *arguments)

    def _call(self, doing: str, call: Any, *arguments: Any) -> Any:
        """What a call of the driver gives besides its result.

        Raises:
            WorkerError: for any result but success, with the driver's name of it.
        """
        try:
            result, *given = call(*arguments)
        except RuntimeError as error:  # the bindings find no driver on this machine
            raise WorkerError(Kind.UNAVAILABLE, f"{doing}: {error}", hint=_HINT) from error
        if result == self._cu.CUresult.CUDA_SUCCESS:
            return given[0] if given else None
        raise judged(doing, result.name)


def judged(doing: str, result: str) -> WorkerError:
    """The error for a result of the driver.

    Args:
        doing: what was tried.
        result: the driver's name, "CUDA_ERROR_…".

    Returns:
        EXHAUSTED, UNAVAILABLE or INVALID where the context is sound afterwards, else FATAL.
    """
    message = f"device memory: {doing}: {result}"
    if result in EXHAUSTED:
        return WorkerError(Kind.EXHAUSTED, message, hint="fewer slots or shorter buckets take less memory")
    if result in UNAVAILABLE:
        return WorkerError(Kind.UNAVAILABLE, message, hint=_HINT)
    if result in INVALID:
        return WorkerError(Kind.INVALID, message)
    return WorkerError(Kind.FATAL, message)


def _check_uuid(got: str) -> None:
    """Refuse a GPU other than the one that CUDA_VISIBLE_DEVICES names by UUID, whole or its beginning."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if wanted.startswith("GPU-") and not got.startswith(wanted.split(",")[0]):
        raise WorkerError(Kind.INVALID, f"open the CUDA driver: want GPU {wanted}, got {got}")
