"""What a plugin is asked and what it answers: frozen values, none of which refers to the host."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from dflash_runner.scheduler.pool import Pool


def _always() -> bool:
    return True


@dataclass(frozen=True, kw_only=True, slots=True)
class Deadline:
    """Until when an answer is of use; then the built-in has answered."""

    at_s: float  # on the clock of `time.monotonic`
    wanted: Callable[[], bool] = field(default=_always, repr=False, compare=False)  # false: who asked gave up

    @staticmethod
    def after(seconds: float) -> Deadline:
        """A deadline so many seconds from now."""
        return Deadline(at_s=time.monotonic() + seconds)

    @property
    def remaining_s(self) -> float:
        """Seconds that are left, at least 0."""
        return max(0.0, self.at_s - time.monotonic())

    @property
    def over(self) -> bool:
        """Whether an answer would go nowhere; a long search asks this now and then."""
        return time.monotonic() >= self.at_s or not self.wanted()


@dataclass(frozen=True, kw_only=True, slots=True)
class Worker:
    """One process of the run."""

    role: str  # "target" or "drafter"
    rank: int  # from 0, within its role


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Where samples come from."""

    name: str
    loss: float | None  # mean of late, in nats a token; None: not trained on yet, or not known


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrangeRequest:
    """Asks for the next part of an epoch's order."""

    epoch: int  # from 1
    count: int  # how many to give
    left: int  # of the epoch that were not arranged yet, the pool included
    total: int  # of the epoch
    pool: Pool
    sources: tuple[Source, ...]
    deadline: Deadline


@dataclass(frozen=True, kw_only=True, slots=True)
class AssignRequest:
    """Asks which free target makes a row."""

    row: int
    bucket: int  # tokens that the row is padded to
    tokens: int  # of its samples
    free: tuple[Worker, ...]  # at least one
    deadline: Deadline


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """How well a device reaches another."""

    id: str  # of the other
    gb_per_s: float  # 0: not measured
    peer: bool  # reads the other's memory directly


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """A GPU, or the CPU."""

    id: str  # a UUID, or "cpu"
    name: str
    memory_bytes: int
    free_bytes: int
    health: str  # healthy, degraded, critical or unknown
    node: int
    numa: int
    links: tuple[Link, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """What a worker takes on a device."""

    worker: Worker
    memory_bytes: int
    row_ms: float | None  # measured time of a row; None: not measured yet


@dataclass(frozen=True, kw_only=True, slots=True)
class PlaceRequest:
    """Asks where workers run."""

    devices: tuple[Device, ...]
    needs: tuple[Need, ...]  # one a worker
    colocate: bool  # whether two workers may share a device
    deadline: Deadline


class Decision(enum.Enum):
    """What is done about a death."""

    RESTART = "restart"  # on the same device
    REPLACE = "replace"  # on another
    STOP = "stop"  # end the run after a checkpoint


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """A decision with its device, for REPLACE, and its reason."""

    decision: Decision
    device: str = ""
    reason: str = ""  # for people


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureRequest:
    """Tells of a worker's death."""

    worker: Worker
    device: str
    cause: str  # as exit reports name it
    message: str
    deaths: int  # of this worker that count, this one included
    budget: int  # deaths after which the run gives up
    devices: tuple[Device, ...]  # where a replacement may go
    deadline: Deadline


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """What happened."""

    number: int  # rises; a gap is what was lost
    at_unix_ms: int
    level: str  # debug, info, warn or error
    name: str
    message: str
    worker: Worker | None  # None: of the run
    step: int
    row: int


def first(request: ArrangeRequest) -> list[int]:
    """The first samples of the pool, as the built-in would: `min(count, P)` of them."""
    return request.pool.first(request.count)
