"""One worker process: its server, its lane, its signals, and the main thread's loop."""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
from concurrent import futures
from pathlib import Path

import grpc

from dflash_runner import log
from dflash_runner.lane import Lane
from dflash_runner.worker import faults, plugin
from dflash_runner.worker.control import Build, Control
from dflash_runner.worker.inbox import ORPHAN_EXIT_CODE, Inbox
from dflash_runner.worker.loop import Loop
from dflash_runner.worker.v1 import worker_pb2_grpc

_MAX_WORKERS = 8  # one holds the standard output stream for life
_STOP_GRACE_S = 0.2
_ANSWER_S = 5.0  # for the answer to the call whose error ends the worker


class Process:
    """The worker, from the first act to the last."""

    def __init__(self, *, build: Build, death_fd: int, lane_fd: int) -> None:
        """Take signals and inherited descriptors; serve nothing yet.

        Args:
            build: makes the role, on the main thread.
            death_fd: reads end of file when the supervisor is gone.
            lane_fd: this worker's end of its lane.

        Raises:
            LaneError: `lane_fd` is no lane.
        """
        self._faults = faults.from_environment()
        self._faults.reach("start")
        self._loop = Loop()
        self._inbox = Inbox(Lane.from_fd(lane_fd), loop=self._loop, faults=self._faults)
        self._control = Control(self._loop, build=build, faults=self._faults, certify=self._inbox.certify)
        self._server: grpc.Server | None = None
        self._take_signals()
        os.set_inheritable(death_fd, False)
        threading.Thread(target=_watch, args=(death_fd,), name="death", daemon=True).start()

    def listen(self, directory: str) -> str:
        """The path of the socket on which the server now answers.

        Args:
            directory: private to the supervisor and its plugins.

        Raises:
            RuntimeError: the socket cannot be made there.
        """
        path = str(Path(directory) / f"worker-{os.getpid()}.sock")
        pool = futures.ThreadPoolExecutor(_MAX_WORKERS, thread_name_prefix="grpc")
        server = grpc.server(pool, options=plugin.OPTIONS)
        worker_pb2_grpc.add_WorkerServicer_to_server(self._control, server)
        server.add_generic_rpc_handlers(plugin.handlers(self._drain))
        server.add_insecure_port(f"unix:{path}")
        server.start()
        self._server = server
        return path

    def run(self) -> int:
        """The exit code, once the worker has drained; work is done here, on the main thread.

        Raises:
            Exception: one after which the worker cannot go on, once whoever waits for it was told.
        """
        self._inbox.start()
        try:
            self._loop.run()
        except Exception:
            if not self._control.settle(_ANSWER_S):
                log.error("a call was not answered before the worker's end", limit_s=_ANSWER_S)
            raise
        log.info("drained")
        if self._server is not None:
            self._server.stop(_STOP_GRACE_S).wait(2 * _STOP_GRACE_S)
        return 0

    def _drain(self) -> None:
        """The host or a signal asks for an orderly end."""
        self._inbox.drain(None)

    def _take_signals(self) -> None:
        """Stacks on SIGUSR2 and on a crash; SIGTERM drains.

        Ctrl-C is the supervisor's, and so is SIGUSR1, which batch systems send to every process.
        """
        faulthandler.enable(file=2)
        faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda _number, _frame: self._loop.put(self._drain))


def _watch(fd: int) -> None:
    """End the process when the supervisor is gone: nobody else can write to the pipe.

    The kernel kills the group as well, which also works while the interpreter lock is held; this
    is for a supervisor that could not arm the pipe.
    """
    os.set_blocking(fd, True)  # the supervisor's runtime makes its pipes non-blocking
    while os.read(fd, 1):
        pass
    os._exit(ORPHAN_EXIT_CODE)
