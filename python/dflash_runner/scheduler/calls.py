"""How questions travel: gRPC's calls around a plugin's service, and what they say of errors."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NoReturn

import grpc

from dflash_runner.scheduler.errors import Error, Kind, told
from dflash_runner.scheduler.plugin import Scheduler
from dflash_runner.scheduler.requests import Deadline
from dflash_runner.scheduler.service import Service
from dflash_runner.scheduler.v1 import scheduler_pb2 as pb

SERVICE = "dflash_runner.scheduler.v1.Scheduler"
KIND_TRAILER = "dflash-runner-kind"  # these agree with plugins/scheduler/errors.go
HINT_TRAILER = "dflash-runner-hint-bin"
_NO_DEADLINE_S = 3600.0
_CODES = {
    Kind.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    Kind.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Kind.EXHAUSTED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Kind.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    Kind.CANCELED: grpc.StatusCode.CANCELLED,
}


class Calls:
    """Every call of one server."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._service = Service(scheduler)
        self._lock = threading.Lock()  # around _running
        self._running = 0

    @property
    def running(self) -> int:
        """How many questions are being answered now."""
        with self._lock:
            return self._running

    def handler(self) -> grpc.GenericRpcHandler:
        """What a server is given."""
        s = self._service
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Info": self._unary(s.info, pb.InfoRequest),
                "ConfigSchema": self._unary(s.schema, pb.ConfigSchemaRequest),
                "Configure": self._unary(s.configure, pb.ConfigureRequest),
                "Vitals": self._unary(s.vitals, pb.VitalsRequest),
                "Arrange": self._unary(s.arrange, pb.ArrangeRequest),
                "Assign": self._unary(s.assign, pb.AssignRequest),
                "Place": self._unary(s.place, pb.PlaceRequest),
                "OnFailure": self._unary(s.on_failure, pb.OnFailureRequest),
                "Observe": self._stream(s.observe, pb.Event, pb.ObserveReply),
                "Ask": self._questions({"arrange": s.arrange, "assign": s.assign}),
            },
        )

    def _unary(self, answer: Callable[[Any, Deadline], Any], request: Any) -> grpc.RpcMethodHandler:
        def ask(message: Any, context: grpc.ServicerContext) -> Any:
            return self._answer(lambda: answer(message, _deadline(context)), partial(_refuse, context))

        return grpc.unary_unary_rpc_method_handler(ask, request.FromString, _serialize)

    def _stream(self, tell: Callable[[Any], None], message: Any, reply: Any) -> grpc.RpcMethodHandler:
        def take(messages: Iterator[Any], context: grpc.ServicerContext) -> Any:
            return self._answer(lambda: each(messages, context), partial(_refuse, context))

        def each(messages: Iterator[Any], context: grpc.ServicerContext) -> Any:
            for event in _until_gone(messages, context):
                try:
                    tell(event)
                except Exception:  # noqa: BLE001 what a plugin does not bear is lost to it alone
                    traceback.print_exc()
            return reply()

        return grpc.stream_unary_rpc_method_handler(take, message.FromString, _serialize)

    def _questions(self, answers: Mapping[str, Callable[[Any, Deadline], Any]]) -> grpc.RpcMethodHandler:
        """A stream's questions, one after another in one thread: handing each over costs as much as it."""

        def reply(question: Any, context: grpc.ServicerContext) -> Any:
            kind = question.WhichOneof("question")
            if kind not in answers:
                raise Error(Kind.NOT_FOUND, "ask: want arrange or assign, got another question")
            deadline = Deadline(at_s=time.monotonic() + question.deadline_ms / 1000, wanted=context.is_active)
            message = answers[kind](getattr(question, kind), deadline)
            return pb.Answer(number=question.number, **{kind: message})

        def ask(messages: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            for question in _until_gone(messages, context):
                yield self._answer(partial(reply, question, context), partial(_refusal, question.number))

        return grpc.stream_stream_rpc_method_handler(ask, pb.Question.FromString, _serialize)

    def _answer(self, answer: Callable[[], Any], refuse: Callable[[Error], Any]) -> Any:
        """The answer, or a refusal that says why; the traceback goes to the plugin's log."""
        with self._lock:
            self._running += 1
        try:
            return answer()
        except Exception as error:  # noqa: BLE001 the edge: whatever a plugin raises is told
            if not isinstance(error, Error):
                traceback.print_exc()
            return refuse(told(error))
        except BaseException as error:  # noqa: BLE001 a thread's end would leave the host waiting
            _leave(error)
        finally:
            with self._lock:
                self._running -= 1


def _serialize(reply: Any) -> bytes:
    return reply.SerializeToString()


def _deadline(context: grpc.ServicerContext) -> Deadline:
    """Until when the host waits."""
    left = context.time_remaining()
    return Deadline(
        at_s=time.monotonic() + (_NO_DEADLINE_S if left is None else left), wanted=context.is_active
    )


def _until_gone(messages: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
    """The messages of a stream until it is closed or broken: either is the host's end of it."""
    while True:
        try:
            message = next(messages)
        except StopIteration:
            return
        except grpc.RpcError:
            if context.is_active():
                raise
            return
        yield message


def _refusal(number: int, error: Error) -> Any:
    """Answer a stream's question with the kind and hint of an error."""
    refusal = pb.Refusal(kind=error.kind.label, message=error.message, hint=error.hint)
    return pb.Answer(number=number, refusal=refusal)


def _refuse(context: grpc.ServicerContext, error: Error) -> NoReturn:
    """End a call with the kind and hint of an error."""
    trailers: list[tuple[str, str | bytes]] = [(KIND_TRAILER, error.kind.label)]
    if error.hint:
        trailers.append((HINT_TRAILER, error.hint.encode()))
    context.set_trailing_metadata(tuple(trailers))
    context.abort(_CODES.get(error.kind, grpc.StatusCode.INTERNAL), error.message)


def _leave(error: BaseException) -> NoReturn:
    """End the process as a plugin's sys.exit wants it, which raises on a thread of gRPC's."""
    code: Any = 1
    if isinstance(error, SystemExit):
        code = error.code or 0
        if not isinstance(code, int):
            sys.stderr.write(f"{code}\n")
            code = 1
    else:
        traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
