"""Errors that cross a boundary: one closed set of kinds, the same in Go and Python.

A user's mistake is a `ValueError`, a broken invariant an `AssertionError`, and everything
that another process is to judge by its kind a `WorkerError`.
"""

from __future__ import annotations

import enum
import traceback
from dataclasses import dataclass

_MESSAGE_BYTES = 2048
_HINT_BYTES = 1024
_TRACEBACK_LINES = 40
_TRACEBACK_LINE_BYTES = 300
_DEVICE_FAULTS = (
    *("CUDA error", "CUDA driver error", "Triton Error [CUDA]", "device-side assert"),
    *("CUBLAS_STATUS_", "CUSOLVER_STATUS_", "CUDNN_STATUS_", "cuDNN error", "NCCL error"),
)
"""In messages of torch and triton after which the device's context is of no use any more."""


class Kind(enum.IntEnum):
    """The class of an error; closed and append-only, numbers equal to `runner.Kind` in Go."""

    INTERNAL = 0
    INVALID = 1
    NOT_FOUND = 2
    EXHAUSTED = 3
    STALE = 4
    UNAVAILABLE = 5
    CANCELED = 6
    FATAL = 7

    @property
    def label(self) -> str:
        """The name used in frames, logs and JSON."""
        return self.name.lower()


class WorkerError(Exception):
    """An error with a kind, a lowercase message and, where it helps, what to do."""

    def __init__(self, kind: Kind, message: str, *, hint: str = "") -> None:
        """Keep the parts; `message` says the verb first, what was expected, got, and where."""
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.hint = hint


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """What is told of an error on the lane; every part is within the frame's bounds."""

    kind: Kind
    message: str
    hint: str
    traceback: tuple[str, ...]


def kind_of(error: BaseException) -> Kind:
    """The kind of `error`.

    Args:
        error: any exception.

    Returns:
        The kind it carries; `INVALID` for a `ValueError`, `NOT_FOUND` for a missing file,
        `EXHAUSTED` for memory or disk, `FATAL` for a CUDA fault, and `INTERNAL` for the rest.

    Source: runner/errors.go (closed kinds; fatal is any CUDA fault, as CUDA errors stick).
    """
    if isinstance(error, WorkerError):
        return error.kind
    if isinstance(error, ValueError):
        return Kind.INVALID
    if isinstance(error, FileNotFoundError):
        return Kind.NOT_FOUND
    if isinstance(error, MemoryError) or _is_out_of_memory(error):
        return Kind.EXHAUSTED
    if type(error).__name__ == "AcceleratorError" or any(mark in str(error) for mark in _DEVICE_FAULTS):
        return Kind.FATAL
    return Kind.INTERNAL


def is_survivable(error: BaseException) -> bool:
    """Whether a worker may take further orders after `error`.

    A mistake of the peer, a stale order, a lost communicator or memory that could not be had leave
    the worker's state as it was; a bug or a device fault may not, and the process must be replaced.

    Args:
        error: what ended an order.

    Returns:
        True for a `WorkerError` that is not fatal, for a `ValueError`, and for what the system
        refused (memory, disk, a missing file).

    Source: proto/lane.md `failed`.
    """
    if isinstance(error, WorkerError):
        return error.kind is not Kind.FATAL
    return kind_of(error) not in (Kind.FATAL, Kind.INTERNAL)


def describe(error: BaseException) -> Failure:
    """What is told of `error` on the lane, cut to the frame's bounds.

    Args:
        error: any exception, with its traceback if it was raised.

    Returns:
        The failure; of a long traceback the last lines are kept, which name the place.

    Source: proto/lane.md, the bounds of `failed`.
    """
    lines = [line for part in traceback.format_exception(error) for line in part.rstrip("\n").split("\n")]
    message = str(error) or type(error).__name__
    if not isinstance(error, ValueError | WorkerError):
        message = f"{type(error).__name__}: {error}"
    return Failure(
        kind=kind_of(error),
        message=clip(message, _MESSAGE_BYTES),
        hint=clip(getattr(error, "hint", ""), _HINT_BYTES),
        traceback=tuple(clip(line, _TRACEBACK_LINE_BYTES) for line in lines[-_TRACEBACK_LINES:]),
    )


def clip(text: str, limit_bytes: int) -> str:
    """`text` cut to at most `limit_bytes` of UTF-8, marked with an ellipsis where it was cut.

    Args:
        text: any text; lone surrogates are replaced.
        limit_bytes: at least 3, the size of the mark.

    Returns:
        The text, or its head and the mark.
    """
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit_bytes:
        return raw.decode("utf-8")
    return raw[: limit_bytes - 3].decode("utf-8", "ignore") + "…"


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether torch or the system ran out of memory, without importing torch to ask."""
    if type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError):
        return error.errno in (12, 28)  # ENOMEM, ENOSPC
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
