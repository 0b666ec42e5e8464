"""The orders of the supervisor: one struct each, as proto/lane.md lists them; see `frames`."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

from dflash_runner.frames import (
    SLOT_HEADER_BYTES,
    U32,
    U64,
    ArenaKind,
    Digest,
    Frame,
    Handle,
    Place,
    RowOrder,
    What,
    require,
)


class MapArena(Frame, frozen=True, kw_only=True, tag="arena"):
    """Map the arena whose descriptor travels along. Reply: `Mapped`."""

    arena: U32
    kind: ArenaKind
    write: bool
    slots: U32
    slot_bytes: U64

    def __post_init__(self) -> None:
        """Refuse an arena without a number, slots or room for a header."""
        Frame.__post_init__(self)
        _require_slots(self)


class CreateArena(Frame, frozen=True, kw_only=True, tag="create"):
    """Allocate, map and export an arena on this worker's GPU. Reply: `Created`, with its descriptor."""

    arena: U32
    kind: Literal["cuda_vmm"]
    slots: U32
    slot_bytes: U64

    def __post_init__(self) -> None:
        """Refuse an arena without a number, slots or room for a header."""
        Frame.__post_init__(self)
        _require_slots(self)


class Produce(RowOrder, frozen=True, kw_only=True, tag="produce"):
    """Make a row in a slot. Reply: `Produced`."""

    arena: U32
    slot: U32
    version: U64

    def __post_init__(self) -> None:
        """Refuse arena 0 and version 0, which mean none."""
        RowOrder.__post_init__(self)
        require(self.arena >= 1 and self.version >= 1, "arena, version: want at least 1")


class Pull(RowOrder, frozen=True, kw_only=True, tag="pull"):
    """Copy a row out of a slot. Reply: `Pulled`."""

    handle: Handle


class Join(Place, frozen=True, kw_only=True, tag="join"):
    """Make a communicator. Reply: `Joined`."""

    world: U32
    rank: U32

    def __post_init__(self) -> None:
        """Refuse a rank outside the world."""
        Place.__post_init__(self)
        require(self.rank < self.world, f"rank: want below world = {self.world}, got {self.rank}")


class Train(Place, frozen=True, kw_only=True, tag="train"):
    """Run one micro-step; row 0 is a weightless place. Reply: `Trained`, and `Voted` where `last`."""

    micro: U32
    row: U64
    last: bool


class Commit(Place, frozen=True, kw_only=True, tag="commit"):
    """Apply the optimiser. Reply: `Committed`."""

    lr: float
    chain: Digest

    def __post_init__(self) -> None:
        """Refuse a learning rate that is not finite or is negative."""
        Place.__post_init__(self)
        require(math.isfinite(self.lr) and self.lr >= 0, f"lr: want finite and not negative, got {self.lr}")


class Abort(Place, frozen=True, kw_only=True, tag="abort"):
    """Drop the open step. Reply: `Aborted`."""


class Image(Place, frozen=True, kw_only=True, tag="image"):
    """Write the state into the memfd that travels along where `write`. Replies: `Taken`, then `Saved`."""

    write: bool
    nbytes: U64

    def __post_init__(self) -> None:
        """Refuse an empty image."""
        Place.__post_init__(self)
        require(self.nbytes >= 1 or not self.write, "nbytes: want at least 1")


class Load(Place, frozen=True, kw_only=True, tag="load"):
    """Take the state from the image that travels along. Reply: `Loaded`."""

    nbytes: U64

    def __post_init__(self) -> None:
        """Refuse an empty image."""
        Place.__post_init__(self)
        require(self.nbytes >= 1, "nbytes: want at least 1")


class Evaluate(Frame, frozen=True, kw_only=True, tag="evaluate"):
    """Decode or score; the image travels along where `nbytes` > 0. Reply: `Evaluated`."""

    step: U64
    what: What
    first: U32
    count: U32
    new_tokens: U32
    nbytes: U64

    def __post_init__(self) -> None:
        """Refuse an order for nothing."""
        Frame.__post_init__(self)
        require(self.count >= 1, "count: want at least 1")


class Drain(Frame, frozen=True, kw_only=True, tag="drain"):
    """Finish what is running and exit 0. Reply: `Drained`."""


Order: TypeAlias = (
    MapArena | CreateArena | Produce | Pull | Join | Train | Commit | Abort | Image | Load | Evaluate | Drain
)


def needs_fd(order: Order) -> bool:
    """Whether a descriptor travels with `order`.

    Source: proto/lane.md, Orders.
    """
    if isinstance(order, Image):
        return order.write
    if isinstance(order, Evaluate):
        return order.nbytes > 0
    return isinstance(order, MapArena | Load)


def _require_slots(order: MapArena | CreateArena) -> None:
    """Raise `ValueError` for an arena without a number, slots or room for a header."""
    require(order.arena >= 1 and order.slots >= 1, "arena, slots: want at least 1")
    require(order.slot_bytes >= SLOT_HEADER_BYTES, "slot_bytes: want at least 64")
