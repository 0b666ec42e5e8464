"""The entry of a worker: `python -m dflash_runner.serve`, started by the supervisor as a plugin.

The first acts have an order. Standard output is taken away before anything can print to it, since
any byte before the handshake line breaks the handshake. The line is printed as soon as the gRPC
server listens, long before torch is imported, so that a slow import is not a slow start. Threads
beside the main one only put work into its queue: all torch work, the import included, is done here.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from dflash_runner.config import Configuration
    from dflash_runner.worker.faults import Faults
    from dflash_runner.worker.role import Role

COOKIE_NAME = "DFLASH_RUNNER_WORKER"  # these three agree with plugins/worker/handshake.go
COOKIE_VALUE = "39f0a4c2b1d64a0c"
PROTOCOL_VERSION = 1
DEATH_FD = 3
LANE_FD = 4
_EXIT_NOT_A_PLUGIN = 1


def main() -> int:
    """The process's exit code, when the worker drained; every other end leaves from within.

    Source: go-plugin 1.8.0, client.go and server.go (handshake); README, How it works.
    """
    handshake_fd = take_stdout()
    refusal = why_not_a_plugin(os.environ)
    if refusal:
        sys.stderr.write(refusal + "\n")
        return _EXIT_NOT_A_PLUGIN
    set_defaults(os.environ)
    from dflash_runner import log  # after the cookie: a person who starts this by hand waits for nothing
    from dflash_runner.worker.process import Process

    log.install_excepthook()
    process = Process(build=build, death_fd=DEATH_FD, lane_fd=LANE_FD)
    address = process.listen(os.environ["PLUGIN_UNIX_SOCKET_DIR"])
    greet(handshake_fd, address, multiplexed="PLUGIN_MULTIPLEX_GRPC" in os.environ)
    return process.run()


def take_stdout() -> int:
    """A private descriptor of standard output; whatever prints from now on goes to standard error.

    The copy is closed on exec, so that no child holds the supervisor's pipe open.
    """
    fd = os.dup(1)
    os.set_inheritable(fd, False)
    os.dup2(2, 1)
    return fd


def why_not_a_plugin(environment: os._Environ[str] | dict[str, str]) -> str:
    """What to tell who started this program, or nothing where it was the supervisor.

    Args:
        environment: of this process.

    Returns:
        Text for a person, or an empty string.
    """
    if environment.get(COOKIE_NAME) != COOKIE_VALUE:
        return (
            "This is a worker of dflash-runner: it is started by the supervisor and is of no use alone.\n"
            "Run `dflash-runner up` instead."
        )
    if not environment.get("PLUGIN_UNIX_SOCKET_DIR"):
        return "start worker: PLUGIN_UNIX_SOCKET_DIR: want a directory for the socket, got none"
    return ""


def set_defaults(environment: MutableMapping[str, str]) -> None:
    """Settings that libraries read when they are imported; what is there already wins.

    Args:
        environment: of this process, before torch and gRPC are imported.
    """
    environment.setdefault("OMP_WAIT_POLICY", "passive")  # spinning cost 17 x under load
    environment.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # fork handlers deadlock (grpc#22624)
    said = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & environment.keys()
    if environment.get("CUDA_VISIBLE_DEVICES") and not said:
        # warm-up's buckets leave holes that a fixed segment cannot use for a longer row
        environment["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"


def greet(fd: int, address: str, *, multiplexed: bool) -> None:
    """Print the handshake line and give standard output up.

    Args:
        fd: from `take_stdout`; closed.
        address: path of the unix socket.
        multiplexed: whether the host knows the seventh field; this side never multiplexes.

    Source: go-plugin docs/internals.md: core|version|network|address|protocol|certificate|multiplex.
    """
    line = f"1|{PROTOCOL_VERSION}|unix|{address}|grpc|" + ("|false" if multiplexed else "")
    os.write(fd, line.encode() + b"\n")
    os.close(fd)


def build(configuration: Configuration, faults: Faults) -> Role:
    """The configured role; imports torch, so only the main thread calls it.

    Args:
        configuration: checked.
        faults: for the role's own points.

    Raises:
        ValueError: the configuration does not fit the model or the data.
        WorkerError: a file is missing, or memory.
    """
    import time

    start = time.perf_counter()
    from dflash_runner.config import Role as Roles

    if configuration.role is Roles.TARGET:
        from dflash_runner.target import TargetRole

        return TargetRole(configuration, started=start)
    from dflash_runner.drafter import DrafterRole

    return DrafterRole(configuration, faults=faults, started=start)


def leave() -> NoReturn:
    """Run the worker and end the process without the interpreter's own end.

    That would wait for gRPC threads that hold their streams for life.
    """
    try:
        code = main()
    except BaseException:  # noqa: BLE001 whatever it is, it is reported and ends the process
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave()
