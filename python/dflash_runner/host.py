"""What this process and its machine are, without importing torch."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
from pathlib import Path

_NAMES = ("CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "HOME", "PATH", "LANG", "CUBLAS_WORKSPACE_CONFIG")
_PREFIXES = ("OMP_", "MKL_", "TORCH", "TRITON_", "PYTORCH_", "NCCL_", "HF_", "LC_")


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
    """The variables that the compile contract, threads and libraries depend on."""
    chosen = (name for name in os.environ if name in _NAMES or name.startswith(_PREFIXES))
    return {name: os.environ[name] for name in sorted(chosen)}


def _kib(path: str, key: str) -> int:
    """A field in KiB of a file of /proc, in bytes."""
    for line in Path(path).read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) << 10
    raise AssertionError(f"{path}: want a line {key}")
