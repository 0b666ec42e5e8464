"""One plugin's process: its handshake, its server, its end."""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from dflash_runner.scheduler import pair

if TYPE_CHECKING:
    import grpc

    from dflash_runner.scheduler.calls import Calls
    from dflash_runner.scheduler.plugin import Scheduler

COOKIE_NAME = "DFLASH_RUNNER_SCHEDULER"  # these agree with plugins/scheduler/serve.go
COOKIE_VALUE = "5b1f0c6e9d274a83"
PROTOCOL_VERSION = 1
MAX_MESSAGE_BYTES = 32 << 20
ORPHAN_EXIT_CODE = 75
_THREADS = 16  # held for life: standard output's, the events', two streams of questions
_STOP_GRACE_S = 0.5
_WINDOW_BYTES = 4 << 20  # of a question that may be under way


def serve(scheduler: Scheduler) -> None:
    """Answer the host until it says so; it is a plugin's whole main.

    Returns when the host ends the plugin. Ends the process with 1 where the program was not started
    by a host, and where the host is gone.

    Args:
        scheduler: not configured yet.

    Source: go-plugin 1.8.0, client.go and server.go (handshake), mtls.go.
    """
    refusal = _why_no_plugin(os.environ)
    if refusal:
        sys.stderr.write(refusal + "\n")
        sys.exit(1)
    own = pair.take(os.environ)
    handshake_fd = _take_stdout()
    _end_with_the_host()
    ending = _Ending()
    faulthandler.enable(file=2)
    for number in (
        signal.SIGINT,
        signal.SIGUSR1,
    ):  # Ctrl-C is the host's; batch systems send the other to all
        signal.signal(number, signal.SIG_IGN)
    ending.by(signal.SIGTERM)
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # fork handlers deadlock (grpc#22624)
    from dflash_runner.scheduler.calls import Calls  # after the refusal: a person waits for no import

    calls = Calls(scheduler)
    server, line = _listen(calls, own, ending.set)
    os.write(handshake_fd, line.encode() + b"\n")
    os.close(handshake_fd)
    ending.wait()
    server.stop(_STOP_GRACE_S).wait()
    sys.stdout.flush()
    sys.stderr.flush()
    if calls.running:  # the interpreter's end would wait for them
        os._exit(0)


class _Ending:
    """That the process is to end, as a byte in a pipe.

    An event would not do: a signal's handler that sets it may interrupt the main thread where that
    holds the event's lock, or right before it waits, and then waits for ever.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._numbers: tuple[int, ...] = (0,)

    def set(self) -> None:
        """End; from any thread."""
        os.write(self._write, b"\0")

    def by(self, number: int) -> None:
        """End at a signal, which writes its number. Called by the main thread."""
        signal.signal(number, lambda _number, _frame: None)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._numbers = (*self._numbers, number)

    def wait(self) -> None:
        """Return once it is to end; a plugin's own signals are passed over."""
        while os.read(self._read, 1)[0] not in self._numbers:
            pass


def _why_no_plugin(environment: Mapping[str, str]) -> str:
    """What to tell who started this program, or nothing where it was a host."""
    if environment.get(COOKIE_NAME) != COOKIE_VALUE:
        return (
            "This is a scheduling plugin of dflash-runner: a run starts it, and it is of no use alone.\n"
            f"Try `dflash-runner plugins test {sys.argv[0]}`."
        )
    for name in ("PLUGIN_UNIX_SOCKET_DIR", "PLUGIN_CLIENT_CERT", pair.VARIABLE):
        if not environment.get(name):
            return f"start plugin: {name}: want it of the host, got nothing"
    return ""


def _take_stdout() -> int:
    """A private descriptor of standard output; whatever prints from now on goes to standard error."""
    fd = os.dup(1)
    os.set_inheritable(fd, False)
    os.dup2(2, 1)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)
    return fd


def _end_with_the_host() -> None:
    """End this process when its parent ends, without looking again and again."""
    parent = os.getppid()
    try:
        fd = os.pidfd_open(parent)
    except ProcessLookupError:
        os._exit(ORPHAN_EXIT_CODE)
    if os.getppid() != parent:
        os._exit(ORPHAN_EXIT_CODE)

    def watch() -> None:
        select.select([fd], [], [])
        os._exit(ORPHAN_EXIT_CODE)

    threading.Thread(target=watch, name="host", daemon=True).start()


def _listen(calls: Calls, own: pair.Pair, shut_down: Callable[[], None]) -> tuple[grpc.Server, str]:
    """A server that answers the host alone, and the line that tells it where.

    Args:
        calls: what is answered.
        own: what this process shows the host.
        shut_down: called when the host ends the plugin.

    Raises:
        RuntimeError: the socket cannot be made.
    """
    from concurrent import futures

    import grpc

    from dflash_runner.scheduler import goplugin

    credentials = grpc.ssl_server_credentials(
        [(own.key, own.certificate)],
        root_certificates=os.environ["PLUGIN_CLIENT_CERT"].encode(),
        require_client_auth=True,
    )
    path = os.path.join(os.environ["PLUGIN_UNIX_SOCKET_DIR"], f"plugin-{os.getpid()}.sock")
    server = grpc.server(
        futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="call"),
        options=(
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ("grpc.so_reuseport", 0),
            ("grpc.http2.bdp_probe", 0),  # a ping for nearly every question, to measure a window
            ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
        ),
    )
    server.add_generic_rpc_handlers((calls.handler(), *goplugin.handlers(shut_down)))
    server.add_secure_port(f"unix:{path}", credentials)
    server.start()
    line = f"1|{PROTOCOL_VERSION}|unix|{path}|grpc|{own.announced}"
    return server, line + ("|false" if "PLUGIN_MULTIPLEX_GRPC" in os.environ else "")
