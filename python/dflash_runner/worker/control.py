"""The control plane: `Describe`, `Configure` and `WarmUp` over gRPC, up to the certificate."""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, NoReturn

import grpc

from dflash_runner import log
from dflash_runner.certificate import Certificate, Progress
from dflash_runner.config import Configuration, from_message
from dflash_runner.errors import Kind, describe
from dflash_runner.worker import description
from dflash_runner.worker.faults import Faults
from dflash_runner.worker.loop import Loop
from dflash_runner.worker.role import Role
from dflash_runner.worker.v1 import worker_pb2, worker_pb2_grpc

Build = Callable[[Configuration, Faults], Role]
"""Builds a role, torch's import included; called on the main thread."""

KIND_KEY = "dflash-runner-kind"
HINT_KEY = "dflash-runner-hint-bin"
"""Trailing metadata of a call that failed: the error's kind, and its hint as UTF-8."""

_STATUS = {
    Kind.INTERNAL: grpc.StatusCode.INTERNAL,
    Kind.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    Kind.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Kind.EXHAUSTED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Kind.STALE: grpc.StatusCode.FAILED_PRECONDITION,
    Kind.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    Kind.CANCELED: grpc.StatusCode.CANCELLED,
    Kind.FATAL: grpc.StatusCode.ABORTED,
}


class Control(worker_pb2_grpc.WorkerServicer):
    """The service. Its methods run on gRPC threads, which only queue work and wait for it."""

    def __init__(self, loop: Loop, *, build: Build, faults: Faults, certify: Callable[[Role], None]) -> None:
        """Keep the parts.

        Args:
            loop: the main thread's queue.
            build: makes the role.
            faults: told the worker's name, and struck at `configure` and `warm_up`.
            certify: called on the main thread once the role has its certificate.
        """
        self._loop = loop
        self._build = build
        self._faults = faults
        self._certify = certify
        self._mu = threading.Lock()  # guards below
        self._configured = False
        self._role: Role | None = None
        self._open = 0  # calls whose answer is not out
        self._answered = threading.Condition(self._mu)

    def Describe(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: ARG002
        """Versions, device and memory; answered at once, whatever the main thread does."""
        return description.describe()

    def Configure(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Build the role on the main thread; once."""
        self._enter(context)
        with self._mu:
            again, self._configured = self._configured, True
        if again:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "configure: want one call, got another")
        return _wait(self._loop.call(lambda: self._configure(request)), context, "configure")

    def WarmUp(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: ARG002
        """Warm up on the main thread, streaming progress; once."""
        self._enter(context)
        with self._mu:
            role, self._role = self._role, None
        if role is None:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "warm up: want one call after Configure")
        progress: queue.SimpleQueue[Progress | None] = queue.SimpleQueue()
        future = self._loop.call(lambda: self._warm_up(role, progress.put))
        future.add_done_callback(lambda _: progress.put(None))
        while (at := progress.get()) is not None:
            yield worker_pb2.WarmUpReply(progress=worker_pb2.WarmUpProgress(**dataclasses.asdict(at)))
        certificate = _wait(future, context, "warm up")
        message = worker_pb2.Certificate(**dataclasses.asdict(certificate))
        yield worker_pb2.WarmUpReply(certificate=message)

    def settle(self, within_s: float) -> bool:
        """Whether every call that was begun has been answered; waits for it on the main thread.

        A worker that ends by an error would otherwise close its socket before the error is out.

        Args:
            within_s: at most so long.
        """
        with self._answered:
            return self._answered.wait_for(lambda: self._open == 0, within_s)

    def _enter(self, context: grpc.ServicerContext) -> None:
        """Count a call until it is over."""
        with self._mu:
            self._open += 1
        if not context.add_callback(self._leave):
            self._leave()

    def _leave(self) -> None:
        with self._answered:
            self._open -= 1
            self._answered.notify_all()

    def _configure(self, request: Any) -> Any:
        """Check the configuration and build the role; on the main thread."""
        configuration = from_message(request)
        name = f"{configuration.role.value}/{configuration.rank}"
        self._faults.name(name, generation=configuration.generation)
        self._faults.reach("configure")
        role = self._build(configuration, self._faults)
        built = role.built()
        with self._mu:
            self._role = role
        log.info("configured", worker=name, generation=configuration.generation, device=configuration.device)
        return worker_pb2.Configured(**dataclasses.asdict(built))

    def _warm_up(self, role: Role, progress: Callable[[Progress], None]) -> Certificate:
        """Warm up and take orders from then on; on the main thread."""
        self._faults.reach("warm_up")
        certificate = role.warm_up(progress)
        self._certify(role)
        log.info("warmed up", dur_ms=round(certificate.seconds["total"] * 1000))
        return certificate


def _wait(future: Future[Any], context: grpc.ServicerContext, doing: str) -> Any:
    """What the main thread made of it; an error ends the call with its kind, message and hint."""
    try:
        return future.result()
    except Exception as err:  # noqa: BLE001 the RPC edge: whatever it is, the supervisor is told
        _refuse(err, context, doing)


def _refuse(err: Exception, context: grpc.ServicerContext, doing: str) -> NoReturn:
    """End a call with what is known of `err`."""
    failure = describe(err)
    log.error("a call failed", kind=failure.kind.label, err=failure.message, traceback=failure.traceback)
    metadata: list[tuple[str, str | bytes]] = [(KIND_KEY, failure.kind.label)]
    if failure.hint:
        metadata.append((HINT_KEY, failure.hint.encode()))
    context.set_trailing_metadata(tuple(metadata))
    context.abort(_STATUS[failure.kind], f"{doing}: {failure.message}")
