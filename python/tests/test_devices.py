"""What is said of a GPU and what is refused of one; the driver is imitated, so none is needed."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch
from dflash_runner import devices, host, serve
from dflash_runner.errors import Kind, WorkerError, is_survivable, kind_of
from dflash_runner.host import Gpu
from dflash_runner.worker import description

RAW = bytes(range(16))
H200 = Gpu(
    name="NVIDIA H200",
    uuid="GPU-00010203-0405-0607-0809-0a0b0c0d0e0f",
    memory_bytes=150_000_000_000,
    capability="9.0",
    driver="CUDA 13.1",
)


def put(into: Any, value: int) -> None:
    """Write where `ctypes.byref` points."""
    into._obj.value = value  # noqa: SLF001 that is how ctypes names it


class FakeDriver:
    """libcuda with one H200, as ctypes calls it; `broken` names a call that fails."""

    def __init__(self, broken: str = "") -> None:
        self._broken = broken
        self.calls: list[str] = []

    def __getattr__(self, call: str) -> Any:
        def answer(*arguments: Any) -> int:
            self.calls.append(call)
            if call == self._broken:
                return 999
            getattr(self, f"_{call}")(*arguments)
            return 0

        return answer

    def _cuInit(self, flags: int) -> None:
        assert flags == 0

    def _cuDeviceGetCount(self, count: Any) -> None:
        put(count, 1)

    def _cuDeviceGet(self, device: Any, index: int) -> None:
        put(device, 70 + index)

    def _cuDeviceGetName(self, name: Any, size: int, device: ctypes.c_int) -> None:
        assert size == len(name) and device.value == 70
        name.value = b"NVIDIA H200"

    def _cuDeviceGetUuid_v2(self, raw: Any, device: ctypes.c_int) -> None:
        assert device.value == 70
        raw.raw = RAW

    def _cuDeviceTotalMem_v2(self, memory: Any, device: ctypes.c_int) -> None:
        assert device.value == 70
        put(memory, 150_000_000_000)

    def _cuDeviceGetAttribute(self, value: Any, attribute: int, device: ctypes.c_int) -> None:
        assert device.value == 70
        put(value, {75: 9, 76: 0}[attribute])

    def _cuDriverGetVersion(self, version: Any) -> None:
        put(version, 13010)


@pytest.fixture(autouse=True)
def no_release(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Whatever this machine has is not seen; the path where a kernel would show its driver's release."""
    path = tmp_path / "version"
    monkeypatch.setattr(host, "_DRIVER_VERSION", path)
    return path


def test_a_gpu_is_described_without_torch_and_without_a_context() -> None:
    driver = FakeDriver()
    assert host.gpus(driver) == (H200,)
    assert not [call for call in driver.calls if "Ctx" in call]


@pytest.mark.parametrize(
    "line",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 09:55:41 UTC 2025",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (x)",
    ],
)
def test_the_drivers_release_is_read_where_the_kernel_shows_it(no_release: Path, line: str) -> None:
    no_release.write_text(line + "\nGCC version:  gcc version 13.3.0\n")
    assert host.gpus(FakeDriver())[0].driver == "580.95.05"


@pytest.mark.parametrize("broken", ["cuInit", "cuDeviceGetCount"])
def test_without_a_driver_that_starts_there_is_no_gpu(broken: str) -> None:
    assert host.gpus(FakeDriver(broken)) == ()


def test_a_driver_that_fails_later_is_told_with_its_call() -> None:
    with pytest.raises(RuntimeError, match="describe GPU 0: cuDeviceTotalMem_v2: got code 999"):
        host.gpus(FakeDriver("cuDeviceTotalMem_v2"))


