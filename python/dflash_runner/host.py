"""What this process and its machine are, without importing torch."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import re
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NAMES = ("LOCAL_RANK", "HOME", "PATH", "LANG", "LD_LIBRARY_PATH")
_PREFIXES = (
    *("OMP_", "MKL_", "TORCH", "TRITON_", "PYTORCH_", "HF_", "LC_"),
    *("CUDA_", "CUBLAS_", "NVIDIA_", "NCCL_", "NVSHMEM_"),
)
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|_KEY$")  # in a name: never shown
_NAME_BYTES = 256
_COMPUTE_CAPABILITY = (75, 76)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
_DRIVER_VERSION = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One GPU that CUDA shows to this process."""

    name: str
    uuid: str  # as nvidia-smi has it, GPU- included
    memory_bytes: int
    capability: str  # "9.0"
    driver: str  # its release, or the CUDA version that it serves where that is all there is to read

    def facts(self) -> dict[str, str]:
        """What is shown of it."""
        return {
            "gpu.name": self.name,
            "gpu.uuid": self.uuid,
            "gpu.memory_bytes": str(self.memory_bytes),
            "gpu.capability": self.capability,
            "gpu.driver": self.driver,
        }


def version_of(package: str) -> str:
    """The installed version of `package`, from its metadata, or an empty string."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def torch_git() -> str:
    """The commit that torch was built from, read from its sources, or an empty string."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    try:
        text = Path(spec.origin).with_name("version.py").read_text()
    except OSError:
        return ""
    found = re.search(r"git_version\s*(?::[^=]+)?=\s*'([0-9a-f]+)'", text)
    return found.group(1) if found else ""


def memory_bytes() -> int:
    """Memory of the host, in bytes."""
    return _kib("/proc/meminfo", "MemTotal")


def peak_bytes() -> int:
    """The most memory of the host that this process ever held, in bytes.

    Source: proc(5), VmHWM.
    """
    return _kib("/proc/self/status", "VmHWM")


def relevant_environment() -> dict[str, str]:
    """The variables that the compile contract, threads and libraries depend on; nothing that is secret."""
    chosen = (n for n in os.environ if n in _NAMES or (n.startswith(_PREFIXES) and not _SECRET.search(n)))
    return {name: os.environ[name] for name in sorted(chosen)}


def names_gpus() -> bool:
    """Whether whoever started this process gave it GPUs by name."""
    return bool(os.environ.get("CUDA_VISIBLE_DEVICES"))


def gpus(driver: Any = None) -> tuple[Gpu, ...]:
    """The GPUs that CUDA shows to this process, in its order; none where there is no driver.

    Asked of the driver itself, as the answer must not wait for torch; no context is made.

    Args:
        driver: libcuda, or what imitates it.

    Source: CUDA driver API, device management.
    """
    if driver is None:
        try:
            driver = ctypes.CDLL("libcuda.so.1")
        except OSError:
            return ()
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return ()
    return tuple(_gpu(driver, index) for index in range(count.value))


def _gpu(driver: Any, index: int) -> Gpu:
    """One GPU; a call that fails is a bug or a broken driver, and says which call it was."""

    def ask(call: str, *arguments: Any) -> None:
        code = getattr(driver, call)(*arguments)
        if code:
            raise RuntimeError(f"CUDA driver error: describe GPU {index}: {call}: got code {code}")

    device, memory = ctypes.c_int(), ctypes.c_size_t()
    name, raw = ctypes.create_string_buffer(_NAME_BYTES), ctypes.create_string_buffer(16)
    ask("cuDeviceGet", ctypes.byref(device), index)
    ask("cuDeviceGetName", name, _NAME_BYTES, device)
    ask("cuDeviceGetUuid_v2", raw, device)
    ask("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    parts = [ctypes.c_int() for _ in _COMPUTE_CAPABILITY]
    for part, attribute in zip(parts, _COMPUTE_CAPABILITY, strict=True):
        ask("cuDeviceGetAttribute", ctypes.byref(part), attribute, device)
    served = ctypes.c_int()
    ask("cuDriverGetVersion", ctypes.byref(served))
    return Gpu(
        name=name.value.decode(errors="replace"),
        uuid=f"GPU-{uuid.UUID(bytes=raw.raw)}",
        memory_bytes=memory.value,
        capability=".".join(str(part.value) for part in parts),
        driver=_release() or f"CUDA {served.value // 1000}.{served.value % 1000 // 10}",
    )


def _release() -> str:
    """The driver's release, or an empty string where the kernel does not show it (in some containers)."""
    try:
        text = _DRIVER_VERSION.read_text()
    except OSError:
        return ""
    found = re.search(r"Kernel Module\D*?(?:x86_64|aarch64)?\D*?(\d+\.\d+(?:\.\d+)?)\s", text)
    return found.group(1) if found else ""


def _kib(path: str, key: str) -> int:
    """A field in KiB of a file of /proc, in bytes."""
    for line in Path(path).read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) << 10
    raise AssertionError(f"{path}: want a line {key}")
