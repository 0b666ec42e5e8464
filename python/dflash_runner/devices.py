"""The device that a process computes on: chosen once, checked, described, waited for, and proved to work.

A worker and a job see one GPU at most, so it is always the first; several visible ones are a mistake of
whoever started the process. On a CPU nothing here waits or copies.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

from dflash_runner import host
from dflash_runner.errors import Kind, WorkerError

_DETERMINISTIC = "CUBLAS_WORKSPACE_CONFIG"  # what cuBLAS needs for the same bits every time


def prepare(device: torch.device) -> None:
    """Make `device` the one of this process, before any other work of torch.

    On a GPU float32 products are float32 (no TF32), sums of split bfloat16 products are kept in float32,
    and kernels are deterministic where the environment has what cuBLAS needs for it; a kernel that cannot
    be then raises. On a CPU they always are.

    Raises:
        WorkerError: not_found, where CUDA is not to be had; invalid, where it shows several GPUs.

    Source: README, Invariants, I7.
    """
    if device.type == "cpu":
        _be_deterministic()
        return
    check_visible(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    torch.cuda.set_device(device)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    if os.environ.get(_DETERMINISTIC):
        _be_deterministic()
    torch.zeros(1, device=device)  # the context is made here, and not in the first order


def check_visible(count: int) -> None:
    """Refuse any number of visible GPUs but one.

    Raises:
        WorkerError: as `prepare` says.
    """
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    where = f"with CUDA_VISIBLE_DEVICES {'unset' if named is None else repr(named)}"
    if count == 0:
        built = torch.version.cuda or "none"
        raise WorkerError(
            Kind.NOT_FOUND,
            f"use device cuda: want a GPU, got none {where} and torch {torch.__version__} (CUDA {built})",
            hint="a torch built for CUDA, a driver that is new enough for it, and the GPU's index or UUID",
        )
    if count > 1:
        raise WorkerError(
            Kind.INVALID,
            f"use device cuda: want one visible GPU, got {count} {where}",
            hint="one process a GPU: give each process its own in CUDA_VISIBLE_DEVICES",
        )


def facts(device: torch.device) -> dict[str, str]:
    """What the certificate says of a GPU and of how it computes; nothing of a CPU."""
    if device.type == "cpu":
        return {}
    (gpu,) = host.gpus()
    return {
        **gpu.facts(),
        "triton": host.version_of("triton"),
        "torch.cuda": str(torch.version.cuda),
        "torch.float32_matmul_precision": torch.get_float32_matmul_precision(),
        "torch.deterministic": str(torch.are_deterministic_algorithms_enabled()).lower(),
    }


def kernels_depend_on(device: torch.device) -> dict[str, str]:
    """What besides shapes decides which kernels there are: equal for GPUs of one kind on one machine."""
    told = facts(device)
    names = ("gpu.name", "gpu.capability", "gpu.driver", "triton", "torch.cuda")
    return {name: told[name] for name in names if name in told}


def settle(device: torch.device) -> None:
    """Wait until everything that was queued on the device is done; other threads may run meanwhile.

    Raises:
        Exception: of torch, for a fault of whatever was queued, which ends the process.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_bytes(device: torch.device) -> int:
    """The most memory that torch held of a GPU at once, since the start or the last reset of its peaks.

    What recordings hold for their own use between replays counts, as nothing else can have it; so does what
    the allocator keeps to give out again.
    """
    return torch.cuda.max_memory_reserved(device)


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """A small tensor of the host on the device, without waiting for what is queued there."""
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def computes(device: torch.device) -> bool:
    """Whether the device still computes: a product that must come out exactly. Waits for all that is queued.

    Raises:
        Exception: of torch, where the device's context was broken, which ends the process.
    """
    settle(device)
    ones = torch.ones(8, 8, device=device)
    return bool((ones @ ones == 8).all())


def _be_deterministic() -> None:
    # What torch.use_deterministic_algorithms(True) sets, without the compiler that it imports for a
    # setting of its own: seconds of every start, and nothing compiles on a CPU.
    torch._C._set_deterministic_algorithms(True, warn_only=False)  # noqa: SLF001
