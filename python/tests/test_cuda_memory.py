"""GPU memory without a GPU: the order of the driver's calls, and that nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from dflash_runner import cuda_driver
from dflash_runner.cuda_memory import DeviceMemory
from dflash_runner.errors import Kind, WorkerError
from fake_driver import GRANULARITY, FakeDriver

CREATE = ["granularity", "create", "export", "reserve", "map", "set_access read-write", "release"]
ADOPT = ["granularity", "adopt", "reserve", "map", "set_access read", "release"]


def open_fds() -> int:
    """How many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))


def test_the_order_of_the_calls() -> None:
    """Created, exported, mapped and let go of; then unmapped before the address is freed."""
    producer, consumer = FakeDriver(), FakeDriver()
    made, fd = DeviceMemory.create(producer, GRANULARITY + 1)
    assert producer.calls == CREATE and made.nbytes == 2 * GRANULARITY
    seen = DeviceMemory.adopt(consumer, os.dup(fd), GRANULARITY + 1, write=False)
    assert consumer.calls == ADOPT and seen.nbytes == made.nbytes
    writer = DeviceMemory.adopt(consumer, fd, GRANULARITY + 1, write=True)
    assert consumer.calls[len(ADOPT) :] == [*ADOPT[:4], "set_access read-write", "release"]
    for memory, driver in ((made, producer), (seen, consumer), (writer, consumer)):
        memory.close()
        assert driver.calls[-2:] == ["unmap", "free"]
    assert producer.leftovers() == consumer.leftovers() == []


@pytest.mark.parametrize(
    "call", ["granularity", "create", "export", "reserve", "map", "set_access", "release"]
)
def test_a_creation_that_fails_leaves_nothing(call: str) -> None:
    """Whichever call fails, what those before it made is given up, in turn."""
    driver, before = FakeDriver(fail=call), open_fds()
    with pytest.raises(WorkerError, match="told to fail"):
        DeviceMemory.create(driver, 1)
    assert driver.leftovers() == [] and open_fds() == before


@pytest.mark.parametrize("call", ["granularity", "adopt", "reserve", "map", "set_access", "release"])
def test_an_adoption_that_fails_leaves_nothing(call: str) -> None:
    """The same, and the descriptor that came is closed; the allocation itself stays."""
    maker = FakeDriver()
    made, fd = DeviceMemory.create(maker, 1)
    driver, before = FakeDriver(fail=call), open_fds()
    with pytest.raises(WorkerError, match="told to fail"):
        DeviceMemory.adopt(driver, os.dup(fd), 1, write=False)
    assert driver.leftovers() == [] and open_fds() == before
    DeviceMemory.adopt(driver, fd, 1, write=False).close()
    made.close()


def test_memory_is_closed_once() -> None:
    """A second close would unmap what may be another's by then."""
    made, fd = DeviceMemory.create(FakeDriver(), 1)
    os.close(fd)
    made.close()
    with pytest.raises(WorkerError) as caught:
        made.close()
    assert caught.value.kind is Kind.INTERNAL


@pytest.mark.parametrize(
    ("result", "kind", "hinted"),
    [
        ("CUDA_ERROR_OUT_OF_MEMORY", Kind.EXHAUSTED, "slots"),
        ("CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", Kind.UNAVAILABLE, "memfd"),
        ("CUDA_ERROR_NOT_SUPPORTED", Kind.UNAVAILABLE, "memfd"),
        ("CUDA_ERROR_INVALID_VALUE", Kind.INVALID, ""),
        ("CUDA_ERROR_ILLEGAL_ADDRESS", Kind.FATAL, ""),
        ("CUDA_ERROR_UNKNOWN", Kind.FATAL, ""),
    ],
)
def test_results_of_the_driver_have_a_kind(result: str, kind: Kind, hinted: str) -> None:
    """Those that leave the context sound can be gone on from; every other is fatal."""
    error = cuda_driver.judged("map", result)
    assert error.kind is kind and result in error.message and hinted in error.hint
    assert bool(hinted) == bool(error.hint)


def test_the_names_are_the_bindings() -> None:
    """What the driver's results are judged by stands in the bindings that the lock pins."""
    bindings = pytest.importorskip("cuda.bindings.driver")
    for names in (cuda_driver.EXHAUSTED, cuda_driver.UNAVAILABLE, cuda_driver.INVALID):
        assert all(hasattr(bindings.CUresult, name) for name in names)


