"""What go-plugin asks of every plugin over gRPC: health, an orderly end, and standard output.

Written by hand against the wire, as each is one message with at most one field.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import grpc

PLUGIN_NAME = b"plugin"  # the name that go-plugin's Ping asks for
_SERVING = b"\x08\x01"  # HealthCheckResponse{status: SERVING}
_EMPTY = b""

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.http2.max_ping_strikes", 0),  # the sign of life is a ping every second: never a GOAWAY
    ("grpc.http2.min_ping_interval_without_data_ms", 10),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_receive_message_length", 4 << 20),  # tensors travel elsewhere: more is a mistake
    ("grpc.max_send_message_length", 4 << 20),
    ("grpc.so_reuseport", 0),
)
"""Options of the server. Measured with go-plugin 1.8.0."""


def handlers(shut_down: Callable[[], None]) -> tuple[grpc.GenericRpcHandler, ...]:
    """The three services of go-plugin.

    Args:
        shut_down: called on a gRPC thread when the host ends the plugin; must return at once.

    Returns:
        Handlers for `add_generic_rpc_handlers`.

    Source: go-plugin internal/plugin/*.proto and grpc.health.v1.
    """
    ended = threading.Event()

    def stop(_request: bytes, _context: grpc.ServicerContext) -> bytes:
        ended.set()
        shut_down()
        return _EMPTY

    return (
        grpc.method_handlers_generic_handler(
            "grpc.health.v1.Health", {"Check": grpc.unary_unary_rpc_method_handler(_check)}
        ),
        grpc.method_handlers_generic_handler(
            "plugin.GRPCController", {"Shutdown": grpc.unary_unary_rpc_method_handler(stop)}
        ),
        grpc.method_handlers_generic_handler(
            "plugin.GRPCStdio", {"StreamStdio": grpc.unary_stream_rpc_method_handler(_hold)}
        ),
    )


def _check(request: bytes, context: grpc.ServicerContext) -> bytes:
    """Serving, for the plugin and for the server as a whole; other names are unknown."""
    if request not in (_EMPTY, b"\x0a" + bytes([len(PLUGIN_NAME)]) + PLUGIN_NAME):
        context.abort(grpc.StatusCode.NOT_FOUND, "check health: want service plugin")
    return _SERVING


def _hold(_request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
    """Hold the stream and send nothing: standard output and error reach the host by their pipes."""
    gone = threading.Event()
    if context.add_callback(gone.set):
        gone.wait()
    yield from ()
