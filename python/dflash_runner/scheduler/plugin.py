"""The class that every plugin extends."""
# ruff: noqa: ARG002 a class that overrides a method uses its argument

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dflash_runner.scheduler.errors import Error, Kind
from dflash_runner.scheduler.requests import (
    ArrangeRequest,
    AssignRequest,
    Event,
    FailureRequest,
    PlaceRequest,
    Verdict,
    Worker,
)
from dflash_runner.scheduler.schema import Config, Field

API_VERSION = 1
"""The version of the questions. Messages are only added to, so that an older plugin keeps working."""


class Capability(enum.Enum):
    """What a plugin may be asked, named as the method that answers."""

    PLACE = "place"
    ARRANGE = "arrange"
    ASSIGN = "assign"
    ON_FAILURE = "on_failure"
    OBSERVE = "observe"


@dataclass(frozen=True, kw_only=True, slots=True)
class Info:
    """Who a plugin is."""

    name: str  # as in the host's catalog: a-z, 0-9 and '-', at most 64
    version: str  # for people


class Scheduler:
    """A plugin: override what it decides; the rest stays with the built-in.

    `info`, `schema` and `configure` come first, one at a time. Then questions come from several
    threads at a time: hold a lock around whatever a method changes. An exception is an answer that
    was not given; `Error` says why in the host's words.
    """

    name = ""
    version = ""

    def info(self) -> Info:
        """Who this is; the same always. It must answer without a configuration."""
        return Info(name=self.name, version=self.version)

    def schema(self) -> Sequence[Field]:
        """The keys of the configuration; none."""
        return ()

    def configure(self, config: Config) -> None:
        """Take the configuration, once, before any question. An exception refuses it: the plugin is not used.

        Args:
            config: every key of the schema, checked against it.
        """

    def arrange(self, request: ArrangeRequest) -> Sequence[int]:
        """`min(count, P)` samples of the pool, each at most as often as it stands there.

        Asked again for the next part of the epoch. An arrangement is journaled: a resumed run does
        not ask for it again.
        """
        raise _lacks(Capability.ARRANGE)

    def assign(self, request: AssignRequest) -> Worker:
        """One of the free targets. Asked only where there are several."""
        raise _lacks(Capability.ASSIGN)

    def place(self, request: PlaceRequest) -> Mapping[Worker, str]:
        """The id of a device for every worker of the needs."""
        raise _lacks(Capability.PLACE)

    def on_failure(self, request: FailureRequest) -> Verdict:
        """What is done about a worker's death."""
        raise _lacks(Capability.ON_FAILURE)

    def observe(self, event: Event) -> None:
        """Be told what happens: from one thread, in order. While it does not return, more are lost.

        An exception is noted in the log, and the next event is told.
        """
        raise _lacks(Capability.OBSERVE)


def capabilities(of: Scheduler) -> tuple[Capability, ...]:
    """What the plugin's class overrides, in a fixed order."""
    mine = type(of)
    return tuple(c for c in Capability if getattr(mine, c.value) is not getattr(Scheduler, c.value))


def _lacks(capability: Capability) -> Error:
    return Error(Kind.NOT_FOUND, f"{capability.value}: this plugin does not do that")
