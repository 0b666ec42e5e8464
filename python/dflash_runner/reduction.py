"""The sum of one step's gradient over the ranks, bucket by bucket, while the backward goes on."""

from __future__ import annotations

from torch import Tensor

from dflash_runner.communicator import Communicator
from dflash_runner.flat import Layout


class Reduction:
    """Which sums of a step were begun.

    Every rank begins the same sums in the same order: a bucket when all its gradients have come and every
    bucket before it was begun, and at the end what is left, the tensors that do not decay and the weight
    last. A rank without a row begins all of them at the end.

    `arrived` runs on autograd's thread while the main thread waits in the backward, the rest on the main
    thread: never two at once.
    """

    def __init__(self, gradient_P: Tensor, layout: Layout) -> None:
        """Cut the gradient; nothing is open.

        Args:
            gradient_P: the flat gradient with the weight behind it; written by the sums.
            layout: of the gradient.
        """
        self._buckets = layout.buckets
        self._parts = [gradient_P[bucket.low : bucket.high] for bucket in layout.buckets]
        self._parts.append(gradient_P[layout.decayed :])
        self._bucket_of = {name: at for at, bucket in enumerate(self._buckets) for name in bucket.names}
        self.drop()

    @property
    def is_open(self) -> bool:
        """Whether sums may be under way that nobody has waited for."""
        return self._communicator is not None

    def open(self, communicator: Communicator) -> None:
        """The step's last backward is about to begin: from now on a complete bucket is summed."""
        if self._communicator is not None:
            raise AssertionError("open reduction: want none open, got one that was neither ended nor dropped")
        self._communicator = communicator
        self._awaited = [set(bucket.names) for bucket in self._buckets]

    def arrived(self, name: str) -> None:
        """The gradient of a parameter is complete and in its place.

        Raises:
            WorkerError: as `Communicator.begin` says; the backward then ends with it.
        """
        if self._communicator is None or name not in self._bucket_of:
            return
        awaited = self._awaited[self._bucket_of[name]]
        if name not in awaited:
            raise AssertionError(f"sum gradients: {name} came twice in one backward: its sum may be wrong")
        awaited.remove(name)
        while self._begun < len(self._awaited) and not self._awaited[self._begun]:
            self._begin(self._communicator)

    def finish(self, communicator: Communicator) -> None:
        """Begin what is left, and wait for all of it.

        Raises:
            WorkerError: unavailable, where a peer is gone or the group was aborted; the gradient is then
                undefined and this stays open.
        """
        if self._communicator is None:
            self.open(communicator)
        if self._communicator is not communicator:
            raise AssertionError("finish reduction: want the communicator that it was opened with")
        while self._begun < len(self._parts):
            self._begin(communicator)
        communicator.finish()
        self.drop()

    def drop(self) -> None:
        """Forget the step; what was begun must have ended."""
        self._communicator: Communicator | None = None
        self._awaited: list[set[str]] = []
        self._begun = 0

    def _begin(self, communicator: Communicator) -> None:
        part = self._parts[self._begun]
        self._begun += 1
        communicator.begin(part)
