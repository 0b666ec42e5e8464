"""Answers the host with a plugin's words: in messages, with no word of how they travel."""

from __future__ import annotations

import threading
from typing import Any

from dflash_runner.scheduler import words
from dflash_runner.scheduler.errors import Error, Kind
from dflash_runner.scheduler.plugin import API_VERSION, Info, Scheduler, capabilities
from dflash_runner.scheduler.requests import Deadline
from dflash_runner.scheduler.schema import Config
from dflash_runner.scheduler.v1 import scheduler_pb2 as pb


class Service:
    """The questions of the contract, each a message in and a message out."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._first = threading.Lock()  # around what comes before any question

    def info(self, _message: Any, _deadline: Deadline) -> Any:
        """Who the plugin is and what it can do.

        Raises:
            Error: INTERNAL, it gives no Info.
        """
        with self._first:
            info = self._scheduler.info()
        if not isinstance(info, Info) or not isinstance(info.name, str) or not isinstance(info.version, str):
            raise Error(Kind.INTERNAL, f"info: want an Info with two texts, got {info!r:.80}")
        able = [words.CAPABILITIES[c] for c in capabilities(self._scheduler)]
        return pb.InfoReply(
            name=info.name,
            version=info.version,
            api_versions=[API_VERSION],
            capabilities=able,
            ask=True,
            vitals=True,
        )

    def vitals(self, _message: Any, _deadline: Deadline) -> Any:
        """How many threads this interpreter started that did not end."""
        return pb.VitalsReply(threads=threading.active_count())

    def schema(self, _message: Any, _deadline: Deadline) -> Any:
        """The keys of the configuration."""
        with self._first:
            fields = self._scheduler.schema()
        return pb.ConfigSchemaReply(fields=[words.field_message(field) for field in fields])

    def configure(self, message: Any, _deadline: Deadline) -> Any:
        """Hand the configuration over.

        Raises:
            Error: INVALID, the host speaks another version.
        """
        if message.api_version != API_VERSION:
            want = f"configure: want API version {API_VERSION}"
            raise Error(Kind.INVALID, f"{want}, got {message.api_version}")
        config = Config.read(message.config, seed=message.seed)
        with self._first:
            self._scheduler.configure(config)
        return pb.ConfigureReply()

    def arrange(self, message: Any, deadline: Deadline) -> Any:
        """The next samples of an epoch."""
        samples = self._scheduler.arrange(words.arrange_request(message, deadline))
        return words.arrange_reply(samples, packed=message.HasField("columns"))

    def assign(self, message: Any, deadline: Deadline) -> Any:
        """The target of a row."""
        return words.assign_reply(self._scheduler.assign(words.assign_request(message, deadline)))

    def place(self, message: Any, deadline: Deadline) -> Any:
        """A device for every worker."""
        return words.place_reply(self._scheduler.place(words.place_request(message, deadline)))

    def on_failure(self, message: Any, deadline: Deadline) -> Any:
        """What is done about a death."""
        return words.failure_reply(self._scheduler.on_failure(words.failure_request(message, deadline)))

    def observe(self, message: Any) -> None:
        """Tell of one event."""
        self._scheduler.observe(words.event_of(message))