class Bindings:
    """The real bindings, with every call replaced that would need a driver; it notes their arguments."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **given: object) -> None:
        """Let each call succeed and give what stands in `given`, or an error if that is one."""
        self.module = pytest.importorskip("cuda.bindings.driver")
        self.calls: dict[str, tuple[object, ...]] = {}
        own = self.module.CUuuid()
        known = {
            "cuDeviceGet": 0,
            "cuDeviceGetUuid": own,
            "cuDeviceGetAttribute": 1,
            "cuDevicePrimaryCtxRetain": self.module.CUcontext(7),
            "cuMemGetAllocationGranularity": 2 << 20,
            "cuMemCreate": self.module.CUmemGenericAllocationHandle(5),
            "cuMemImportFromShareableHandle": self.module.CUmemGenericAllocationHandle(6),
            "cuMemAddressReserve": self.module.CUdeviceptr(1 << 40),
        } | given
        for name in (
            *("cuInit", "cuCtxSetCurrent", "cuMemExportToShareableHandle", "cuMemMap", "cuMemSetAccess"),
            *("cuMemRelease", "cuMemUnmap", "cuMemAddressFree", *known),
        ):
            monkeypatch.setattr(self.module, name, self.replaced(name, known.get(name)))

    def replaced(self, name: str, gives: object) -> Callable[..., tuple[object, ...]]:
        """A call that notes its arguments."""

        def call(*arguments: object) -> tuple[object, ...]:
            self.calls[name] = arguments
            if isinstance(gives, Exception):
                raise gives
            if isinstance(gives, self.module.CUresult):
                return (gives, None)
            return (self.module.CUresult.CUDA_SUCCESS, *([] if gives is None else [gives]))

        return call


def test_what_the_driver_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of this GPU that can be exported, mapped whole; a reader's access is for reading."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    read, write = os.pipe()  # what is exported: any descriptor will do
    bindings = Bindings(monkeypatch, cuMemExportToShareableHandle=os.dup(read))
    driver, cu = cuda_driver.CudaDriver(), bindings.module
    made, fd = DeviceMemory.create(driver, 1)
    size, where, flags = bindings.calls["cuMemCreate"]
    assert (size, flags, made.nbytes, made.address) == (2 << 20, 0, 2 << 20, 1 << 40)
    assert where.requestedHandleTypes == cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    assert where.location.type == cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    assert (where.location.id, where.type.name) == (0, "CU_MEM_ALLOCATION_TYPE_PINNED")
    assert bindings.calls["cuMemMap"][:3] == (1 << 40, 2 << 20, 0) and not os.get_inheritable(fd)
    assert bindings.calls["cuMemSetAccess"][2][0].flags.name == "CU_MEM_ACCESS_FLAGS_PROT_READWRITE"
    DeviceMemory.adopt(driver, fd, 1, write=False)
    assert bindings.calls["cuMemImportFromShareableHandle"][0] == fd
    assert bindings.calls["cuMemSetAccess"][2][0].flags.name == "CU_MEM_ACCESS_FLAGS_PROT_READ"
    assert int(bindings.calls["cuMemRelease"][0]) == 6
    assert int(bindings.calls["cuCtxSetCurrent"][0]) == 7
    os.close(read)
    os.close(write)


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"cuInit": RuntimeError("no library")}, Kind.UNAVAILABLE, "no library"),
        ({"cuInit": "CUDA_ERROR_NO_DEVICE"}, Kind.UNAVAILABLE, "CUDA_ERROR_NO_DEVICE"),
        ({"cuDevicePrimaryCtxRetain": "CUDA_ERROR_UNKNOWN"}, Kind.FATAL, "take the context"),
        ({"cuDeviceGetAttribute": 0}, Kind.UNAVAILABLE, "virtual_memory_management"),
    ],
)
def test_a_gpu_that_cannot_export(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, object], kind: Kind, message: str
) -> None:
    """It is told at once, with what is missing."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    results = pytest.importorskip("cuda.bindings.driver").CUresult
    Bindings(monkeypatch, **{k: getattr(results, v) if isinstance(v, str) else v for k, v in given.items()})
    with pytest.raises(WorkerError, match=message) as caught:
        cuda_driver.CudaDriver()
    assert caught.value.kind is kind


def test_another_gpu_than_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's GPU is named by UUID, and what the driver shows must be that one."""
    Bindings(monkeypatch)
    none = "GPU-00000000-0000-0000-0000-000000000000"
    for visible in (none, none[:12], "0"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert cuda_driver.CudaDriver().uuid == none
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", none.replace("0000-", "1111-"))
    with pytest.raises(WorkerError, match="want GPU") as caught:
        cuda_driver.CudaDriver()
    assert caught.value.kind is Kind.INVALID


def test_cuda_is_imported_by_whoever_makes_a_driver() -> None:
    """A worker on a CPU imports the arenas and none of CUDA's bindings."""
    code = (
        "import sys, dflash_runner.arenas as a; a.Arenas(); "
        "sys.exit(any(m.split('.')[0] == 'cuda' for m in sys.modules))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0
