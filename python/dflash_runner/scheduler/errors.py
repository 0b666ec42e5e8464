"""Why a plugin gives no answer: the same closed set of kinds as everywhere, and one error with a kind."""

from __future__ import annotations

import enum

_MESSAGE_BYTES = 2048  # of what travels in a header; the host shows 400
_HINT_BYTES = 1024


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
        """The name that travels."""
        return self.name.lower()


class Error(Exception):
    """Tells the host why there is no answer; any other exception is of kind internal."""

    def __init__(self, kind: Kind, message: str, *, hint: str = "") -> None:
        """Keep the parts.

        Args:
            kind: the class of the error.
            message: lowercase; what was wanted, what was got.
            hint: what a person can do, or empty.

        Raises:
            TypeError: a kind that is none.
        """
        if not isinstance(kind, Kind):
            known = ", ".join(f"Kind.{one.name}" for one in Kind)
            raise TypeError(f"kind: want one of {known}, got {kind!r} with the message {message!r}")
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.hint = hint


def told(error: Exception) -> Error:
    """What the host is told of any exception, within the bounds of what travels."""
    if isinstance(error, Error):
        return Error(error.kind, clip(error.message, _MESSAGE_BYTES), hint=clip(error.hint, _HINT_BYTES))
    return Error(Kind.INTERNAL, clip(f"{type(error).__name__}: {error}", _MESSAGE_BYTES))


def clip(text: str, limit_bytes: int) -> str:
    """`text` on one line, cut to at most `limit_bytes` of UTF-8 and marked where it was cut."""
    raw = " ".join(str(text).split()).encode("utf-8", "replace")
    if len(raw) <= limit_bytes:
        return raw.decode("utf-8")
    return raw[: limit_bytes - 3].decode("utf-8", "ignore") + "…"
