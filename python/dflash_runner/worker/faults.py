"""Faults on purpose, for the supervisor's tests: `DFLASH_RUNNER_FAULT` names them.

The variable holds faults separated by commas, each `WORKER:POINT:COUNT:WHAT[:GENERATION]`:

- WORKER is `target/0`, `drafter/1` or `*`.
- POINT is an order's type (`train`, `produce`, `pull`, `commit`, `image`, ...), or that of a step
  (`train@3`), or `configure`, `warm_up`; before the worker knows its name, only `*:start`, which
  comes before the handshake.
- COUNT says at which one, from 1; those of a step are counted apart.
- WHAT is `exit` (code 3), `raise` (an uncaught error), `refuse` (`failed`, and the worker goes on),
  `sigkill`, `hang` (for ever, lock released), `deadlock` (for ever, on a lock of its own), `spin` (for
  ever, holding the interpreter lock), `nan` (only `train`: the loss is not a number), `oom` (memory until
  killed, at most 4 GiB), or `device_oom` (more memory of the GPU than it has).
- GENERATION is 1 where it is left out: a restarted worker is well again. `*` is any.

Unset, as in every real run, nothing here does anything.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections import Counter
from dataclasses import dataclass

from dflash_runner.errors import Kind, WorkerError

VARIABLE = "DFLASH_RUNNER_FAULT"
NAN = "nan"
_WHATS = ("exit", "raise", "refuse", "sigkill", "hang", "deadlock", "spin", NAN, "oom", "device_oom")
_EXIT_CODE = 3
_OOM_CHUNK_BYTES = 16 << 20
_OOM_LIMIT_BYTES = 4 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One fault, as the variable names it."""

    worker: str
    point: str
    count: int
    what: str
    generation: str


class Faults:
    """The faults of this process; without any, every call is a cheap no."""

    def __init__(self, text: str) -> None:
        """Read the variable's value.

        Raises:
            ValueError: a fault that is none.
        """
        self._faults = tuple(_parse(part) for part in text.split(",") if part)
        self._mu = threading.Lock()  # guards below
        self._name = "*"
        self._generation = "1"
        self._seen: Counter[str] = Counter()

    def name(self, worker: str, *, generation: int) -> None:
        """Tell which worker this is, as soon as it is known."""
        with self._mu:
            self._name, self._generation = worker, str(generation)

    def reach(self, point: str, *, step: int | None = None) -> str:
        """What is to happen at `point` and the caller must do itself (`nan`), or nothing.

        Every other fault that is due here happens in this call.

        Args:
            point: an order's type, or a phase.
            step: that the order names.

        Raises:
            WorkerError: for `refuse`.
            RuntimeError: for `raise`.
        """
        if not self._faults:
            return ""
        with self._mu:
            points = [point] if step is None else [point, f"{point}@{step}"]
            self._seen.update(points)
            due = [fault for fault in self._faults for at in points if self._is_due(fault, at)]
        for fault in due:
            if fault.what == NAN:
                return NAN
            _strike(fault)
        return ""

    def _is_due(self, fault: Fault, point: str) -> bool:
        """Whether `fault` is for this worker, life, point and time."""
        return (
            fault.point == point
            and fault.worker in ("*", self._name)
            and fault.generation in ("*", self._generation)
            and fault.count == self._seen[point]
        )


def from_environment() -> Faults:
    """The faults that the environment names.

    Raises:
        ValueError: a fault that is none.
    """
    return Faults(os.environ.get(VARIABLE, ""))


def _parse(text: str) -> Fault:
    """One fault of the list."""
    parts = text.split(":")
    if len(parts) == 4:
        parts.append("1")
    if len(parts) != 5 or not parts[2].isdecimal() or parts[3] not in _WHATS:
        raise ValueError(f"{VARIABLE}: want WORKER:POINT:COUNT:WHAT[:GENERATION], got {text!r}")
    worker, point, count, what, generation = parts
    return Fault(worker=worker, point=point, count=int(count), what=what, generation=generation)


def _strike(fault: Fault) -> None:
    """Do what `fault` says; returns for none but a memory hog that outlived its hoard."""
    where = f"fault at {fault.point} {fault.count}, as {VARIABLE} says"
    sys.stderr.write(f"{where}: {fault.what}\n")
    sys.stderr.flush()
    if fault.what == "exit":
        os._exit(_EXIT_CODE)
    if fault.what == "raise":
        raise RuntimeError(where)
    if fault.what == "refuse":
        raise WorkerError(Kind.UNAVAILABLE, where)
    if fault.what == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault.what == "hang":
        while True:  # in slices, so that signal handlers still run
            threading.Event().wait(1.0)
    if fault.what == "deadlock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()  # no handler of Python's runs any more
    if fault.what == "spin":
        while True:  # one call into C that never gives the interpreter lock back
            re.match(r"(a+)+$", "a" * 64 + "b")
    if fault.what == "device_oom":
        _exhaust_device(where)
    _hoard(where)


def _hoard(where: str) -> None:
    """Take memory until the kernel kills this process, which is made its first choice."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    hoard = []
    for _ in range(_OOM_LIMIT_BYTES // _OOM_CHUNK_BYTES):
        hoard.append(bytearray(b"\x01") * _OOM_CHUNK_BYTES)
    raise WorkerError(Kind.EXHAUSTED, f"{where}: {_OOM_LIMIT_BYTES} bytes were taken and nobody minded")


def _exhaust_device(where: str) -> None:
    """Ask for twice the GPU's memory, in plain allocations as any tensor is one.

    Raises:
        Exception: torch's own for a GPU without so much memory.
    """
    import torch

    free, total = torch.cuda.mem_get_info()
    taken = torch.empty(2 * total, dtype=torch.uint8, device="cuda")
    raise WorkerError(Kind.EXHAUSTED, f"{where}: {taken.nbytes} of {free} free bytes were given")
