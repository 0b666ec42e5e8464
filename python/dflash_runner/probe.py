"""`python -m dflash_runner.probe SECONDS UUID...`: what the driver says of GPUs, one JSON line a sample.

The calls of the driver's library can hang where a GPU does. So they are made here, in a process of
their own: the supervisor kills it when a line is late, and says `unknown` of the GPUs until the next
one comes. Nothing but standard library and nvidia-ml-py is imported.

A line is `{"devices": [...]}`, or `{"error": text, "hint": text}` as the last one. What a driver or a
GPU does not have is null; a GPU that cannot be asked has `error` instead of figures.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

FAILED, MISSING = 1, 3  # exit codes

REASONS = (
    (0x4, "power cap"),
    (0x8, "hardware slowdown"),
    (0x20, "thermal, by software"),
    (0x40, "thermal, by hardware"),
    (0x80, "power brake"),
)
"""Bits of the reasons for lower clocks that matter; idling, settings and synchronisation do not.

Source: nvml.h, nvmlClocksEventReason*."""

ACTIONS = (
    "none",
    "gpu reset",
    "node reboot",
    "drain p2p",
    "drain and reset",
    "recover imex domain",
    "bus reset",
    "system reboot",
)
"""What the driver wants done about a GPU, by its number. Source: nvml.h, nvmlDeviceGpuRecoveryAction_t."""

_RECOVERY_FIELD = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, from driver 570 on
_MAX_PROCESSES = 64  # a line has a bound; how many there are is told all the same


def main(arguments: Sequence[str]) -> int:
    """Print samples until standard output is closed; the exit code.

    Args:
        arguments: seconds between samples, then the UUIDs of the GPUs.
    """
    emit = _take_stdout()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    every, uuids = float(arguments[0]), list(arguments[1:])
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError as err:
        hint = f"install nvidia-ml-py into {sys.prefix}: GPUs are used, but not watched"
        emit({"error": f"read GPUs: {err}", "hint": hint})
        return MISSING
    try:
        nvml.nvmlInit()
        while emit(sample(nvml, uuids)):
            time.sleep(every)
    except nvml.NVMLError as err:
        emit({"error": f"read GPUs: {err}", "hint": "look at the NVIDIA driver: dmesg, nvidia-smi"})
        return FAILED
    return 0


def sample(nvml: ModuleType, uuids: Sequence[str]) -> dict[str, Any]:
    """One line: every GPU's figures, or its error."""
    return {"devices": [_device(nvml, uuid) for uuid in uuids]}


def _device(nvml: ModuleType, uuid: str) -> dict[str, Any]:
    """One GPU's figures. An error that is not `not supported` is the GPU's own."""
    try:
        return {"uuid": uuid, "error": None} | _figures(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid))
    except nvml.NVMLError as err:
        return {"uuid": uuid, "error": str(err)}


def _figures(nvml: ModuleType, handle: Any) -> dict[str, Any]:
    """Bytes, percent, watts, degrees Celsius and counts.

    Raises:
        NVMLError: a call failed for another reason than that the GPU or the driver lacks it.
    """

    def ask(call: Callable[..., Any], *arguments: Any) -> Any:
        return _asked(nvml, call, handle, *arguments)

    utilisation, memory = ask(nvml.nvmlDeviceGetUtilizationRates), ask(nvml.nvmlDeviceGetMemoryInfo)
    power, limit = ask(nvml.nvmlDeviceGetPowerUsage), ask(nvml.nvmlDeviceGetEnforcedPowerLimit)
    processes = ask(nvml.nvmlDeviceGetComputeRunningProcesses)
    return {
        "name": ask(nvml.nvmlDeviceGetName),
        "utilisation": None if utilisation is None else utilisation.gpu,
        "memory_used_bytes": None if memory is None else memory.used,
        "memory_total_bytes": None if memory is None else memory.total,
        "power_w": None if power is None else power / 1000,
        "power_limit_w": None if limit is None else limit / 1000,
        "temperature_c": ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
        "ecc_corrected": ask(
            nvml.nvmlDeviceGetTotalEccErrors, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_VOLATILE_ECC
        ),
        "ecc_uncorrected": ask(
            nvml.nvmlDeviceGetTotalEccErrors, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        ),
        "throttle": _reasons(ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons)),
        "recovery_action": _recovery(nvml, handle),
        "processes": None
        if processes is None
        else [{"pid": p.pid, "memory_bytes": p.usedGpuMemory} for p in processes[:_MAX_PROCESSES]],
        "process_count": None if processes is None else len(processes),
    }


def _asked(nvml: ModuleType, call: Callable[..., Any], *arguments: Any) -> Any:
    """What the call gives, or None where the GPU, the driver or this user has no such thing."""
    try:
        return call(*arguments)
    except nvml.NVMLError as err:
        lacking = (
            nvml.NVML_ERROR_NOT_SUPPORTED,
            nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            nvml.NVML_ERROR_NO_PERMISSION,
        )
        if err.value in lacking:
            return None
        raise


def _reasons(bits: int | None) -> list[str] | None:
    """The names of the reasons that matter."""
    return None if bits is None else [name for bit, name in REASONS if bits & bit]


def _recovery(nvml: ModuleType, handle: Any) -> str | None:
    """What the driver wants done about the GPU; None where it is too old to say."""
    values = _asked(nvml, nvml.nvmlDeviceGetFieldValues, handle, [_RECOVERY_FIELD])
    if values is None or values[0].nvmlReturn != nvml.NVML_SUCCESS:
        return None
    number = values[0].value.uiVal
    return ACTIONS[number] if number < len(ACTIONS) else f"action {number}"


def _take_stdout() -> Callable[[dict[str, Any]], bool]:
    """A function that writes one line and says whether somebody still reads.

    It has a private copy of standard output; file descriptor 1 becomes standard error, so that
    nothing that a library prints comes between the lines.
    """
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)

    def emit(line: dict[str, Any]) -> bool:
        raw = memoryview(json.dumps(line).encode() + b"\n")
        try:
            while raw:
                raw = raw[os.write(saved, raw) :]
        except BrokenPipeError:
            return False
        return True

    return emit


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
