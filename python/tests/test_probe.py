"""The probe, as a process with a fake of the driver's library, and as a function."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from dflash_runner import probe

ROOT = Path(__file__).parents[1]

# A fake pynvml: FAKE in the environment says how it misbehaves.
FAKE = """
import os, sys, time
from types import SimpleNamespace as N

NVML_SUCCESS, NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NO_PERMISSION, NVML_ERROR_FUNCTION_NOT_FOUND = 0, 3, 4, 13
NVML_ERROR_GPU_IS_LOST, NVML_TEMPERATURE_GPU, NVML_VOLATILE_ECC = 15, 0, 0
NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 0, 1
how = os.environ.get("FAKE", "")
print("noise of an import")


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(f"code {value}")
        self.value = value


def fail(code):
    raise NVMLError(code)


def nvmlInit():
    os.write(1, b"noise below Python\\n")
    if how == "no driver":
        fail(12)


def nvmlDeviceGetHandleByUUID(uuid):
    return fail(15) if uuid == "GPU-lost" else uuid


def nvmlDeviceGetUtilizationRates(h):
    if how == "hang":
        time.sleep(600)
    return N(gpu=97, memory=40)


def nvmlDeviceGetMemoryInfo(h): return N(used=5 << 30, total=140 << 30)
def nvmlDeviceGetPowerUsage(h): return 650_500
def nvmlDeviceGetEnforcedPowerLimit(h): return fail(4) if how == "poor" else 700_000
def nvmlDeviceGetName(h): return "NVIDIA H200"
def nvmlDeviceGetTemperature(h, sensor): return 61
def nvmlDeviceGetTotalEccErrors(h, kind, counter): return fail(3) if how == "poor" else 10 + kind
def nvmlDeviceGetCurrentClocksThrottleReasons(h): return 0x1 | 0x4 | 0x40


def nvmlDeviceGetComputeRunningProcesses(h):
    return [N(pid=100 + n, usedGpuMemory=None if n else 1 << 30) for n in range(100 if how == "crowd" else 2)]


def nvmlDeviceGetFieldValues(h, fields):
    assert fields == [230]
    if how == "poor":
        fail(13)
    known = how != "old"
    return [N(nvmlReturn=0 if known else 3, value=N(uiVal={"sick": 1, "new": 99}.get(how, 0)))]
"""


@pytest.fixture
def start(tmp_path):
    """Starts the probe with the fake; every process is gone at the end."""
    (tmp_path / "pynvml.py").write_text(FAKE)
    running = []

    def run(*uuids, how="", path=f"{tmp_path}{os.pathsep}{ROOT}"):
        process = subprocess.Popen(
            [sys.executable, "-S", "-m", "dflash_runner.probe", "0.01", *uuids],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": path, "FAKE": how, "PATH": os.environ["PATH"]},
        )
        running.append(process)
        return process

    yield run
    for process in running:
        process.kill()
        process.communicate()


def first(process):
    """The first line, decoded."""
    return json.loads(process.stdout.readline())


def test_a_sample_has_every_figure(start):
    process = start("GPU-a", "GPU-lost")
    good, lost = first(process)["devices"]
    assert good == {
        "uuid": "GPU-a",
        "error": None,
        "name": "NVIDIA H200",
        "utilisation": 97,
        "memory_used_bytes": 5 << 30,
        "memory_total_bytes": 140 << 30,
        "power_w": 650.5,
        "power_limit_w": 700,
        "temperature_c": 61,
        "ecc_corrected": 10,
        "ecc_uncorrected": 11,
        "throttle": ["power cap", "thermal, by hardware"],
        "recovery_action": "none",
        "processes": [{"pid": 100, "memory_bytes": 1 << 30}, {"pid": 101, "memory_bytes": None}],
        "process_count": 2,
    }
    assert lost == {"uuid": "GPU-lost", "error": "code 15"}


def test_samples_go_on_until_nobody_reads(start):
    process = start("GPU-a")
    for _ in range(3):
        assert first(process)["devices"][0]["utilisation"] == 97
    process.stdout.close()
    assert process.wait(timeout=20) == 0
    assert "noise of an import" in process.stderr.read()


@pytest.mark.parametrize(
    ("how", "field", "value"),
    [
        ("poor", "power_limit_w", None),
        ("poor", "ecc_uncorrected", None),
        ("poor", "recovery_action", None),
        ("old", "recovery_action", None),
        ("sick", "recovery_action", "gpu reset"),
        ("new", "recovery_action", "action 99"),
        ("crowd", "process_count", 100),
    ],
)
def test_what_a_driver_lacks_is_null_and_what_is_new_is_told(start, how, field, value):
    device = first(start("GPU-a", how=how))["devices"][0]
    assert device["error"] is None and device[field] == value
    assert len(device["processes"]) <= 64


def test_a_driver_that_is_not_there_is_an_error(start):
    process = start("GPU-a", how="no driver")
    line = first(process)
    assert line["error"] == "read GPUs: code 12" and "dmesg" in line["hint"]
    assert process.wait(timeout=20) == probe.FAILED


def test_without_the_library_it_says_what_to_install(start):
    process = start("GPU-a", path=str(ROOT))  # and -S: no site-packages
    line = first(process)
    assert "No module named 'pynvml'" in line["error"] and "install nvidia-ml-py into" in line["hint"]
    assert process.wait(timeout=20) == probe.MISSING


def test_a_call_that_hangs_says_nothing(start):
    process = start("GPU-a", how="hang")
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(timeout=0.5)
    process.kill()
    assert process.communicate()[0] == ""
