"""The replies of a worker: one struct each, as proto/lane.md lists them; see `frames`."""

from __future__ import annotations

import math
from typing import Annotated, Final, TypeAlias

import msgspec

from dflash_runner.frames import (
    U32,
    U64,
    Digest,
    Frame,
    Handle,
    KindName,
    Place,
    Prompt,
    RowLoss,
    What,
    float_of,
    require,
)

MAX_MESSAGE_BYTES: Final = 2048
MAX_HINT_BYTES: Final = 1024
MAX_TRACEBACK_LINES: Final = 40
MAX_TRACEBACK_LINE_BYTES: Final = 300
NO_DIGEST: Final = bytes(32)


class Mapped(Frame, frozen=True, kw_only=True, tag="mapped"):
    """Answers `MapArena`."""

    arena: U32

    def __post_init__(self) -> None:
        """Refuse arena 0, which means none."""
        Frame.__post_init__(self)
        require(self.arena >= 1, "arena: want at least 1")


class Created(Frame, frozen=True, kw_only=True, tag="created"):
    """Answers `CreateArena`; the arena's descriptor travels along."""

    arena: U32

    def __post_init__(self) -> None:
        """Refuse arena 0, which means none."""
        Frame.__post_init__(self)
        require(self.arena >= 1, "arena: want at least 1")


class Produced(Frame, frozen=True, kw_only=True, tag="produced"):
    """Answers `Produce`: the copy into the slot is complete."""

    row: U64
    handle: Handle
    busy_us: U64

    def __post_init__(self) -> None:
        """Refuse row 0, which means none."""
        Frame.__post_init__(self)
        require(self.row >= 1, "row: want at least 1")


class Pulled(Frame, frozen=True, kw_only=True, tag="pulled"):
    """Answers `Pull`: the slot is free again."""

    row: U64
    busy_us: U64

    def __post_init__(self) -> None:
        """Refuse row 0, which means none."""
        Frame.__post_init__(self)
        require(self.row >= 1, "row: want at least 1")


class Joined(Frame, frozen=True, kw_only=True, tag="joined"):
    """Answers `Join`."""

    communicator: U32


class Trained(Frame, frozen=True, kw_only=True, tag="trained"):
    """Answers `Train` after the device is done: the turn is free."""

    step: U64
    micro: U32
    row: U64
    busy_us: U64


class Voted(Place, frozen=True, kw_only=True, tag="voted"):
    """Follows the last `Trained` of a step; `weight` and `norm` are float32 bits."""

    rows: list[RowLoss]
    weight: U32
    norm: U32
    finite: bool

    def __post_init__(self) -> None:
        """Refuse a vote that calls itself finite and is not."""
        Place.__post_init__(self)
        figures = [float_of(self.weight), float_of(self.norm)]
        for row in self.rows:
            figures += (row.numerator, row.denominator)
        require(
            not self.finite or all(map(math.isfinite, figures)),
            "finite: want false where a figure is not finite, got true",
        )


class Committed(Frame, frozen=True, kw_only=True, tag="committed"):
    """Answers `Commit`."""

    step: U64


class Aborted(Frame, frozen=True, kw_only=True, tag="aborted"):
    """Answers `Abort`; `clean`: the device's context was proved usable."""

    step: U64
    clean: bool


class Taken(Frame, frozen=True, kw_only=True, tag="taken"):
    """Answers `Image` first: the state is copied, and may change."""

    step: U64
    busy_us: U64


class Saved(Frame, frozen=True, kw_only=True, tag="saved"):
    """Follows `Taken`; `image` is `NO_DIGEST` where nothing was written."""

    step: U64
    written: bool
    image: Digest
    parameters: Digest
    busy_us: U64

    def __post_init__(self) -> None:
        """Refuse the digest of an image that was not written."""
        Frame.__post_init__(self)
        require(self.written or self.image == NO_DIGEST, "image: want zeros where nothing was written")


class Loaded(Frame, frozen=True, kw_only=True, tag="loaded"):
    """Answers `Load`."""

    step: U64
    chain: Digest
    parameters: Digest


class Evaluated(Frame, frozen=True, kw_only=True, tag="evaluated"):
    """Answers `Evaluate`; figures are sums over the prompts."""

    step: U64
    what: What
    tokens: U64
    forwards: U64
    busy_us: U64
    lossless: bool
    numerator: float
    denominator: float
    prompts: list[Prompt]


class Drained(Frame, frozen=True, kw_only=True, tag="drained"):
    """Answers `Drain`; the worker exits 0."""


class Failed(Frame, frozen=True, kw_only=True, tag="failed"):
    """Answers any order that could not be done; `errors.describe` keeps its bounds."""

    kind: KindName
    message: str
    hint: str
    traceback: Annotated[list[str], msgspec.Meta(max_length=MAX_TRACEBACK_LINES)]

    def __post_init__(self) -> None:
        """Refuse texts beyond the bounds, in bytes of UTF-8."""
        Frame.__post_init__(self)
        _bound("message", self.message, MAX_MESSAGE_BYTES)
        _bound("hint", self.hint, MAX_HINT_BYTES)
        for index, line in enumerate(self.traceback):
            _bound(f"traceback[{index}]", line, MAX_TRACEBACK_LINE_BYTES)


Reply: TypeAlias = (
    Mapped
    | Created
    | Produced
    | Pulled
    | Joined
    | Trained
    | Voted
    | Committed
    | Aborted
    | Taken
    | Saved
    | Loaded
    | Evaluated
    | Drained
    | Failed
)


def reply_needs_fd(reply: Reply) -> bool:
    """Whether a descriptor travels with `reply`.

    Source: proto/lane.md, Replies.
    """
    return isinstance(reply, Created)


def _bound(name: str, text: str, limit_bytes: int) -> None:
    """Raise `ValueError` where `text` takes more than `limit_bytes`."""
    size = len(text.encode())
    require(size <= limit_bytes, f"{name}: want at most {limit_bytes} bytes, got {size}")
