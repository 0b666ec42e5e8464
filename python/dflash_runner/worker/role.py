"""What a role, target or drafter, does for the worker that holds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from dflash_runner.certificate import Certificate, Progress
from dflash_runner.orders import Abort, CreateArena, MapArena, Order, Pull
from dflash_runner.replies import Reply

Send = Callable[[Reply], None]
"""Sends one reply on the lane, from any thread."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """What a role is, once it is built."""

    parameters: int
    parameters_digest: bytes
    slot_bytes: int
    image_bytes: int


class Role(Protocol):
    """One role's work. Each method says on which thread it is called.

    What any of them raises becomes `failed` where `errors.is_survivable` holds and the end of the
    process elsewhere; a `LaneError` ends it with the lane's exit code.
    """

    def built(self) -> Built:
        """What `Configure` answers; called once, on the main thread."""

    def warm_up(self, progress: Callable[[Progress], None]) -> Certificate:
        """Run every planned shape; called once, on the main thread, before any order."""

    def map_arena(self, order: MapArena, *, fd: int) -> None:
        """Map an arena; called on the lane's thread, as copies may follow at once."""

    def create_arena(self, order: CreateArena) -> int:
        """Make an arena and give its descriptor, which is the caller's; called on the lane's thread."""

    def pull(self, order: Pull, *, send: Send) -> None:
        """Copy a row; called on the copy thread."""

    def interrupt(self, order: Abort) -> None:
        """End what the main thread may be stuck in; called on the abort thread, at once.

        The main thread calls `work` with the same order afterwards.
        """

    def work(self, order: Order, *, fd: int | None, send: Send) -> None:
        """Do any other order and answer it; called on the main thread, in the lane's order.

        Args:
            order: not one of the above, or an `Abort` after its interruption.
            fd: the descriptor that came along; closed by the caller once this returns.
            send: for the replies, also after this returned.
        """

    def settle(self) -> None:
        """Wait until nothing runs beside the main thread any more; called on it, before the end."""
