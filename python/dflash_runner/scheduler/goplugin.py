"""What go-plugin asks of every plugin over gRPC: health, an orderly end, and standard output.

Written by hand against the wire, as each is one message with at most one field. A worker has its
own, as the SDK stands alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import grpc

_SERVING = b"\x08\x01"  # HealthCheckResponse{status: SERVING}
_NAMES = (
    b"",
    b"\x0a\x06plugin",
)  # HealthCheckRequest{service}: the server, and the name that go-plugin's Ping asks for


def handlers(shut_down: Callable[[], None]) -> tuple[grpc.GenericRpcHandler, ...]:
    """The three services of go-plugin.

    Args:
        shut_down: called on a gRPC thread when the host ends the plugin; must return at once.

    Source: go-plugin 1.8.0 internal/plugin/*.proto, and grpc.health.v1.
    """

    def stop(_request: bytes, _context: grpc.ServicerContext) -> bytes:
        shut_down()
        return b""

    def service(name: str, method: str, handler: grpc.RpcMethodHandler) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(name, {method: handler})

    return (
        service("grpc.health.v1.Health", "Check", grpc.unary_unary_rpc_method_handler(_check)),
        service("plugin.GRPCController", "Shutdown", grpc.unary_unary_rpc_method_handler(stop)),
        service("plugin.GRPCStdio", "StreamStdio", grpc.unary_stream_rpc_method_handler(_hold)),
    )


def _check(request: bytes, context: grpc.ServicerContext) -> bytes:
    """Serving, for the plugin and for the server as a whole; other names are unknown."""
    if request not in _NAMES:
        context.abort(grpc.StatusCode.NOT_FOUND, "check health: want service plugin")
    return _SERVING


def _hold(_request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
    """Hold the stream and send nothing: standard output and error reach the host by their pipes."""
    gone = threading.Event()
    if context.add_callback(gone.set):
        gone.wait()
    yield from ()
