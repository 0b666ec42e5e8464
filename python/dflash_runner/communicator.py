"""One numbered group of drafters that sums gradients, and its end from another thread.

The sum runs over gloo on loopback, with a fresh FileStore per communicator. gloo's own `abort`
does nothing on CPU (measured, torch 2.11): a rank whose peer lives but never joins the sum waits
for its whole timeout. So an abort shuts down the group's own connections, which ends the wait
within milliseconds on this rank and on every peer. Until all ranks have arrived nothing of gloo
is made at all: arriving is a key in the store, polled here, where an abort is seen.
"""

from __future__ import annotations

import os
import socket
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dflash_runner.errors import Kind, WorkerError

_CONNECT_TIMEOUT = timedelta(seconds=20)  # every rank has arrived by then: only connecting is left
SUM_TIMEOUT = timedelta(hours=24)  # the supervisor has the deadline, and aborts
_POLL_S = 0.002


class Communicator:
    """A group of `world` ranks, made by `open` on the main thread; `abort` comes from any thread."""

    overlaps = False
    """Whether sums run beside what else the caller's device does, so that begun early they cost less."""

    def __init__(self, directory: str, *, number: int, world: int, rank: int) -> None:
        """Name the group; nothing is made before `open`.

        Args:
            directory: where the group's store lies, as a file named by the number.
            number: rises with every group of a run.
            world: ranks in the group; with 1 nothing is made and a sum is the value itself.
            rank: this process's place, below `world`.

        Raises:
            ValueError: a rank outside the world.
        """
        if not 0 <= rank < world:
            raise ValueError(f"join communicator {number}: want a rank below world {world}, got {rank}")
        self.number = number
        self.world = world
        self.rank = rank
        self._path = Path(directory) / str(number)
        self._group: dist.ProcessGroupGloo | None = None
        self._sums: list[Any] = []  # begun and not waited for
        self._aborted = threading.Event()
        self._mu = threading.Lock()  # guards below
        self._connections: list[socket.socket] = []

    def open(self) -> None:
        """Wait for every rank and connect to all of them.

        Raises:
            WorkerError: unavailable, where the group was aborted or could not be connected.

        Source: README, How it works (a communicator uses a fresh FileStore in the run's directory).
        """
        if self.world == 1:
            return
        store = self._arrive()
        options = dist.ProcessGroupGloo._Options()  # noqa: SLF001 torch has no public name for it
        options._timeout = _CONNECT_TIMEOUT  # noqa: SLF001
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]  # noqa: SLF001
        before = _sockets()
        try:
            self._group = dist.ProcessGroupGloo(store, self.rank, self.world, options)
        except RuntimeError as err:
            raise self._lost("connect to peers", err) from err
        self._adopt(_sockets() - before)

    def is_aborted(self) -> bool:
        """Whether the group was ended."""
        return self._aborted.is_set()

    def _arrive(self) -> dist.FileStore:
        """The group's store, once every rank has arrived; an abort is seen meanwhile."""
        if not self._path.parent.is_dir():  # the store would try to open its file for ever
            where = self._path.parent
            raise WorkerError(Kind.NOT_FOUND, f"join communicator {self.number}: no directory {where}")
        store = dist.FileStore(str(self._path), self.world)
        store.set_timeout(_CONNECT_TIMEOUT)  # a peer may die between arriving and giving its address
        store.set(f"arrived/{self.rank}", b"1")
        others = [f"arrived/{rank}" for rank in range(self.world)]
        while not store.check(others):
            if self._aborted.wait(_POLL_S):
                raise self._lost("wait for peers", None)
        return store

    def sum(self, values: torch.Tensor) -> None:
        """Add up `values` over all ranks, in place, to the same bits on every rank.

        Args:
            values: a contiguous float32 tensor of equal size on every rank.

        Raises:
            WorkerError: unavailable, where a peer died or the group was aborted; `values` is
                then undefined.

        Source: README, How it works (one sum, of gradients and of the loss weight).
        """
        self.begin(values)
        self.finish()

    def begin(self, values: torch.Tensor) -> None:
        """Begin to add up `values`, as `sum` does; until `finish` they are undefined.

        From the main thread, or from autograd's while the main thread waits for it. Every rank begins the
        same sums in the same order.

        Raises:
            WorkerError: unavailable, where a peer died or the group was aborted.
        """
        if self._aborted.is_set():
            raise self._lost("sum over peers", None)
        if self.world == 1:
            return
        if self._group is None:
            raise WorkerError(Kind.UNAVAILABLE, f"sum over communicator {self.number}: it is not open")
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.SUM
        options.timeout = SUM_TIMEOUT
        try:
            self._sums.append(self._group.allreduce([values], options))
        except RuntimeError as err:
            raise self._lost("sum over peers", err) from err

    def finish(self) -> None:
        """Wait for every sum that was begun; on the main thread.

        Raises:
            WorkerError: unavailable, where a peer died or the group was aborted; the values of all of them
                are then undefined, and nothing writes into them any more.
        """
        err = self._await_sums()
        if err is not None:
            raise self._lost("sum over peers", err) from err
        if self._aborted.is_set():
            raise self._lost("sum over peers", None)

    def _await_sums(self) -> RuntimeError | None:
        """Wait until no sum is under way; the first error."""
        sums, self._sums = self._sums, []
        first = None
        for begun in sums:
            try:
                begun.wait()
            except RuntimeError as err:
                first = first or err
        return first

    def abort(self) -> None:
        """End the group at once, from any thread: whoever waits in it raises, here and elsewhere."""
        self._aborted.set()
        with self._mu:
            connections, self._connections = self._connections, []
        for connection in connections:
            _shut(connection)

    def close(self) -> None:
        """Give the group up, on the main thread, when nothing runs in it any more."""
        self.abort()
        self._await_sums()  # they have failed, but gloo's threads may not have left the values yet
        self._group = None

    def _adopt(self, numbers: set[int]) -> None:
        """Keep the group's connections, so that an abort can shut them down."""
        connections = [found for number in sorted(numbers) if (found := _loopback(number)) is not None]
        if len(connections) < self.world - 1:
            for connection in connections:
                connection.close()
            raise self._lost("connect to peers", None)
        with self._mu:
            self._connections = connections
        if self._aborted.is_set():  # it came while the group was being made
            self.abort()
            raise self._lost("connect to peers", None)

    def _lost(self, doing: str, cause: BaseException | None) -> WorkerError:
        """The error of a group that ended, by an abort or by a peer's end."""
        why = "it was aborted" if self._aborted.is_set() else f"a peer is gone ({cause or 'not connected'})"
        return WorkerError(Kind.UNAVAILABLE, f"{doing} of communicator {self.number}: {why}")


def _sockets() -> set[int]:
    """The numbers of this process's descriptors that are sockets."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                found.add(int(name))
        except OSError:
            continue  # the listing's own descriptor, or one closed meanwhile
    return found


def _loopback(number: int) -> socket.socket | None:
    """An own descriptor of `number` where it is a connection over loopback, else None.

    A duplicate shuts down the same connection, and its number cannot come to mean another.
    """
    try:
        connection = socket.socket(fileno=os.dup(number))
    except OSError:
        return None
    try:
        if connection.family == socket.AF_INET and connection.getpeername()[0] == "127.0.0.1":
            return connection
    except OSError:
        pass  # listening, or closed by the peer already
    connection.close()
    return None


def _shut(connection: socket.socket) -> None:
    """Shut down and close one connection, which may have ended by itself."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    connection.close()
