"""Log lines for the supervisor: one hclog JSON object a line, on standard error.

The message is a constant lowercase phrase; what varies goes into fields with the fixed keys
of the house style: worker role rank generation step row slot version device kind err dur_ms bytes.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from types import TracebackType

_LINE_BYTES = 60 * 1024  # below the 64 KiB at which go-plugin splits a line
_TRACEBACK_LINES = 200
_TRACEBACK_LINE_CHARS = 300
_STDERR = 2

_lock = threading.Lock()  # keeps lines whole between threads: pipes are atomic up to 4 KiB only


def info(message: str, **fields: object) -> None:
    """Say that state changed."""
    write("info", message, fields)


def warn(message: str, **fields: object) -> None:
    """Say that something is degraded, but decided."""
    write("warn", message, fields)


def error(message: str, **fields: object) -> None:
    """Say that a human should look."""
    write("error", message, fields)


def debug(message: str, **fields: object) -> None:
    """Say anything else."""
    write("debug", message, fields)


def write(level: str, message: str, fields: dict[str, object]) -> None:
    """Write one line to standard error, whole, however many threads write.

    A supervisor that is gone does not end the worker here: the death pipe does.

    Args:
        level: "debug", "info", "warn" or "error".
        message: a constant lowercase phrase.
        fields: what varies; values that JSON does not know are written as text.
    """
    raw = format_line(level, message, fields, time.time()) + b"\n"
    with _lock:
        view = memoryview(raw)
        while view:
            try:
                view = view[os.write(_STDERR, view) :]
            except OSError:
                return


def format_line(level: str, message: str, fields: dict[str, object], now: float) -> bytes:
    """One log line as go-plugin parses it, without the newline.

    Args:
        level: hclog's name of the level.
        message: the constant phrase.
        fields: further keys; those starting with `@` are refused, being hclog's own.
        now: seconds since the epoch.

    Returns:
        UTF-8 JSON of one object, at most 60 KiB; a longer one is replaced by its level,
        message and the size that did not fit.

    Raises:
        ValueError: a field's name starts with `@`.

    Source: go-plugin log_entry.go (layout 2006-01-02T15:04:05.000000Z07:00).
    """
    for key in fields:
        if key.startswith("@"):
            raise ValueError(f"log field {key}: names starting with @ belong to hclog")
    head = {"@level": level, "@message": message, "@timestamp": _timestamp(now)}
    raw = json.dumps(head | fields, default=str, ensure_ascii=True).encode()
    if len(raw) > _LINE_BYTES:
        raw = json.dumps(head | {"bytes_dropped": len(raw)}).encode()
    return raw


def install_excepthook() -> None:
    """Report an uncaught exception, of any thread, as one log line and as a plain traceback.

    The line carries `traceback`, a list of lines, which the supervisor puts into its report of
    the death. An exception in a thread beside the main one ends the process with code 1: a
    worker that lost a thread would look alive and answer nothing.
    """
    sys.excepthook = report
    threading.excepthook = _report_thread


def report(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
    """Write the line and the plain traceback of an uncaught exception.

    Args:
        kind: the exception's class.
        value: the exception.
        trace: where it was raised.
    """
    text = "".join(traceback.format_exception(kind, value, trace))
    lines = [line[:_TRACEBACK_LINE_CHARS] for line in text.rstrip("\n").split("\n")]
    fields = {"err": f"{kind.__name__}: {value}"[:2048], "traceback": lines[-_TRACEBACK_LINES:]}
    write("error", "uncaught exception", fields)
    sys.stderr.write(text)
    sys.stderr.flush()


def _report_thread(hook: threading.ExceptHookArgs) -> None:
    """End the process after an exception in a thread, reported as any other."""
    if hook.exc_value is not None:
        report(hook.exc_type, hook.exc_value, hook.exc_traceback)
    os._exit(1)


def _timestamp(now: float) -> str:
    """`now` in UTC, microseconds always written, as go-plugin's fixed layout wants it."""
    whole = int(now)
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))
    return f"{text}.{int((now - whole) * 1e6):06d}Z"
