"""The lane's thread and its helpers: who takes which order, and how an order's end is told.

The lane's thread only receives and hands on. `pull`, `abort` and `drain` are taken at once by
threads of their own; everything else waits in the main thread's queue, in the lane's order.
"""

from __future__ import annotations

import os
import threading
from typing import Final

from dflash_runner import log
from dflash_runner.errors import Kind, WorkerError, describe, is_survivable, kind_of
from dflash_runner.lane import LANE_EXIT_CODE, Lane, LaneClosed, LaneError
from dflash_runner.orders import Abort, CreateArena, Drain, MapArena, Order, Pull, Train
from dflash_runner.replies import Created, Drained, Failed, Mapped, Reply
from dflash_runner.worker.faults import Faults
from dflash_runner.worker.loop import Helper, Loop, Task
from dflash_runner.worker.role import Role

ORPHAN_EXIT_CODE: Final = 71
"""The supervisor is gone, or closed the lane: nothing this process does has a reader."""


class Inbox:
    """Receives orders and sees that each gets its final reply."""

    def __init__(self, lane: Lane, *, loop: Loop, faults: Faults) -> None:
        """Keep the parts; nothing runs before `start`.

        Args:
            lane: this worker's; only this object receives from it.
            loop: the main thread's queue.
            faults: struck where an order begins.
        """
        self._lane = lane
        self._loop = loop
        self._faults = faults
        self._copier = Helper("copy")
        self._aborter = Helper("abort")
        self._mu = threading.Lock()  # guards below
        self._role: Role | None = None
        self._draining = False

    def start(self) -> None:
        """Start the lane's thread; it ends with the process, or ends the process."""
        threading.Thread(target=self._receive, name="lane", daemon=True).start()

    def certify(self, role: Role) -> None:
        """From now on orders are taken: `role` has its certificate (I1)."""
        with self._mu:
            self._role = role

    def drain(self, answer: Drain | None) -> None:
        """Finish what runs, refuse all that waits or comes later, and end the main loop.

        Args:
            answer: the order, or None where a signal or the host asked.
        """
        with self._mu:
            first, self._draining = not self._draining, True
        if first or answer is not None:
            self._loop.put(lambda: self._end(answer))

    def _end(self, answer: Drain | None) -> None:
        """The drain's own task, on the main thread."""
        self._copier.settle()
        self._aborter.settle()
        with self._mu:
            role = self._role
        if role is not None:
            role.settle()
        if answer is not None:
            self._send(Drained(seq=answer.seq))
        self._loop.finish()

    def _receive(self) -> None:
        """The lane's thread: until the lane ends, and the process with it."""
        try:
            while True:
                order, fd = self._lane.receive()
                self._route(order, fd)
        except LaneClosed:
            log.info("the lane was closed")
            os._exit(ORPHAN_EXIT_CODE)
        except LaneError as err:
            broken(err)

    def _route(self, order: Order, fd: int | None) -> None:
        """Hand one order to the thread that takes it."""
        if isinstance(order, Drain):
            self.drain(order)
            return
        with self._mu:
            role = self._role
        if isinstance(order, Abort) and role is not None:
            self._aborter.put(lambda: self._abort(role, order))
        elif isinstance(order, Pull):
            self._copier.put(
                lambda: self._answer(order, None, lambda: _sure(role).pull(order, send=self._send))
            )
        elif isinstance(order, MapArena):
            self._answer(order, fd, lambda: self._map(role, order, fd))
        elif isinstance(order, CreateArena):
            self._answer(order, None, lambda: self._create(role, order))
        else:
            work = lambda: _sure(role).work(order, fd=fd, send=self._send)  # noqa: E731
            strike = not isinstance(order, Train)  # its role does: a loss that is no number is made there
            self._loop.put(lambda: self._answer(order, fd, work, strike=strike))

    def _map(self, role: Role | None, order: MapArena, fd: int | None) -> None:
        """Map an arena and say so."""
        if fd is None:
            raise AssertionError("the lane gives an arena order its descriptor")
        _sure(role).map_arena(order, fd=os.dup(fd))  # the arena closes its own
        self._send(Mapped(seq=order.seq, arena=order.arena))

    def _create(self, role: Role | None, order: CreateArena) -> None:
        """Have an arena made and hand its descriptor over; the arena's mapping needs it no more."""
        fd = _sure(role).create_arena(order)
        try:
            self._send(Created(seq=order.seq, arena=order.arena), fd)
        finally:
            os.close(fd)

    def _abort(self, role: Role, order: Abort) -> None:
        """Unstick the main thread, then let it drop the step and answer."""

        def interrupt() -> None:
            role.interrupt(order)
            finish = lambda: role.work(order, fd=None, send=self._send)  # noqa: E731
            self._loop.put(lambda: self._answer(order, None, finish, strike=False))

        self._answer(order, None, interrupt)

    def _answer(self, order: Order, fd: int | None, work: Task, *, strike: bool = True) -> None:
        """Do an order; where it raises and the worker can go on, the final reply is `failed`.

        Args:
            order: what is answered.
            fd: closed at the end.
            work: does and answers it.
            strike: whether a fault on purpose may happen here.
        """
        try:
            with self._mu:
                draining = self._draining
            if draining:
                raise WorkerError(Kind.CANCELED, f"{name_of(order)}: the worker is draining")
            if strike:
                self._faults.reach(name_of(order), step=getattr(order, "step", None))
            work()
        except LaneError as err:
            broken(err)
        except LaneClosed:
            os._exit(ORPHAN_EXIT_CODE)
        except Exception as err:
            if is_survivable(err):
                self._fail(order, err)
                return
            if kind_of(err) is Kind.FATAL:
                self._fail(order, err)  # the supervisor learns why before it sees the end
            raise
        finally:
            if fd is not None:
                os.close(fd)

    def _fail(self, order: Order, err: Exception) -> None:
        """Tell that an order failed."""
        failure = describe(err)
        log.warn("an order failed", kind=failure.kind.label, err=failure.message, order=name_of(order))
        self._send(
            Failed(
                seq=order.seq,
                kind=failure.kind.label,
                message=failure.message,
                hint=failure.hint,
                traceback=list(failure.traceback),
            )
        )

    def _send(self, reply: Reply, fd: int | None = None) -> None:
        """Send one reply; a lane that is closed ends the process."""
        try:
            self._lane.send(reply, fd)
        except LaneClosed:
            os._exit(ORPHAN_EXIT_CODE)
        except LaneError as err:
            broken(err)


def name_of(order: Order) -> str:
    """The order's name on the wire."""
    return str(order.__struct_config__.tag)


def broken(err: LaneError) -> None:
    """End the process: the lane's rules were broken, and nothing on it can be trusted."""
    log.error("the lane's rules were broken", err=str(err))
    os._exit(LANE_EXIT_CODE)


def _sure(role: Role | None) -> Role:
    """The role, once it has its certificate.

    Raises:
        WorkerError: unavailable before (I1).
    """
    if role is None:
        raise WorkerError(Kind.UNAVAILABLE, "take order: want a certificate first, got none")
    return role
