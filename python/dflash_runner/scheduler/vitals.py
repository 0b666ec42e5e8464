"""What this process holds, and what of it has grown."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass

_TASKS = 20  # threads more than before: some come and go by themselves
_TASKS_FEW = 3  # of fewer calls than would make that many, as one in _TASK_OF makes one
_TASK_OF = 4
_MEMORY_MIB = 64  # more: what is collected now and then stays below
_SETTLE_S = 2.0
_AGAIN_S = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Vitals:
    """What a process holds."""

    threads: int
    memory_mib: int  # resident

    def __str__(self) -> str:
        return f"{self.memory_mib} MiB, {self.threads} threads"


def now() -> Vitals:
    """What this process holds."""
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[1])
    return Vitals(threads=threading.active_count(), memory_mib=pages * os.sysconf("SC_PAGESIZE") >> 20)


def settled(before: Vitals, *, calls: int) -> Vitals:
    """What it holds once nothing has grown, or after a while: a thread may end a little after its answer."""
    until = time.monotonic() + _SETTLE_S
    while grown(before, after := now(), calls=calls) and time.monotonic() < until:
        time.sleep(_AGAIN_S)
    return after


def grown(before: Vitals, after: Vitals, *, calls: int) -> str:
    """What there is more of than may be, or nothing."""
    if after.threads - before.threads > min(_TASKS, max(calls // _TASK_OF, _TASKS_FEW)):
        return f"threads: {before.threads} before {calls} calls, {after.threads} after"
    if after.memory_mib - before.memory_mib > _MEMORY_MIB:
        return f"memory: {before.memory_mib} MiB before {calls} calls, {after.memory_mib} MiB after"
    return ""


def sight(calls: int) -> str:
    """What is too little to be seen with so few calls, or nothing."""
    if calls >= _TASKS * _TASK_OF:
        return ""
    return f"; it is slow: with {calls} calls, less than {-(-_MEMORY_MIB // calls)} MiB a call is not seen"