@pytest.mark.parametrize(("visible", "named"), [(None, False), ("", False), ("GPU-1", True)])
def test_a_worker_describes_the_gpu_that_it_was_given_by_name(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, named: bool
) -> None:
    """One that was given none is on the CPU, whatever the machine has."""
    monkeypatch.setattr(host, "gpus", lambda: (H200,))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    told = description.describe()
    if named:
        assert (told.device, told.device_uuid, told.memory_bytes) == (H200.name, H200.uuid, H200.memory_bytes)
        assert told.environment["gpu.driver"] == "CUDA 13.1"
        assert told.environment["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    else:
        assert (told.device, told.device_uuid, told.memory_bytes) == ("cpu", "", host.memory_bytes())
        assert "gpu.driver" not in told.environment


def test_what_is_secret_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "HF_HUB_TOKEN_PATH", "NCCL_SECRET"):
        monkeypatch.setenv(name, "x")
    shown = {"HF_HUB_OFFLINE": "1", "NCCL_CUMEM_ENABLE": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    for name, value in shown.items():
        monkeypatch.setenv(name, value)
    got = host.relevant_environment()
    assert shown.items() <= got.items()
    assert not {"HF_TOKEN", "HF_HUB_TOKEN_PATH", "NCCL_SECRET"} & got.keys()


@pytest.mark.parametrize(
    ("count", "kind", "want"),
    [
        (0, Kind.NOT_FOUND, "want a GPU, got none with CUDA_VISIBLE_DEVICES '0,1'"),
        (2, Kind.INVALID, "want one visible GPU, got 2 with CUDA_VISIBLE_DEVICES '0,1'"),
    ],
)
def test_any_number_of_gpus_but_one_is_refused(
    monkeypatch: pytest.MonkeyPatch, count: int, kind: Kind, want: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    devices.check_visible(1)
    with pytest.raises(WorkerError, match=want) as refused:
        devices.check_visible(count)
    assert refused.value.kind is kind and refused.value.hint


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_machine_without_cuda_is_refused_by_what_it_has() -> None:
    with pytest.raises(WorkerError, match=f"torch {torch.__version__}".replace("+", r"\+")) as refused:
        devices.prepare(torch.device("cuda:0"))
    assert refused.value.kind is Kind.NOT_FOUND


def test_kernels_depend_on_the_kind_of_gpu_and_not_on_which_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "gpus", lambda: (H200,))
    told = devices.kernels_depend_on(torch.device("cuda:0"))
    assert told["gpu.name"] == "NVIDIA H200" and told["gpu.driver"] == "CUDA 13.1"
    assert H200.uuid not in told.values()
    assert devices.facts(torch.device("cpu")) == {}


def test_a_cpu_computes_and_nothing_waits() -> None:
    devices.settle(torch.device("cpu"))
    assert devices.computes(torch.device("cpu"))


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ({}, None),
        ({"CUDA_VISIBLE_DEVICES": ""}, None),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1"}, "expandable_segments:True"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1", "PYTORCH_ALLOC_CONF": "x:1"}, "x:1"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1", "PYTORCH_CUDA_ALLOC_CONF": "x:1"}, None),
    ],
)
def test_a_gpus_allocator_is_set_where_nobody_did(given: dict[str, str], want: str | None) -> None:
    """By the name that torch reads, before it does."""
    serve.set_defaults(given)
    assert given.get("PYTORCH_ALLOC_CONF") == want
    assert given["OMP_WAIT_POLICY"] == "passive"


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: an illegal memory access was encountered",
        "CUDA driver error: invalid argument",
        "Triton Error [CUDA]: device-side assert triggered",
        "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        "NCCL error in: x.cpp:1, unhandled cuda error",
    ],
)
def test_a_fault_of_the_device_is_fatal(message: str) -> None:
    """The context is of no use any more; memory that could not be had is another matter."""
    assert kind_of(RuntimeError(message)) is Kind.FATAL and not is_survivable(RuntimeError(message))
    assert kind_of(RuntimeError("expected a tensor")) is Kind.INTERNAL
    assert kind_of(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")) is Kind.EXHAUSTED
