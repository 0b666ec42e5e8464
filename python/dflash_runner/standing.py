"""Where a drafter stands: lineage, communicator, step and chain, and which orders fit.

The main thread moves it; the abort thread may only end the communicator. An order that names
another place is stale and changes nothing.
"""

from __future__ import annotations

import threading

from dflash_runner.communicator import Communicator
from dflash_runner.errors import Kind, WorkerError
from dflash_runner.frames import Place
from dflash_runner.orders import Abort, Commit, Image, Join, Load, Train

NO_CHAIN = bytes(32)


class Standing:
    """The place of one drafter. Source: proto/lane.md, Rules."""

    def __init__(self) -> None:
        """A fresh drafter: step 0 of no lineage."""
        self._mu = threading.Lock()  # guards below
        self._communicator: Communicator | None = None
        self._number = 0  # of the last communicator joined
        self._aborted = 0  # highest number that was aborted
        self._lineage = 0
        self._step = 0
        self._chain = NO_CHAIN
        self._micro = 0  # micro-steps of the open step that are done
        self._voted = False
        self._broken = False  # a micro-step failed half way: only an abort helps

    @property
    def step(self) -> int:
        """The step that the parameters are at."""
        with self._mu:
            return self._step

    @property
    def chain(self) -> bytes:
        """Its chain."""
        with self._mu:
            return self._chain

    def join(self, order: Join, communicator: Communicator) -> None:
        """Take `communicator` for the one that an abort ends; the last one must be gone.

        Raises:
            WorkerError: stale, where the order does not fit or was aborted already.
        """
        with self._mu:
            older = order.lineage < self._lineage or order.communicator <= max(self._number, self._aborted)
            if older or order.step != self._step:
                raise self._stale("join", order)
            self._communicator, self._number, self._lineage = communicator, order.communicator, order.lineage
            self._micro, self._voted, self._broken = 0, False, False

    def train(self, order: Train) -> Communicator:
        """The open communicator, for the next micro-step.

        Raises:
            WorkerError: stale, where the order does not fit; invalid, where it is out of turn.
        """
        with self._mu:
            fits = (order.lineage, order.communicator) == (self._lineage, self._number)
            if not fits or order.step != self._step + 1 or self._communicator is None:
                raise self._stale("train", order)
            if order.micro != self._micro or self._voted or self._broken:
                done = f"{self._micro} done" + (", and the vote" if self._voted else "")
                done += ", and one failed" if self._broken else ""
                raise WorkerError(
                    Kind.INVALID, f"train step {order.step}: micro-step {order.micro}: want the next, {done}"
                )
            return self._communicator

    def trained(self, *, voted: bool) -> None:
        """A micro-step is done, and with `voted` the sum."""
        with self._mu:
            self._micro += 1
            self._voted = voted

    def failed(self) -> None:
        """A micro-step failed: what it left of the gradient is only good for dropping."""
        with self._mu:
            self._broken = True

    def commit(self, order: Commit) -> bool:
        """Whether the optimiser is to be applied; false for a commit that was applied already.

        Raises:
            WorkerError: stale, where the order does not fit, or this rank did not vote.
        """
        with self._mu:
            fits = (order.lineage, order.communicator) == (self._lineage, self._number)
            if order.lineage == self._lineage and order.step == self._step and order.chain == self._chain:
                return False
            if not fits or order.step != self._step + 1 or not self._voted:
                raise self._stale("commit", order)
            return True

    def committed(self, order: Commit) -> None:
        """The optimiser was applied."""
        with self._mu:
            self._step, self._chain, self._micro, self._voted = order.step, order.chain, 0, False

    def interrupt(self, order: Abort) -> None:
        """End the communicator at once; called on the abort thread.

        Raises:
            WorkerError: stale, where the order names a step that is not open or an older
                communicator or lineage.
        """
        with self._mu:
            if (
                order.lineage < self._lineage
                or order.communicator < self._number
                or order.step != self._step + 1
            ):
                raise self._stale("abort", order)
            self._aborted = max(self._aborted, order.communicator)
            if self._communicator is not None:
                self._communicator.abort()

    def aborted(self) -> Communicator | None:
        """The communicator that ended, to be closed; the open step is dropped."""
        with self._mu:
            ended, self._communicator = self._communicator, None
            self._micro, self._voted, self._broken = 0, False, False
            return ended

    def image(self, order: Image) -> None:
        """Check that the state to be saved is the one that is meant.

        A fresh drafter, which belongs to no lineage yet, is at step 0 of every one.

        Raises:
            WorkerError: stale.
        """
        with self._mu:
            if (
                order.lineage != (self._lineage or order.lineage)
                or order.communicator < self._number
                or order.step != self._step
            ):
                raise self._stale("image", order)

    def load(self, order: Load) -> None:
        """Check that a load is not one of the past.

        Raises:
            WorkerError: stale.
        """
        with self._mu:
            if order.lineage < self._lineage or order.communicator < self._number:
                raise self._stale("load", order)

    def loaded(self, order: Load, *, chain: bytes) -> Communicator | None:
        """The state is another; whatever was open is dropped, its communicator to be closed."""
        with self._mu:
            self._lineage, self._step, self._chain = order.lineage, order.step, chain
            self._micro, self._voted, self._broken = 0, False, False
            ended, self._communicator = self._communicator, None
            return ended

    def _stale(self, doing: str, order: Place) -> WorkerError:
        """The refusal of an order that names another place; the lock is held."""
        voted = ", voted" if self._voted else ""
        group = "open" if self._communicator is not None else "none open"
        return WorkerError(
            Kind.STALE,
            f"{doing}: got lineage {order.lineage} communicator {order.communicator} step {order.step}, "
            f"stand at lineage {self._lineage} communicator {self._number} ({group}) "
            f"step {self._step}{voted}",
        )
