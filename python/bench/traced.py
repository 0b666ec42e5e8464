"""What the profiler saw of some work: every kernel and copy of a GPU, or every operator of a CPU, timed.

On a GPU only the device is traced: to follow the host as well would slow it, and make gaps of its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from dflash_runner import devices

_NAME_LENGTH = 160  # characters of a kernel's name that are kept: templates are endless


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """One kernel, copy or operator."""

    name: str
    start_us: float
    end_us: float
    self_us: float  # without what it called itself


def kernels(work: Callable[[], object], *, device: torch.device) -> list[Ran]:
    """What ran in one call of `work`, in the order of its start.

    Args:
        work: queued on the device; waited for.
        device: whose work is wanted.
    """
    gpu = device.type == "cuda"
    activity = torch.profiler.ProfilerActivity.CUDA if gpu else torch.profiler.ProfilerActivity.CPU
    devices.settle(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the profiler, about cycles that are not kept
        with torch.profiler.profile(activities=[activity]) as seen:
            work()
            devices.settle(device)
        events = seen.events()
    wanted = torch.autograd.DeviceType.CUDA if gpu else torch.autograd.DeviceType.CPU
    ran = [
        Ran(
            name=event.name[:_NAME_LENGTH],
            start_us=event.time_range.start,
            end_us=event.time_range.end,
            self_us=event.time_range.elapsed_us() if gpu else event.self_cpu_time_total,
        )
        for event in events
        if event.device_type == wanted and not event.is_user_annotation
    ]
    return sorted(ran, key=lambda one: one.start_us)


def by_name(ran: Sequence[Ran]) -> list[dict[str, object]]:
    """Milliseconds and calls of every name, the longest first."""
    ms: dict[str, float] = {}
    calls: dict[str, int] = {}
    for one in ran:
        ms[one.name] = ms.get(one.name, 0.0) + one.self_us / 1e3
        calls[one.name] = calls.get(one.name, 0) + 1
    return [{"name": name, "ms": ms[name], "calls": calls[name]} for name in sorted(ms, key=lambda n: -ms[n])]


def gaps(ran: Sequence[Ran]) -> list[dict[str, object]]:
    """When nothing ran, by what ended before and what began after it: in milliseconds, the longest first.

    Args:
        ran: in the order of its start; of several streams, whatever runs on any of them fills a gap.
    """
    found: dict[tuple[str, str], list[float]] = {}
    last: Ran | None = None
    for one in ran:
        if last is not None and one.start_us > last.end_us:
            found.setdefault((last.name, one.name), []).append((one.start_us - last.end_us) / 1e3)
        if last is None or one.end_us > last.end_us:
            last = one
    return [
        {"before": before, "after": after, "ms": sum(ms), "calls": len(ms), "largest_ms": max(ms)}
        for (before, after), ms in sorted(found.items(), key=lambda item: -sum(item[1]))
    ]
